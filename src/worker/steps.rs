//! The steps of one run, kept as they happen: in the journal for those who follow, in the store for those who ask.

use crate::{
    artifact::journal::{Journal, JournalEvent},
    run::{Step, StepRecord, StepState},
    store::{Claimed, Store},
};

/// How a step ended.
#[derive(Debug, Clone, PartialEq)]
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

/// The steps of one run so far.
#[derive(Debug)]
pub struct Steps<'a> {
    run: &'a Claimed,
    store: &'a Store,
    journal: Journal,
    records: Vec<StepRecord>,
}

impl<'a> Steps<'a> {
    pub fn new(run: &'a Claimed, store: &'a Store, journal: Journal) -> Self {
        Self { run, store, journal, records: Vec::new() }
    }

    pub fn records(&self) -> &[StepRecord] {
        &self.records
    }

    /// Says whether something asked for is missing.
    pub fn has_gap(&self) -> bool {
        self.records.iter().any(|record| matches!(record.state, StepState::Skipped | StepState::Failed))
    }

    /// Marks a step as begun.
    pub async fn begin(&mut self, step: Step) {
        tracing::info!(%step, "step begins");
        self.records.push(StepRecord {
            step,
            state: StepState::Running,
            started_at: now(),
            ended_at: None,
            exit_code: None,
            message: None,
        });
        self.keep().await;
    }

    /// Marks the last step as ended.
    pub async fn end(&mut self, ended: &Ended) {
        if let Some(record) = self.records.last_mut() {
            tracing::info!(step = %record.step, state = %ended.state, message = ended.message, "step ends");
            record.state = ended.state;
            record.ended_at = Some(now());
            record.exit_code = ended.exit_code;
            record.message.clone_from(&ended.message);
        }
        self.keep().await;
    }

    /// Keeps the last step. That it could not be kept is logged: the step itself is not to blame.
    async fn keep(&self) {
        let Some((position, record)) = self.records.iter().enumerate().next_back() else { return };
        self.journal.write(&JournalEvent::Step { step: record.clone() });
        let position = u32::try_from(position).unwrap_or(u32::MAX);
        if let Err(error) = self.store.save_step(self.run, position, record).await {
            tracing::error!(error = %crate::chain(&error), "cannot keep a step");
        }
    }
}

/// Now, as RFC 3339 in UTC.
pub fn now() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
