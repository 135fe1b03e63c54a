//! Sweeps: grids of submissions; each point is a run.
//!
//! A handler stores a request; the scheduler queues the points.

mod grid;
mod prompts;
pub mod submit;

use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use llmprof_analyze::sweep::{self, SweepPoint, SweepResults};
use llmprof_core::domain::{
    command::ParamValue,
    headline::Headline,
    ids::{RunId, SweepId},
    sweep::{SweepCounts, SweepPointState, SweepState},
};
use llmprof_report::sweep::SweepTable;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use self::submit::SubmitSweep;
use crate::{
    http::{
        auth::access::{Caller, check_owner},
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InsufficientStorage, InvalidParameter, NotAcceptable, SweepActive,
                SweepEnded, SweepNotFound,
            },
        },
        extract::{
            content_negotiation::{self, TableFormat},
            params::{Params, SweepPath},
        },
        state::App,
    },
    store::{StoredSweep, StoredSweepPoint, SweepChange, SweepDeletion},
};

/// Sweeps in a list.
const MAX_LISTED: u32 = 200;

/// A sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SweepView {
    pub sweep_id: SweepId,
    pub name: Option<String>,
    pub state: SweepState,
    /// Name of the token that started it; `null` if none was required.
    pub owner: Option<String>,
    /// The request with every default filled in.
    pub request: SubmitSweep,
    pub created_at: String,
    /// No further point starts after it. A pause moves it.
    pub deadline_at: String,
    pub ended_at: Option<String>,
    /// Why the service paused it.
    pub message: Option<String>,
    pub counts: SweepCounts,
    /// In the order of the grid, whose last axis by name changes first; `null` in lists.
    pub points: Option<Vec<PointView>>,
}

/// A point of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = SweepPoint)]
pub struct PointView {
    pub position: u32,
    /// Value of each axis.
    pub axes: BTreeMap<String, ParamValue>,
    pub state: SweepPointState,
    #[schema(value_type = Option<uuid::Uuid>)]
    pub run_id: Option<RunId>,
    /// Its run was made before.
    pub reused: bool,
    pub headline: Option<Headline>,
    /// Why it is a gap.
    pub reason: Option<String>,
}

impl From<StoredSweepPoint> for PointView {
    fn from(it: StoredSweepPoint) -> Self {
        Self {
            position: it.position,
            axes: it.axes,
            state: it.state,
            run_id: it.run,
            reused: it.is_reused,
            headline: it.figures.map(|figures| figures.headline),
            reason: it.gap,
        }
    }
}

impl SweepView {
    fn of(it: StoredSweep, points: Option<Vec<StoredSweepPoint>>) -> Result<Self, ApiError> {
        let request =
            serde_json::from_value(it.request).map_err(|error| ApiError::internal(&error))?;
        Ok(Self {
            sweep_id: it.id,
            name: it.name,
            state: it.state,
            owner: it.owner,
            request,
            created_at: it.created_at,
            deadline_at: it.deadline_at,
            ended_at: it.ended_at,
            message: it.message,
            counts: it.counts,
            points: points.map(|points| points.into_iter().map(PointView::from).collect()),
        })
    }
}

/// An example without the fields that may be `null`.
fn example() -> serde_json::Value {
    json!({
        "sweep_id": "019aa4c7-1f0d-7d29-b3a6-8e5f2c417b90", "state": "running",
        "request": {
            "base": { "model": "llama-tiny", "mode": "basic" },
            "axes": {
                "new_tokens": [16, 64], "prompt_tokens": { "from": 64, "to": 256, "factor": 2 },
            },
            "limits": { "max_minutes": 1440, "max_queued": 2 }, "reuse": true,
        },
        "created_at": "2026-11-20T09:00:00.000Z", "deadline_at": "2026-11-21T09:00:00.000Z",
        "counts": {
            "points": 6, "waiting": 4, "queued": 1, "running": 1, "measured": 0, "reused": 0,
            "gaps": 0,
        },
    })
}

/// Sweeps, active ones first, then newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SweepList {
    pub sweeps: Vec<SweepView>,
}

/// List sweeps, active ones first
#[utoipa::path(get, path = "/sweeps", tag = "runs", operation_id = "list_sweeps",
    responses(
        (status = 200, description = "At most 200 sweeps", body = SweepList,
            example = json!({ "sweeps": [] })),
        GuardedErrors))]
pub async fn list(State(app): State<App>) -> Result<Json<SweepList>, ApiError> {
    page(&app).await.map(Json)
}

/// The list, for pages.
pub(crate) async fn page(app: &App) -> Result<SweepList, ApiError> {
    let stored = app.store.sweeps(MAX_LISTED).await?;
    let sweeps = stored.into_iter().map(|it| SweepView::of(it, None)).collect::<Result<_, _>>()?;
    Ok(SweepList { sweeps })
}

/// Show a sweep with its points
#[utoipa::path(get, path = "/sweeps/{sweep_id}", tag = "runs", operation_id = "show_sweep",
    params(("sweep_id" = SweepId, Path)),
    responses(
        (status = 200, description = "The sweep", body = SweepView, example = json!(example())),
        GuardedErrors, InvalidParameter, SweepNotFound))]
pub async fn show(
    State(app): State<App>,
    SweepPath(id): SweepPath,
) -> Result<Json<SweepView>, ApiError> {
    Ok(Json(find(&app, id).await?.0))
}

/// The sweep with its points, and its results so far; a 404 without it.
pub(crate) async fn find(app: &App, id: SweepId) -> Result<(SweepView, SweepResults), ApiError> {
    let stored = app.store.sweep(id).await?.ok_or_else(|| not_found(id))?;
    let points = app.store.sweep_points(id).await?;
    let measured = points.iter().map(|it| SweepPoint {
        position: it.position,
        axes: it.axes.clone(),
        run: it.run,
        gap: it.gap.clone(),
        figures: it.figures.clone(),
    });
    let results = sweep::results(&measured.collect::<Vec<_>>());
    Ok((SweepView::of(stored, Some(points))?, results))
}

fn not_found(id: SweepId) -> ApiError {
    ApiError::new(ErrorCode::SweepNotFound, format!("no sweep {id}; see GET /sweeps"))
}

/// Format of the results.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ResultsQuery {
    /// `json` or `csv`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(json|csv)$")]
    format: Option<TableFormat>,
}

/// Return the results of a sweep so far: a row per point, the Pareto front of time per output token
/// against tokens per second, and where operators turn from memory- to compute-bound
#[utoipa::path(get, path = "/sweeps/{sweep_id}/results", tag = "runs",
    operation_id = "get_sweep_results",
    params(("sweep_id" = SweepId, Path), ResultsQuery),
    responses(
        (status = 200, description = "The results, as JSON, or the rows as CSV",
            content(
                (SweepResults = "application/json",
                    example = json!({ "rows": [], "front": [], "operators": [] })),
                (String = "text/csv", example = json!("position,new_tokens,ttft_ms,...\n")))),
        GuardedErrors, InvalidParameter, SweepNotFound, NotAcceptable))]
pub async fn results(
    State(app): State<App>,
    SweepPath(id): SweepPath,
    Params(query): Params<ResultsQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let offered = [TableFormat::Json, TableFormat::Csv];
    let format = content_negotiation::requested_format(query.format, &headers, &offered)?;
    let (_, results) = find(&app, id).await?;
    let text = match format {
        TableFormat::Csv => SweepTable::of(&results).csv(),
        _ => json!(results).to_string(),
    };
    Ok(content_negotiation::respond(format, text))
}

/// A requested change of a sweep.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SweepAction {
    Pause,
    Resume,
    Cancel,
}

/// Pause a sweep: no further point starts, and its queued runs are cancelled
#[utoipa::path(post, path = "/sweeps/{sweep_id}/pause", tag = "runs", operation_id = "pause_sweep",
    params(("sweep_id" = SweepId, Path)),
    responses(
        (status = 200, description = "It is paused", body = SweepView, example = json!(example())),
        GuardedErrors, InvalidParameter, SweepNotFound, SweepEnded, InsufficientStorage))]
pub async fn pause(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
) -> Result<Json<SweepView>, ApiError> {
    change(&app, &caller, id, SweepAction::Pause).await
}

/// Resume a paused sweep
#[utoipa::path(post, path = "/sweeps/{sweep_id}/resume", tag = "runs",
    operation_id = "resume_sweep",
    params(("sweep_id" = SweepId, Path)),
    responses(
        (status = 200, description = "It continues", body = SweepView, example = json!(example())),
        GuardedErrors, InvalidParameter, SweepNotFound, SweepEnded, InsufficientStorage))]
pub async fn resume(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
) -> Result<Json<SweepView>, ApiError> {
    change(&app, &caller, id, SweepAction::Resume).await
}

/// Cancel a sweep: its runs are cancelled, and points that were not measured are gaps
#[utoipa::path(post, path = "/sweeps/{sweep_id}/cancel", tag = "runs",
    operation_id = "cancel_sweep",
    params(("sweep_id" = SweepId, Path)),
    responses(
        (status = 200, description = "It ends", body = SweepView, example = json!(example())),
        GuardedErrors, InvalidParameter, SweepNotFound, SweepEnded, InsufficientStorage))]
pub async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
) -> Result<Json<SweepView>, ApiError> {
    change(&app, &caller, id, SweepAction::Cancel).await
}

async fn change(
    app: &App,
    caller: &Caller,
    id: SweepId,
    action: SweepAction,
) -> Result<Json<SweepView>, ApiError> {
    apply(app, caller, id, action).await?;
    Ok(Json(find(app, id).await?.0))
}

/// Changes a sweep of the caller; it may be in that state already.
pub(crate) async fn apply(
    app: &App,
    caller: &Caller,
    id: SweepId,
    action: SweepAction,
) -> Result<(), ApiError> {
    let sweep = app.store.sweep(id).await?.ok_or_else(|| not_found(id))?;
    check_owner(caller, "sweep", sweep.owner)?;
    let changed = match action {
        SweepAction::Pause => app.store.pause_sweep(id).await?,
        SweepAction::Resume => app.store.resume_sweep(id).await?,
        SweepAction::Cancel => app.store.cancel_sweep(id).await?,
    };
    match changed {
        SweepChange::Changed => {
            app.queued.notify_waiters();
            app.cancelled.notify_waiters();
            Ok(())
        }
        SweepChange::Unchanged => Ok(()),
        SweepChange::Ended(state) => {
            Err(ApiError::new(ErrorCode::SweepEnded, format!("the sweep has ended: {state}")))
        }
        SweepChange::NotFound => Err(not_found(id)),
    }
}

/// Delete an ended sweep; its runs stay
#[utoipa::path(delete, path = "/sweeps/{sweep_id}", tag = "runs", operation_id = "delete_sweep",
    params(("sweep_id" = SweepId, Path)),
    responses(
        (status = 204, description = "It was deleted"),
        GuardedErrors, InvalidParameter, SweepNotFound, SweepActive, InsufficientStorage))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SweepPath(id): SweepPath,
) -> Result<StatusCode, ApiError> {
    remove(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes an ended sweep of the caller.
pub(crate) async fn remove(app: &App, caller: &Caller, id: SweepId) -> Result<(), ApiError> {
    let sweep = app.store.sweep(id).await?.ok_or_else(|| not_found(id))?;
    check_owner(caller, "sweep", sweep.owner)?;
    match app.store.delete_sweep(id).await? {
        SweepDeletion::Deleted => Ok(()),
        SweepDeletion::Active => Err(ApiError::of(ErrorCode::SweepActive)),
        SweepDeletion::NotFound => Err(not_found(id)),
    }
}
