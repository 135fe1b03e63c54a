//! Parts of kernels. A part has the launches of the same operators with similar durations, which
//! are assumed to have one value.
//!
//! Launches of one kernel with one grid may do different work. With one unknown for all of them
//! the longer launches would count more than their time.

use foldhash::HashMap;

use super::rows::Work;
use crate::kernels::durations::{Durations, Length, Tally};

/// Key of the kernel, number of the nest of operators, and duration.
pub type PartKey = (u32, u32, Length);

/// The parts of the kernels of one stage.
#[derive(Debug, Default)]
pub struct Parts {
    /// By key.
    kernels: Vec<Durations>,
}

impl Parts {
    /// The kernels of a stage: its works, whose unknowns are numbers below `keys`.
    pub fn of<'a>(works: impl Iterator<Item = &'a Work> + Clone, keys: usize) -> Self {
        let mut kernels = vec![Durations::default(); keys];
        works.clone().for_each(|it| kernels[it.unknown as usize].count(it.ns()));
        works.for_each(|it| kernels[it.unknown as usize].count_length(it.ns()));
        Self { kernels }
    }

    /// Launches of a key.
    pub fn durations(&self, key: u32) -> Durations {
        self.kernels[key as usize]
    }

    /// The part of a launch whose operators have this number.
    pub fn part(&self, work: &Work, nest: u32) -> PartKey {
        (work.unknown, nest, self.kernels[work.unknown as usize].length(work.ns()))
    }
}

/// Launches by part.
pub fn tallies<'a>(
    parts: &Parts,
    works: impl Iterator<Item = (&'a Work, u32)>,
) -> HashMap<PartKey, Tally> {
    let mut tallies: HashMap<PartKey, Tally> = HashMap::default();
    for (work, nest) in works {
        tallies.entry(parts.part(work, nest)).or_default().add(work.ns());
    }
    tallies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn works(durations: &[(u32, i64)]) -> Vec<Work> {
        let work =
            |&(unknown, end_ns): &(u32, i64)| Work { start_ns: 0, end_ns, stage: 1, unknown };
        durations.iter().map(work).collect()
    }

    #[test]
    fn launches_of_other_operators_or_durations_are_parts_of_their_own() {
        let works = works(&[(0, 25), (0, 75), (0, 26), (0, 74), (1, 10), (1, 11)]);
        let parts = Parts::of(works.iter(), 2);
        let found = tallies(&parts, works.iter().zip([7, 7, 8, 8, 7, 8]));
        let calls = |part: PartKey| found.get(&part).map(|it| (it.calls, it.ns));
        assert_eq!(calls((0, 7, Length::Short)), Some((1, 25)));
        assert_eq!(calls((0, 8, Length::Long)), Some((1, 74)));
        assert_eq!(calls((1, 7, Length::Usual)), Some((1, 10)));
        assert_eq!(found.len(), 6);
        assert_eq!(parts.durations(0).all(), Tally { calls: 4, ns: 200 });
    }
}
