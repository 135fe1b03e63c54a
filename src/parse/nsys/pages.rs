//! Reads the integers of one table page by page: several times faster than queries over millions of
//! rows.
//!
//! Format: <https://www.sqlite.org/fileformat2.html>, sections 1.3, 1.6 and 2.1. The caller queries
//! other tables with SQLite; an invalid page ends the walk. Time is linear in the size of the file;
//! a few pages are in memory.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

/// Reason why a walk ended early.
#[derive(Debug)]
pub enum Broken {
    Io(io::Error),
    /// This page is invalid.
    Page(u32),
}

/// Maximum number of consecutive pages in one read: 256 KiB of the usual size.
const AHEAD: u32 = 64;
/// Jumps of up to this many pages forward count as consecutive: two tables often alternate.
const NEAR: u32 = 8;
/// Maximum depth of SQLite's trees.
const DEEPEST: usize = 20;
/// Types of pages: inner ones, and those with rows, of tables.
const INNER: u8 = 5;
const LEAF: u8 = 13;

/// The pages of a file.
pub struct Pages {
    file: File,
    /// Bytes of a page, and those with content.
    size: usize,
    usable: usize,
    count: u32,
    buffer: Vec<u8>,
    /// The pages in the buffer: the first, and their number.
    first: u32,
    held: u32,
    /// Number of pages in the next read.
    ahead: u32,
}

impl Pages {
    /// Opens a file with a checked header; `None` for values outside the format.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let mut header = [0; 100];
        file.read_exact_at(&mut header, 0)?;
        let size = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            size => usize::from(size),
        };
        let usable = size.saturating_sub(header[20].into());
        let count = file.metadata()?.len() / size.max(1) as u64;
        if !size.is_power_of_two() || size < 4096 || usable < 480 {
            return Ok(None);
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Ok(Some(Self {
            file,
            size,
            usable,
            count,
            buffer: Vec::new(),
            first: 0,
            held: 0,
            ahead: 1,
        }))
    }

    /// The content of the page with this number; pages count from 1.
    fn page(&mut self, number: u32) -> Result<&[u8], Broken> {
        if number == 0 || number > self.count {
            return Err(Broken::Page(number));
        }
        if number < self.first || number >= self.first + self.held {
            let end = self.first + self.held;
            self.ahead = if (end..=end.saturating_add(NEAR)).contains(&number) {
                (self.ahead * 2).min(AHEAD)
            } else {
                1
            };
            let held = self.ahead.min(self.count - number + 1);
            self.held = 0;
            self.buffer.resize(self.size * held as usize, 0);
            let at = u64::from(number - 1) * self.size as u64;
            self.file.read_exact_at(&mut self.buffer, at).map_err(Broken::Io)?;
            (self.first, self.held) = (number, held);
        }
        let at = (number - self.first) as usize * self.size;
        Ok(&self.buffer[at..at + self.usable])
    }

    /// Numbers of the pages with the rows of the table at `root`, in row order.
    pub fn leaves(&mut self, root: u32) -> Result<Vec<u32>, Broken> {
        let (mut leaves, mut inner) = (Vec::new(), vec![(root, 0)]);
        let mut seen = 0;
        while let Some((number, depth)) = inner.pop() {
            seen += 1;
            if seen > self.count || depth > DEEPEST {
                return Err(Broken::Page(number));
            }
            let head = head_of(number);
            let page = self.page(number)?;
            let broken = || Broken::Page(number);
            match page.get(head) {
                Some(&LEAF) => leaves.push(number),
                Some(&INNER) => {
                    let mut below = Vec::new();
                    for cell in cells(page, head, 12).ok_or_else(broken)? {
                        below.push(u32_at(page, cell).ok_or_else(broken)?);
                    }
                    below.push(u32_at(page, head + 8).ok_or_else(broken)?);
                    // Pages of one level are of one kind: if the first is a leaf, so are its
                    // siblings.
                    let first = below[0];
                    let of_leaves = self.page(first)?.get(head_of(first)) == Some(&LEAF);
                    if of_leaves {
                        if leaves.len() + below.len() > self.count as usize {
                            return Err(broken());
                        }
                        leaves.extend(below);
                    } else {
                        inner.extend(below.into_iter().rev().map(|page| (page, depth + 1)));
                    }
                }
                _ => return Err(broken()),
            }
        }
        Ok(leaves)
    }

    /// Calls `take` with the integers of the columns in `places` for each row of the table at
    /// `root`, until it returns false.
    pub fn rows<const N: usize>(
        &mut self,
        root: u32,
        places: [Option<usize>; N],
        take: impl FnMut(&[Number; N]) -> bool,
    ) -> Result<(), Broken> {
        let leaves = self.leaves(root)?;
        self.rows_of(&leaves, places, take)
    }

    /// The same for the rows on the pages `leaves`.
    pub fn rows_of<const N: usize>(
        &mut self,
        leaves: &[u32],
        places: [Option<usize>; N],
        mut take: impl FnMut(&[Number; N]) -> bool,
    ) -> Result<(), Broken> {
        let slots = slots(places);
        let mut row = [Number::Null; N];
        for &number in leaves {
            let broken = || Broken::Page(number);
            let head = head_of(number);
            let page = self.page(number)?;
            if page.get(head) != Some(&LEAF) {
                return Err(broken());
            }
            for cell in cells(page, head, 8).ok_or_else(broken)? {
                payload(page, cell)
                    .and_then(|payload| read(payload, &slots, &mut row))
                    .ok_or_else(broken)?;
                if !take(&row) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The value of a column of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Number {
    Null,
    Is(i64),
    /// A text, a fraction, or bytes.
    Other,
}

/// For each column of a row up to the last requested one, the index of its value.
fn slots<const N: usize>(places: [Option<usize>; N]) -> Vec<Option<usize>> {
    let mut slots = vec![None; places.iter().flatten().max().map_or(0, |last| last + 1)];
    for (slot, place) in places.iter().enumerate() {
        if let Some(place) = place {
            slots[*place] = Some(slot);
        }
    }
    slots
}

/// Offset of a page's header: the first page starts with the file's header.
const fn head_of(number: u32) -> usize {
    if number == 1 { 100 } else { 0 }
}

/// Offsets of the cells of a page whose header has this length.
fn cells(page: &[u8], head: usize, length: usize) -> Option<impl Iterator<Item = usize> + '_> {
    let count = usize::from(u16::from_be_bytes(page.get(head + 3..head + 5)?.try_into().ok()?));
    let pointers = page.get(head + length..head + length + 2 * count)?;
    Some(pointers.chunks_exact(2).map(|at| usize::from(u16::from_be_bytes([at[0], at[1]]))))
}

fn u32_at(page: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(page.get(at..at + 4)?.try_into().ok()?))
}

/// The record in the cell at `at`; `None` where it continues on other pages.
fn payload(page: &[u8], at: usize) -> Option<&[u8]> {
    let (length, at) = varint(page, at)?;
    let at = after_varint(page, at)?;
    let length = usize::try_from(length).ok()?;
    // A longer record overflows; rows of integers never do.
    if length > page.len() - 35 { None } else { page.get(at..at + length) }
}

/// Reads the requested columns of a record into `row`. Columns that were added later are null.
#[inline]
fn read<const N: usize>(
    record: &[u8],
    slots: &[Option<usize>],
    row: &mut [Number; N],
) -> Option<()> {
    *row = [Number::Null; N];
    let (header, mut at) = varint(record, 0)?;
    let mut body = usize::try_from(header).ok()?;
    let types = record.get(..body)?;
    for slot in slots {
        if at == types.len() {
            break;
        }
        let (kind, next) = varint(types, at)?;
        at = next;
        let end = body.checked_add(length_of(kind)?)?;
        if end > record.len() {
            return None;
        }
        if let Some(slot) = slot {
            row[*slot] = number(kind, record, body, end);
        }
        body = end;
    }
    Some(())
}

/// Length of a value of this type in a record, bytes.
#[inline]
fn length_of(kind: u64) -> Option<usize> {
    const SHORT: [usize; 10] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0];
    match kind {
        0..=9 => Some(SHORT[kind as usize]),
        10 | 11 => None,
        _ => usize::try_from((kind - 12) / 2).ok(),
    }
}

/// The value of this type at `from..to` of a record.
#[inline]
fn number(kind: u64, record: &[u8], from: usize, to: usize) -> Number {
    match kind {
        0 => Number::Null,
        8 => Number::Is(0),
        9 => Number::Is(1),
        1..=6 => Number::Is(integer(record, from, to)),
        _ => Number::Other,
    }
}

/// The integer in `from..to`, 1 to 8 bytes: the last ones of the eight before `to`.
#[inline]
fn integer(record: &[u8], from: usize, to: usize) -> i64 {
    let unused = 64 - 8 * (to - from) as u32;
    let word = to.checked_sub(8).and_then(|start| record[start..to].first_chunk());
    let word = word.map_or_else(
        || record[from..to].iter().fold(0, |value, byte| value << 8 | u64::from(*byte)),
        |bytes| u64::from_be_bytes(*bytes),
    );
    (word << unused).cast_signed() >> unused
}

/// A number of one to nine bytes, and its end.
#[inline(always)]
fn varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let first = *bytes.get(at)?;
    if first < 0x80 { Some((first.into(), at + 1)) } else { long_varint(bytes, at) }
}

/// The end of a number, which is not decoded.
#[inline]
fn after_varint(bytes: &[u8], at: usize) -> Option<usize> {
    let number = bytes.get(at..)?.iter().take(9);
    let ends = |(place, byte): (usize, &u8)| *byte < 0x80 || place == 8;
    Some(at + 1 + number.enumerate().position(ends)?)
}

/// The same for a number of several bytes.
fn long_varint(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for place in 0..8 {
        let byte = *bytes.get(at + place)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, at + place + 1));
        }
    }
    Some((value << 8 | u64::from(*bytes.get(at + 8)?), at + 9))
}

#[cfg(test)]
mod tests;
