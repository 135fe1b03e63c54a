//! Kernel executions on a device.
//!
//! A capture holds millions of executions but only a few hundred distinct launch configurations, so
//! they are stored packed and read as values.

use std::ops::Deref;

use super::{call_index::LaunchId, interner::Interner, packed::PackedRows, timeline::process_of};

/// One kernel execution, joined to the call that launched it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// Short name: the function, without template arguments and parameters.
    pub name: u32,
    /// Full demangled name. Both names index [`super::timeline::Timeline::strings`].
    pub full_name: u32,
    pub device: u32,
    pub stream: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub global_pid: i64,
    /// Joins the kernel to its launching call within the process; 0 if unknown.
    pub correlation_id: i64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u32,
    /// Dynamic shared memory of a block, bytes.
    pub shared_memory: u32,
    pub graph_node: Option<u64>,
}

impl Kernel {
    /// Duration on the device, nanoseconds.
    #[inline]
    pub const fn ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }

    #[inline]
    const fn kind(&self) -> LaunchKind {
        LaunchKind {
            name: self.name,
            full_name: self.full_name,
            device: self.device,
            stream: self.stream,
            global_pid: self.global_pid,
            grid: self.grid,
            block: self.block,
            registers: self.registers,
            shared_memory: self.shared_memory,
        }
    }
}

/// A kernel execution of a trace, with the fields of its kind. Millions are read, several times, so
/// only what differs between launches is copied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TracedKernel<'a> {
    pub start_ns: i64,
    pub end_ns: i64,
    pub correlation_id: i64,
    pub graph_node: Option<u64>,
    kind: &'a LaunchKind,
}

impl TracedKernel<'_> {
    #[inline]
    pub const fn launch_id(&self) -> LaunchId {
        (process_of(self.kind.global_pid), self.correlation_id)
    }

    /// Duration on the device, nanoseconds.
    #[inline]
    pub const fn ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }
}

impl Deref for TracedKernel<'_> {
    type Target = LaunchKind;

    #[inline]
    fn deref(&self) -> &LaunchKind {
        self.kind
    }
}

impl From<TracedKernel<'_>> for Kernel {
    fn from(it: TracedKernel) -> Self {
        let LaunchKind {
            name,
            full_name,
            device,
            stream,
            global_pid,
            grid,
            block,
            registers,
            shared_memory,
        } = *it.kind;
        Self {
            name,
            full_name,
            device,
            stream,
            start_ns: it.start_ns,
            end_ns: it.end_ns,
            global_pid,
            correlation_id: it.correlation_id,
            grid,
            block,
            registers,
            shared_memory,
            graph_node: it.graph_node,
        }
    }
}

/// Fields shared by all launches of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LaunchKind {
    pub name: u32,
    pub full_name: u32,
    pub device: u32,
    pub stream: u32,
    pub global_pid: i64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub registers: u32,
    pub shared_memory: u32,
}

/// The sides of a grid or block; `None` for zeros, which stand for sides that a capture does not
/// state.
pub fn known_sides(sides: [u32; 3]) -> Option<[u32; 3]> {
    (sides != [0; 3]).then_some(sides)
}

impl LaunchKind {
    /// Blocks of the grid. A product beyond 64 bits, which only a corrupt capture has, saturates.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().fold(1, |blocks, side| blocks.saturating_mul(u64::from(*side)))
    }
}

/// First bit of a node's number if the capture has no id: the number only distinguishes nodes.
pub const UNNUMBERED_NODE: u64 = 1 << 63;
/// Marker for "no graph node": ids combine the numbers of graph and node, and never have all bits
/// set.
const NO_NODE: u64 = u64::MAX;

/// Packed list of kernels.
#[derive(Debug, Clone, Default)]
pub struct KernelTrace {
    /// Start, duration, kind, correlation id, graph node.
    rows: PackedRows<5>,
    kinds: Interner<LaunchKind>,
}

impl KernelTrace {
    #[inline]
    pub fn push(&mut self, kernel: Kernel) {
        let kind = self.kinds.number(kernel.kind());
        self.rows.push([
            kernel.start_ns,
            kernel.end_ns.wrapping_sub(kernel.start_ns),
            kind.into(),
            u32::try_from(kernel.correlation_id).unwrap_or(0).into(),
            kernel.graph_node.unwrap_or(NO_NODE).cast_signed(),
        ]);
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Removes the kernels after the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.rows = self.rows.iter().take(len).collect();
    }

    #[inline(always)]
    fn kernel(
        &self,
        [start_ns, ns, kind, correlation_id, node]: [i64; 5],
    ) -> (u32, TracedKernel<'_>) {
        let (number, node) = (kind as u32, node.cast_unsigned());
        let kernel = TracedKernel {
            start_ns,
            end_ns: start_ns.wrapping_add(ns),
            correlation_id,
            graph_node: (node != NO_NODE).then_some(node),
            kind: &self.kinds.values()[number as usize],
        };
        (number, kernel)
    }

    /// The kernel at index `at`. Sweeps use the iterators, which decode each block once.
    pub fn get(&self, at: usize) -> TracedKernel<'_> {
        self.kernel(self.rows.get(at)).1
    }

    /// Index into [`Self::kinds`] of the kernel at index `at`.
    pub fn kind(&self, at: usize) -> u32 {
        self.rows.get(at)[2] as u32
    }

    /// Distinct launch kinds, in order of first use.
    #[inline]
    pub fn kinds(&self) -> &[LaunchKind] {
        self.kinds.values()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = TracedKernel<'_>> + Clone + '_ {
        self.with_kinds().map(|(_, kernel)| kernel)
    }

    /// All kernels in about `count` parts of the same length.
    pub fn parts(
        &self,
        count: usize,
    ) -> impl Iterator<Item = impl Iterator<Item = TracedKernel<'_>>> {
        self.rows.parts(count).map(|rows| rows.map(|row| self.kernel(row).1))
    }

    /// All kernels, each after its index into [`Self::kinds`].
    pub fn with_kinds(
        &self,
    ) -> impl ExactSizeIterator<Item = (u32, TracedKernel<'_>)> + Clone + '_ {
        self.rows.iter().map(|row| self.kernel(row))
    }

    /// Sorts by start time unless already sorted.
    pub fn sort(&mut self) {
        self.rows.sort();
    }

    /// Drops each kernel that equals an earlier one in all fields and has a correlation id: a
    /// stream executes a launch once. Returns the number of dropped ones. The kernels are sorted.
    pub fn drop_repeated(&mut self) -> u64 {
        self.rows.drop_repeated(|[_, ns, _, correlation_id, _]| *ns > 0 && *correlation_id != 0)
    }

    /// A copy with `change` applied to each kernel.
    pub fn map(&self, change: impl Fn(usize, &mut Kernel)) -> Self {
        let changed = |(at, kernel): (usize, TracedKernel)| {
            let mut kernel = Kernel::from(kernel);
            change(at, &mut kernel);
            kernel
        };
        self.iter().enumerate().map(changed).collect()
    }
}

impl<K: Into<Kernel>> FromIterator<K> for KernelTrace {
    fn from_iter<I: IntoIterator<Item = K>>(kernels: I) -> Self {
        let mut packed = Self::default();
        kernels.into_iter().for_each(|kernel| packed.push(kernel.into()));
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_of_any_sides_has_a_count_of_blocks() {
        let blocks = |grid| LaunchKind { grid, ..LaunchKind::default() }.blocks();
        let max = i32::MAX.cast_unsigned();
        for (grid, expected) in [
            ([2, 3, 4], 24),
            ([max, 1, 1], u64::from(max)),
            ([max; 3], u64::MAX),
            ([u32::MAX, u32::MAX, 0], 0),
            ([0; 3], 0),
        ] {
            assert_eq!(blocks(grid), expected, "{grid:?}");
        }
    }

    #[test]
    fn packing_preserves_all_fields() {
        let kernel = Kernel {
            name: 1,
            full_name: 2,
            device: 3,
            stream: 4,
            start_ns: -5,
            end_ns: 6,
            global_pid: 7 << 24,
            correlation_id: 8,
            grid: [9, 10, 11],
            block: [12, 13, 14],
            registers: 15,
            shared_memory: 17,
            graph_node: Some(0),
        };
        let other = Kernel { graph_node: None, registers: 16, start_ns: -9, ..kernel };
        let mut packed: KernelTrace = [kernel, other, kernel].into_iter().collect();
        assert_eq!(packed.iter().map(Kernel::from).collect::<Vec<_>>(), [kernel, other, kernel]);
        assert_eq!(packed.kinds().len(), 2);
        packed.sort();
        assert_eq!(Kernel::from(packed.get(0)), other);
    }

    #[test]
    fn only_a_repeated_launch_is_dropped() {
        let kernel = Kernel {
            name: 1,
            full_name: 2,
            device: 0,
            stream: 7,
            start_ns: 10,
            end_ns: 20,
            global_pid: 1 << 24,
            correlation_id: 8,
            grid: [1; 3],
            block: [1; 3],
            registers: 0,
            shared_memory: 0,
            graph_node: None,
        };
        let others = [
            Kernel { start_ns: 11, ..kernel },
            Kernel { end_ns: 21, ..kernel },
            Kernel { stream: 8, ..kernel },
            Kernel { device: 1, ..kernel },
            Kernel { name: 3, full_name: 3, ..kernel },
            Kernel { correlation_id: 9, ..kernel },
            Kernel { global_pid: 2 << 24, ..kernel },
            Kernel { graph_node: Some(1), ..kernel },
            Kernel { graph_node: Some(2), ..kernel },
        ];
        let unknown = Kernel { correlation_id: 0, ..kernel };
        let once = [&[kernel, unknown, unknown], &others[..]].concat();
        let mut packed: KernelTrace = once.iter().copied().collect();
        packed.sort();
        let sorted: Vec<Kernel> = packed.iter().map(Kernel::from).collect();
        assert_eq!(packed.drop_repeated(), 0);
        let twice = [&once[..], &[kernel], &others[..]].concat();
        let mut packed: KernelTrace = twice.into_iter().collect();
        packed.sort();
        assert_eq!(packed.drop_repeated(), 10);
        assert_eq!(packed.iter().map(Kernel::from).collect::<Vec<_>>(), sorted);
    }
}
