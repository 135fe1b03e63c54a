//! What is kept, what will be packed or removed, when and why; and pins, which keep a run as it is.

use std::collections::HashMap;

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    access::{self, Caller},
    error::ApiError,
    request::RunPath,
    runs::{self, RunView},
};
use crate::{
    run::RunId,
    store::{Due, Plan},
};

/// Runs that are shown of each kind.
const SHOWN: usize = 200;

/// What is kept, and what will be done to it, oldest first: at most 200 of each kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetentionView {
    /// Newest runs of each model and mode that stay as they are.
    pub as_they_are: u32,
    /// Budgets; 0: any amount.
    pub most_runs: u64,
    pub most_days: u32,
    pub most_bytes: u64,
    /// Ended runs.
    pub runs: u64,
    /// Their size on disk.
    pub bytes: u64,
    /// Runs whose raw files will be packed, which changes nothing in any answer.
    pub pack: Vec<DueRun>,
    /// Runs that will be removed.
    pub remove: Vec<DueRun>,
    /// Budgets that cannot be kept, and why.
    pub notes: Vec<String>,
}

/// A run to which something will be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DueRun {
    pub run_id: RunId,
    /// Name of the model, of the command, or of the capture.
    pub name: String,
    /// `null` of an import, which was collected elsewhere.
    pub mode: Option<String>,
    pub ended_at: String,
    /// On disk.
    pub bytes: u64,
    /// RFC 3339, UTC; `null`: as soon as no pass runs.
    pub at: Option<String>,
    pub why: String,
}

impl From<&Due> for DueRun {
    fn from(due: &Due) -> Self {
        Self {
            run_id: due.run.id,
            name: due.run.name.clone(),
            mode: Some(due.run.mode.clone()).filter(|mode| !mode.is_empty()),
            ended_at: rfc3339(due.run.ended_ms),
            bytes: due.run.bytes,
            at: due.at_ms.map(rfc3339),
            why: due.why.clone(),
        }
    }
}

/// What will become of one run: packed, removed, both one after the other, or neither.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Fate {
    pub pack: Option<DueRun>,
    pub remove: Option<DueRun>,
}

/// What will become of a run that has ended.
pub(super) async fn fate(app: &App, id: RunId) -> Result<Fate, ApiError> {
    let plan = app.store.plan(&app.config.retention).await?;
    let of = |due: &[Due]| due.iter().find(|due| due.run.id == id).map(DueRun::from);
    Ok(Fate { pack: of(&plan.pack), remove: of(&plan.remove) })
}

/// Those of `ids` that will be removed. Where no budget is set none will be, and nothing is looked up.
pub(super) async fn going(app: &App, ids: &[RunId]) -> Result<HashMap<RunId, DueRun>, ApiError> {
    let settings = &app.config.retention;
    if settings.most_runs == 0 && settings.most_days == 0 && settings.most_bytes == 0 {
        return Ok(HashMap::new());
    }
    let plan = app.store.plan(settings).await?;
    Ok(plan.remove.iter().filter(|due| ids.contains(&due.run.id)).map(|due| (due.run.id, due.into())).collect())
}

fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| format!("{time:.3}"))
}

/// What is kept, and what will be packed or removed, when and why
#[utoipa::path(get, path = "/retention", tag = "runs", operation_id = "get_retention",
    responses((status = 200, description = "What is kept and what will go", body = RetentionView)))]
pub async fn retention(State(app): State<App>) -> Result<Json<RetentionView>, ApiError> {
    let settings = &app.config.retention;
    let Plan { runs, bytes, pack, remove, notes } = app.store.plan(settings).await?;
    let shown = |due: &[Due]| due.iter().take(SHOWN).map(DueRun::from).collect();
    Ok(Json(RetentionView {
        as_they_are: settings.as_they_are,
        most_runs: settings.most_runs,
        most_days: settings.most_days,
        most_bytes: settings.most_bytes,
        runs: runs as u64,
        bytes,
        pack: shown(&pack),
        remove: shown(&remove),
        notes,
    }))
}

/// Pin a run: it stays as it is, and is never removed but by hand
#[utoipa::path(post, path = "/runs/{run_id}/pin", tag = "runs", operation_id = "pin_run", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "The run is pinned", body = RunView)))]
pub async fn pin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<Json<RunView>, ApiError> {
    set(&app, &caller, id, true).await
}

/// Free a pinned run
#[utoipa::path(delete, path = "/runs/{run_id}/pin", tag = "runs", operation_id = "unpin_run", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "The run is not pinned", body = RunView)))]
pub async fn unpin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<Json<RunView>, ApiError> {
    set(&app, &caller, id, false).await
}

async fn set(app: &App, caller: &Caller, id: RunId, pinned: bool) -> Result<Json<RunView>, ApiError> {
    access::own(app, caller, id).await?;
    if !app.store.pin(id, pinned).await? {
        return Err(runs::unknown(id));
    }
    Ok(Json(runs::find(app, id).await?.into()))
}
