//! Statistics of event durations by group, exact to the nanosecond.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::analyze::timeline::open_ranges::NONE;

/// Durations of a group of events, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DurationStats {
    #[schema(example = 48)]
    pub count: u64,
    #[schema(example = 96_000)]
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
    /// Summarises durations and reorders them; all zero when empty.
    pub fn of(times: &mut [i64]) -> Self {
        let n = times.len();
        if n == 0 {
            return Self::default();
        }
        let total = times.iter().fold(0i64, |sum, ns| sum.saturating_add(*ns));
        let mean = total as f64 / n as f64;
        let squares: f64 = times.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum();
        let (min, max) =
            times.iter().fold((i64::MAX, i64::MIN), |(min, max), ns| (min.min(*ns), max.max(*ns)));
        let (below, middle, _) = times.select_nth_unstable(n / 2);
        let lower = if n.is_multiple_of(2) {
            below.iter().max().copied().unwrap_or(*middle)
        } else {
            *middle
        };
        Self {
            count: n as u64,
            total,
            mean,
            median: (lower as f64 + *middle as f64) / 2.0,
            min,
            max,
            std: (n > 1).then(|| (squares / (n as f64 - 1.0)).sqrt()),
        }
    }

    /// Summarises durations by group, numbered below `groups`; events of group [`NONE`] are
    /// ignored.
    pub fn grouped(groups: usize, events: impl Iterator<Item = (u32, i64)> + Clone) -> Vec<Self> {
        let mut starts = vec![0usize; groups + 1];
        events
            .clone()
            .filter(|(group, _)| *group != NONE)
            .for_each(|(group, _)| starts[group as usize + 1] += 1);
        for group in 0..groups {
            starts[group + 1] += starts[group];
        }
        let mut next = starts.clone();
        let mut times = vec![0i64; starts[groups]];
        for (group, ns) in events.filter(|(group, _)| *group != NONE) {
            times[next[group as usize]] = ns;
            next[group as usize] += 1;
        }
        (0..groups).map(|group| Self::of(&mut times[starts[group]..starts[group + 1]])).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_a_mean_of_two() {
        let spans = DurationStats::of(&mut [5, 1, 9, 3]);
        assert_eq!(
            (spans.count, spans.total, spans.median, spans.min, spans.max),
            (4, 18, 4.0, 1, 9)
        );
        assert_eq!(DurationStats::of(&mut [7]).std, None);
        assert_eq!(DurationStats::of(&mut []), DurationStats::default());
    }

    proptest! {
        #[test]
        fn groups_are_summarised_like_separate_lists(
            events in prop::collection::vec((0u32..4, -50i64..50), 0..60)
        ) {
            let of_group = |(group, ns)| (if group == 3 { NONE } else { group }, ns);
            let events: Vec<(u32, i64)> = events.into_iter().map(of_group).collect();
            let grouped = DurationStats::grouped(3, events.iter().copied());
            for (group, stats) in grouped.iter().enumerate() {
                let members = events.iter().filter(|(of, _)| *of as usize == group);
                let mut alone: Vec<i64> = members.map(|(_, ns)| *ns).collect();
                alone.sort_unstable();
                prop_assert_eq!(stats.total, alone.iter().sum::<i64>());
                let low = alone.get((alone.len().max(1) - 1) / 2);
                if let (Some(low), Some(high)) = (low, alone.get(alone.len() / 2)) {
                    prop_assert_eq!(stats.median, (low + high) as f64 / 2.0);
                }
            }
        }
    }
}
