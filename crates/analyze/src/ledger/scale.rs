//! Exact scaling of integer times: the scaled parts add up to the scaled sum.

/// A positive factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    times: u64,
    over: u64,
}

impl Default for Fraction {
    fn default() -> Self {
        Self::new(1, 1)
    }
}

impl Fraction {
    pub fn new(times: u64, over: u64) -> Self {
        let (times, over) = (times.max(1), over.max(1));
        let divisor = gcd(times, over);
        Self { times: times / divisor, over: over / divisor }
    }

    /// The product; if a term does not fit, both lose their lowest bits.
    pub fn times(self, other: Self) -> Self {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        let (times, over) = (product(self.times, other.times), product(self.over, other.over));
        let excess = (u128::BITS - times.max(over).leading_zeros()).saturating_sub(u64::BITS);
        Self::new((times >> excess) as u64, (over >> excess) as u64)
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

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
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

    /// The sum of the parts.
    pub const fn given(&self) -> i64 {
        self.given
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

        #[test]
        fn a_product_is_the_product_of_the_ratios(
            (a, b, c, d) in (1u64..1 << 40, 1u64..1 << 9, 1u64..1 << 40, 1u64..1 << 40),
        ) {
            let (x, y) = (Fraction::new(a, b), Fraction::new(c, d));
            let (product, wanted) = (x.times(y).ratio(), x.ratio() * y.ratio());
            prop_assert!((product / wanted - 1.0).abs() < 1e-3, "{product} {wanted}");
        }
    }
}
