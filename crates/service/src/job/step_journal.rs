//! The steps of one run: written to its journal as they happen, and read back from it.
//!
//! Knows no database: steps are recorded in the same way in this process and on another machine.

use std::{io, path::Path};

use jiff::Timestamp;
use llmprof_core::domain::{
    finding::Finding,
    state::{Step, StepRecord, StepState},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    artifact::journal::{self, Journal, JournalEvent, Position},
    runtime,
};

/// Events read at once.
const BATCH: usize = 500;

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    pub state: StepState,
    pub exit_code: Option<i32>,
    pub message: Option<String>,
}

impl StepResult {
    pub fn succeeded() -> Self {
        Self { state: StepState::Succeeded, exit_code: None, message: None }
    }

    pub fn skipped(message: impl Into<String>) -> Self {
        Self { state: StepState::Skipped, exit_code: None, message: Some(message.into()) }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self { state: StepState::Failed, exit_code: None, message: Some(message.into()) }
    }

    /// The result of a step that was stopped with its run. A job does not know the cause.
    pub fn stopped() -> Self {
        let message = "stopped before its end: the run was cancelled, or its service stopped";
        Self { state: StepState::Cancelled, exit_code: None, message: Some(message.into()) }
    }

    pub fn with_exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }

    pub fn is_success(&self) -> bool {
        self.state == StepState::Succeeded
    }
}

/// The time of day at its start, advanced by a monotonic clock: intervals stay correct when the
/// system's clock is set.
#[derive(Debug)]
pub struct Clock {
    at: Timestamp,
    started: Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { at: runtime::now(), started: Instant::now() }
    }

    /// Now, as RFC 3339 in UTC.
    pub fn now(&self) -> String {
        format!("{:.3}", self.at.checked_add(self.started.elapsed()).unwrap_or(self.at))
    }
}

/// Records the steps of one run.
#[derive(Debug)]
pub struct StepJournal {
    journal: Journal,
    records: Vec<StepRecord>,
    clock: Clock,
}

impl StepJournal {
    /// Continues after `records`.
    pub fn new(journal: Journal, records: Vec<StepRecord>) -> Self {
        Self { journal, records, clock: Clock::start() }
    }

    pub fn records(&self) -> &[StepRecord] {
        &self.records
    }

    /// The journal for other events of the run.
    pub fn events(&self) -> Journal {
        self.journal.clone()
    }

    /// Returns true if a requested step was skipped, failed or was stopped.
    pub fn has_gap(&self) -> bool {
        let is_gap =
            |state| matches!(state, StepState::Skipped | StepState::Failed | StepState::Cancelled);
        self.records.iter().any(|record| is_gap(record.state))
    }

    /// Records the start of an attempt.
    pub fn start_attempt(&self, attempt: u32) {
        self.journal.write(&JournalEvent::Attempt { attempt, at: now() });
    }

    /// Records the start of a step, and returns its time.
    pub fn start(&mut self, step: Step) -> String {
        tracing::info!(%step, "step starts");
        let started_at = self.clock.now();
        let record = StepRecord {
            step,
            state: StepState::Running,
            started_at: started_at.clone(),
            ended_at: None,
            exit_code: None,
            message: None,
        };
        self.journal.write(&JournalEvent::Step { step: record.clone() });
        self.records.push(record);
        started_at
    }

    /// Records a step that ended in an earlier attempt.
    pub fn keep(&mut self, record: StepRecord) {
        tracing::info!(step = %record.step, "step ended in an earlier attempt");
        self.journal.write(&JournalEvent::Step { step: record.clone() });
        self.records.push(record);
    }

    /// Now, as RFC 3339 in UTC.
    pub fn now(&self) -> String {
        self.clock.now()
    }

    /// Records the result of the step that was started last.
    pub fn end(&mut self, result: &StepResult) {
        let Some(record) = self.records.last_mut() else { return };
        let message = &result.message;
        tracing::info!(step = %record.step, state = %result.state, message, "step ends");
        record.state = result.state;
        record.ended_at = Some(self.clock.now());
        record.exit_code = result.exit_code;
        record.message.clone_from(message);
        self.journal.write(&JournalEvent::Step { step: record.clone() });
    }

    /// Records a finding, as soon as it is known.
    pub fn record_finding(&self, finding: &Finding) {
        self.journal.write(&JournalEvent::Finding { finding: finding.clone() });
    }
}

/// Reads the steps of a run's last attempt from its journal.
#[derive(Debug, Default)]
pub struct StepReader {
    position: Position,
    pub records: Vec<StepRecord>,
}

impl StepReader {
    /// Reads new events of the journal in `dir`; returns whether steps changed.
    pub fn read_new(&mut self, dir: &Path) -> io::Result<bool> {
        let mut changed = false;
        loop {
            let events = journal::read_from(dir, &mut self.position, BATCH)?;
            let is_last = events.len() < BATCH;
            for (_, event) in events {
                changed |= self.apply(event);
            }
            if is_last {
                return Ok(changed);
            }
        }
    }

    fn apply(&mut self, event: JournalEvent) -> bool {
        match event {
            JournalEvent::Attempt { .. } => self.records.clear(),
            JournalEvent::Step { step } => match self.records.last_mut() {
                Some(last) if last.step == step.step => *last = step,
                _ => self.records.push(step),
            },
            _ => return false,
        }
        true
    }
}

/// Now, as RFC 3339 in UTC.
pub fn now() -> String {
    format!("{:.3}", runtime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_returns_the_steps_of_the_last_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let mut reader = StepReader::default();
        assert!(!reader.read_new(dir.path()).unwrap());
        for attempt in 1..=2 {
            let mut steps = StepJournal::new(journal.clone(), Vec::new());
            steps.start_attempt(attempt);
            steps.start(Step::Preflight);
            steps.end(&StepResult::succeeded());
            steps.start(Step::Baseline);
            assert!(reader.read_new(dir.path()).unwrap());
            assert_eq!(reader.records, steps.records());
        }
        journal.log(Step::Baseline, "not a step");
        assert!(!reader.read_new(dir.path()).unwrap());
    }
}
