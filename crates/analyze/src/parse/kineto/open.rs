//! Opens a trace, packed with gzip or zstd or not, and finds the place of an error in it.
//!
//! Memory is bounded by the windows of the decompressors; a trace of any size is a stream.

use std::{
    io::{self, BufRead as _, BufReader, Read},
    path::PathBuf,
};

use llmprof_core::domain::byte_order_mark::without_mark;

use crate::parse::{
    capture_path::CapturePath,
    compressed, encoding,
    foreign::HEAD,
    stored::{self, open_own},
};

const BUFFER: usize = 256 << 10;
/// Maximum size of an unpacked trace, the same as of every unpacked file.
const MAX_BYTES: u64 = 64 << 30;

/// The unpacked text of a trace.
pub type TraceText = BufReader<io::Take<Box<dyn Read + Send>>>;

/// Opens a trace, or its packed form in a run's folder, after the mark of UTF-8.
pub fn open(file: &CapturePath) -> io::Result<TraceText> {
    let mut text = unpacked(file)?;
    let head = text.fill_buf()?;
    if let Some(encoding) = encoding::utf16(head) {
        let refused = encoding::utf16_refused(encoding, &file.name(), packed_with(file)?);
        return Err(io::Error::new(io::ErrorKind::InvalidData, refused));
    }
    let mark = head.len() - without_mark(head).len();
    text.consume(mark);
    Ok(text)
}

fn unpacked(file: &CapturePath) -> io::Result<TraceText> {
    let bytes = BufReader::with_capacity(BUFFER, open_own(&stored_path(file))?);
    let text: Box<dyn Read + Send> = match packed_with(file)? {
        Some(program) => compressed::unpacked(program, bytes)?,
        None => Box::new(bytes),
    };
    Ok(BufReader::with_capacity(BUFFER, text.take(MAX_BYTES)))
}

fn stored_path(file: &CapturePath) -> PathBuf {
    let path = file.data();
    if path.is_file() { path.to_owned() } else { stored::packed_path(path) }
}

/// The program that unpacks a file; `None` for a plain one.
fn packed_with(file: &CapturePath) -> io::Result<Option<&'static str>> {
    let mut head = Vec::new();
    open_own(&stored_path(file))?.take(4).read_to_end(&mut head)?;
    Ok(compressed::program(&head))
}

/// Returns true if a file holds JSON, packed or not: a trace, or nothing that another
/// reader knows. Text of UTF-16 is for [`open`] to refuse.
pub fn is_json(file: &CapturePath) -> io::Result<bool> {
    Ok(encoding::decoded(&head(file)?).trim_start().starts_with(['{', '[']))
}

/// The first bytes of a file, unpacked; fewer for a packed one that ends early.
pub fn head(file: &CapturePath) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    match unpacked(file)?.take(HEAD).read_to_end(&mut head) {
        Err(error) if head.is_empty() => Err(error),
        _ => Ok(head),
    }
}

/// At most `count` bytes of a text from an offset.
pub fn bytes(mut text: impl Read, from: u64, count: u64) -> io::Result<Vec<u8>> {
    io::copy(&mut text.by_ref().take(from), &mut io::sink())?;
    let mut found = Vec::new();
    text.take(count).read_to_end(&mut found)?;
    Ok(found)
}

/// Offset of a line and column, which count from 1 and 0 as in `serde_json`.
pub fn offset(mut text: impl Read, line: usize, column: usize) -> io::Result<u64> {
    let (mut at, mut lines, mut buffer) = (0_u64, 1, vec![0; BUFFER]);
    while lines < line {
        let read = text.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let missing = line - lines;
        let ends = buffer[..read].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        match ends.clone().nth(missing - 1) {
            Some((end, _)) => return Ok(at + end as u64 + 1 + column as u64),
            None => lines += ends.count(),
        }
        at += read as u64;
    }
    Ok(at + column as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_a_column_are_an_offset() {
        let text = b"{\n\n \"a\": x}\n";
        assert_eq!(offset(&text[..], 1, 1).unwrap(), 1);
        assert_eq!(offset(&text[..], 3, 7).unwrap(), 10);
        assert_eq!(text[9], b'x');
        let long = [vec![b'\n'; BUFFER], b"abc".to_vec()].concat();
        assert_eq!(offset(&long[..], BUFFER + 1, 2).unwrap(), BUFFER as u64 + 2);
    }
}
