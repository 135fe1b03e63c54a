//! `GET /runs/{run_id}`.

use axum::{Json, extract::State};

use super::{RunView, example, find};
use crate::{
    domain::ids::RunId,
    http::{
        error::{
            ApiError,
            responses::{GuardedErrors, InvalidParameter, RunNotFound},
        },
        extract::params::RunPath,
        state::App,
    },
};

/// Show a run: its request, state, steps and findings
#[utoipa::path(get, path = "/runs/{run_id}", tag = "runs", operation_id = "get_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "The run", body = RunView, example = json!(example::run())),
        GuardedErrors, InvalidParameter, RunNotFound))]
pub async fn show(State(app): State<App>, RunPath(id): RunPath) -> Result<Json<RunView>, ApiError> {
    Ok(Json(RunView::of(&app, find(&app, id).await?).await?))
}
