//! Thumbnails: read, or made from the image if they are missing.
//!
//! An image is decoded in a child process, like an upload, one at a time.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

use super::pending;
use crate::{
    artifact::{
        import_staging::{IntakeError, UploadedFile},
        inputs::staging::{InputsUpload, StagedInputs, UploadedSamples},
    },
    http::{
        error::{ApiError, ErrorCode},
        state::App,
    },
};

/// Longest wait for the thumbnails of other requests.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The thumbnail of the content `sha256`, which the image `from` has.
pub(crate) async fn respond(
    app: &App,
    name: &str,
    sha256: &str,
    from: PathBuf,
) -> Result<Response, ApiError> {
    let stored = app.input_storage.thumbnail(sha256);
    let bytes = match read(&stored).await? {
        Some(bytes) => bytes,
        None => make(app, name, sha256, from, &stored).await?,
    };
    // A content never changes, and neither does the image at a position.
    let headers = [
        (header::CONTENT_TYPE, "image/jpeg"),
        (header::CACHE_CONTROL, "private, max-age=86400, immutable"),
    ];
    Ok((headers, bytes).into_response())
}

/// Returns `None` for a missing file.
async fn read(path: &Path) -> Result<Option<Vec<u8>>, ApiError> {
    match tokio::fs::read(path).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ApiError::internal(&error)),
    }
}

/// Makes a thumbnail of the image `from`, and keeps it as `to`.
async fn make(
    app: &App,
    name: &str,
    sha256: &str,
    from: PathBuf,
    to: &Path,
) -> Result<Vec<u8>, ApiError> {
    let busy = |_| {
        let message = "other thumbnails are being made; retry later";
        ApiError::new(ErrorCode::Unavailable, message).retry_after(10)
    };
    let _lock =
        tokio::time::timeout(MAX_WAIT, app.input_storage.lock_thumbnails()).await.map_err(busy)?;
    if let Some(bytes) = read(to).await? {
        return Ok(bytes);
    }
    let missing = |why: &str| {
        let message = format!("no thumbnail of {name}: {why}");
        ApiError::new(ErrorCode::InputsNotFound, message)
    };
    if !from.is_file() {
        return Err(missing("the image is missing; upload it again"));
    }
    let folder = app.intake.create_folder().map_err(|error| ApiError::internal(&error))?;
    let upload = InputsUpload {
        folder: folder.path().to_owned(),
        files: vec![UploadedFile { path: from, name: "image".into() }],
        manifest: None,
        is_archive: false,
        stated: None,
        samples: UploadedSamples { prompt: Some(String::new()), each_image: false },
        limits: pending::limits(app),
        // Nothing: the image is decoded although it is stored.
        known: folder.path().join("known"),
    };
    let StagedInputs { set, files } = match pending::inspect(app, upload).await {
        Ok(staged) => staged,
        Err(IntakeError::Unfit(why)) => return Err(missing(&why)),
        Err(error) => return Err(ApiError::internal(&error)),
    };
    if set.images.first().is_none_or(|image| image.sha256 != sha256) {
        return Err(missing("the image has changed; run llmprof check"));
    }
    let made = files.into_iter().next().and_then(|file| file.thumbnail);
    let made = made.ok_or_else(|| missing("the image was not decoded"))?;
    let bytes = tokio::fs::read(&made).await.map_err(|error| ApiError::internal(&error))?;
    fs::rename(&made, to).map_err(|error| ApiError::internal(&error))?;
    Ok(bytes)
}
