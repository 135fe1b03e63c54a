//! Arithmetic on half-open intervals of time: what is covered when things overlap.

/// A half-open interval `[start, end)` in nanoseconds.
pub type Interval = (i64, i64);

/// Merges intervals into disjoint ones in order of time; empty and inverted ones vanish.
pub fn union(intervals: impl IntoIterator<Item = Interval>) -> Vec<Interval> {
    let mut sorted: Vec<Interval> = intervals.into_iter().filter(|(start, end)| start < end).collect();
    sorted.sort_unstable();
    let mut merged: Vec<Interval> = Vec::with_capacity(sorted.len());
    for (start, end) in sorted {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// Nanoseconds covered by at least one interval.
pub fn covered_ns(intervals: impl IntoIterator<Item = Interval>) -> i64 {
    union(intervals).iter().map(|(start, end)| end - start).sum()
}

/// Disjoint, sorted intervals that answer quickly whether they hold a point.
#[derive(Debug, Default)]
pub struct Cover(Vec<Interval>);

impl Cover {
    /// Merges `intervals` for lookup.
    pub fn new(intervals: impl IntoIterator<Item = Interval>) -> Self {
        Self(union(intervals))
    }

    /// The disjoint intervals, in order.
    pub fn intervals(&self) -> &[Interval] {
        &self.0
    }

    /// Nanoseconds of `from..to` that are covered.
    pub fn overlap_ns(&self, from: i64, to: i64) -> i64 {
        let first = self.0.partition_point(|&(_, end)| end <= from);
        let inside = self.0[first..].iter().take_while(|(start, _)| *start < to);
        inside.map(|(start, end)| (to.min(*end) - from.max(*start)).max(0)).sum()
    }

    /// Says whether an interval holds `t`.
    pub fn holds(&self, t: i64) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= t);
        after > 0 && t < self.0[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    /// `s1 0..10, s2 5..15` -> what is busy over all streams.
    fn busy(sketch: &str) -> String {
        let intervals = sketch.split(',').map(|stream| {
            let (start, end) = stream.split_whitespace().last().unwrap().split_once("..").unwrap();
            (start.parse().unwrap(), end.parse().unwrap())
        });
        union(intervals).iter().map(|(start, end)| format!("{start}..{end}")).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn overlapping_streams_count_once() {
        assert_snapshot!(busy("s1 0..10, s2 5..15"), @"0..15");
    }

    #[test]
    fn touching_intervals_join_and_gaps_stay() {
        assert_snapshot!(busy("s1 0..10, s1 10..12, s2 20..30"), @"0..12, 20..30");
    }

    #[test]
    fn an_enclosed_interval_adds_nothing() {
        assert_snapshot!(busy("s2 3..4, s1 0..10"), @"0..10");
    }

    #[test]
    fn empty_and_inverted_intervals_cover_nothing() {
        assert_snapshot!(busy("s1 5..5, s2 9..7"), @"");
    }

    proptest! {
        #[test]
        fn the_union_covers_exactly_the_points_that_some_interval_holds(
            intervals in prop::collection::vec((0i64..60, 0i64..60), 0..12)
        ) {
            let held = |t: i64| intervals.iter().any(|&(start, end)| start <= t && t < end);
            let cover = Cover::new(intervals.iter().copied());
            for t in -1..61 {
                prop_assert_eq!(cover.holds(t), held(t));
            }
            for (from, to) in [(0, 60), (7, 31), (31, 7), (20, 20)] {
                prop_assert_eq!(cover.overlap_ns(from, to), (from..to).filter(|&t| held(t)).count() as i64);
            }
            prop_assert_eq!(covered_ns(intervals.iter().copied()), (0..60).filter(|&t| held(t)).count() as i64);
        }
    }
}
