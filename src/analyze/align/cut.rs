//! An operation without ranges: kernels of a stage in the order in which they ran, cut into instances.

use std::collections::HashMap;

use super::{
    isolate::{Isolated, Step},
    period::{occurrences, period},
};
use crate::{
    analyze::{launches::Launches, scopes::NONE},
    trace::nsys::NsysTrace,
};

/// Where an instance begins.
#[derive(Debug, Clone, Copy)]
pub enum Cut<'a> {
    /// Where the sequence repeats itself.
    Repeats,
    /// Where this one is found; nothing else is of the operation.
    Only(&'a [u32]),
    /// Where this one is found; what comes between is of the operation too.
    Starts(&'a [u32]),
}

/// Cuts the kernels whose kinds are `wanted`, in instances of stages that are `here`. `names` numbers each kind.
pub fn by_sequence(
    trace: &NsysTrace,
    launches: &Launches,
    here: &impl Fn(u32) -> bool,
    wanted: &[bool],
    names: &[u32],
    cut: Cut,
) -> Isolated {
    let mut stages: Vec<Vec<Step>> = Vec::new();
    let mut index: HashMap<u32, usize> = HashMap::new();
    let mut found = Isolated::default();
    for (at, (call, instance)) in launches.kernels.iter().enumerate() {
        let kind = trace.kernels.kind(at);
        if *call != NONE && here(*instance) && wanted[kind as usize] {
            let stage = *index.entry(*instance).or_insert_with(|| {
                stages.push(Vec::new());
                stages.len() - 1
            });
            stages[stage].push((at as u32, kind, trace.kernels.get(at).ns()));
        }
    }
    let mut known = HashMap::new();
    for steps in stages {
        let keys: Vec<u32> = steps.iter().map(|step| names[step.1 as usize]).collect();
        let places = cut.places(&keys);
        found.stretches += u64::from(!places.is_empty());
        for (from, to) in places {
            let replayed = |step: &&Step| trace.kernels.get(step.0 as usize).graph_node.is_some();
            found.replayed += steps[from..to].iter().filter(replayed).count() as u64;
            found.add(steps[from..to].to_vec(), &mut known);
        }
    }
    (found.ranges, found.counted) = (found.units.len() as u64, found.units.len() as u64);
    found.doubt = match cut {
        Cut::Only(_) => {
            Some("what the whole model launches right before and after that sequence cannot be told from other operations".into())
        }
        _ => None,
    };
    found
}

impl Cut<'_> {
    /// Where the instances lie in a sequence.
    fn places(self, keys: &[u32]) -> Vec<(usize, usize)> {
        match self {
            Self::Repeats => {
                let each = period(keys).max(1);
                (0..keys.len()).step_by(each).map(|from| (from, (from + each).min(keys.len()))).collect()
            }
            Self::Only(needle) => occurrences(keys, needle).into_iter().map(|from| (from, from + needle.len())).collect(),
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
    fn what_is_cut_where_another_begins_loses_nothing() {
        assert_eq!(Cut::Starts(&[1, 2]).places(&[9, 1, 2, 1, 2, 3, 1, 2]), [(0, 3), (3, 6), (6, 8)]);
        assert_eq!(Cut::Only(&[1, 2]).places(&[9, 1, 2, 3, 1, 2]), [(1, 3), (4, 6)]);
        assert_eq!(Cut::Starts(&[7]).places(&[1, 2, 1, 2]), Cut::Repeats.places(&[1, 2, 1, 2]));
    }
}
