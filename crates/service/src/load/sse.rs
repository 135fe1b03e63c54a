//! Server-sent events from bytes that arrive in any pieces.
//!
//! Follows the parsing rules of the WHATWG HTML standard, section 9.2.6: lines end with LF, CR or
//! CRLF, comments are skipped, several `data` lines are joined by LF, an event without its blank
//! line is dropped. Memory is bounded by [`MAX_EVENT`].

/// Maximum size of an event and of a line, bytes.
pub const MAX_EVENT: usize = 1 << 20;

/// An event or a line exceeds [`MAX_EVENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream exceeds {MAX_EVENT} bytes")]
pub struct EventTooLarge;

/// Incremental parser of one stream.
#[derive(Debug, Default)]
pub struct EventParser {
    /// Bytes of the line so far.
    line: Vec<u8>,
    /// Data of the event so far, each line with its LF.
    data: Vec<u8>,
    is_error: bool,
    /// Id of the event so far.
    id: Option<u64>,
    /// The last byte was a CR, whose LF belongs to the same end.
    after_cr: bool,
    has_started: bool,
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamEvent<'a> {
    pub data: &'a [u8],
    /// True if its type is `error`.
    pub is_error: bool,
    /// Its id, of streams whose ids are numbers.
    pub id: Option<u64>,
}

impl EventParser {
    /// Reads more bytes of the stream and passes each complete event to `take`.
    pub fn read(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(StreamEvent),
    ) -> Result<(), EventTooLarge> {
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + self.data.len() + part.len() > MAX_EVENT {
                return Err(EventTooLarge);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { return Ok(()) };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.end_line(&line, &mut take);
            self.line = line;
            self.line.clear();
        }
        Ok(())
    }

    fn end_line(&mut self, line: &[u8], take: &mut impl FnMut(StreamEvent)) {
        let byte_order_mark: &[u8] = b"\xef\xbb\xbf";
        let line = match line.strip_prefix(byte_order_mark) {
            Some(rest) if !self.has_started => rest,
            _ => line,
        };
        self.has_started = true;
        if line.is_empty() {
            if let Some(data) = self.data.strip_suffix(b"\n") {
                take(StreamEvent { data, is_error: self.is_error, id: self.id });
            }
            self.data.clear();
            (self.is_error, self.id) = (false, None);
            return;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = colon.map_or((line, &b""[..]), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" => {
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => self.is_error = value == b"error",
            b"id" => self.id = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            // A comment has an empty name; a client has its own pauses before it reconnects.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(pieces: &[&[u8]]) -> Vec<(String, bool)> {
        let (mut parser, mut found) = (EventParser::default(), Vec::new());
        for piece in pieces {
            let taken = parser.read(piece, |event| {
                found.push((String::from_utf8_lossy(event.data).into_owned(), event.is_error));
            });
            taken.unwrap();
        }
        found
    }

    const STREAM: &[u8] = b"\xef\xbb\xbf: ping\r\ndata: a\n\ndata:b\r\ndata:  c\r\n\r\n\
        event: error\rdata: d\r\rid: 7\nretry: 5\n\ndata\n\ndata: [DONE]\n\ndata: lost";

    #[test]
    fn events_have_their_lines_joined_and_an_unfinished_one_is_dropped() {
        let found = events(&[STREAM]);
        let datas: Vec<&str> = found.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(datas, ["a", "b\n c", "d", "", "[DONE]"]);
        let errors: Vec<bool> = found.iter().map(|it| it.1).collect();
        assert_eq!(errors, [false, false, true, false, false]);
    }

    proptest! {
        #[test]
        fn a_stream_split_at_any_bytes_has_the_same_events(
            mut cuts in proptest::collection::vec(0..STREAM.len(), 0..12)
        ) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|it| &STREAM[it[0]..it[1]]).collect();
            prop_assert_eq!(events(&pieces), events(&[STREAM]));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..400)
        ) {
            let mut parser = EventParser::default();
            prop_assert!(parser.read(&bytes, |_| ()).is_ok());
        }
    }

    #[test]
    fn an_id_belongs_to_its_event_alone() {
        let (mut parser, mut ids) = (EventParser::default(), Vec::new());
        let stream = b"id: 7\ndata: a\n\ndata: b\n\nid: x\ndata: c\n\ndata: d\nid:8\n\n";
        parser.read(stream, |event| ids.push(event.id)).unwrap();
        assert_eq!(ids, [Some(7), None, None, Some(8)]);
    }

    #[test]
    fn endless_lines_and_endless_events_are_refused() {
        let mut parser = EventParser::default();
        let refused = (0..40).find_map(|_| parser.read(&[b'x'; 1 << 16], |_| ()).err());
        assert_eq!(refused, Some(EventTooLarge));
        let mut parser = EventParser::default();
        let line = [b"data:".as_slice(), &[b'x'; 1 << 16], b"\n"].concat();
        let refused = (0..40).find_map(|_| parser.read(&line, |_| ()).err());
        assert_eq!(refused, Some(EventTooLarge));
    }
}
