//! Sizes of the prompts that a pass computes at the same time.

/// Prompts that are computed at the same time, images included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompts {
    pub(super) sequences: u64,
    /// Positions of all.
    pub(super) positions: u128,
    /// Query-key pairs of all: T(T+1)/2 of a prompt of T positions.
    pub(super) pairs: u128,
}

impl Prompts {
    /// `sequences` prompts of `positions` each.
    pub fn equal(positions: u64, sequences: u64) -> Self {
        let (each, all) = (u128::from(positions), u128::from(sequences));
        Self { sequences, positions: all * each, pairs: all * (each * (each + 1) / 2) }
    }

    /// True for `sequences` prompts of `positions` together.
    pub fn have(self, sequences: u64, positions: u64) -> bool {
        (self.sequences, self.positions) == (sequences, u128::from(positions))
    }

    /// Prompts of these lengths.
    pub fn of(lengths: &[u64]) -> Self {
        let none = Self { sequences: 0, positions: 0, pairs: 0 };
        lengths.iter().map(|positions| Self::equal(*positions, 1)).fold(none, |all, it| Self {
            sequences: all.sequences + 1,
            positions: all.positions + it.positions,
            pairs: all.pairs + it.pairs,
        })
    }
}
