//! Launches by their duration: one kernel with one grid may do different work, for example products
//! of two operators with different depths by a persistent kernel, whose grid is the number of SMs.

use llmprof_core::domain::units::Nanos;

/// Launches below and above these multiples of their kernel's mean are short and long,
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
        *self = self.with(Self { calls: 1, ns });
    }

    pub fn ms(self) -> f64 {
        Nanos(self.ns).as_ms()
    }

    pub fn mean_ns(self) -> f64 {
        self.ns as f64 / self.calls.max(1) as f64
    }

    pub fn with(self, other: Self) -> Self {
        Self { calls: self.calls + other.calls, ns: self.ns.saturating_add(other.ns) }
    }
}

/// Duration of a launch against the mean of its kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Length {
    Short,
    Usual,
    Long,
}

impl Length {
    const ALL: [Self; 3] = [Self::Short, Self::Usual, Self::Long];

    fn of(ns: f64, mean_ns: f64) -> Self {
        match ns / mean_ns {
            it if it < SHORT => Self::Short,
            it if it > LONG => Self::Long,
            _ => Self::Usual,
        }
    }
}

/// Durations of the launches of one kernel with one grid in one stage. They are counted twice:
/// first all, then by length.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Durations {
    all: Tally,
    by_length: [Tally; 3],
}

impl Durations {
    #[cfg(test)]
    pub fn of(durations: &[i64]) -> Self {
        let mut this = Self::default();
        durations.iter().for_each(|ns| this.count(*ns));
        durations.iter().for_each(|ns| this.count_length(*ns));
        this
    }

    pub fn count(&mut self, ns: i64) {
        self.all.add(ns);
    }

    /// After all launches were counted.
    pub fn count_length(&mut self, ns: i64) {
        self.by_length[Length::of(ns as f64, self.all.mean_ns()) as usize].add(ns);
    }

    pub fn all(&self) -> Tally {
        self.all
    }

    /// Returns true if launches of this length do not count as usual ones: the few that are slow by
    /// chance do.
    fn is_of_its_own(&self, length: Length) -> bool {
        let share = MIN_SHARE * self.all.ns as f64;
        length != Length::Usual && self.by_length[length as usize].ns as f64 >= share
    }

    pub fn length(&self, ns: i64) -> Length {
        let length = Length::of(ns as f64, self.all.mean_ns());
        if self.is_of_its_own(length) { length } else { Length::Usual }
    }

    /// Launches of a length.
    pub fn tally(&self, length: Length) -> Tally {
        let counts = |it: &Length| match length {
            Length::Usual => !self.is_of_its_own(*it),
            length => *it == length && self.is_of_its_own(length),
        };
        let counted = Length::ALL.into_iter().filter(counts);
        counted.fold(Tally::default(), |sum, it| sum.with(self.by_length[it as usize]))
    }

    /// The length whose mean is nearest to this duration, by their ratio.
    pub fn nearest(&self, ns: f64) -> Option<Length> {
        let distance = |it: &Length| (ns.max(1.0) / self.tally(*it).mean_ns().max(1.0)).ln().abs();
        let present = Length::ALL.into_iter().filter(|it| self.tally(*it).calls > 0);
        present.min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// The length whose mean is similar to this duration.
    pub fn similar(&self, ns: f64) -> Option<Length> {
        let is_similar = |it: &Length| Length::of(self.tally(*it).mean_ns(), ns) == Length::Usual;
        self.nearest(ns).filter(is_similar)
    }

    /// The length of launches about which nothing is known: the length of all launches, if they
    /// share one.
    pub fn only(&self) -> Option<Length> {
        let mut present = Length::ALL.into_iter().filter(|it| self.tally(*it).calls > 0);
        present.next().filter(|_| present.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn launches_of_one_kernel_are_short_usual_or_long() {
        let of = Durations::of(&[20, 20, 64, 64, 63]);
        let means = Length::ALL.map(|it| of.tally(it).mean_ns().round());
        assert_eq!(means, [20.0, 0.0, 64.0]);
        assert_eq!(
            (of.length(21), of.length(46), of.length(70)),
            (Length::Short, Length::Usual, Length::Long)
        );
        assert_eq!(of.nearest(25.0), Some(Length::Short));
        assert_eq!(of.nearest(50.0), Some(Length::Long));
        assert_eq!((of.similar(25.0), of.similar(30.0)), (Some(Length::Short), None));
        assert_eq!((of.only(), Durations::of(&[5, 6]).only()), (None, Some(Length::Usual)));
        assert_eq!(Durations::default().nearest(1.0), None);
    }

    #[test]
    fn the_few_launches_that_are_slow_by_chance_are_usual_ones() {
        let mut durations = vec![100; 99];
        durations.push(300);
        let of = Durations::of(&durations);
        assert_eq!((of.length(300), of.tally(Length::Usual)), (Length::Usual, of.all()));
        assert_eq!(of.tally(Length::Long), Tally::default());
    }

    proptest! {
        /// Every launch is of the length that counts it.
        #[test]
        fn the_lengths_have_all_launches_once(
            durations in prop::collection::vec(0i64..1000, 0..60)
        ) {
            let of = Durations::of(&durations);
            for length in Length::ALL {
                let mut expected = Tally::default();
                let of_length = durations.iter().filter(|ns| of.length(**ns) == length);
                of_length.for_each(|ns| expected.add(*ns));
                prop_assert_eq!(of.tally(length), expected);
            }
        }
    }
}
