//! Statistics of event durations by group, exact to the nanosecond.

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use crate::{limited::Summed, timeline::open_ranges::NONE};

/// Durations of a group of events, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DurationStats {
    #[cfg_attr(feature = "schema", schema(example = 48))]
    pub count: u64,
    #[cfg_attr(feature = "schema", schema(example = 96_000))]
    pub total: i64,
    pub mean: f64,
    /// The middle value; for an even count the mean of the two middle values.
    pub median: f64,
    pub min: i64,
    pub max: i64,
    /// Sample standard deviation; `null` for a single event.
    pub std: Option<f64>,
}

impl DurationStats {
    /// Summarises durations; all zero when empty.
    pub fn of(times: &[i64]) -> Self {
        Self::grouped(1, times.iter().map(|ns| (0, *ns))).remove(0)
    }

    /// Summarises durations by group, numbered below `groups`; events of group [`NONE`] are
    /// ignored. `events` are read twice, and memory does not grow with their number: the first time
    /// counts them by length, the second time counts the events of the middle length by duration.
    pub fn grouped(groups: usize, events: impl Iterator<Item = (u32, i64)> + Clone) -> Vec<Self> {
        let [of_groups] = Self::grouped_by([groups], events.map(|(group, ns)| ([group], ns)));
        of_groups
    }

    /// The same for several groupings of the same events.
    pub fn grouped_by<const N: usize>(
        groups: [usize; N],
        events: impl Iterator<Item = ([u32; N], i64)> + Clone,
    ) -> [Vec<Self>; N] {
        let mut counted = groups.map(|groups| vec![LengthCounts::default(); groups]);
        for (of, ns) in events.clone() {
            for (counted, group) in counted.iter_mut().zip(of).filter(|it| it.1 != NONE) {
                counted[group as usize].add(ns);
            }
        }
        let mut middles =
            counted.map(|it| it.into_iter().map(DurationSums::of).collect::<Vec<_>>());
        for (of, ns) in events {
            for (sums, group) in middles.iter_mut().zip(of).filter(|it| it.1 != NONE) {
                sums[group as usize].add(ns);
            }
        }
        middles.map(|it| it.into_iter().map(DurationSums::finish).collect())
    }
}

impl Summed for DurationStats {
    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total = self.total.saturating_add(other.total);
    }
}

/// Durations of many groups of a few events each.
pub struct GroupedTimes {
    /// End of each group in `times`.
    ends: Vec<u32>,
    times: Vec<i64>,
}

impl GroupedTimes {
    /// Groups events, which are read twice.
    pub fn of(groups: usize, events: impl Iterator<Item = (u32, i64)> + Clone) -> Self {
        let mut ends = vec![0; groups];
        events.clone().for_each(|(group, _)| ends[group as usize] += 1);
        let mut all = 0;
        for end in &mut ends {
            all += std::mem::replace(end, all);
        }
        let mut times = vec![0; all as usize];
        for (group, ns) in events {
            let next = &mut ends[group as usize];
            times[*next as usize] = ns;
            *next += 1;
        }
        Self { ends, times }
    }

    pub fn group(&self, group: usize) -> &[i64] {
        let start = group.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.times[start as usize..self.ends[group] as usize]
    }
}

/// Sums of the first time.
#[derive(Clone)]
struct LengthCounts {
    sum: DurationStats,
    lengths: HashMap<u64, u64>,
}

impl Default for LengthCounts {
    fn default() -> Self {
        let sum = DurationStats { min: i64::MAX, max: i64::MIN, ..DurationStats::default() };
        Self { sum, lengths: HashMap::default() }
    }
}

impl LengthCounts {
    #[inline]
    fn add(&mut self, ns: i64) {
        let sum = &mut self.sum;
        sum.count += 1;
        sum.total = sum.total.saturating_add(ns);
        (sum.min, sum.max) = (sum.min.min(ns), sum.max.max(ns));
        *self.lengths.entry(length(ns)).or_default() += 1;
    }
}

/// Sums of the second time.
struct DurationSums {
    sum: DurationStats,
    squares: f64,
    middle: Middle,
}

impl DurationSums {
    fn of(LengthCounts { mut sum, lengths }: LengthCounts) -> Self {
        if sum.count > 0 {
            sum.mean = sum.total as f64 / sum.count as f64;
        }
        Self { sum, squares: 0.0, middle: Middle::of(sum.count, lengths) }
    }

    #[inline]
    fn add(&mut self, ns: i64) {
        self.squares += (ns as f64 - self.sum.mean).powi(2);
        self.middle.add(ns);
    }

    fn finish(self) -> DurationStats {
        if self.sum.count == 0 {
            return DurationStats::default();
        }
        let count = self.sum.count;
        let std = (count > 1).then(|| (self.squares / (count as f64 - 1.0)).sqrt());
        DurationStats { median: self.middle.median(), std, ..self.sum }
    }
}

/// Significant bits of a length.
const LENGTH_BITS: u32 = 12;

/// The length of a duration: up to 4,096 ns itself, above that the highest twelve bits and their
/// place. It does not decrease with the duration.
#[inline]
fn length(ns: i64) -> u64 {
    // The order of signed numbers, as an order of unsigned ones with zero in the middle.
    if ns < 0 {
        return ns.cast_unsigned() ^ (1 << 63);
    }
    let place = (u64::BITS - ns.cast_unsigned().leading_zeros()).saturating_sub(LENGTH_BITS);
    (1 << 63) + (u64::from(place) << LENGTH_BITS) + (ns.cast_unsigned() >> place)
}

/// The two middle durations of a group in order; of an odd count the same twice.
struct Middle {
    lengths: [u64; 2],
    /// Number of durations of these lengths, which are neighbours, by duration.
    counts: HashMap<i64, u64>,
    /// Positions among them.
    at: [u64; 2],
}

impl Middle {
    fn of(count: u64, lengths: HashMap<u64, u64>) -> Self {
        let mut lengths: Vec<(u64, u64)> = lengths.into_iter().collect();
        lengths.sort_unstable();
        let place = |at: u64| {
            let mut before = 0;
            let after = lengths.iter().find(|(_, count)| {
                before += count;
                at < before
            });
            after.map_or((0, 0), |(length, count)| (*length, before - count))
        };
        let (low, high) = (count.saturating_sub(1) / 2, count / 2);
        let (first, before) = place(low);
        let at = [low - before, high - before];
        Self { lengths: [first, place(high).0], counts: HashMap::default(), at }
    }

    #[inline]
    fn add(&mut self, ns: i64) {
        if self.lengths.contains(&length(ns)) {
            *self.counts.entry(ns).or_default() += 1;
        }
    }

    fn median(&self) -> f64 {
        let mut counts: Vec<(i64, u64)> = self.counts.iter().map(|(ns, n)| (*ns, *n)).collect();
        counts.sort_unstable();
        let value = |at: u64| {
            let mut before = 0;
            let found = counts.iter().find(|(_, count)| {
                before += count;
                at < before
            });
            found.map_or(0.0, |(ns, _)| *ns as f64)
        };
        (value(self.at[0]) + value(self.at[1])) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Few and many nanoseconds, and neighbours of one length.
    fn duration() -> impl Strategy<Value = i64> {
        prop_oneof![
            -50i64..50,
            1_000_000i64..1_000_300,
            (0i64..1 << 50, 0u32..50).prop_map(|it| it.0 >> it.1)
        ]
    }

    #[test]
    fn the_median_of_an_even_count_is_a_mean_of_two() {
        let spans = DurationStats::of(&[5, 1, 9, 3]);
        assert_eq!(
            (spans.count, spans.total, spans.median, spans.min, spans.max),
            (4, 18, 4.0, 1, 9)
        );
        assert_eq!(DurationStats::of(&[7]).std, None);
        assert_eq!(DurationStats::of(&[]), DurationStats::default());
    }

    proptest! {
        #[test]
        fn groups_are_summarised_like_separate_lists(
            events in prop::collection::vec((0u32..4, duration()), 0..60)
        ) {
            let of_group = |(group, ns)| (if group == 3 { NONE } else { group }, ns);
            let events: Vec<(u32, i64)> = events.into_iter().map(of_group).collect();
            let grouped = DurationStats::grouped(3, events.iter().copied());
            for (group, stats) in grouped.iter().enumerate() {
                let members = events.iter().filter(|(of, _)| *of as usize == group);
                let mut alone: Vec<i64> = members.map(|(_, ns)| *ns).collect();
                alone.sort_unstable();
                prop_assert_eq!(stats.total, alone.iter().sum::<i64>());
                prop_assert_eq!(stats.min, alone.first().copied().unwrap_or(0));
                prop_assert_eq!(stats.max, alone.last().copied().unwrap_or(0));
                let low = alone.get((alone.len().max(1) - 1) / 2);
                if let (Some(low), Some(high)) = (low, alone.get(alone.len() / 2)) {
                    prop_assert_eq!(stats.median, (low + high) as f64 / 2.0);
                }
            }
        }
    }
}
