//! Parts of kernels. The launches of a part are assumed to have one value: those of the same
//! operators and of similar durations.
//!
//! Launches of one kernel with one grid may do different work, for example products of two
//! operators with different depths. With one unknown for all of them the longer launches would
//! count more than their time.

use foldhash::HashMap;

use super::rows::Work;

/// Launches below and above these multiples of the kernel's mean are parts of their own,
const SHORT: f64 = 0.75;
const LONG: f64 = 4.0 / 3.0;
/// if they have at least this share of the kernel's time.
const MIN_SHARE: f64 = 0.05;

/// Launches and their time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub calls: u64,
    pub ns: i64,
}

impl Tally {
    pub fn add(&mut self, ns: i64) {
        self.calls += 1;
        self.ns = self.ns.saturating_add(ns);
    }
}

/// Duration of a launch against the mean of its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Length {
    Short,
    Usual,
    Long,
}

/// Key of the kernel, number of the nest of operators, and duration.
pub type PartKey = (u32, u32, Length);

/// The parts of the kernels of one stage.
#[derive(Debug, Default)]
pub struct Parts {
    /// By key.
    kernels: Vec<Tally>,
    /// Time of short and of long launches by key.
    unusual_ns: Vec<[i64; 2]>,
}

impl Parts {
    /// The kernels of a stage: its works, whose unknowns are numbers below `keys`.
    pub fn of<'a>(works: impl Iterator<Item = &'a Work> + Clone, keys: usize) -> Self {
        let mut kernels = vec![Tally::default(); keys];
        works.clone().for_each(|it| kernels[it.unknown as usize].add(it.ns()));
        let mut unusual_ns = vec![[0i64; 2]; keys];
        for it in works {
            let sums = &mut unusual_ns[it.unknown as usize];
            match length(it.ns(), kernels[it.unknown as usize]) {
                Length::Short => sums[0] = sums[0].saturating_add(it.ns()),
                Length::Long => sums[1] = sums[1].saturating_add(it.ns()),
                Length::Usual => {}
            }
        }
        Self { kernels, unusual_ns }
    }

    /// Launches by key.
    pub fn kernels(&self) -> &[Tally] {
        &self.kernels
    }

    /// The part of a launch whose operators have this number.
    pub fn part(&self, work: &Work, nest: u32) -> PartKey {
        let kernel = self.kernels[work.unknown as usize];
        let [short, long] = self.unusual_ns[work.unknown as usize];
        let has_share = |ns: i64| ns as f64 >= MIN_SHARE * kernel.ns as f64;
        let length = match length(work.ns(), kernel) {
            Length::Short if has_share(short) => Length::Short,
            Length::Long if has_share(long) => Length::Long,
            _ => Length::Usual,
        };
        (work.unknown, nest, length)
    }
}

fn length(ns: i64, kernel: Tally) -> Length {
    let mean = kernel.ns as f64 / kernel.calls.max(1) as f64;
    match ns as f64 / mean {
        it if it < SHORT => Length::Short,
        it if it > LONG => Length::Long,
        _ => Length::Usual,
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
        assert_eq!(parts.kernels()[0], Tally { calls: 4, ns: 200 });
    }

    #[test]
    fn the_few_launches_that_are_slow_by_chance_are_no_part_of_their_own() {
        let mut durations = vec![(0, 100); 99];
        durations.push((0, 300));
        let works = works(&durations);
        let parts = Parts::of(works.iter(), 1);
        let found = tallies(&parts, works.iter().map(|it| (it, 0)));
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
