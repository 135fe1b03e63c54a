//! Calls and ranges in a gap: their time in it, and ranges that stand together for it.

use std::cmp::Reverse;

use super::super::interval::Interval;

/// Max calls compared with a gap, latest first.
const MAX_COMPARED: usize = 4096;

/// Max ranges that stand together for a gap.
pub const MAX_RANGES: usize = 3;

/// The calls that start before the end of a part of a gap and whose time is mostly this gap, latest
/// first.
pub fn mostly_in_gap(
    calls: &[(Interval, u32)],
    part: Interval,
    gap: Interval,
) -> impl Iterator<Item = &(Interval, u32)> {
    let before = calls.partition_point(|it| it.0.0 < part.1);
    calls[..before]
        .iter()
        .rev()
        // A call whose time is mostly this gap starts less than twice the gap before its end.
        .take_while(move |(it, _)| it.0 >= gap.1 - 2 * length(gap) - 2)
        .take(MAX_COMPARED)
        .filter(move |(it, _)| overlap(*it, gap) >= length(*it) / 2)
}

/// Nanoseconds of a span.
pub const fn length(it: Interval) -> i64 {
    it.1 - it.0
}

/// Common time of two spans; negative with the time between them.
pub fn overlap(it: Interval, of: Interval) -> i64 {
    of.1.min(it.1) - of.0.max(it.0)
}

/// The longest of these numbered ranges without common time, [`MAX_RANGES`] at most, if together
/// they take most of a span that contains them.
pub fn successive_ranges(mut ranges: Vec<(u32, Interval)>, span: Interval) -> Vec<(u32, Interval)> {
    ranges.sort_by_key(|it| (Reverse(length(it.1)), it.1));
    let mut longest: Vec<(u32, Interval)> = Vec::new();
    for it in ranges {
        let is_apart = |other: &(u32, Interval)| overlap(other.1, it.1) <= 0;
        if longest.len() < MAX_RANGES && longest.iter().all(is_apart) {
            longest.push(it);
        }
    }
    let all: i64 = longest.iter().map(|it| length(it.1)).sum();
    if all >= length(span) / 2 { longest } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn up_to_three_ranges_stand_for_a_gap_if_they_take_half_of_it_together() {
        let of = |ranges: &[Interval]| {
            let numbered = ranges.iter().zip(0u32..).map(|(it, number)| (number, *it));
            let found = successive_ranges(numbered.collect(), (0, 100)).into_iter();
            found.map(|it| it.0).collect::<Vec<_>>()
        };
        assert_eq!(of(&[(0, 34), (34, 65), (70, 99)]), [0, 1, 2]);
        assert_eq!(of(&[(0, 20), (20, 45), (50, 60)]), [1, 0, 2]);
        assert_eq!(of(&[(0, 20), (20, 45)]), [0u32; 0], "45 of 100");
        assert_eq!(of(&[(0, 30), (5, 28), (40, 62)]), [0, 2], "one inside another");
        let tenths: Vec<Interval> = (0..10).map(|at| (10 * at, 10 * at + 10)).collect();
        assert_eq!(of(&tenths), [0u32; 0], "three of ten");
    }

    proptest! {
        #[test]
        fn ranges_that_stand_for_a_gap_share_no_time_and_take_half_of_it(
            spans in prop::collection::vec((0i64..100, 1i64..60), 0..8),
        ) {
            let numbered = spans.iter().zip(0u32..);
            let ranges = numbered.map(|((from, ns), at)| (at, (*from, (from + ns).min(100))));
            let mut found = successive_ranges(ranges.collect(), (0, 100));
            prop_assert!(found.len() <= MAX_RANGES);
            found.sort_by_key(|it| it.1);
            prop_assert!(found.windows(2).all(|two| two[0].1.1 <= two[1].1.0));
            let all: i64 = found.iter().map(|it| it.1.1 - it.1.0).sum();
            prop_assert!(found.is_empty() || all >= 50, "{}", all);
        }
    }
}
