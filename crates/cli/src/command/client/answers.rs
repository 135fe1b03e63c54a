//! Answers of a service: the fields that the subcommands read.
//!
//! Later versions may add fields and states; only what is shown is required.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A run.
#[derive(Debug, Clone, Deserialize)]
pub struct RunAnswer {
    pub run_id: String,
    pub state: String,
    pub name: String,
    pub owner: Option<String>,
    pub queue_position: Option<u64>,
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub message: Option<String>,
    #[serde(default)]
    pub steps: Vec<StepAnswer>,
    #[serde(default)]
    pub findings: Vec<FindingAnswer>,
    #[serde(default)]
    pub expected: Option<ExpectedAnswer>,
}

impl RunAnswer {
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }
}

/// A step of a run.
#[derive(Debug, Clone, Deserialize)]
pub struct StepAnswer {
    pub step: String,
    pub state: String,
    pub started_at: String,
    pub ended_at: Option<String>,
    pub message: Option<String>,
}

/// A finding of a run.
#[derive(Debug, Clone, Deserialize)]
pub struct FindingAnswer {
    pub id: String,
    pub severity: String,
    pub message: String,
    pub advice: Option<String>,
}

/// The rest of an active run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct ExpectedAnswer {
    #[serde(default)]
    pub pending: Vec<String>,
    pub duration: DurationAnswer,
}

/// Expected duration of a run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct DurationAnswer {
    pub seconds: Option<f64>,
    #[serde(default)]
    pub unknown_because: Option<String>,
}

/// A page of runs.
#[derive(Debug, Deserialize)]
pub struct RunListAnswer {
    pub runs: Vec<RunSummaryAnswer>,
    pub next_cursor: Option<String>,
}

/// A run in a list.
#[derive(Debug, Deserialize)]
pub struct RunSummaryAnswer {
    pub run_id: String,
    pub state: String,
    pub name: String,
    pub mode: Option<String>,
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    #[serde(default)]
    pub device: Option<String>,
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub headline: Option<BTreeMap<String, Option<f64>>>,
}

/// A submitted run.
#[derive(Debug, Deserialize)]
pub struct SubmittedAnswer {
    pub run_id: String,
    pub queue_position: Option<u64>,
    #[serde(default)]
    pub waited: Option<String>,
}

/// A submission that was only checked.
#[derive(Debug, Deserialize)]
pub struct DryRunAnswer {
    pub steps: Vec<PlannedAnswer>,
    pub duration: DurationAnswer,
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A planned step.
#[derive(Debug, Deserialize)]
pub struct PlannedAnswer {
    pub step: String,
    pub repeats: Option<u32>,
    pub skipped_because: Option<String>,
}

/// The files of a run.
#[derive(Debug, Deserialize)]
pub struct ArtifactsAnswer {
    pub artifacts: Vec<ArtifactAnswer>,
}

/// A file of a run.
#[derive(Debug, Clone, Deserialize)]
pub struct ArtifactAnswer {
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// Stored inputs.
#[derive(Debug, Deserialize)]
pub struct InputsAnswer {
    pub inputs_id: String,
}
