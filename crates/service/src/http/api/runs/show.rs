//! `GET /runs/{run_id}`.

use axum::{Json, extract::State};
use llmprof_core::domain::ids::RunId;

use super::{RunView, example, expected::expected, find};
use crate::http::{
    error::{
        ApiError,
        responses::{GuardedErrors, InvalidParameter, RunNotFound},
    },
    extract::params::RunPath,
    state::App,
};

/// Show a run: its request, state, steps and findings
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs", operation_id = "get_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "The run", body = RunView, example = json!(example::run())),
        GuardedErrors, InvalidParameter, RunNotFound))]
pub async fn show(State(app): State<App>, RunPath(id): RunPath) -> Result<Json<RunView>, ApiError> {
    let run = find(&app, id).await?;
    let expected = expected(&app, &run).await?;
    Ok(Json(RunView { expected, ..RunView::of(&app, run).await? }))
}
