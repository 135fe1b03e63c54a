//! Thumbnails: read, or made from the image if they are missing or incomplete.
//!
//! An image is decoded in a child process, like an upload, one at a time.

use std::{path::PathBuf, time::Duration};

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
    runtime,
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
    let bytes = match read(app, sha256).await? {
        Some(bytes) => bytes,
        None => make(app, name, sha256, from).await?,
    };
    // A content never changes, and neither does the image at a position.
    let headers = [
        (header::CONTENT_TYPE, "image/jpeg"),
        (header::CACHE_CONTROL, "private, max-age=86400, immutable"),
    ];
    Ok((headers, bytes).into_response())
}

/// Returns `None` for a missing or incomplete thumbnail.
async fn read(app: &App, sha256: &str) -> Result<Option<Vec<u8>>, ApiError> {
    let (storage, sha256) = (app.input_storage.clone(), sha256.to_owned());
    let read = runtime::blocking(move || storage.read_thumbnail(&sha256)).await;
    read.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))
}

/// Makes the thumbnail of the content `sha256`, the image `from`, and stores it.
async fn make(app: &App, name: &str, sha256: &str, from: PathBuf) -> Result<Vec<u8>, ApiError> {
    let busy = |_| {
        let message = "other thumbnails are being made; retry later";
        ApiError::new(ErrorCode::Unavailable, message).retry_after(10)
    };
    let _lock =
        tokio::time::timeout(MAX_WAIT, app.input_storage.lock_thumbnails()).await.map_err(busy)?;
    if let Some(bytes) = read(app, sha256).await? {
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
    let (storage, sha256, jpeg) = (app.input_storage.clone(), sha256.to_owned(), bytes.clone());
    let kept = runtime::blocking(move || storage.keep_thumbnail(&sha256, &jpeg)).await;
    // It is made again for the next request.
    if let Ok(Err(error)) = kept {
        tracing::warn!(%error, "cannot store a thumbnail");
    }
    Ok(bytes)
}
