//! Runs as clients see them: one, a list, cancelled, deleted.

use axum::{Extension, Json, extract::State, http::StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    App,
    access::{self, Caller},
    error::{ApiError, ErrorCode},
    removal,
    request::{self, Params, RunPath},
};
use crate::{
    run::{Finding, Mode, RunId, RunSpec, RunState, Scheduled, Step, StepRecord, SubjectKind},
    store::{Cancel, Delete, Filter, Run},
};

const MAX_LIMIT: u32 = 200;

/// Where the parts of a run are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Links {
    #[serde(rename = "self")]
    pub run: String,
    pub events: String,
    pub artifacts: String,
    pub report: String,
    pub bundle: String,
    pub cancel: String,
}

impl Links {
    pub fn of(id: RunId) -> Self {
        let to = |part: &str| format!("/runs/{id}{part}");
        Self {
            run: to(""),
            events: to("/events"),
            artifacts: to("/artifacts"),
            report: to("/report"),
            bundle: to("/bundle"),
            cancel: to("/cancel"),
        }
    }
}

/// A run with its steps and findings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    pub run_id: RunId,
    pub state: RunState,
    /// Name of the token that submitted it; `null` where none was asked for.
    pub owner: Option<String>,
    /// Name that lists show: of the model, of the command, or of the capture.
    #[schema(example = "deepseek-ocr-tiny")]
    pub name: String,
    pub spec: RunSpec,
    /// Times that a worker started it.
    pub attempts: u32,
    /// 1 is next; `null` once the run has left the queue.
    pub queue_position: Option<u64>,
    /// RFC 3339, UTC, as all times.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Somebody asked for the run to be cancelled; it may still be ending.
    pub cancel_requested: bool,
    /// It stays as it is, and is never removed but by hand.
    pub pinned: bool,
    /// Where the run stands with the cluster's scheduler, which carries it out: `running` is here every run that it was handed, and
    /// this tells what it still waits for. `null` where this host carries runs out.
    pub scheduled: Option<Scheduled>,
    /// Why the run failed.
    pub message: Option<String>,
    pub failed_step: Option<Step>,
    pub steps: Vec<StepRecord>,
    pub findings: Vec<Finding>,
    pub links: Links,
}

impl From<Run> for RunView {
    fn from(run: Run) -> Self {
        Self {
            run_id: run.id,
            state: run.state,
            owner: run.owner,
            name: run.spec.name().to_owned(),
            spec: run.spec,
            attempts: run.attempts,
            queue_position: run.queue_position,
            queued_at: run.queued_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            cancel_requested: run.cancel_requested,
            pinned: run.pinned,
            scheduled: run.scheduled,
            message: run.message,
            failed_step: run.failed_step,
            steps: run.steps,
            findings: run.findings,
            links: Links::of(run.id),
        }
    }
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    pub run_id: RunId,
    /// Kind of the subject.
    pub kind: SubjectKind,
    pub state: RunState,
    /// Name of the token that submitted it; `null` where none was asked for.
    pub owner: Option<String>,
    /// Name of the model, of the command, or of the capture.
    #[schema(example = "deepseek-ocr-tiny")]
    pub name: String,
    /// Name of the model that ran; `null` where it is not known.
    pub model: Option<String>,
    /// `null` of an import, which was collected elsewhere.
    pub mode: Option<Mode>,
    pub labels: Vec<String>,
    pub pinned: bool,
    pub priority: i32,
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    pub message: Option<String>,
    pub links: Links,
}

impl From<Run> for RunSummary {
    fn from(run: Run) -> Self {
        Self {
            run_id: run.id,
            kind: run.spec.kind(),
            state: run.state,
            owner: run.owner,
            name: run.spec.name().to_owned(),
            model: run.spec.model().map(str::to_owned),
            mode: run.spec.mode(),
            pinned: run.pinned,
            priority: run.spec.common.priority,
            labels: run.spec.common.labels,
            queued_at: run.queued_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            message: run.message,
            links: Links::of(run.id),
        }
    }
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunSummary>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// Which runs to list.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only runs in this state.
    #[param(inline)]
    state: Option<RunState>,
    /// Only runs of subjects of this kind.
    #[param(inline)]
    kind: Option<SubjectKind>,
    /// Only runs of this model.
    model: Option<String>,
    /// Only runs of this name: of a model, a command or a capture.
    name: Option<String>,
    /// Only runs with this label.
    label: Option<String>,
    /// `next_cursor` of the page before.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Runs on a page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List runs, newest first
#[utoipa::path(get, path = "/runs", tag = "runs", operation_id = "list_runs", params(ListQuery),
    responses((status = 200, description = "A page of runs", body = RunList)))]
pub async fn list(State(app): State<App>, Params(query): Params<ListQuery>) -> Result<Json<RunList>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::new(ErrorCode::InvalidParameter, format!("limit: {limit} is not between 1 and {MAX_LIMIT}")));
    }
    let filter = Filter { state: query.state, model: query.model, name: query.name, label: query.label, kind: query.kind };
    Ok(Json(page(&app, &filter, query.cursor.as_deref(), limit).await?))
}

/// Up to `limit` runs that match, from behind `cursor`.
pub async fn page(app: &App, filter: &Filter, cursor: Option<&str>, limit: u32) -> Result<RunList, ApiError> {
    let before = cursor.map(request::parse).transpose()?;
    let mut runs = app.store.list(filter, before, limit + 1).await?;
    let more = runs.len() > limit as usize;
    runs.truncate(limit as usize);
    let next_cursor = runs.last().filter(|_| more).map(|run| run.id.to_string());
    Ok(RunList { runs: runs.into_iter().map(RunSummary::from).collect(), next_cursor })
}

/// One run: what was asked, where it stands, what was found
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs", operation_id = "get_run", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "The run", body = RunView)))]
pub async fn show(State(app): State<App>, RunPath(id): RunPath) -> Result<Json<RunView>, ApiError> {
    Ok(Json(find(&app, id).await?.into()))
}

/// Cancel a run that has not ended
///
/// A queued run is cancelled at once (200); a running one is asked to end, and ends within the grace period (202).
#[utoipa::path(post, path = "/runs/{run_id}/cancel", tag = "runs", operation_id = "cancel_run", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "The run is cancelled", body = RunView),
              (status = 202, description = "The run will end soon", body = RunView)))]
pub async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<(StatusCode, Json<RunView>), ApiError> {
    access::own(&app, &caller, id).await?;
    let refuse = |message: String| Err(ApiError::new(ErrorCode::RunNotCancellable, message));
    let status = match app.store.cancel(id).await? {
        Cancel::Cancelled => {
            forget_import(&app, id).await?;
            StatusCode::OK
        }
        Cancel::Requested => {
            app.cancelled.notify_waiters();
            StatusCode::ACCEPTED
        }
        Cancel::AlreadyRequested => return refuse("the run is being cancelled already".into()),
        Cancel::AlreadyEnded(state) => return refuse(format!("the run has ended: {state}")),
        Cancel::NotFound => return Err(unknown(id)),
    };
    Ok((status, Json(find(&app, id).await?.into())))
}

/// Removes what was sent for an import that will not start: nothing would ever be made of it.
async fn forget_import(app: &App, id: RunId) -> Result<(), ApiError> {
    if find(app, id).await?.spec.kind() == SubjectKind::Import {
        let dir = app.runs.join(id.to_string());
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await {
            tracing::warn!(run = %id, %error, "what was sent for a cancelled import stays behind");
        }
    }
    Ok(())
}

/// Delete a run that has ended, with all its files
#[utoipa::path(delete, path = "/runs/{run_id}", tag = "runs", operation_id = "delete_run", params(("run_id" = RunId, Path)),
    responses((status = 204, description = "The run is gone")))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<StatusCode, ApiError> {
    access::own(&app, &caller, id).await?;
    let active = || ApiError::new(ErrorCode::RunActive, ErrorCode::RunActive.example());
    if !find(&app, id).await?.state.is_final() {
        return Err(active());
    }
    match removal::forget(app.runs.clone(), id, app.store.delete(id)).await? {
        Delete::Deleted => Ok(StatusCode::NO_CONTENT),
        Delete::Active => Err(active()),
        Delete::NotFound => Err(unknown(id)),
    }
}

/// The run, or a 404.
pub async fn find(app: &App, id: RunId) -> Result<Run, ApiError> {
    app.store.run(id).await?.ok_or_else(|| unknown(id))
}

pub fn unknown(id: RunId) -> ApiError {
    ApiError::new(ErrorCode::RunNotFound, format!("there is no run {id}"))
}
