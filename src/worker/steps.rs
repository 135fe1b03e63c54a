//! The steps of one run, told in its journal as they happen, and read back from there by whoever follows it.
//!
//! Knows no database: a run's steps are the same whether it is carried out in this process or on another machine.

use std::{io, path::Path, time::Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    artifact::journal::{self, Journal, JournalEvent, Position},
    run::{Step, StepRecord, StepState},
};

/// Events read at once.
const BATCH: usize = 500;

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub state: StepState,
    pub exit_code: Option<i32>,
    pub message: Option<String>,
}

impl Ended {
    pub fn well() -> Self {
        Self { state: StepState::Succeeded, exit_code: None, message: None }
    }

    pub fn skipped(message: impl Into<String>) -> Self {
        Self { state: StepState::Skipped, exit_code: None, message: Some(message.into()) }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self { state: StepState::Failed, exit_code: None, message: Some(message.into()) }
    }

    pub fn exit_code(self, exit_code: Option<i32>) -> Self {
        Self { exit_code, ..self }
    }
}

/// The time of day as it was, and what passed since by a clock that nobody sets: what it tells lies as far apart as it was.
#[derive(Debug)]
pub struct Clock {
    at: Timestamp,
    began: Instant,
}

impl Clock {
    pub fn start() -> Self {
        Self { at: Timestamp::now(), began: Instant::now() }
    }

    /// Now, as RFC 3339 in UTC.
    pub fn now(&self) -> String {
        format!("{:.3}", self.at.checked_add(self.began.elapsed()).unwrap_or(self.at))
    }
}

/// The steps of one run so far.
#[derive(Debug)]
pub struct Steps {
    journal: Journal,
    records: Vec<StepRecord>,
    clock: Clock,
}

impl Steps {
    /// Goes on after `records`: none where the run begins.
    pub fn new(journal: Journal, records: Vec<StepRecord>) -> Self {
        Self { journal, records, clock: Clock::start() }
    }

    pub fn records(&self) -> &[StepRecord] {
        &self.records
    }

    /// Says whether something asked for is missing.
    pub fn has_gap(&self) -> bool {
        self.records.iter().any(|record| matches!(record.state, StepState::Skipped | StepState::Failed))
    }

    /// Marks a step as begun.
    pub fn begin(&mut self, step: Step) {
        tracing::info!(%step, "step begins");
        let record = StepRecord {
            step,
            state: StepState::Running,
            started_at: self.clock.now(),
            ended_at: None,
            exit_code: None,
            message: None,
        };
        self.journal.write(&JournalEvent::Step { step: record.clone() });
        self.records.push(record);
    }

    /// Marks the last step as ended.
    pub fn end(&mut self, ended: &Ended) {
        let Some(record) = self.records.last_mut() else { return };
        tracing::info!(step = %record.step, state = %ended.state, message = ended.message, "step ends");
        record.state = ended.state;
        record.ended_at = Some(self.clock.now());
        record.exit_code = ended.exit_code;
        record.message.clone_from(&ended.message);
        self.journal.write(&JournalEvent::Step { step: record.clone() });
    }
}

/// The steps of a run's last attempt, as its journal tells them to whoever follows it.
#[derive(Debug, Default)]
pub struct Told {
    position: Position,
    pub records: Vec<StepRecord>,
}

impl Told {
    /// Reads what is new in the journal of the run in `dir`, and says whether steps changed.
    pub fn look(&mut self, dir: &Path) -> io::Result<bool> {
        let mut changed = false;
        loop {
            let events = journal::read_from(dir, &mut self.position, BATCH)?;
            let whole = events.len() < BATCH;
            for (_, event) in events {
                changed |= self.take(event);
            }
            if whole {
                return Ok(changed);
            }
        }
    }

    fn take(&mut self, event: JournalEvent) -> bool {
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
    format!("{:.3}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_follows_knows_the_steps_of_the_last_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let mut told = Told::default();
        assert!(!told.look(dir.path()).unwrap());
        for attempt in 1..=2 {
            journal.write(&JournalEvent::Attempt { attempt, at: now() });
            let mut steps = Steps::new(journal.clone(), Vec::new());
            steps.begin(Step::Preflight);
            steps.end(&Ended::well());
            steps.begin(Step::Baseline);
            assert!(told.look(dir.path()).unwrap());
            assert_eq!(told.records, steps.records());
        }
        journal.log(Step::Baseline, "no step");
        assert!(!told.look(dir.path()).unwrap());
    }
}
