//! The JSON of one trace: its header, and its events as rows. Nothing of it is held as text.

use std::{
    cell::RefCell,
    fmt,
    io::{BufReader, Read},
};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::error::Category;

use super::{
    event::{DeviceProperties, Distributed, Integer, Text, TraceEvent},
    open,
    repair::RepairedText,
    rows::FileRows,
    signatures::Signatures,
    strings::Strings,
};
use crate::parse::{ParseError, capture_path::CapturePath, foreign};

const BUFFER: usize = 256 << 10;

/// Header of a trace.
#[derive(Debug, Default)]
pub struct Header {
    /// Nanoseconds since 1970 at the zero of all times; absent before 2.4.
    pub base_ns: Option<i64>,
    pub devices: Vec<DeviceProperties>,
    pub distributed: Option<Distributed>,
    /// Numbers of the highest CUDA version of the driver, and of the runtime's version.
    pub driver: Option<i64>,
    pub runtime: Option<i64>,
    pub cupti: Option<i64>,
    pub schema: Option<i64>,
    /// Unique id of the recording, if the version writes one.
    pub trace_id: Option<String>,
    /// True if Python stacks were recorded.
    pub with_stack: bool,
    /// True if the events were written without an object around them.
    pub bare: bool,
}

/// Names and signatures of all files.
#[derive(Debug, Default)]
pub struct Tables {
    pub strings: Strings,
    pub signatures: Signatures,
}

/// Reads one trace. A text that is not JSON is read again with the quotes of its names
/// repaired; if the repaired one is not JSON either, the error is about the original text.
pub fn read(file: &CapturePath, tables: &mut Tables) -> Result<(Header, FileRows), ParseError> {
    let unread = |source| ParseError::Read { path: file.shown().into(), source };
    let text = || open::open(file).map_err(unread);
    let (header, rows) = match parse(text()?, tables) {
        Ok(read) => read,
        Err(error) if error.classify() == Category::Syntax => {
            let (repaired, count) = RepairedText::new(text()?);
            let repaired = BufReader::with_capacity(BUFFER, repaired);
            let (header, mut rows) = parse(repaired, tables).map_err(|_| refusal(file, error))?;
            rows.odd.repaired = count.get();
            (header, rows)
        }
        Err(error) => return Err(refusal(file, error)),
    };
    match header {
        Some(header) => Ok((header, rows)),
        None => {
            let what = foreign::not_a_trace(file);
            Err(ParseError::Foreign { path: file.shown().into(), what })
        }
    }
}

/// Header and rows of one text.
fn parse(
    text: impl Read,
    tables: &mut Tables,
) -> Result<(Option<Header>, FileRows), serde_json::Error> {
    let mut from = serde_json::Deserializer::from_reader(text);
    let state = RefCell::new((FileRows::default(), tables));
    let header = from.deserialize_any(TraceVisitor(&state)).and_then(|header| match header {
        // Its start has the message for what follows, too.
        None => Ok(None),
        header => from.end().map(|()| header),
    })?;
    let (rows, _) = state.into_inner();
    Ok((header, rows))
}

/// The error with its place in the unpacked text.
fn refusal(file: &CapturePath, error: serde_json::Error) -> ParseError {
    if error.classify() == Category::Io {
        return ParseError::Read { path: file.shown().into(), source: error.into() };
    }
    let at = open::open(file)
        .and_then(|text| open::offset(text, error.line(), error.column()))
        .unwrap_or_default();
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(text, _)| text);
    let what = match error.classify() {
        Category::Eof => format!("truncated: the JSON ends at byte {at}; copy the file again"),
        Category::Syntax => {
            let near =
                open::open(file).and_then(|text| open::bytes(text, at.saturating_sub(4), 16));
            let remedy = remedy(message, &near.unwrap_or_default());
            format!("not JSON at byte {at} ({message}); {remedy}")
        }
        Category::Data | Category::Io => format!("not a trace at byte {at}: {message}"),
    };
    ParseError::Foreign { path: file.shown().into(), what }
}

/// The remedy of text that is not JSON, by the parser's message and the bytes at the place.
fn remedy(message: &str, near: &[u8]) -> &'static str {
    let has = |part: &[u8]| near.windows(part.len()).any(|window| window == part);
    if message.contains("trailing comma") {
        "a comma stands before the bracket there: remove the comma"
    } else if has(b"NaN") || has(b"Infinity") {
        "JSON has no such number: write null in its place"
    } else if message.contains("trailing characters") {
        "a second text starts there: give each trace as a file of its own"
    } else if message.contains("unicode") || message.contains("UTF-8") {
        "the text is not UTF-8 there: convert it, or correct the name"
    } else if message.contains("escape") {
        "a backslash there means nothing in JSON, as in a path of Windows: write it twice"
    } else {
        "older versions of PyTorch write quotes in names without a backslash (pytorch issue \
         146900), which is not repairable here: add it, or record with a newer version"
    }
}

/// Rows under way, and the tables that they index.
type State<'a> = RefCell<(FileRows, &'a mut Tables)>;

struct TraceVisitor<'a, 'b>(&'a State<'b>);

impl<'de> Visitor<'de> for TraceVisitor<'_, '_> {
    /// `None` without any list of events.
    type Value = Option<Header>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object with traceEvents, or a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, events: A) -> Result<Self::Value, A::Error> {
        EventsVisitor(self.0).visit_seq(events)?;
        Ok(Some(Header { bare: true, ..Header::default() }))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut header, mut seen) = (Header::default(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            let known = match key.as_str() {
                "traceEvents" => "traceEvents",
                "baseTimeNanoseconds" => "baseTimeNanoseconds",
                "deviceProperties" => "deviceProperties",
                "distributedInfo" => "distributedInfo",
                "cuda_driver_version" => "cuda_driver_version",
                "cuda_runtime_version" => "cuda_runtime_version",
                "cupti_version" => "cupti_version",
                "schemaVersion" => "schemaVersion",
                "trace_id" => "trace_id",
                "with_stack" => "with_stack",
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if seen.contains(&known) {
                return Err(A::Error::duplicate_field(known));
            }
            seen.push(known);
            match known {
                "traceEvents" => map.next_value_seed(EventsVisitor(self.0))?,
                "baseTimeNanoseconds" => header.base_ns = map.next_value::<Integer>()?.value,
                "deviceProperties" => header.devices = map.next_value()?,
                "distributedInfo" => header.distributed = map.next_value()?,
                "cuda_driver_version" => header.driver = map.next_value::<Integer>()?.value,
                "cuda_runtime_version" => header.runtime = map.next_value::<Integer>()?.value,
                "trace_id" => header.trace_id = map.next_value::<Text>()?.0,
                "with_stack" => {
                    header.with_stack = map.next_value::<Integer>()?.value.unwrap_or(0) != 0;
                }
                "cupti_version" => header.cupti = map.next_value::<Integer>()?.value,
                _ => header.schema = map.next_value::<Integer>()?.value,
            }
        }
        Ok(seen.contains(&"traceEvents").then_some(header))
    }
}

struct EventsVisitor<'a, 'b>(&'a State<'b>);

impl<'de> Visitor<'de> for EventsVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut events: A) -> Result<(), A::Error> {
        let (rows, tables) = &mut *self.0.borrow_mut();
        while let Some(TraceEvent(event)) = events.next_element()? {
            rows.push(event, &mut tables.strings, &mut tables.signatures);
            if tables.strings.is_full() || tables.signatures.is_full() {
                return Err(A::Error::custom(
                    "the names of its events take more memory than those of any program",
                ));
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for EventsVisitor<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl Header {
    /// Version of the trace, as far as it is recorded.
    pub fn version(&self) -> Option<String> {
        let cupti = self.cupti.map(|it| format!("CUPTI {it}"));
        let schema = self.schema.map(|it| format!("schema {it}"));
        let parts: Vec<String> = schema.into_iter().chain(cupti).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}
