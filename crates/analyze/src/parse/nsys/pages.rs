//! Reads the integers of one table page by page: several times faster than queries over millions of
//! rows.
//!
//! Format: <https://www.sqlite.org/fileformat2.html>, sections 1.3, 1.6 and 2.1. The caller queries
//! other tables with SQLite; an invalid page ends the walk. Time is linear in the size of the file;
//! a few pages are in memory.

mod record;

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use self::record::Records;
pub use self::record::{Number, Record};
use crate::parse::stored::open_own;

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
        let file = open_own(path)?;
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

    /// Calls `take` with each row of the table at `root`, and the places of the requested columns,
    /// until it returns false.
    pub fn rows<const N: usize>(
        &mut self,
        root: u32,
        places: [Option<usize>; N],
        take: impl FnMut(&Record<N>) -> bool,
    ) -> Result<(), Broken> {
        let leaves = self.leaves(root)?;
        self.rows_of(&leaves, places, take)
    }

    /// The same for the rows on the pages `leaves`.
    pub fn rows_of<const N: usize>(
        &mut self,
        leaves: &[u32],
        places: [Option<usize>; N],
        mut take: impl FnMut(&Record<N>) -> bool,
    ) -> Result<(), Broken> {
        let mut records = Records::of(places);
        for &number in leaves {
            let broken = || Broken::Page(number);
            let head = head_of(number);
            let page = self.page(number)?;
            if page.get(head) != Some(&LEAF) {
                return Err(broken());
            }
            for cell in cells(page, head, 8).ok_or_else(broken)? {
                if !take(&records.find(page, cell).ok_or_else(broken)?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Offset of a page's header: the first page starts with the file's header.
const fn head_of(number: u32) -> usize {
    if number == 1 { 100 } else { 0 }
}

/// Offsets of the cells of a page whose header has this length.
fn cells(page: &[u8], head: usize, length: usize) -> Option<impl Iterator<Item = usize> + '_> {
    let count = usize::from(u16::from_be_bytes(page.get(head + 3..head + 5)?.try_into().ok()?));
    let pointers = page.get(head + length..head + length + 2 * count)?;
    let cell = move |at: usize| u16::from_be_bytes([pointers[2 * at], pointers[2 * at + 1]]);
    Some((0..count).map(move |at| usize::from(cell(at))))
}

fn u32_at(page: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(page.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
