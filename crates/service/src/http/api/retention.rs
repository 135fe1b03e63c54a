//! Retention: stored runs, planned packing and removal, and pins.

use std::collections::HashMap;

use axum::{Extension, Json, extract::State};
use llmprof_core::domain::ids::RunId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::runs::{self, RunView, check_run_owner, example, not_found};
use crate::{
    http::{
        auth::access::Caller,
        error::{
            ApiError,
            responses::{GuardedErrors, InsufficientStorage, InvalidParameter, RunNotFound},
        },
        extract::params::RunPath,
        state::App,
    },
    measuring::WAITING,
    store::{Plan, PlannedAction},
};

/// Maximum number of listed runs of each kind.
const MAX_LISTED: usize = 200;

/// Stored runs, budgets and planned actions, oldest first: at most 200 of each kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RetentionView {
    /// Newest runs of each name (model, part, command or import) and mode that are kept as they
    /// are.
    pub keep_newest: u32,
    /// Budgets; 0: unlimited.
    pub max_runs: u64,
    pub max_days: u32,
    pub max_bytes: u64,
    /// Ended runs.
    pub runs: u64,
    /// Their size on disk.
    pub bytes: u64,
    /// Runs whose raw files will be compressed; their responses do not change.
    pub pack: Vec<DueRun>,
    /// Runs that will be removed.
    pub remove: Vec<DueRun>,
    /// Budgets that cannot be met, and why; and that actions wait for a pass.
    pub notes: Vec<String>,
}

/// A run that will be packed or removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DueRun {
    pub run_id: RunId,
    /// Name of the model, of the command or of the capture; of a part, `PART of MODEL`.
    pub name: String,
    /// `null` for an import.
    pub mode: Option<String>,
    pub ended_at: String,
    /// Size on disk.
    pub bytes: u64,
    /// RFC 3339, UTC; `null`: as soon as no pass runs.
    pub at: Option<String>,
    pub why: String,
}

impl From<&PlannedAction> for DueRun {
    fn from(due: &PlannedAction) -> Self {
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

/// Planned actions on one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct RetentionFate {
    pub pack: Option<DueRun>,
    pub remove: Option<DueRun>,
}

/// Returns the planned actions on an ended run.
pub(crate) async fn fate(app: &App, id: RunId) -> Result<RetentionFate, ApiError> {
    let plan = app.store.plan(&app.config.retention).await?;
    let of = |due: &[PlannedAction]| due.iter().find(|due| due.run.id == id).map(DueRun::from);
    Ok(RetentionFate { pack: of(&plan.pack), remove: of(&plan.remove) })
}

/// Returns the runs among `ids` that will be removed. Without budgets the plan is not computed.
pub(crate) async fn removals(app: &App, ids: &[RunId]) -> Result<HashMap<RunId, DueRun>, ApiError> {
    let settings = &app.config.retention;
    if settings.max_runs == 0 && settings.max_days == 0 && settings.max_bytes == 0 {
        return Ok(HashMap::new());
    }
    let plan = app.store.plan(settings).await?;
    let listed = plan.remove.iter().filter(|due| ids.contains(&due.run.id));
    Ok(listed.map(|due| (due.run.id, due.into())).collect())
}

fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms)
        .map_or_else(|_| ms.to_string(), |time| format!("{time:.3}"))
}

impl RetentionView {
    fn example() -> Self {
        let due = DueRun {
            run_id: example::id(),
            name: "deepseek-ocr-tiny".into(),
            mode: Some("deep".into()),
            ended_at: "2026-11-20T09:00:08.120Z".into(),
            bytes: 48_000_000,
            at: None,
            why: "beyond the newest 5 of deepseek-ocr-tiny, deep".into(),
        };
        let old = DueRun {
            at: Some("2027-02-18T09:00:08.120Z".into()),
            why: "older than 90 days".into(),
            ..due.clone()
        };
        Self {
            keep_newest: 5,
            max_runs: 0,
            max_days: 90,
            max_bytes: 0,
            runs: 6,
            bytes: 288_000_000,
            pack: vec![due],
            remove: vec![old],
            notes: vec![],
        }
    }
}

/// Show the size of stored runs and the planned packing and removal
#[utoipa::path(get, path = "/retention", tag = "runs", operation_id = "get_retention",
    responses(
        (status = 200, description = "Stored runs and planned actions", body = RetentionView,
            example = json!(RetentionView::example())),
        GuardedErrors))]
pub async fn retention(State(app): State<App>) -> Result<Json<RetentionView>, ApiError> {
    let settings = &app.config.retention;
    let Plan { runs, bytes, pack, remove, mut notes } = app.store.plan(settings).await?;
    if app.measuring.is_active() {
        notes.push(WAITING.into());
    }
    let listed = |due: &[PlannedAction]| due.iter().take(MAX_LISTED).map(DueRun::from).collect();
    Ok(Json(RetentionView {
        keep_newest: settings.keep_newest,
        max_runs: settings.max_runs,
        max_days: settings.max_days,
        max_bytes: settings.max_bytes,
        runs: runs as u64,
        bytes,
        pack: listed(&pack),
        remove: listed(&remove),
        notes,
    }))
}

/// Pin a run: it is kept as it is and never removed automatically
#[utoipa::path(post, path = "/runs/{run_id}/pin", tag = "runs", operation_id = "pin_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "The run is pinned", body = RunView,
            example = json!(RunView { pinned: true, ..example::run() })),
        GuardedErrors, InvalidParameter, RunNotFound, InsufficientStorage))]
pub async fn pin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<Json<RunView>, ApiError> {
    set_pinned(&app, &caller, id, true).await
}

/// Unpin a run
#[utoipa::path(delete, path = "/runs/{run_id}/pin", tag = "runs", operation_id = "unpin_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "The run is not pinned", body = RunView,
            example = json!(example::run())),
        GuardedErrors, InvalidParameter, RunNotFound, InsufficientStorage))]
pub async fn unpin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<Json<RunView>, ApiError> {
    set_pinned(&app, &caller, id, false).await
}

async fn set_pinned(
    app: &App,
    caller: &Caller,
    id: RunId,
    pinned: bool,
) -> Result<Json<RunView>, ApiError> {
    check_run_owner(app, caller, id).await?;
    if !app.store.pin(id, pinned).await? {
        return Err(not_found(id));
    }
    Ok(Json(RunView::of(app, runs::find(app, id).await?).await?))
}
