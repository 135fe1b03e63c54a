//! Deletion of a run or an alignment together with its folder.

use std::{fmt::Display, path::PathBuf};

use crate::{
    artifact::folder,
    http::error::ApiError,
    runtime::{self, work::SlicedWork},
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
        let remove = move |work: &SlicedWork| folder::remove(&parent, id, work);
        match runtime::stoppable(&SlicedWork::default(), remove).await {
            Ok(()) => store.removed(removal).await?,
            Err(error) => tracing::warn!(?removal, %error, "cannot remove the folder yet"),
        }
    }
    Ok(outcome)
}
