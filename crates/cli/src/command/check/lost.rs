//! Recovery of the database rows of a run or an alignment from its sealed folder.

use std::path::Path;

use llmprof_core::{
    domain::{
        alignment::{AlignmentSpec, CheckSummary, Verdict},
        ids::{AlignmentId, RunId},
        run_files::ArtifactRecord,
        state::{RunState, StepRecord, StepState},
        subject::RunSpec,
    },
    layout,
};
use llmprof_service::{
    artifact::{
        journal::{self, Position},
        manifest,
        packed::read_own,
    },
    store::{AlignmentOutcome, LostAlignment, LostRun, Store, StoreError},
};
use serde::Deserialize;

use super::FolderSubject;

const RECREATED: &str = "its row was lost and recreated from its folder by llmprof check";

/// A lost row.
pub enum LostRow {
    Run(LostRun),
    Alignment(LostAlignment),
}

impl LostRow {
    /// Inserts its rows.
    pub async fn insert(&self, store: &Store) -> Result<(), StoreError> {
        match self {
            Self::Run(run) => store.insert_lost(run).await,
            Self::Alignment(alignment) => store.insert_lost_alignment(alignment).await,
        }
    }

    pub fn artifacts(&self) -> &[ArtifactRecord] {
        match self {
            Self::Run(run) => &run.artifacts,
            Self::Alignment(alignment) => &alignment.outcome.artifacts,
        }
    }
}

/// Returns the lost row of a sealed folder; `None` if the folder is incomplete.
pub fn lost(of: FolderSubject, dir: &Path) -> Option<LostRow> {
    match of {
        FolderSubject::Run(id) => run(id, dir).map(LostRow::Run),
        FolderSubject::Alignment(id) => alignment(id, dir).map(LostRow::Alignment),
    }
}

/// A run, without its owner and findings.
fn run(id: RunId, dir: &Path) -> Option<LostRun> {
    let artifacts = manifest::read(dir).ok()?;
    let spec: RunSpec = serde_json::from_slice(&read_own(&dir.join(layout::SPEC)).ok()?).ok()?;
    let steps = last_steps(dir);
    let reported = artifacts.iter().any(|it| it.path == layout::REPORT_JSON);
    let state = match reported {
        false => RunState::Failed,
        true if steps.iter().all(|step| step.state == StepState::Succeeded) => RunState::Succeeded,
        true => RunState::Partial,
    };
    let queued_ms = id.given_ms()?;
    let ended_ms = ended(&steps).unwrap_or(queued_ms);
    Some(LostRun { id, spec, state, queued_ms, ended_ms, message: RECREATED.to_owned(), artifacts })
}

/// An alignment without its owner; the verdict is in its report, and one without a report failed.
fn alignment(id: AlignmentId, dir: &Path) -> Option<LostAlignment> {
    #[derive(Deserialize)]
    struct JournalFacts {
        verdict: Verdict,
        checks: Vec<CheckSummary>,
    }
    let artifacts = manifest::read(dir).ok()?;
    let spec: AlignmentSpec =
        serde_json::from_slice(&read_own(&dir.join(layout::SPEC)).ok()?).ok()?;
    let report = format!("{}.json", layout::ALIGNMENT);
    let found = match artifacts.iter().any(|it| it.path == report) {
        true => serde_json::from_slice(&read_own(&dir.join(report)).ok()?)
            .ok()
            .map(|facts: JournalFacts| (facts.verdict, facts.checks)),
        false => None,
    };
    let queued_ms = id.given_ms()?;
    let ended_ms = ended(&last_steps(dir)).unwrap_or(queued_ms);
    let outcome = AlignmentOutcome { found: found.ok_or_else(|| RECREATED.to_owned()), artifacts };
    Some(LostAlignment { id, spec, queued_ms, ended_ms, outcome })
}

/// When the last step ended, milliseconds since 1970.
fn ended(steps: &[StepRecord]) -> Option<i64> {
    let ended =
        steps.iter().rev().find_map(|step| step.ended_at.as_ref()?.parse::<jiff::Timestamp>().ok());
    ended.map(|time| time.as_millisecond())
}

/// The steps of the last attempt in the journal.
fn last_steps(dir: &Path) -> Vec<StepRecord> {
    let events = journal::read_from(dir, &mut Position::default(), usize::MAX).unwrap_or_default();
    journal::last_steps(events.into_iter().map(|(_, event)| event))
}
