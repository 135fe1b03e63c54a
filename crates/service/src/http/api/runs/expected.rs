//! The rest of an active run: pending steps and the usual duration.
//!
//! Estimates come from earlier runs; nothing is guessed without one.

use llmprof_core::domain::{run_plan, state::Step};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::dry_run::{self, DurationEstimate};
use crate::{
    http::{error::ApiError, state::App},
    store::StoredRun,
};

/// The rest of an active run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExpectedRun {
    /// Steps that have not started, in order.
    pub pending: Vec<Step>,
    /// Duration of the whole run.
    pub duration: DurationEstimate,
}

/// The rest of `run`; `None` once it has ended.
pub(crate) async fn expected(app: &App, run: &StoredRun) -> Result<Option<ExpectedRun>, ApiError> {
    if run.state.is_final() {
        return Ok(None);
    }
    let steps = run_plan::plan(&run.spec, dry_run::facts(app, &run.spec));
    let has_started = |step: Step| run.steps.iter().any(|it| it.step == step);
    let pending = steps
        .into_iter()
        .filter(|it| it.skipped_because.is_none() && !has_started(it.step))
        .map(|it| it.step)
        .collect();
    Ok(Some(ExpectedRun { pending, duration: dry_run::estimate(app, &run.spec).await? }))
}
