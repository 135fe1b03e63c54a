//! The journal of a run: its events, one JSON object per line, in `progress.jsonl`.
//!
//! The job writes it, the service and its clients follow it. A line's number is its id, so a reader
//! resumes after the last line it read. It is never rewritten: a second attempt appends.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::layout;
use crate::{
    domain::{
        finding::Finding,
        state::{Step, StepRecord},
    },
    runtime::work::SlicedWork,
};

/// Longest line that a reader accepts; log lines are cut far below it.
const MAX_LINE: u64 = 64 * 1024;
/// Maximum bytes without an event that a reader skips at a time.
const MAX_SKIPPED: u64 = 16 << 20;
/// Longest log line in the journal; the log file has the complete line.
const MAX_LOG_LINE: usize = 2_000;

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum JournalEvent {
    /// An attempt started; attempts count from 1.
    Attempt { attempt: u32, at: String },
    /// A step started or ended.
    Step { step: StepRecord },
    /// Progress of a step.
    Progress {
        step: Step,
        phase: String,
        done: u64,
        total: u64,
        /// Index of the sample, from 0; absent where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample: Option<u32>,
    },
    /// A line of output of a tool or the runner.
    Log { step: Step, line: String },
    /// A finding, as soon as it is known.
    Finding { finding: Finding },
}

/// Appends to one run's journal; clones share the file.
#[derive(Debug, Clone)]
pub struct Journal(Arc<Mutex<File>>);

impl Journal {
    /// Opens the journal of the run in `dir`, and terminates a line that a killed writer left open.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let path = dir.join(layout::PROGRESS);
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Appends one event in a single write. A failure is logged and does not fail the run.
    pub fn write(&self, event: &JournalEvent) {
        let mut line = match serde_json::to_vec(event) {
            Ok(line) => line,
            Err(error) => return tracing::error!(%error, "cannot serialise a journal event"),
        };
        line.push(b'\n');
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = file.write_all(&line) {
            tracing::warn!(%error, "cannot write the run's journal");
        }
    }

    /// Appends one line of a log, cut to a length for pages.
    pub fn log(&self, step: Step, line: &str) {
        let cut = line.char_indices().nth(MAX_LOG_LINE).map_or(line, |(end, _)| &line[..end]);
        self.write(&JournalEvent::Log { step, line: cut.to_owned() });
    }
}

/// Position of a reader in a journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Lines read so far: the id of the last one.
    pub line: u64,
    offset: u64,
}

/// Reads up to `max` complete lines after `position`, and advances it. Lines without an event are
/// counted and skipped; after 16 MiB of them, as of a file that is not a journal any more, the call
/// returns.
pub fn read_from(
    dir: &Path,
    position: &mut Position,
    max: usize,
) -> io::Result<Vec<(u64, JournalEvent)>> {
    let mut file = match File::open(dir.join(layout::PROGRESS)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    file.seek(SeekFrom::Start(position.offset))?;
    let mut reader = BufReader::new(file);
    let mut events = Vec::new();
    let mut line = Vec::new();
    let mut skipped = 0;
    while events.len() < max && skipped < MAX_SKIPPED {
        line.clear();
        let read = reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') && read < MAX_LINE {
            break; // incomplete: the writer continues it
        }
        position.offset += read;
        position.line += u64::from(line.last() == Some(&b'\n'));
        skipped += read;
        if let Ok(event) = serde_json::from_slice(&line) {
            events.push((position.line, event));
            skipped = 0;
        }
    }
    Ok(events)
}

/// The events in the last `bytes` of a journal, without a line cut there.
pub fn tail(dir: &Path, bytes: u64) -> io::Result<Vec<JournalEvent>> {
    let mut file = match File::open(dir.join(layout::PROGRESS)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let start = file.metadata()?.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    let lines = text.split_inclusive(|byte| *byte == b'\n').skip(usize::from(start > 0));
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// The steps of the last attempt in `events`.
pub fn last_steps(events: impl IntoIterator<Item = JournalEvent>) -> Vec<StepRecord> {
    let mut steps: Vec<StepRecord> = Vec::new();
    for event in events {
        match event {
            JournalEvent::Attempt { .. } => steps.clear(),
            JournalEvent::Step { step } => {
                match steps.iter_mut().find(|known| known.step == step.step) {
                    Some(known) => *known = step,
                    None => steps.push(step),
                }
            }
            _ => {}
        }
    }
    steps
}

/// The position after line `line`, or at the end of a shorter journal.
pub fn seek(dir: &Path, line: u64, work: &SlicedWork) -> io::Result<Position> {
    let mut position = Position::default();
    while position.line < line {
        work.checkpoint()?;
        let before = position;
        read_from(
            dir,
            &mut position,
            usize::try_from(line - before.line).unwrap_or(usize::MAX).min(1_000),
        )?;
        if position == before {
            break;
        }
    }
    Ok(position)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(line: &str) -> JournalEvent {
        JournalEvent::Log { step: Step::Baseline, line: line.into() }
    }

    #[test]
    fn a_sparse_file_in_place_of_a_journal_is_read_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(layout::PROGRESS);
        File::create(&path).unwrap().set_len(50 << 30).unwrap();
        let mut position = Position::default();
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(position.offset, MAX_SKIPPED);
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(position.offset, 2 * MAX_SKIPPED);
        let stop = tokio_util::sync::CancellationToken::new();
        stop.cancel();
        assert!(seek(dir.path(), 1, &SlicedWork::new(&stop)).is_err());
    }

    #[test]
    fn a_reader_resumes_after_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        for line in ["a", "b", "c"] {
            journal.log(Step::Baseline, line);
        }
        let mut position = seek(dir.path(), 2, &SlicedWork::default()).unwrap();
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), [(3, log("c"))]);
        journal.log(Step::Baseline, "d");
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), [(4, log("d"))]);
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(seek(dir.path(), 99, &SlicedWork::default()).unwrap().line, 4);
    }

    #[test]
    fn an_incomplete_line_is_awaited_and_later_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(layout::PROGRESS);
        std::fs::write(&path, b"{\"event\":\"lo").unwrap();
        let mut position = Position::default();
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(position.line, 0);
        Journal::open(dir.path()).unwrap().log(Step::Baseline, "whole");
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), [(2, log("whole"))]);
    }

    #[test]
    fn the_end_of_a_journal_is_read_without_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        for line in ["a", "b", "c"] {
            journal.log(Step::Baseline, line);
        }
        let line = std::fs::metadata(dir.path().join(layout::PROGRESS)).unwrap().len() / 3;
        assert_eq!(tail(dir.path(), line + 1).unwrap(), [log("c")]);
        assert_eq!(tail(dir.path(), 1 << 20).unwrap(), [log("a"), log("b"), log("c")]);
    }

    #[test]
    fn a_run_without_a_journal_has_no_events() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(tail(dir.path(), 10).unwrap(), []);
        assert_eq!(read_from(dir.path(), &mut Position::default(), 10).unwrap(), []);
    }
}
