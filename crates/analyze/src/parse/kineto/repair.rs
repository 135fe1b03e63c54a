//! Names of events with quotes or line ends that were written without a backslash (pytorch issue
//! 146900), repaired while the text is read.
//!
//! Kineto writes the name of an event between its category and its process, so its start and end
//! are known without the quotes: `"cat": "python_function", "name": "…", "pid": 7`. Only text
//! between these is changed, and a name that contains a part of another event is left as it is.

use std::{
    cell::Cell,
    io::{self, Read},
    rc::Rc,
};

const START: &[u8] = b"\", \"name\": \"";
const END: &[u8] = b"\", \"pid\": ";
const CATEGORY: &[u8] = b"\"cat\": \"";
/// Parts of an event: a name that contains one has no known end.
const FOREIGN: [&[u8]; 3] = [b"\"ph\": ", b"\"cat\": ", b"\"traceEvents\""];
/// Longest name, and longest category before it.
const MAX_NAME: usize = 64 << 10;
const MAX_CATEGORY: usize = 64;
const CHUNK: usize = 64 << 10;

/// Text whose names are repaired.
pub struct RepairedText<R> {
    text: R,
    /// Read and not yet searched, from `at`.
    raw: Vec<u8>,
    at: usize,
    is_end: bool,
    /// Searched and not yet returned, from `returned`.
    done: Vec<u8>,
    returned: usize,
    count: Rc<Cell<u64>>,
}

impl<R: Read> RepairedText<R> {
    /// Repairs `text`; the second value counts repaired names.
    pub fn new(text: R) -> (Self, Rc<Cell<u64>>) {
        let count = Rc::new(Cell::new(0));
        let (raw, done) = Default::default();
        let counted = Rc::clone(&count);
        (Self { text, raw, at: 0, is_end: false, done, returned: 0, count }, counted)
    }

    /// Reads more text; returns false at its end.
    fn more(&mut self) -> io::Result<bool> {
        self.raw.drain(..std::mem::take(&mut self.at));
        let before = self.raw.len();
        let read = (&mut self.text).take(CHUNK as u64).read_to_end(&mut self.raw)?;
        self.is_end = read == 0;
        Ok(self.raw.len() > before)
    }

    /// Moves the text up to the next name, and that name, to `done`.
    fn advance(&mut self) -> io::Result<()> {
        let left = &self.raw[self.at..];
        let Some(start) = find(left, START) else {
            // The marker and the category before it may be cut.
            let kept = if self.is_end { 0 } else { left.len().min(MAX_CATEGORY + START.len()) };
            let to = self.raw.len() - kept;
            self.done.extend_from_slice(&self.raw[self.at..to]);
            self.at = to;
            if !self.is_end {
                self.more()?;
            }
            return Ok(());
        };
        let is_event = is_after_category(&left[..start]);
        let name_at = self.at + start + START.len();
        self.done.extend_from_slice(&self.raw[self.at..name_at]);
        self.at = name_at;
        if !is_event {
            return Ok(());
        }
        let mut end = find(&self.raw[self.at..], END);
        while end.is_none() && self.raw.len() - self.at < MAX_NAME && !self.is_end {
            self.more()?;
            end = find(&self.raw[self.at..], END);
        }
        if let Some(end) = end.filter(|end| *end <= MAX_NAME) {
            let name = &self.raw[self.at..self.at + end];
            match escaped(name) {
                Some(repaired) => {
                    self.count.set(self.count.get() + 1);
                    self.done.extend_from_slice(&repaired);
                }
                None => self.done.extend_from_slice(name),
            }
            self.at += end;
        }
        Ok(())
    }
}

impl<R: Read> Read for RepairedText<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.returned == self.done.len() {
            self.done.clear();
            self.returned = 0;
            if self.is_end && self.at == self.raw.len() {
                return Ok(0);
            }
            self.advance()?;
        }
        let count = into.len().min(self.done.len() - self.returned);
        into[..count].copy_from_slice(&self.done[self.returned..self.returned + count]);
        self.returned += count;
        Ok(count)
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// Returns true if `text` ends with the start of a category and its value.
fn is_after_category(text: &[u8]) -> bool {
    let near = &text[text.len().saturating_sub(MAX_CATEGORY)..];
    let value = near.iter().rposition(|byte| *byte == b'"').map(|quote| quote + 1);
    value.is_some_and(|value| {
        near[..value].ends_with(CATEGORY)
            && near[value..].iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    })
}

/// The name with its quotes and control characters escaped; `None` if none is to be escaped, and
/// for a text that contains parts of events.
fn escaped(name: &[u8]) -> Option<Vec<u8>> {
    if FOREIGN.iter().any(|part| find(name, part).is_some()) {
        return None;
    }
    let (mut text, mut is_escape) = (Vec::with_capacity(name.len() + 8), false);
    for byte in name {
        match byte {
            b'"' if !is_escape => text.extend_from_slice(b"\\\""),
            0..=0x1f => text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            byte => text.push(*byte),
        }
        is_escape = *byte == b'\\' && !is_escape;
    }
    // A backslash would escape the quote that ends the name.
    (text != name && !is_escape).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn repaired(text: &str) -> (String, u64) {
        let (mut reader, count) = RepairedText::new(text.as_bytes());
        let mut repaired = String::new();
        reader.read_to_string(&mut repaired).unwrap();
        (repaired, count.get())
    }

    fn event(name: &str) -> String {
        format!(r#"{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 7, "tid": 7}}"#)
    }

    #[test]
    fn quotes_and_line_ends_in_a_name_are_escaped() {
        let (text, count) = repaired(&event("Library(\"a\", \"IMPL\")\n(1): <module>"));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (value["name"].as_str(), count),
            (Some("Library(\"a\", \"IMPL\")\n(1): <module>"), 1)
        );
    }

    #[test]
    fn names_that_are_json_and_other_texts_stay() {
        for text in [event(r#"a \"b\" c"#), "{}".into(), event(""), r#"", "name": ""#.into()] {
            assert_eq!(repaired(&text), (text, 0));
        }
        let unclear = event("a\", \"x\": 1}, {\"ph\": \"X\", \"name\": \"b");
        assert_eq!(repaired(&unclear), (unclear, 0));
    }

    proptest! {
        #[test]
        fn every_name_is_read_as_it_was(
            names in prop::collection::vec("[ -!#-\\[\\]-~\"\n]{0,40}", 1..300)
        ) {
            let parts = [START, END, FOREIGN[0], FOREIGN[1]];
            let is_plain =
                |it: &String| parts.iter().all(|part| find(it.as_bytes(), part).is_none());
            prop_assume!(names.iter().all(is_plain));
            let events: Vec<String> = names.iter().map(|name| event(name)).collect();
            let (text, _) = repaired(&format!("[{}]", events.join(",\n")));
            let values: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
            let read: Vec<&str> = values.iter().map(|it| it["name"].as_str().unwrap()).collect();
            prop_assert_eq!(read, names);
        }
    }
}
