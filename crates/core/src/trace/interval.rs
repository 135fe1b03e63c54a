//! Arithmetic on half-open time intervals: unions, coverage and overlap.

/// A half-open interval `[start, end)` in nanoseconds.
pub type Interval = (i64, i64);

/// The window extended to contain `with`: first start and last end.
#[inline]
pub fn extended(window: Option<Interval>, with: Interval) -> Interval {
    window.map_or(with, |(first, last)| (first.min(with.0), last.max(with.1)))
}

/// Merges intervals into disjoint ones in order of time; drops empty and inverted ones.
pub fn union(intervals: impl IntoIterator<Item = Interval>) -> Vec<Interval> {
    let mut sorted: Vec<Interval> =
        intervals.into_iter().filter(|(start, end)| start < end).collect();
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

/// A set of time as disjoint, sorted intervals, with fast lookup.
#[derive(Debug, Default)]
pub struct IntervalSet(Vec<Interval>);

impl IntervalSet {
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

    /// The same for times that mostly increase; `near` is the position of the previous lookup.
    #[inline]
    pub fn overlap_near(&self, from: i64, to: i64, near: &mut usize) -> i64 {
        let is_first = |at: usize| {
            self.0.get(at).is_none_or(|it| it.1 > from) && (at == 0 || self.0[at - 1].1 <= from)
        };
        let last = (*near).min(self.0.len());
        let next = (last + 1).min(self.0.len());
        *near = match () {
            () if is_first(last) => last,
            () if is_first(next) => next,
            () => self.0.partition_point(|&(_, end)| end <= from),
        };
        let inside = self.0[*near..].iter().take_while(|(start, _)| *start < to);
        inside.map(|(start, end)| (to.min(*end) - from.max(*start)).max(0)).sum()
    }

    /// The parts of an interval that are not covered, in order.
    pub fn outside(&self, (from, to): Interval) -> impl Iterator<Item = Interval> {
        let first = self.0.partition_point(|&(_, end)| end <= from);
        let inside = self.0[first..].iter().take_while(move |(start, _)| *start < to);
        let ends = std::iter::once(from).chain(inside.clone().map(|it| it.1));
        let starts = inside.map(|it| it.0).chain([to]);
        ends.zip(starts).filter(|(from, to)| from < to)
    }

    /// Returns true when an interval contains `t`.
    pub fn contains(&self, t: i64) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= t);
        after > 0 && t < self.0[after - 1].1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Union of intervals given as `s1 0..10, s2 5..15`.
    fn busy(sketch: &str) -> String {
        let intervals = sketch.split(',').map(|stream| {
            let (start, end) = stream.split_whitespace().last().unwrap().split_once("..").unwrap();
            (start.parse().unwrap(), end.parse().unwrap())
        });
        union(intervals)
            .iter()
            .map(|(start, end)| format!("{start}..{end}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    #[test]
    fn overlapping_streams_count_once() {
        assert_eq!(busy("s1 0..10, s2 5..15"), "0..15");
    }

    #[test]
    fn touching_intervals_join_and_gaps_stay() {
        assert_eq!(busy("s1 0..10, s1 10..12, s2 20..30"), "0..12, 20..30");
    }

    #[test]
    fn an_enclosed_interval_adds_nothing() {
        assert_eq!(busy("s2 3..4, s1 0..10"), "0..10");
    }

    #[test]
    fn empty_and_inverted_intervals_cover_nothing() {
        assert_eq!(busy("s1 5..5, s2 9..7"), "");
    }

    proptest! {
        #[test]
        fn the_union_covers_exactly_the_points_in_some_interval(
            intervals in prop::collection::vec((0i64..60, 0i64..60), 0..12)
        ) {
            let covered = |t: i64| intervals.iter().any(|&(start, end)| start <= t && t < end);
            let count = |from: i64, to: i64| (from..to).filter(|&t| covered(t)).count() as i64;
            let set = IntervalSet::new(intervals.iter().copied());
            for t in -1..61 {
                prop_assert_eq!(set.contains(t), covered(t));
            }
            for (from, to) in [(0, 60), (7, 31), (31, 7), (20, 20)] {
                prop_assert_eq!(set.overlap_ns(from, to), count(from, to));
                let outside: Vec<Interval> = set.outside((from, to)).collect();
                prop_assert!(outside.iter().all(|it| it.0 >= from && it.1 <= to));
                let free = (from..to).filter(|&t| !covered(t)).count() as i64;
                prop_assert_eq!(outside.iter().map(|it| it.1 - it.0).sum::<i64>(), free);
            }
            let mut near = 99;
            for (from, to) in (0..60).map(|at| (at, at + 3)).chain([(7, 31), (31, 7), (58, 60)]) {
                let overlap = set.overlap_near(from, to, &mut near);
                prop_assert_eq!(overlap, set.overlap_ns(from, to));
            }
            prop_assert_eq!(covered_ns(intervals.iter().copied()), count(0, 60));
        }
    }
}
