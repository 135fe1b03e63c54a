//! The writer of a run's journal. Its events and readers are in
//! [`llmprof_analyze::parse::journal`].

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

pub use llmprof_analyze::parse::journal::{JournalEvent, Position, last_steps, read_from, tail};
use llmprof_core::{domain::state::Step, layout};

use crate::runtime::work::SlicedWork;

/// Longest log line in the journal; the log file has the complete line.
const MAX_LOG_LINE: usize = 2_000;

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
    fn a_stop_ends_the_search_for_a_line_in_a_sparse_file() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join(layout::PROGRESS)).unwrap().set_len(50 << 30).unwrap();
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
