//! Forgets a run or an alignment with its folder.

use std::{fmt::Display, io, path::PathBuf};

use super::error::ApiError;
use crate::{
    artifact::folder,
    store::{Delete, StoreError},
};

/// Does `deletion`, and removes the folder of `id` under `all` with it: set aside first, so that a deletion that was broken off is ended at
/// the next start.
pub(super) async fn forget(
    all: PathBuf,
    id: impl Display + Copy + Send + 'static,
    deletion: impl Future<Output = Result<Delete, StoreError>>,
) -> Result<Delete, ApiError> {
    folder::set_aside(&all, id).map_err(|error| ApiError::internal(&error))?;
    let deleted = deletion.await?;
    match deleted {
        Delete::Active => folder::bring_back(&all, id).map_err(|error| ApiError::internal(&error))?,
        Delete::Deleted => {
            let removed = tokio::task::spawn_blocking(move || folder::remove_aside(&all, id)).await;
            if let Err(error) = removed.map_err(io::Error::other).and_then(|removed| removed) {
                tracing::error!(%id, %error, "the folder of what was deleted stays behind");
            }
        }
        Delete::NotFound => {}
    }
    Ok(deleted)
}
