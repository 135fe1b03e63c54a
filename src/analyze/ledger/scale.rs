//! Exact scaling of integer times: the scaled parts add up to the scaled sum.

/// A positive factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    times: u64,
    over: u64,
}

impl Fraction {
    pub fn new(times: u64, over: u64) -> Self {
        Self { times: times.max(1), over: over.max(1) }
    }

    /// `ns` times the factor, rounded down.
    pub fn of(self, ns: i64) -> i64 {
        let scaled = i128::from(ns) * i128::from(self.times) / i128::from(self.over);
        i64::try_from(scaled).unwrap_or(i64::MAX)
    }

    pub fn ratio(self) -> f64 {
        self.times as f64 / self.over as f64
    }

    /// Scales parts so that their sum is the scaled sum.
    pub fn parts(self) -> ScaledParts {
        ScaledParts { factor: self, sum: 0, given: 0 }
    }
}

/// Parts scaled so far.
pub struct ScaledParts {
    factor: Fraction,
    sum: i64,
    given: i64,
}

impl ScaledParts {
    pub fn next(&mut self, ns: i64) -> i64 {
        self.sum = self.sum.saturating_add(ns);
        let until = self.factor.of(self.sum);
        let part = until - self.given;
        self.given = until;
        part
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn scaled_parts_add_up_and_none_is_negative(
            parts in prop::collection::vec(0i64..1_000_000, 0..50),
            times in 1u64..70,
            over in 1u64..70,
        ) {
            let factor = Fraction::new(times, over);
            let mut scaled = factor.parts();
            let all: Vec<i64> = parts.iter().map(|ns| scaled.next(*ns)).collect();
            prop_assert!(all.iter().all(|ns| *ns >= 0));
            prop_assert_eq!(all.iter().sum::<i64>(), factor.of(parts.iter().sum()));
        }
    }
}
