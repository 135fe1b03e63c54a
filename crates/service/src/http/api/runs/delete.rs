//! `DELETE /runs/{run_id}`.

use axum::{Extension, extract::State, http::StatusCode};
use llmprof_core::domain::ids::RunId;

use super::{check_run_owner, find, not_found};
use crate::{
    http::{
        api::deletion,
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InsufficientStorage, InvalidParameter, RunActive, RunNotFound,
            },
        },
        extract::params::RunPath,
        state::App,
    },
    store::{DeleteOutcome, Removal},
};

/// Delete a run that has ended, with all its files
#[utoipa::path(delete, path = "/runs/{run_id}", tag = "runs", operation_id = "delete_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 204, description = "The run is deleted"),
        GuardedErrors, InvalidParameter, RunNotFound, RunActive, InsufficientStorage))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<StatusCode, ApiError> {
    check_run_owner(&app, &caller, id).await?;
    if !find(&app, id).await?.state.is_final() {
        return Err(ApiError::of(ErrorCode::RunActive));
    }
    let folder = (app.runs.clone(), id, Removal::Run(id));
    match deletion::delete(&app.store, folder, app.store.delete(id)).await? {
        DeleteOutcome::Deleted => Ok(StatusCode::NO_CONTENT),
        DeleteOutcome::Active => Err(ApiError::of(ErrorCode::RunActive)),
        DeleteOutcome::NotFound => Err(not_found(id)),
    }
}
