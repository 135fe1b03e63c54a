//! Savings that findings of a run promised, with the later run of its series that realised them.
//!
//! Computed from stored promises and times of stages, so that a deleted run leaves no trace.

use llmprof_analyze::compare::claims::{self, Claim, RealisedClaim};
use llmprof_core::domain::{ids::RunId, state::RunState};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    http::{error::ApiError, state::App},
    store::StoredRun,
};

/// Later runs of the series that are searched.
const MAX_LATER: u32 = 500;

/// A promised saving, and the first run of a later build that realised it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RealisedSaving {
    /// Rule of the finding.
    pub finding: String,
    pub stage: String,
    /// Upper bound, milliseconds per repeat.
    pub promised_ms: f64,
    /// Upper bound of the same finding in `run_id`; 0 if it has no such finding.
    pub remaining_ms: f64,
    /// Time that the stage takes less in `run_id`; negative if it takes more.
    pub realised_ms: f64,
    pub run_id: RunId,
}

impl From<RealisedClaim> for RealisedSaving {
    fn from(it: RealisedClaim) -> Self {
        let Claim { finding, stage, promised_ms, remaining_ms, realised_ms } = it.claim;
        Self { finding, stage, promised_ms, remaining_ms, realised_ms, run_id: it.by }
    }
}

/// The realised savings of a run, the largest promise first.
pub(super) async fn of(app: &App, run: &StoredRun) -> Result<Vec<RealisedSaving>, ApiError> {
    let has_report = matches!(run.state, RunState::Succeeded | RunState::Partial);
    if !has_report || run.findings.iter().all(|it| it.max_saving.is_none()) {
        return Ok(vec![]);
    }
    let Some((_, own)) = app.store.savings(&[run.id]).await?.pop() else { return Ok(vec![]) };
    let Some((_, point)) = app.store.points_of(&[run.id], false).await?.pop() else {
        return Ok(vec![]);
    };
    let Some(series) = &point.series else { return Ok(vec![]) };
    let changes = app.store.change_points(series).await?;
    let mut later = app.store.points_after(series, run.id, MAX_LATER).await?;
    let build = point.build_key(&changes);
    later.retain(|it| it.build_key(&changes) != build);
    let later: Vec<RunId> = later.iter().map(|it| it.run).collect();
    let later = app.store.savings(&later).await?;
    Ok(claims::realised(&own, &later).into_iter().map(RealisedSaving::from).collect())
}
