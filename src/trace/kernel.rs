//! Kernel executions on a device.
//!
//! A capture holds millions of executions but only a few hundred distinct launch configurations, so
//! they are stored packed and read as values.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// One kernel execution, joined to the call that launched it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// Short name: the function, without template arguments and parameters.
    pub name: u32,
    /// Full demangled name. Both names index [`super::nsys::NsysTrace::strings`].
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

/// Fields shared by all launches of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// First bit of a node's number where the capture has no id: the number only distinguishes nodes.
pub const UNNUMBERED_NODE: u64 = 1 << 63;
/// Marker for "no graph node": ids combine the numbers of graph and node, and never have all bits
/// set.
const NO_NODE: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct PackedKernel {
    start_ns: i64,
    end_ns: i64,
    node: u64,
    correlation_id: u32,
    kind: u32,
}

/// Packed list of kernels.
#[derive(Debug, Clone, Default)]
pub struct KernelTrace {
    rows: Vec<PackedKernel>,
    kinds: Vec<LaunchKind>,
    index: HashMap<LaunchKind, u32, RandomState>,
}

impl KernelTrace {
    #[inline]
    pub fn push(&mut self, kernel: Kernel) {
        let kind = kernel.kind();
        let kind = *self.index.entry(kind).or_insert_with(|| {
            self.kinds.push(kind);
            self.kinds.len() as u32 - 1
        });
        self.rows.push(PackedKernel {
            start_ns: kernel.start_ns,
            end_ns: kernel.end_ns,
            node: kernel.graph_node.unwrap_or(NO_NODE),
            correlation_id: u32::try_from(kernel.correlation_id).unwrap_or(0),
            kind,
        });
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn truncate(&mut self, len: usize) {
        self.rows.truncate(len);
    }

    /// The kernel at index `at`.
    #[inline]
    pub fn get(&self, at: usize) -> Kernel {
        let row = self.rows[at];
        let kind = self.kinds[row.kind as usize];
        Kernel {
            name: kind.name,
            full_name: kind.full_name,
            device: kind.device,
            stream: kind.stream,
            start_ns: row.start_ns,
            end_ns: row.end_ns,
            global_pid: kind.global_pid,
            correlation_id: i64::from(row.correlation_id),
            grid: kind.grid,
            block: kind.block,
            registers: kind.registers,
            shared_memory: kind.shared_memory,
            graph_node: (row.node != NO_NODE).then_some(row.node),
        }
    }

    /// Index into [`Self::kinds`] of the kernel at index `at`.
    #[inline]
    pub fn kind(&self, at: usize) -> u32 {
        self.rows[at].kind
    }

    /// Distinct launch kinds, in order of first use.
    #[inline]
    pub fn kinds(&self) -> &[LaunchKind] {
        &self.kinds
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = Kernel> + DoubleEndedIterator + Clone + '_ {
        (0..self.rows.len()).map(|at| self.get(at))
    }

    /// Sorts by start time unless already sorted.
    pub fn sort(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.start_ns) {
            self.rows.sort_by_key(|row| row.start_ns);
        }
    }

    /// A copy with `change` applied to each kernel.
    pub fn map(&self, change: impl Fn(usize, &mut Kernel)) -> Self {
        let changed = |(at, mut kernel)| {
            change(at, &mut kernel);
            kernel
        };
        self.iter().enumerate().map(changed).collect()
    }
}

impl FromIterator<Kernel> for KernelTrace {
    fn from_iter<I: IntoIterator<Item = Kernel>>(kernels: I) -> Self {
        let mut packed = Self::default();
        kernels.into_iter().for_each(|kernel| packed.push(kernel));
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(packed.iter().collect::<Vec<_>>(), [kernel, other, kernel]);
        assert_eq!(packed.kinds().len(), 2);
        packed.sort();
        assert_eq!(packed.get(0), other);
    }
}
