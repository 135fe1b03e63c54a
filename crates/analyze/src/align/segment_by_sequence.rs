//! Isolation without ranges: kernels of a stage in the order in which they ran, cut into
//! instances.

use std::collections::HashMap;

use super::period::{occurrences, period};
use crate::{
    align::operation_instances::{InstanceKernel, IsolatedOperation},
    stats::percent,
    timeline::{
        capture::{Capture, Join},
        open_ranges::NONE,
    },
};

/// The start of an instance.
#[derive(Debug, Clone, Copy)]
pub enum InstanceStart<'a> {
    /// Each repetition of the sequence.
    Repeats,
    /// Each occurrence of this sequence; other kernels are excluded.
    Only(&'a [u32]),
    /// Each occurrence of this sequence; kernels in between are included.
    Starts(&'a [u32]),
}

/// Cuts the kernels of `wanted` kinds, within `counted` instances of stages. `names` numbers each
/// kind.
pub fn by_sequence(
    capture: &Capture,
    counted: &impl Fn(u32) -> bool,
    wanted: &[bool],
    names: &[u32],
    cut: InstanceStart,
) -> IsolatedOperation {
    let mut stages: Vec<Vec<InstanceKernel>> = Vec::new();
    let mut index: HashMap<u32, usize> = HashMap::new();
    let mut found = IsolatedOperation::default();
    let all = capture.kernels_by_kind();
    for (at, ((kind, kernel), Join { call, instance })) in all.enumerate() {
        if call != NONE && counted(instance) && wanted[kind as usize] {
            let stage = *index.entry(instance).or_insert_with(|| {
                stages.push(Vec::new());
                stages.len() - 1
            });
            stages[stage].push((at as u32, kind, kernel.ns()));
        }
    }
    let mut known = HashMap::new();
    let all_ns: i64 = stages.iter().flatten().map(|kernel| kernel.2).sum();
    for kernels in stages {
        let keys: Vec<u32> = kernels.iter().map(|kernel| names[kernel.1 as usize]).collect();
        let places = cut.places(&keys);
        found.stage_instances += u64::from(!places.is_empty());
        for (from, to) in places {
            let replayed = |kernel: &&InstanceKernel| {
                capture.trace.kernels.get(kernel.0 as usize).graph_node.is_some()
            };
            found.replayed += kernels[from..to].iter().filter(replayed).count() as u64;
            found.add(kernels[from..to].to_vec(), &mut known);
        }
    }
    (found.ranges, found.counted) = (found.instances.len() as u64, found.instances.len() as u64);
    let inside_ns: i64 = found.instances.iter().map(|it| it.ns).sum();
    found.outside_pct = percent((all_ns - inside_ns) as f64, all_ns as f64);
    found.caveat = matches!(cut, InstanceStart::Only(_)).then(|| {
        "kernels right before and after that sequence in the whole model may belong to it or to \
         other operations"
            .into()
    });
    found
}

impl InstanceStart<'_> {
    /// Start and end of each instance in a sequence.
    fn places(self, keys: &[u32]) -> Vec<(usize, usize)> {
        match self {
            Self::Repeats => {
                let each = period(keys).max(1);
                (0..keys.len())
                    .step_by(each)
                    .map(|from| (from, (from + each).min(keys.len())))
                    .collect()
            }
            Self::Only(needle) => occurrences(keys, needle)
                .into_iter()
                .map(|from| (from, from + needle.len()))
                .collect(),
            Self::Starts(needle) => {
                let mut starts = occurrences(keys, needle);
                if starts.is_empty() {
                    return Self::Repeats.places(keys);
                }
                starts[0] = 0;
                let ends = starts.iter().skip(1).copied().chain([keys.len()]);
                starts.iter().copied().zip(ends.collect::<Vec<_>>()).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_at_another_sequence_loses_no_kernel() {
        assert_eq!(
            InstanceStart::Starts(&[1, 2]).places(&[9, 1, 2, 1, 2, 3, 1, 2]),
            [(0, 3), (3, 6), (6, 8)]
        );
        assert_eq!(InstanceStart::Only(&[1, 2]).places(&[9, 1, 2, 3, 1, 2]), [(1, 3), (4, 6)]);
        assert_eq!(
            InstanceStart::Starts(&[7]).places(&[1, 2, 1, 2]),
            InstanceStart::Repeats.places(&[1, 2, 1, 2])
        );
    }
}
