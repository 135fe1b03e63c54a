//! Rows of integers in a few bytes each: a capture has tens of millions of events.
//!
//! Rows are kept in blocks. Within a block a column takes the fewest bits that hold all of its
//! values less the smallest one, or all of its steps from row to row less the smallest step.
//! Arithmetic wraps, so every `i64` is kept exactly. A lookup decodes one block.

use std::ops::Range;

mod column;
mod matching;
mod repeated;

use self::column::{Column, PADDING};

/// Rows of a block: enough to make the head of a block small, few enough for a lookup.
pub(super) const BLOCK: usize = 256;
/// Bytes of an allocation, which holds many blocks: one that grew by doubling would be copied.
const CHUNK: usize = 1 << 20;
/// Blocks that a reader keeps decoded: lookups of several streams alternate between neighbours.
const KEPT: usize = 4;
/// Rows that the first attempt to sort holds: rows of several threads are displaced by a few.
const WINDOW: usize = 1 << 14;

/// Packed rows of `N` integers.
#[derive(Debug, Clone)]
pub struct PackedRows<const N: usize> {
    chunks: Vec<Vec<u8>>,
    /// Chunk and position of each full block.
    blocks: Vec<(u32, u32)>,
    /// The last rows, too few for a block.
    open: Vec<[i64; N]>,
    /// The first column never decreases.
    in_order: bool,
    last: i64,
}

impl<const N: usize> Default for PackedRows<N> {
    fn default() -> Self {
        let (chunks, blocks, open) = Default::default();
        Self { chunks, blocks, open, in_order: true, last: i64::MIN }
    }
}

/// Decoded rows of one block. A row is copied from memory that was written long before: one that is
/// put together from columns stalls at its first copy, which waits for all of its stores.
type Decoded<const N: usize> = Box<[[i64; N]; BLOCK]>;

impl<const N: usize> PackedRows<N> {
    #[inline]
    pub fn push(&mut self, row: [i64; N]) {
        self.in_order &= self.last <= row[0];
        self.last = row[0];
        self.open.push(row);
        if self.open.len() == BLOCK {
            self.close();
        }
    }

    /// Encodes the open rows as a block.
    fn close(&mut self) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() > CHUNK - BLOCK * 8 * N) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let place = self.chunks.len() - 1;
        let chunk = &mut self.chunks[place];
        // A chunk is a mebibyte, so both numbers are small.
        self.blocks.push((place as u32, chunk.len() as u32));
        for at in 0..N {
            let mut values = [0; BLOCK];
            self.open.iter().zip(&mut values).for_each(|(row, value)| *value = row[at]);
            Column::of(&values).write(&values, chunk);
        }
        chunk.extend_from_slice(&[0; PADDING]);
        self.open.clear();
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.blocks.len() * BLOCK + self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn bytes(&self, block: usize) -> &[u8] {
        let (chunk, at) = self.blocks[block];
        &self.chunks[chunk as usize][at as usize..]
    }

    /// Decodes a block; never inlined, so that the loops that read its rows are short.
    #[inline(never)]
    fn decode(&self, block: usize, rows: &mut [[i64; N]; BLOCK]) {
        let mut bytes = self.bytes(block);
        for at in 0..N {
            let column = Column::read(bytes);
            column.values(bytes, rows, at);
            bytes = &bytes[column.bytes()..];
        }
    }

    /// The row at index `at`; [`Self::reader`] is faster for many rows.
    pub fn get(&self, at: usize) -> [i64; N] {
        let (block, place) = (at / BLOCK, at % BLOCK);
        if block == self.blocks.len() {
            return self.open[place];
        }
        let mut bytes = self.bytes(block);
        std::array::from_fn(|_| {
            let column = Column::read(bytes);
            let value = column.value(bytes, place);
            bytes = &bytes[column.bytes()..];
            value
        })
    }

    /// Looks up rows that are near each other.
    pub fn reader(&self) -> PackedReader<'_, N> {
        PackedReader { rows: self, kept: std::array::from_fn(|_| None) }
    }

    pub fn iter(&self) -> PackedIter<'_, N> {
        self.range(0..self.len())
    }

    /// The rows at these indices; the first starts a block.
    fn range(&self, rows: Range<usize>) -> PackedIter<'_, N> {
        PackedIter { rows: self, at: rows.start, end: rows.end, decoded: Box::new([[0; N]; BLOCK]) }
    }

    /// The rows in about `count` parts of the same length.
    pub fn parts(&self, count: usize) -> impl Iterator<Item = PackedIter<'_, N>> {
        let all = self.len();
        let length = all.div_ceil(BLOCK).div_ceil(count.max(1)).max(1) * BLOCK;
        (0..all).step_by(length).map(move |from| self.range(from..(from + length).min(all)))
    }

    /// Appends rows; fast if the rows before them fill their blocks.
    pub fn append(&mut self, more: Self) {
        if !self.open.is_empty() {
            more.iter().for_each(|row| self.push(row));
            return;
        }
        if more.is_empty() {
            return;
        }
        self.in_order &= more.in_order && self.last <= more.get(0)[0];
        self.last = more.last;
        let chunks = self.chunks.len() as u32;
        self.chunks.extend(more.chunks);
        self.blocks.extend(more.blocks.into_iter().map(|(chunk, at)| (chunk + chunks, at)));
        self.open = more.open;
    }

    /// Sorts by the first column, unless it is in order; equal rows keep their order. Rows that are
    /// displaced by little take little memory.
    pub fn sort(&mut self) {
        let mut window = WINDOW;
        while !self.in_order {
            *self = self.sorted_within(window);
            window = window.saturating_mul(16);
        }
    }

    /// Moves rows to their place if it is less than half of `window` rows before.
    fn sorted_within(&self, window: usize) -> Self {
        let (mut sorted, mut held) = (Self::default(), Vec::new());
        for row in self.iter() {
            held.push(row);
            if held.len() == window {
                held.sort_by_key(|row| row[0]);
                held.drain(..window / 2).for_each(|row| sorted.push(row));
            }
        }
        held.sort_by_key(|row| row[0]);
        held.into_iter().for_each(|row| sorted.push(row));
        sorted
    }

    /// Number of rows at the start whose first value is less than `value`. The rows are sorted.
    fn before(&self, value: i64, reader: &mut PackedReader<N>) -> usize {
        let (mut from, mut to) = (0, self.len().div_ceil(BLOCK));
        while from < to {
            let middle = from.midpoint(to);
            if self.get(middle * BLOCK)[0] < value { from = middle + 1 } else { to = middle }
        }
        // The block before the first one that starts at `value` or later.
        let first = from.saturating_sub(1) * BLOCK;
        let count = (self.len() - first).min(BLOCK);
        let (mut from, mut to) = (first, first + count);
        while from < to {
            let middle = from.midpoint(to);
            if reader.get(middle)[0] < value { from = middle + 1 } else { to = middle }
        }
        from
    }
}

impl<const N: usize> FromIterator<[i64; N]> for PackedRows<N> {
    fn from_iter<I: IntoIterator<Item = [i64; N]>>(rows: I) -> Self {
        let mut packed = Self::default();
        rows.into_iter().for_each(|row| packed.push(row));
        packed
    }
}

/// Random access that keeps a few blocks decoded.
#[derive(Debug, Clone)]
pub struct PackedReader<'a, const N: usize> {
    rows: &'a PackedRows<N>,
    kept: [Option<(usize, Decoded<N>)>; KEPT],
}

impl<const N: usize> PackedReader<'_, N> {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The row at index `at`.
    #[inline]
    pub fn get(&mut self, at: usize) -> [i64; N] {
        let (block, place) = (at / BLOCK, at % BLOCK);
        if block == self.rows.blocks.len() {
            return self.rows.open[place];
        }
        let decoded = match &mut self.kept[block % KEPT] {
            Some((kept, decoded)) if *kept == block => decoded,
            kept => {
                let decoded = kept.take().map_or_else(|| Box::new([[0; N]; BLOCK]), |it| it.1);
                let (_, decoded) = kept.insert((block, decoded));
                self.rows.decode(block, decoded);
                decoded
            }
        };
        decoded[place]
    }

    /// Index of the first row whose first value is `value`. The rows are sorted.
    pub fn find(&mut self, value: i64) -> Option<usize> {
        let rows = self.rows;
        let at = rows.before(value, self);
        (at < rows.len() && self.get(at)[0] == value).then_some(at)
    }
}

/// Rows in order.
#[derive(Debug, Clone)]
pub struct PackedIter<'a, const N: usize> {
    rows: &'a PackedRows<N>,
    at: usize,
    end: usize,
    decoded: Decoded<N>,
}

impl<const N: usize> Iterator for PackedIter<'_, N> {
    type Item = [i64; N];

    #[inline(always)]
    fn next(&mut self) -> Option<[i64; N]> {
        if self.at == self.end {
            return None;
        }
        let (block, place) = (self.at / BLOCK, self.at % BLOCK);
        self.at += 1;
        if block == self.rows.blocks.len() {
            return self.rows.open.get(place).copied();
        }
        if place == 0 {
            self.rows.decode(block, &mut self.decoded);
        }
        Some(self.decoded[place])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.at;
        (left, Some(left))
    }
}

impl<const N: usize> ExactSizeIterator for PackedIter<'_, N> {}

#[cfg(test)]
mod tests;
