//! Rows that a value of one column selects, without decoding the other blocks.

use super::{BLOCK, Decoded, PackedRows, column::Column};

/// Rows for which a predicate holds in one column, each after its index.
pub(in crate::trace) struct Matching<'a, const N: usize, F> {
    rows: &'a PackedRows<N>,
    column: usize,
    matches: F,
    at: usize,
    decoded: Decoded<N>,
    /// Values of the column in a block.
    values: Box<[[i64; 1]; BLOCK]>,
}

impl<const N: usize> PackedRows<N> {
    /// The rows whose value in `column` satisfies `matches`, each after its index.
    pub(in crate::trace) fn matching<F: Fn(i64) -> bool>(
        &self,
        column: usize,
        matches: F,
    ) -> Matching<'_, N, F> {
        let (decoded, values) = (Box::new([[0; N]; BLOCK]), Box::new([[0]; BLOCK]));
        Matching { rows: self, column, matches, at: 0, decoded, values }
    }

    /// Decodes one column of a block.
    #[inline(never)]
    fn decode_column(&self, block: usize, at: usize, values: &mut [[i64; 1]; BLOCK]) {
        let mut bytes = self.bytes(block);
        for _ in 0..at {
            bytes = &bytes[Column::read(bytes).bytes()..];
        }
        Column::read(bytes).values(bytes, values, 0);
    }
}

impl<const N: usize, F: Fn(i64) -> bool> Iterator for Matching<'_, N, F> {
    type Item = (usize, [i64; N]);

    fn next(&mut self) -> Option<Self::Item> {
        let full = self.rows.blocks.len() * BLOCK;
        while self.at < full {
            let (block, place) = (self.at / BLOCK, self.at % BLOCK);
            if place == 0 {
                self.rows.decode_column(block, self.column, &mut self.values);
                if !self.values.iter().any(|[value]| (self.matches)(*value)) {
                    self.at += BLOCK;
                    continue;
                }
                self.rows.decode(block, &mut self.decoded);
            }
            self.at += 1;
            if (self.matches)(self.values[place][0]) {
                return Some((self.at - 1, self.decoded[place]));
            }
        }
        while let Some(row) = self.rows.open.get(self.at - full) {
            self.at += 1;
            if (self.matches)(row[self.column]) {
                return Some((self.at - 1, *row));
            }
        }
        None
    }
}
