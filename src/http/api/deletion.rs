//! Deletion of a run or an alignment together with its folder.

use std::{fmt::Display, io, path::PathBuf};

use crate::{
    artifact::folder,
    http::error::ApiError,
    store::{DeleteOutcome, StoreError},
};

/// Executes `deletion` and removes the folder of `id` under `parent`. The folder is set aside
/// first, so that the next start completes an interrupted deletion.
pub(crate) async fn delete(
    parent: PathBuf,
    id: impl Display + Copy + Send + 'static,
    deletion: impl Future<Output = Result<DeleteOutcome, StoreError>>,
) -> Result<DeleteOutcome, ApiError> {
    folder::set_aside(&parent, id).map_err(|error| ApiError::internal(&error))?;
    let outcome = deletion.await?;
    match outcome {
        DeleteOutcome::Active => {
            folder::bring_back(&parent, id).map_err(|error| ApiError::internal(&error))?
        }
        DeleteOutcome::Deleted => {
            let removed =
                tokio::task::spawn_blocking(move || folder::remove_aside(&parent, id)).await;
            if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
                tracing::error!(%id, %error, "cannot remove a deleted folder");
            }
        }
        DeleteOutcome::NotFound => {}
    }
    Ok(outcome)
}
