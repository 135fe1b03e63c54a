//! Rows that equal an earlier one, as tools that merge captures write them.

use foldhash::HashSet;

use super::PackedRows;

impl<const N: usize> PackedRows<N> {
    /// Drops each row for which `is_unique` holds and that equals an earlier one. Returns the
    /// number of dropped rows. The rows are sorted by the first column.
    pub fn drop_repeated(&mut self, is_unique: impl Fn(&[i64; N]) -> bool) -> u64 {
        let mut same_start = SameStart::default();
        let mut is_repeated = |row: &[i64; N]| is_unique(row) && same_start.repeats(*row);
        let repeated = self.iter().filter(&mut is_repeated).count();
        if repeated > 0 {
            let mut same_start = SameStart::default();
            let is_first = |row: &[i64; N]| !(is_unique(row) && same_start.repeats(*row));
            *self = self.iter().filter(is_first).collect();
        }
        repeated as u64
    }
}

/// Distinct rows with the same start: usually one, in a hostile file all.
struct SameStart<const N: usize> {
    first: Option<[i64; N]>,
    more: HashSet<[i64; N]>,
}

impl<const N: usize> Default for SameStart<N> {
    fn default() -> Self {
        Self { first: None, more: HashSet::default() }
    }
}

impl<const N: usize> SameStart<N> {
    /// Returns true for a row that was there before. Rows come in the order of their starts.
    fn repeats(&mut self, row: [i64; N]) -> bool {
        match self.first {
            Some(first) if first[0] == row[0] => first == row || !self.more.insert(row),
            _ => {
                self.first = Some(row);
                self.more.clear();
                false
            }
        }
    }
}
