//! The files of a run: the list, each file, and all of them as one stream.
//!
//! A file is served only if the store lists it for the run, so a client's path never reaches the
//! file system.

pub(crate) mod send;
mod stream;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, header},
    response::Response,
};
use llmprof_core::{
    domain::{ids::RunId, run_files::ArtifactRecord, state::Step},
    layout,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::stream::{Source, body};
use super::runs::{find, find_ended, not_found};
use crate::{
    artifact::bundle::Bundle,
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{
                ArtifactNotFound, GuardedErrors, InvalidParameter, RangeNotSatisfiable,
                RunNotFinished, RunNotFound, StoredFile,
            },
        },
        extract::params::{FilePath, RunPath},
        state::App,
    },
};

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactList {
    pub artifacts: Vec<ArtifactRecord>,
}

impl ArtifactList {
    fn example() -> Self {
        let report = ArtifactRecord {
            path: layout::REPORT_MD.into(),
            bytes: 6_172,
            sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
            media_type: layout::media_type(layout::REPORT_MD).into(),
            step: Some(Step::Report),
        };
        Self { artifacts: vec![report] }
    }
}

/// List the files of a run; none before it ends
#[utoipa::path(get, path = "/runs/{run_id}/artifacts", tag = "artifacts",
    operation_id = "list_artifacts",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "Every file with its size and hash", body = ArtifactList,
            example = json!(ArtifactList::example())),
        GuardedErrors, InvalidParameter, RunNotFound))]
pub async fn list(
    State(app): State<App>,
    RunPath(id): RunPath,
) -> Result<Json<ArtifactList>, ApiError> {
    find(&app, id).await?;
    Ok(Json(ArtifactList { artifacts: app.store.artifacts(id).await? }))
}

/// Download a file of a run, or a range of it
///
/// The ETag is the file's SHA-256, for `If-None-Match`, `Range` (one range of bytes) and
/// `If-Range`; a range that starts after the end of the file returns 416. The path may contain
/// slashes: `logs/baseline.stderr.log`.
// `Range` is not a declared parameter: the ranges that a file satisfies depend on its size.
#[utoipa::path(get, path = "/runs/{run_id}/artifacts/{*path}", tag = "artifacts",
    operation_id = "get_artifact",
    params(
        ("run_id" = RunId, Path),
        ("path" = String, Path, description = "As listed", min_length = 1),
        ("If-None-Match" = Option<String>, Header, description = "An ETag that the client has")),
    responses(
        (status = 200, description = "The file, in its own media type",
            content(("*/*", example = json!("# deepseek-ocr-tiny: prefill dominates\n"))),
            headers(("ETag" = String, description = "SHA-256 of the file, in quotes"))),
        (status = 206, description = "The range", content(("*/*", example = json!("# deepseek")))),
        (status = 304, description = "The client has the file"),
        GuardedErrors, InvalidParameter, ArtifactNotFound, RangeNotSatisfiable, StoredFile))]
pub async fn download(
    State(app): State<App>,
    FilePath(id, path): FilePath,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Some(artifact) = app.store.artifact(id, &path).await? else {
        let hint = if find(&app, id).await?.state.is_final() {
            format!("see /runs/{id}/artifacts")
        } else {
            "its files are listed when it ends".to_owned()
        };
        let message = format!("no artifact {path} in this run; {hint}");
        return Err(ApiError::new(ErrorCode::ArtifactNotFound, message));
    };
    send::file(&app, &app.runs.join(id.to_string()), &artifact, &headers, || not_found(id)).await
}

/// Download all files of an ended run as one stream
///
/// `curl ... | tar --zstd -x` unpacks it into a folder named by the run.
#[utoipa::path(get, path = "/runs/{run_id}/bundle", tag = "artifacts", operation_id = "get_bundle",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "A tar archive, compressed with Zstandard",
            content(("application/zstd",
                example = json!("(bytes of llmprof-019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10.tar.zst)"),
            ))),
        GuardedErrors, InvalidParameter, RunNotFound, RunNotFinished, StoredFile))]
pub async fn bundle(State(app): State<App>, RunPath(id): RunPath) -> Result<Response, ApiError> {
    find_ended(&app, id).await?;
    let artifacts = app.store.artifacts(id).await?;
    let folder = app.runs.join(id.to_string());
    send::check_files(&folder, &artifacts, || not_found(id)).await?;
    let name = format!("attachment; filename=\"llmprof-{id}.tar.zst\"");
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "application/zstd")
        .header(header::CONTENT_DISPOSITION, name)
        .header(header::CACHE_CONTROL, "private, no-cache");
    let bundle = Bundle::new(folder.clone(), id, artifacts);
    let body = body(&folder, Source::Bundle(Box::new(bundle)), &app.measuring);
    response.body(body).map_err(|error| ApiError::internal(&error))
}
