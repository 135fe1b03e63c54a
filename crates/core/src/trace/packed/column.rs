//! One column of a block: its encoding, and values of a fixed number of bits.
//!
//! Layout, little endian: a byte with the number of bits of a value, its highest bit set if the
//! values are steps; the base; for steps the smallest one; the values.

use super::BLOCK;

/// Bytes after a block, because a value is read as part of eight bytes.
pub(super) const PADDING: usize = 8;
/// Maximum number of bits that fit into eight bytes at every bit of the first; more take all.
const MAX_BITS: u32 = 57;
const STEPS: u8 = 0x80;

/// Encoding of one column of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Column {
    bits: u32,
    /// The smallest value; for steps the first value.
    base: i64,
    /// The smallest step; `None` if values are kept without their neighbours.
    step: Option<i64>,
}

fn bits_of(least: i64, most: i64) -> u32 {
    let bits = u64::BITS - most.wrapping_sub(least).cast_unsigned().leading_zeros();
    if bits > MAX_BITS { u64::BITS } else { bits }
}

impl Column {
    /// The shorter encoding of `values`.
    pub(super) fn of(values: &[i64; BLOCK]) -> Self {
        let (mut least, mut most) = (values[0], values[0]);
        let (mut down, mut up) = (i64::MAX, i64::MIN);
        for pair in values.windows(2) {
            (least, most) = (least.min(pair[1]), most.max(pair[1]));
            let step = pair[1].wrapping_sub(pair[0]);
            (down, up) = (down.min(step), up.max(step));
        }
        let (plain, steps) = (bits_of(least, most), bits_of(down, up));
        if steps < plain {
            Self { bits: steps, base: values[0], step: Some(down) }
        } else {
            Self { bits: plain, base: least, step: None }
        }
    }

    fn head(&self) -> usize {
        if self.step.is_some() { 17 } else { 9 }
    }

    /// Length of head and values.
    pub(super) fn bytes(&self) -> usize {
        self.head() + (self.bits as usize * BLOCK).div_ceil(8)
    }

    pub(super) fn write(&self, values: &[i64; BLOCK], out: &mut Vec<u8>) {
        out.push(self.bits as u8 | if self.step.is_some() { STEPS } else { 0 });
        out.extend_from_slice(&self.base.to_le_bytes());
        if let Some(step) = self.step {
            out.extend_from_slice(&step.to_le_bytes());
        }
        let (mut word, mut filled) = (0u128, 0);
        let mut before = self.base;
        for value in values {
            let kept = match self.step {
                // The first value is the base: its step is not used.
                Some(step) => value.wrapping_sub(before).wrapping_sub(step),
                None => value.wrapping_sub(self.base),
            };
            before = *value;
            word |= u128::from(kept.cast_unsigned() & self.mask()) << filled;
            filled += self.bits;
            if filled >= u64::BITS {
                out.extend_from_slice(&(word as u64).to_le_bytes());
                word >>= u64::BITS;
                filled -= u64::BITS;
            }
        }
        out.extend_from_slice(&(word as u64).to_le_bytes()[..filled.div_ceil(8) as usize]);
    }

    const fn mask(&self) -> u64 {
        if self.bits == u64::BITS { u64::MAX } else { (1 << self.bits) - 1 }
    }

    /// The encoding at the start of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let steps = bytes[0] & STEPS != 0;
        Self {
            bits: u32::from(bytes[0] & !STEPS),
            base: word(bytes, 1).cast_signed(),
            step: steps.then(|| word(bytes, 9).cast_signed()),
        }
    }

    #[inline]
    fn kept(&self, bytes: &[u8], at: usize) -> i64 {
        let bit = at * self.bits as usize;
        (word(bytes, bit / 8) >> (bit % 8) & self.mask()).cast_signed()
    }

    /// Decodes all values into column `at` of `rows`.
    pub(super) fn values<const N: usize>(
        &self,
        bytes: &[u8],
        rows: &mut [[i64; N]; BLOCK],
        at: usize,
    ) {
        assert!(at < N);
        let bytes = &bytes[self.head()..];
        match self.step {
            None => unpack(self.bits, bytes, rows, |row, kept| {
                row[at] = self.base.wrapping_add(kept);
            }),
            Some(step) => {
                // The first value is the base, and its step is not used.
                let mut last = self.base.wrapping_sub(step.wrapping_add(self.kept(bytes, 0)));
                unpack(self.bits, bytes, rows, |row, kept| {
                    last = last.wrapping_add(step.wrapping_add(kept));
                    row[at] = last;
                });
            }
        }
    }

    /// Decodes the value at index `at`.
    pub(super) fn value(&self, bytes: &[u8], at: usize) -> i64 {
        let bytes = &bytes[self.head()..];
        match self.step {
            None => self.base.wrapping_add(self.kept(bytes, at)),
            Some(step) => (1..=at).fold(self.base, |last, at| {
                last.wrapping_add(step).wrapping_add(self.kept(bytes, at))
            }),
        }
    }
}

/// Values that end with a whole byte, whatever their number of bits.
const GROUP: usize = 8;

/// Unpacks a block of values of this many bits, one for each of `rows`.
#[inline(always)]
fn unpack<const N: usize>(
    bits: u32,
    bytes: &[u8],
    rows: &mut [[i64; N]; BLOCK],
    mut put: impl FnMut(&mut [i64; N], i64),
) {
    /// A function for each number of bits, whose shifts are constants.
    macro_rules! by_bits {
        ($($bits:literal)*) => {
            match bits {
                $($bits => unpack_bits::<$bits, N>(bytes, rows, &mut put),)*
                _ => rows.iter_mut().for_each(|row| put(row, 0)),
            }
        };
    }
    by_bits!(
        1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
        35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 64
    );
}

#[inline(never)]
fn unpack_bits<const BITS: usize, const N: usize>(
    bytes: &[u8],
    rows: &mut [[i64; N]; BLOCK],
    put: &mut impl FnMut(&mut [i64; N], i64),
) {
    let mask = u64::MAX >> (64 - BITS);
    for (at, group) in rows.chunks_exact_mut(GROUP).enumerate() {
        // A group takes as many bytes as a value has bits.
        let bytes = &bytes[at * BITS..at * BITS + BITS + PADDING];
        for (place, row) in group.iter_mut().enumerate() {
            let bit = place * BITS;
            put(row, (word(bytes, bit / 8) >> (bit % 8) & mask).cast_signed());
        }
    }
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}
