//! Outcome of a run: its final state, findings and artifacts.

use serde::{Deserialize, Serialize};

use crate::domain::{
    finding::Finding,
    headline::SeriesPoint,
    run_files::ArtifactRecord,
    state::{RunState, Step},
};

/// Outcome of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub state: RunState,
    pub failed_step: Option<Step>,
    pub message: Option<String>,
    pub findings: Vec<Finding>,
    pub artifacts: Vec<ArtifactRecord>,
    /// Its point in a series; absent without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Box<SeriesPoint>>,
}
