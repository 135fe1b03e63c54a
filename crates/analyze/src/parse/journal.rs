//! The journal of a run: its events, one JSON object per line, in `progress.jsonl`.
//!
//! The job writes it, the service and its clients follow it. A line's number is its id, so a reader
//! resumes after the last line it read. It is never rewritten: a second attempt appends.

use std::{
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    path::Path,
};

use llmprof_core::{
    domain::{
        finding::Finding,
        state::{Step, StepRecord},
    },
    layout,
};
use serde::{Deserialize, Serialize};

use crate::parse::stored;

/// Longest line that a reader accepts; log lines are cut far below it.
const MAX_LINE: u64 = 64 * 1024;
/// Maximum bytes without an event that a reader skips at a time.
const MAX_SKIPPED: u64 = 16 << 20;

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
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
        /// Index of the sample, from 0; absent if there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sample: Option<u32>,
    },
    /// A line of output of a tool or the runner.
    Log { step: Step, line: String },
    /// A finding, as soon as it is known.
    Finding { finding: Finding },
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
    let mut file = match stored::open_own(&dir.join(layout::PROGRESS)) {
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
    let mut file = match stored::open_own(&dir.join(layout::PROGRESS)) {
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

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_sparse_file_in_place_of_a_journal_is_read_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join(layout::PROGRESS)).unwrap().set_len(50 << 30).unwrap();
        let mut position = Position::default();
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(position.offset, MAX_SKIPPED);
        assert_eq!(read_from(dir.path(), &mut position, 10).unwrap(), []);
        assert_eq!(position.offset, 2 * MAX_SKIPPED);
    }
}
