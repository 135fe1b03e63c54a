//! Reader of `events.jsonl`, the events of the model runner.
//!
//! A killed runner leaves half a line, or no last event: a gap with a finding. Any other line that
//! is not an event is an error with its number. One line at a time is in memory.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

use llmprof_core::{
    domain::finding::{
        Finding,
        catalogue::{self, FindingId},
    },
    layout,
    trace::event::{EVENT_SCHEMA, Event},
};

use super::{ParseError, capture_path::file_name, stored};

/// Longest line of an event: a thousand times the longest that the runner writes.
const MAX_LINE: u64 = 4 << 20;

/// The events of one pass, with findings on missing ones.
#[derive(Debug, Default)]
pub struct EventLog {
    pub events: Vec<Event>,
    pub findings: Vec<Finding>,
}

/// Reads the events in `path`.
pub fn read(path: &Path) -> Result<EventLog, ParseError> {
    let file =
        stored::open_own(path).map_err(|source| ParseError::Read { path: path.into(), source })?;
    parse(BufReader::with_capacity(1 << 16, file), path)
}

/// Parses lines of JSON; `path` is for errors and findings.
pub fn parse(mut from: impl BufRead, path: &Path) -> Result<EventLog, ParseError> {
    let mut log = EventLog::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let read = read.map_err(|source| ParseError::Read { path: path.into(), source })?;
        if read == 0 {
            break;
        }
        let whole = line.last() == Some(&b'\n');
        if !whole && read as u64 == MAX_LINE {
            return Err(ParseError::Order {
                path: path.into(),
                line: number,
                what: "longer than any event",
            });
        }
        match serde_json::from_slice(&line) {
            Ok(event) => log.push(event, path, number)?,
            Err(_) if !whole => {
                log.gap(
                    path,
                    catalogue::EVENTS_CUT,
                    &format!("end in the middle of line {number}: later ones are missing"),
                );
            }
            Err(source) => {
                return Err(schema(&line, path).unwrap_or(ParseError::Line {
                    path: path.into(),
                    line: number,
                    source,
                }));
            }
        }
    }
    if !matches!(log.events.last(), Some(Event::End(_))) && log.findings.is_empty() {
        log.gap(
            path,
            catalogue::EVENTS_WITHOUT_END,
            "end before the last one: the runner did not finish, and later ones are missing",
        );
    }
    Ok(log)
}

impl EventLog {
    fn push(&mut self, event: Event, path: &Path, line: u64) -> Result<(), ParseError> {
        let order = |what| Err(ParseError::Order { path: path.into(), line, what });
        match (&event, self.events.last()) {
            (Event::Start(start), None) if start.schema > EVENT_SCHEMA => {
                return Err(ParseError::Newer {
                    path: path.into(),
                    found: start.schema,
                    known: EVENT_SCHEMA,
                });
            }
            (Event::Start(_), None) => {}
            (Event::Start(_), Some(_)) => return order("a second start"),
            (_, None) => return order("the first event is not a start"),
            (_, Some(Event::End(_))) => return order("an event after the end"),
            _ => {}
        }
        self.events.push(event);
        Ok(())
    }

    fn gap(&mut self, path: &Path, id: FindingId, gap: &str) {
        let message = format!("The events of {} {gap}.", pass_of(path));
        let finding = Finding::new(id, message).with("file", file_name(path));
        self.findings.push(finding.with("events", self.events.len()));
    }
}

/// The pass that wrote the events in `path`, in a sentence.
fn pass_of(path: &Path) -> String {
    let folder = path.parent().and_then(Path::file_name).map(|it| it.to_string_lossy());
    match folder.as_deref() {
        Some(layout::BASELINE) => "the unprofiled pass".into(),
        Some(folder) => format!("the pass {folder}"),
        None => "the pass".into(),
    }
}

/// The error for a start event of a newer format.
fn schema(line: &[u8], path: &Path) -> Option<ParseError> {
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    let found = u32::try_from(value.get("schema")?.as_u64()?).ok()?;
    (found > EVENT_SCHEMA).then(|| ParseError::Newer {
        path: path.into(),
        found,
        known: EVENT_SCHEMA,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = concat!(
        r#"{"kind":"start","schema":1,"t_ns":1,"unix_ns":2,"pid":3,"model":"m","#,
        r#""weights":"synthetic","parameters":4,"weight_bytes":16,"#,
        r#""dtype":"f32","device":"cpu","threads":2,"prompt_tokens":5,"#,
        r#""image_tokens":0,"images":[],"decode_graph":false,"load_ns":6}"#
    );
    const RANGE: &str =
        r#"{"kind":"range","name":"prefill","start_ns":1,"end_ns":9,"warmup":false,"repeat":0}"#;
    const END: &str = r#"{"kind":"end","t_ns":10,"peak_rss_bytes":1}"#;

    /// The number of events and the ids of the findings, or the error.
    fn outcome(lines: &[&str]) -> Result<(usize, Vec<String>), String> {
        let log = parse(lines.concat().as_bytes(), Path::new("run/events.jsonl"))
            .map_err(|e| e.to_string())?;
        Ok((log.events.len(), log.findings.into_iter().map(|f| f.id.clone()).collect()))
    }

    #[test]
    fn a_whole_log_has_no_finding() {
        assert_eq!(outcome(&[START, "\n", RANGE, "\n", END, "\n"]), Ok((3, vec![])));
        assert_eq!(
            outcome(&[START, "\n", RANGE, "\n", END]),
            Ok((3, vec![])),
            "a last line that lacks only its end is whole"
        );
    }

    #[test]
    fn a_half_written_last_line_is_a_gap() {
        assert_eq!(outcome(&[START, "\n", &RANGE[..40]]), Ok((1, vec!["events_cut".into()])));
    }

    #[test]
    fn a_log_without_an_end_is_a_gap() {
        let gap = || vec!["events_without_end".to_owned()];
        assert_eq!(outcome(&[START, "\n", RANGE, "\n"]), Ok((2, gap())));
        assert_eq!(outcome(&[]), Ok((0, gap())));
    }

    #[test]
    fn a_gap_names_the_pass() {
        let cut = [START, "\n", &RANGE[..40]].concat();
        let without_end = [START, "\n", RANGE, "\n"].concat();
        let middle = "end in the middle of line 2: later ones are missing.";
        let early = "end before the last one: the runner did not finish, and later ones are \
                     missing.";
        for (text, path, pass, gap) in [
            (&cut, "run/baseline/events.jsonl", "the unprofiled pass", middle),
            (&cut, "run/nsys/events.jsonl", "the pass nsys", middle),
            (&without_end, "events.jsonl", "the pass", early),
        ] {
            let log = parse(text.as_bytes(), Path::new(path)).unwrap();
            assert_eq!(log.findings[0].message, format!("The events of {pass} {gap}"));
        }
    }

    #[test]
    fn an_error_names_file_and_line() {
        let at = |line, what: &str| Err(format!("run/events.jsonl, line {line}: {what}"));
        assert_eq!(outcome(&[START, "\n", "{}\n", END, "\n"]), at(2, "not an event"));
        assert_eq!(outcome(&[RANGE, "\n"]), at(1, "the first event is not a start"));
        assert_eq!(outcome(&[START, "\n", START, "\n"]), at(2, "a second start"));
        assert_eq!(
            outcome(&[START, "\n", END, "\n", RANGE, "\n"]),
            at(3, "an event after the end")
        );
        let endless = "x".repeat(MAX_LINE as usize + 1);
        assert_eq!(outcome(&[START, "\n", &endless]), at(2, "longer than any event"));
    }

    #[test]
    fn a_newer_format_is_refused_whatever_its_shape() {
        let newer = Err(
            "run/events.jsonl: format 5 is newer than 4, the newest known; use a newer llmprof"
                .to_owned(),
        );
        assert_eq!(outcome(&[&START.replace(r#""schema":1"#, r#""schema":5"#), "\n"]), newer);
        assert_eq!(outcome(&[r#"{"kind":"start","schema":5,"unheard":"of"}"#, "\n"]), newer);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..512),
            cut in 0usize..400,
        ) {
            let _ = parse(bytes.as_slice(), Path::new("x"));
            let whole = [START, "\n", RANGE, "\n", END, "\n"].concat();
            let cut = &whole.as_bytes()[..cut.min(whole.len())];
            let outcome = parse([cut, &bytes].concat().as_slice(), Path::new("x"));
            proptest::prop_assert!(!bytes.is_empty() || outcome.is_ok(), "a log that was cut \
                anywhere is readable: {outcome:?}");
        }
    }
}
