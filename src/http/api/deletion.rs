//! Deletion of a run or an alignment together with its folder.

use std::{fmt::Display, io, path::PathBuf};

use crate::{
    artifact::folder,
    http::error::ApiError,
    store::{DeleteOutcome, Removal, Store, StoreError},
};

/// Executes `deletion` and removes the folder of `id` under `parent`. A folder that cannot be
/// removed now is removed by the retention task.
pub(crate) async fn delete(
    store: &Store,
    (parent, id, removal): (PathBuf, impl Display + Send + 'static, Removal),
    deletion: impl Future<Output = Result<DeleteOutcome, StoreError>>,
) -> Result<DeleteOutcome, ApiError> {
    let outcome = deletion.await?;
    if outcome == DeleteOutcome::Deleted {
        let removed = tokio::task::spawn_blocking(move || folder::remove(&parent, id)).await;
        match removed.map_err(io::Error::other).and_then(|removed| removed) {
            Ok(()) => store.removed(removal).await?,
            Err(error) => tracing::warn!(?removal, %error, "cannot remove the folder yet"),
        }
    }
    Ok(outcome)
}
