//! The sweep over work that runs at once on one device: the times between its starts and ends, each
//! with all of the work that runs throughout.

use super::interval::Interval;

/// Work that runs, with the end of each piece, in the order of the starts.
pub type ActiveWork<T> = [(i64, T)];

/// Work of one device while it is added in the order of its starts.
pub struct RunningWork<T> {
    active: Vec<(i64, T)>,
    /// End of the time that was passed on.
    until: i64,
}

impl<T> Default for RunningWork<T> {
    fn default() -> Self {
        Self { active: Vec::new(), until: i64::MIN }
    }
}

impl<T> RunningWork<T> {
    /// Adds the next work. `during` gets the times before its start, as in [`Self::advance`].
    #[inline]
    pub fn start(
        &mut self,
        (start, end): Interval,
        work: T,
        during: impl FnMut(Interval, &ActiveWork<T>),
    ) {
        self.advance(start, during);
        self.until = self.until.max(start);
        self.active.push((end, work));
    }

    /// Passes on the time up to `to`: `during` gets each part in which the same work runs, and that
    /// work. Time without work is left out.
    #[inline]
    pub fn advance(&mut self, to: i64, mut during: impl FnMut(Interval, &ActiveWork<T>)) {
        while let Some(first_end) = self.active.iter().map(|it| it.0).min() {
            let next = first_end.min(to);
            if next > self.until {
                during((self.until, next), &self.active);
                self.until = next;
            }
            if first_end > to {
                return;
            }
            self.active.retain(|it| it.0 > first_end);
        }
    }

    /// True if no work runs.
    pub fn is_idle(&self) -> bool {
        self.active.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_instant_with_work_is_passed_on_once_with_all_work_that_runs(
            work in prop::collection::vec((-20i64..40, 0i64..15), 0..12)
        ) {
            let mut work = work;
            work.sort_by_key(|it| it.0);
            let mut found: Vec<(i64, Vec<usize>)> = Vec::new();
            let mut during = |(from, to): Interval, active: &ActiveWork<usize>| {
                let names: Vec<usize> = active.iter().map(|it| it.1).collect();
                found.extend((from..to).map(|t| (t, names.clone())));
            };
            let mut running = RunningWork::default();
            for (at, (start, length)) in work.iter().enumerate() {
                running.start((*start, start + length), at, &mut during);
            }
            running.advance(i64::MAX, &mut during);
            prop_assert!(running.is_idle());
            let at = |t: i64| {
                let runs = |it: &usize| (work[*it].0..work[*it].0 + work[*it].1).contains(&t);
                (0..work.len()).filter(runs).collect::<Vec<_>>()
            };
            let expected: Vec<(i64, Vec<usize>)> =
                (-20..60).map(|t| (t, at(t))).filter(|it| !it.1.is_empty()).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
