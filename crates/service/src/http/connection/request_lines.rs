//! The lines of request heads, which have to end with CR LF.
//!
//! The parser of heads also accepts a bare LF, which a proxy may read differently (RFC 9112, 2.2).
//! Here it becomes a NUL, which the parser refuses with 400 at the end of the head. Bodies are
//! passed over by their framing and never changed; unusual framing ends the inspection.

/// Characters of a line that are kept: the longest field that frames a body.
const MAX_LINE: usize = 256;
const NUL: u8 = 0;
/// End of a refused head: the parser waits for it, the client may not send it.
const END: &[u8] = b"\r\n\r\n";

/// The part of a connection's bytes that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Lines of a head; false before the request line.
    Head(bool),
    /// A body, or a chunk of one, of this length; true: a chunk.
    Data(u64, bool),
    /// The line with the length of a chunk.
    ChunkLength,
    /// The end of a chunk's data.
    ChunkEnd,
    Trailers,
    /// Bytes that are not inspected: the parser refuses the request or ends the connection.
    Uninspected,
}

/// Framing of a body by the fields of its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct BodyFraming {
    length: Option<u64>,
    chunked: bool,
    /// Fields contradict each other or are not understood.
    unusual: bool,
}

/// Inspector of the bytes of a connection, in pieces of any size.
#[derive(Debug)]
pub struct RequestLines {
    part: Part,
    framing: BodyFraming,
    /// Start of the current line, without its end.
    line: Vec<u8>,
    /// Length of the line.
    length: usize,
    /// The last byte is a CR.
    after_cr: bool,
    /// A bare LF was replaced, and the end of the head is not yet added.
    refused: bool,
}

impl Default for RequestLines {
    fn default() -> Self {
        Self {
            part: Part::Head(false),
            framing: BodyFraming::default(),
            line: Vec::new(),
            length: 0,
            after_cr: false,
            refused: false,
        }
    }
}

impl RequestLines {
    /// Inspects the next bytes, and replaces a bare LF of a head.
    pub fn inspect(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() && self.part != Part::Uninspected {
            let taken = match self.part {
                Part::Data(left, is_chunk) => self.pass_data(left, is_chunk, bytes.len()),
                _ => self.take_line(bytes),
            };
            bytes = &mut bytes[taken..];
        }
    }

    /// Bytes to add to the client's, once.
    pub fn take_end(&mut self) -> Option<&'static [u8]> {
        std::mem::take(&mut self.refused).then_some(END)
    }

    fn pass_data(&mut self, left: u64, is_chunk: bool, available: usize) -> usize {
        let taken = left.min(available as u64);
        self.part = match (left - taken, is_chunk) {
            (0, true) => Part::ChunkEnd,
            (0, false) => Part::Head(false),
            (left, _) => Part::Data(left, is_chunk),
        };
        usize::try_from(taken).unwrap_or(available)
    }

    /// Takes bytes up to the end of the line, if it is among them; returns their number.
    fn take_line(&mut self, bytes: &mut [u8]) -> usize {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.add_to_line(bytes);
            return bytes.len();
        };
        self.add_to_line(&bytes[..end]);
        if !self.after_cr {
            if matches!(self.part, Part::Head(_)) {
                bytes[end] = NUL;
                self.refused = true;
            }
            self.part = Part::Uninspected;
            return bytes.len();
        }
        // Without the CR.
        self.length -= 1;
        self.line.truncate(self.length);
        self.part = self.next_part();
        (self.length, self.after_cr) = (0, false);
        self.line.clear();
        end + 1
    }

    fn add_to_line(&mut self, bytes: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.line.len()).min(bytes.len());
        self.line.extend_from_slice(&bytes[..room]);
        self.length += bytes.len();
        if let Some(last) = bytes.last() {
            self.after_cr = *last == b'\r';
        }
    }

    /// The part after a complete line.
    fn next_part(&mut self) -> Part {
        let is_empty = self.length == 0;
        match self.part {
            // Empty lines before a request are ignored.
            Part::Head(false) if is_empty => Part::Head(false),
            Part::Head(true) if is_empty => self.body(),
            Part::Head(false) => {
                self.framing = BodyFraming::default();
                Part::Head(true)
            }
            Part::Head(true) => {
                self.framing.read(&self.line, self.length > self.line.len());
                Part::Head(true)
            }
            Part::ChunkLength => match chunk_length(&self.line) {
                Some(0) => Part::Trailers,
                Some(length) => Part::Data(length, true),
                None => Part::Uninspected,
            },
            Part::ChunkEnd if is_empty => Part::ChunkLength,
            Part::Trailers if is_empty => Part::Head(false),
            Part::Trailers => Part::Trailers,
            Part::ChunkEnd | Part::Data(..) | Part::Uninspected => Part::Uninspected,
        }
    }

    /// The part after a head.
    fn body(&self) -> Part {
        match self.framing {
            BodyFraming { unusual: true, .. } => Part::Uninspected,
            BodyFraming { chunked: true, .. } => Part::ChunkLength,
            BodyFraming { length: None | Some(0), .. } => Part::Head(false),
            BodyFraming { length: Some(length), .. } => Part::Data(length, false),
        }
    }
}

impl BodyFraming {
    /// Reads a field of a head.
    fn read(&mut self, line: &[u8], is_cut: bool) {
        let colon = line.iter().position(|byte| *byte == b':');
        let Some((name, value)) = colon.map(|at| (&line[..at], line[at + 1..].trim_ascii())) else {
            return;
        };
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = decimal(value).filter(|_| !is_cut);
            let differs = self.length.is_some_and(|before| Some(before) != length);
            self.unusual |= length.is_none() || differs;
            self.length = length;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.unusual |= self.chunked || is_cut || !value.eq_ignore_ascii_case(b"chunked");
            self.chunked = true;
        }
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit) && !text.is_empty();
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()
}

/// The length of a chunk, before its extensions.
fn chunk_length(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    let is_hexadecimal = digits.iter().all(u8::is_ascii_hexdigit) && !digits.is_empty();
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hexadecimal)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes after an inspection in pieces of `size`.
    fn inspected(bytes: &[u8], size: usize) -> Vec<u8> {
        let (mut lines, mut bytes) = (RequestLines::default(), bytes.to_vec());
        bytes.chunks_mut(size).for_each(|piece| lines.inspect(piece));
        bytes
    }

    #[test]
    fn a_bare_lf_of_any_head_is_replaced() {
        let first = "POST /a HTTP/1.1\r\nhost: x\r\nContent-Length: 4\r\n\r\na\nb\n";
        let second =
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n\n\n\r\n0\r\n\r\n";
        for (head, replaced) in [
            ("GET / HTTP/1.1\nhost: x\r\n\r\n", "GET / HTTP/1.1\0host: x\r\n\r\n"),
            ("GET / HTTP/1.1\r\nhost: x\n\r\n", "GET / HTTP/1.1\r\nhost: x\0\r\n"),
            ("GET / HTTP/1.1\r\nhost: x\r\n\n", "GET / HTTP/1.1\r\nhost: x\r\n\0"),
            ("\nGET / HTTP/1.1\r\n", "\0GET / HTTP/1.1\r\n"),
        ] {
            for before in ["", "\r\n", first, second, &[first, second].concat()] {
                for size in [1, 2, 3, 7, 1000] {
                    let bytes = inspected(format!("{before}{head}").as_bytes(), size);
                    assert_eq!(
                        String::from_utf8_lossy(&bytes),
                        format!("{before}{replaced}"),
                        "pieces of {size}"
                    );
                }
            }
        }
    }

    #[test]
    fn unusual_framing_is_left_to_the_parser() {
        for head in [
            "Content-Length: 1\r\nContent-Length: 2",
            "Content-Length: +1",
            "Content-Length: 99999999999999999999",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        ] {
            let text = format!("POST / HTTP/1.1\r\n{head}\r\n\r\na\n\n\n");
            assert_eq!(inspected(text.as_bytes(), 5), text.as_bytes(), "{head}");
        }
    }

    proptest! {
        #[test]
        fn bodies_are_never_changed(
            bodies in proptest::collection::vec(
                ("[a\r\n:0]{0,40}", any::<bool>(), 0_usize..300), 1..6),
            size in 1_usize..50,
        ) {
            let text: String = bodies.iter().map(|(body, chunked, field)| {
                let field = "v".repeat(*field);
                if *chunked {
                    let (a, b) = body.split_at(body.len() / 2);
                    let chunk = |part: &str| match part.len() {
                        0 => String::new(),
                        length => format!("{length:X}\r\n{part}\r\n"),
                    };
                    let head = "POST / HTTP/1.1\r\ntransfer-encoding:  Chunked";
                    let chunks = chunk(a) + &chunk(b);
                    format!("{head}\r\nx: {field}\r\n\r\n{chunks}0\r\nt: 1\r\n\r\n")
                } else {
                    let head = format!("POST / HTTP/1.1\r\nx: {field}");
                    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                }
            }).collect();
            prop_assert_eq!(inspected(text.as_bytes(), size), text.as_bytes());
        }
    }
}
