//! Decompression of files that are a stream: gzip with all its members, and zstd.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

use super::foreign::COPY_AGAIN;

/// First bytes of a gzip member (RFC 1952, section 2.3.1).
pub const GZIP: &[u8] = b"\x1f\x8b";
/// First bytes of a Zstandard frame (RFC 8878, section 3.1.1).
pub const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Largest window of the decompressor, as a power of two: 128 MiB, the window of `zstd -22`.
const WINDOW_LOG: u32 = 27;

/// The program that unpacks a file with this start; `None` for other files.
pub fn program(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(GZIP) {
        Some("gzip")
    } else if head.starts_with(ZSTD) {
        Some("zstd")
    } else {
        None
    }
}

/// Reads a file that `program` unpacks. Like `zcat`, it ignores bytes after a member of gzip that
/// are not the header of another one, as copies by blocks leave them. The window of zstd is
/// bounded.
pub fn unpacked<'a>(
    program: &str,
    file: impl BufRead + Send + 'a,
) -> io::Result<Box<dyn Read + Send + 'a>> {
    if program == "gzip" {
        return Ok(Box::new(Complete(GzipMembers { member: Some(GzDecoder::new(file)) })));
    }
    let mut packed = zstd::stream::read::Decoder::with_buffer(file)?;
    packed.window_log_max(WINDOW_LOG)?;
    Ok(Box::new(Complete(packed)))
}

struct GzipMembers<R> {
    /// `None` after the last member.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(into)?;
            if read > 0 || into.is_empty() {
                return Ok(read);
            }
            let Some(mut file) = self.member.take().map(GzDecoder::into_inner) else { break };
            let next = file.fill_buf()?;
            // The buffer may end within the two bytes.
            if !next.is_empty() && GZIP.starts_with(&next[..next.len().min(GZIP.len())]) {
                self.member = Some(GzDecoder::new(file));
            }
        }
        Ok(0)
    }
}

/// A stream whose early end is an error with a remedy.
struct Complete<R>(R);

impl<R: Read> Read for Complete<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                error.kind(),
                format!("truncated: the compressed data ends early; {COPY_AGAIN}"),
            ),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => io::Error::new(
                error.kind(),
                format!("damaged compressed data ({error}); {COPY_AGAIN}"),
            ),
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write as _};

    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        gzip.finish().unwrap()
    }

    fn unpacked(bytes: &[u8], buffer: usize) -> Result<String, String> {
        let mut text = String::new();
        super::unpacked("gzip", BufReader::with_capacity(buffer, bytes))
            .unwrap()
            .read_to_string(&mut text)
            .map(|_| text)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn members_are_read_up_to_bytes_that_are_not_a_header() {
        let (first, second) = (packed("first "), packed("second"));
        for buffer in 1..64 {
            let both = [first.clone(), second.clone()].concat();
            assert_eq!(unpacked(&both, buffer).unwrap(), "first second", "{buffer}");
            for rest in [&b"\0\0\0\0"[..], b"\0", b"garbage", &[0; 1 << 12]] {
                let padded = [both.as_slice(), rest].concat();
                assert_eq!(unpacked(&padded, buffer).unwrap(), "first second", "{buffer}");
            }
        }
    }

    #[test]
    fn an_early_end_and_damage_have_a_remedy() {
        let whole = packed(&"text, ".repeat(1000));
        for end in [whole.len() - 1, whole.len() / 2, 12, 5] {
            let error = unpacked(&whole[..end], 64).unwrap_err();
            assert!(error.starts_with("truncated: ") && error.contains("copy"), "{end}: {error}");
        }
        let mut damaged = whole.clone();
        damaged[whole.len() - 6] ^= 1;
        assert!(
            unpacked(&damaged, 64).unwrap_err().starts_with("damaged compressed data (corrupt")
        );
        let text = "text, ".repeat(1000);
        let frame = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let mut read = super::unpacked("zstd", &frame[..frame.len() - 3]).unwrap();
        let error = read.read_to_string(&mut String::new()).unwrap_err().to_string();
        assert!(error.starts_with("truncated: the compressed data ends early; copy"), "{error}");
    }
}
