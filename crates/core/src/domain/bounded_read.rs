//! Reads of files, pipes and answers from outside, within a limit: their length may be unknown, and
//! a file may grow while it is read.

use std::io::{Error, ErrorKind, Read, Result};

/// Reads all of `from`; more than `max` bytes are an error of kind [`ErrorKind::FileTooLarge`].
pub fn read_bounded(from: impl Read, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("larger than {max} bytes")));
    }
    Ok(bytes)
}

/// The same of a text; bytes that are not UTF-8 are an error of kind [`ErrorKind::InvalidData`].
pub fn read_bounded_text(from: impl Read, max: u64) -> Result<String> {
    let text = String::from_utf8(read_bounded(from, max)?);
    text.map_err(|error| Error::new(ErrorKind::InvalidData, error.utf8_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_has_all_bytes_or_fails_above_the_limit() {
        for length in 0..6_usize {
            let bytes = vec![b'a'; length];
            let read = read_bounded(bytes.as_slice(), 4);
            let text = read_bounded_text(bytes.as_slice(), 4);
            if length <= 4 {
                assert_eq!((read.unwrap(), text.unwrap().len()), (bytes, length));
            } else {
                let errors = [read.unwrap_err(), text.unwrap_err()];
                assert!(errors.iter().all(|it| it.kind() == ErrorKind::FileTooLarge));
                assert!(errors.iter().all(|it| it.to_string() == "larger than 4 bytes"));
            }
        }
        let endless = read_bounded(std::io::repeat(0), 4).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        let invalid = read_bounded_text(&[0xff][..], 4).unwrap_err();
        assert_eq!(invalid.kind(), ErrorKind::InvalidData);
    }
}
