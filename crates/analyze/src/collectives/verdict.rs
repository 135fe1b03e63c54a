//! Verdict on the ranks of a group: does one of them keep the others waiting?

use llmprof_core::domain::named_values::named_values;

named_values! {
    /// Verdict on the ranks of a group.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    RankVerdict {
        /// Ranks wait for each other less than 10 % of the time of their operations.
        Balanced = "balanced",
        /// One rank is last in most operations.
        OneStraggler = "one_straggler",
        /// Ranks wait, and different ones are last.
        Rotating = "rotating",
        /// Too few operations for a verdict.
        TooFew = "too_few",
    }
}

/// Operations below which there is no verdict.
const MIN_OPERATIONS: u64 = 8;
/// Share of the time of operations below which waiting does not matter, percent.
const BALANCED_PCT: f64 = 10.0;
/// Probability of a straggler if all ranks are alike.
const ALPHA: f64 = 0.01;

/// The verdict on a group of `times_last.len()` ranks with `joined` operations, each rank with the
/// number of those in which it was last. `waiting` is the share of the operations' time, percent.
pub fn verdict(joined: u64, times_last: &[u64], waiting: f64) -> RankVerdict {
    let count: u64 = times_last.iter().sum();
    if joined < MIN_OPERATIONS {
        return RankVerdict::TooFew;
    }
    if waiting < BALANCED_PCT {
        return RankVerdict::Balanced;
    }
    if count < MIN_OPERATIONS {
        return RankVerdict::TooFew;
    }
    let most = times_last.iter().copied().max().unwrap_or(0);
    if 2 * most > count && chance(most, count, times_last.len()) < ALPHA {
        RankVerdict::OneStraggler
    } else {
        RankVerdict::Rotating
    }
}

/// Upper bound of the probability that one of `ranks` equal ranks is last in `most` of `count`
/// operations: Hoeffding's bound of a binomial tail, times the number of ranks.
fn chance(most: u64, count: u64, ranks: usize) -> f64 {
    let (k, n, ranks) = (most as f64, count as f64, ranks as f64);
    let excess = (k / n - 1.0 / ranks).max(0.0);
    ranks * (-2.0 * n * excess * excess).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_is_last_most_of_the_time_is_a_straggler() {
        use RankVerdict::*;
        for (times_last, waiting, expected) in [
            (&[0, 7][..], 50.0, TooFew),
            (&[50, 50], 9.9, Balanced),
            (&[0, 100], 9.9, Balanced),
            (&[0, 100], 50.0, OneStraggler),
            (&[45, 55], 50.0, Rotating),
            (&[30, 70], 50.0, OneStraggler),
            // Most of the time, yet by chance: 10 of 16 between two.
            (&[6, 10], 50.0, Rotating),
            (&[25, 25, 25, 25], 50.0, Rotating),
            (&[10, 60, 15, 15], 50.0, OneStraggler),
            (&[20, 40, 20, 20], 50.0, Rotating),
            (&[], 50.0, TooFew),
        ] {
            let joined = times_last.iter().sum();
            assert_eq!(verdict(joined, times_last, waiting), expected, "{times_last:?} {waiting}");
        }
        assert_eq!(verdict(100, &[0, 0], 5.0), Balanced);
        assert_eq!(verdict(100, &[0, 5], 50.0), TooFew, "five waits are not a rule");
    }
}
