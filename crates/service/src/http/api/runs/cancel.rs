//! `POST /runs/{run_id}/cancel`.

use axum::{Extension, Json, extract::State, http::StatusCode};
use llmprof_core::domain::{ids::RunId, subject::SubjectKind};

use super::{RunView, check_run_owner, example, find, not_found};
use crate::{
    artifact::folder::remove_tree,
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InsufficientStorage, InvalidParameter, RunNotCancellable,
                RunNotFound,
            },
        },
        extract::params::RunPath,
        state::App,
    },
    runtime::{self, work::SlicedWork},
    store::CancelOutcome,
};

/// Cancel a run that has not ended
///
/// A queued run is cancelled immediately (200); a running one is stopped within the grace period
/// (202).
#[utoipa::path(post, path = "/runs/{run_id}/cancel", tag = "runs", operation_id = "cancel_run",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "The run is cancelled", body = RunView,
            example = json!(example::cancelled())),
        (status = 202, description = "The run is being stopped", body = RunView,
            example = json!(example::cancelling())),
        GuardedErrors, InvalidParameter, RunNotFound, RunNotCancellable, InsufficientStorage))]
pub async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<(StatusCode, Json<RunView>), ApiError> {
    check_run_owner(&app, &caller, id).await?;
    let refuse = |message: String| Err(ApiError::new(ErrorCode::RunNotCancellable, message));
    let status = match app.store.cancel(id).await? {
        CancelOutcome::Cancelled => {
            remove_import(&app, id).await?;
            StatusCode::OK
        }
        CancelOutcome::Requested => {
            app.cancelled.notify_waiters();
            StatusCode::ACCEPTED
        }
        CancelOutcome::AlreadyRequested => {
            return refuse("the run is already being cancelled".into());
        }
        CancelOutcome::AlreadyEnded(state) => {
            return refuse(format!("the run has already ended: {state}"));
        }
        CancelOutcome::NotFound => return Err(not_found(id)),
    };
    Ok((status, Json(RunView::of(&app, find(&app, id).await?).await?)))
}

/// Removes the uploaded files of an import that was cancelled in the queue.
async fn remove_import(app: &App, id: RunId) -> Result<(), ApiError> {
    if find(app, id).await?.spec.kind() == SubjectKind::Import {
        let folder = app.runs.join(id.to_string());
        let remove = move |work: &SlicedWork| remove_tree(&folder, work);
        if let Err(error) = runtime::stoppable(&SlicedWork::default(), remove).await {
            tracing::warn!(run = %id, %error, "cannot remove the files of a cancelled import");
        }
    }
    Ok(())
}
