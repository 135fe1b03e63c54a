//! The files of a run: the list, each of them, and all as one stream. Nothing is held in memory.
//!
//! A file is served only when the store lists it for the run, so no path from outside ever reaches the file system.

use std::{io, path::Path};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
    request::{FilePath, RunPath},
    runs::find,
    stream::{Source, body},
};
use crate::{
    artifact::{bundle::Bundle, packed},
    run::{ArtifactRecord, RunId},
};

/// What a page among the artifacts may do: show itself, and nothing else.
pub const CONTENT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox";

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactList {
    pub artifacts: Vec<ArtifactRecord>,
}

/// List the files of a run; none before it ends
#[utoipa::path(get, path = "/runs/{run_id}/artifacts", tag = "artifacts", operation_id = "list_artifacts", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "Every file with its size and hash", body = ArtifactList)))]
pub async fn list(State(app): State<App>, RunPath(id): RunPath) -> Result<Json<ArtifactList>, ApiError> {
    find(&app, id).await?;
    Ok(Json(ArtifactList { artifacts: app.store.artifacts(id).await? }))
}

/// Download one file of a run, whole or a range of it
///
/// The ETag is the file's SHA-256, good for `If-None-Match`, `Range` (one range of bytes) and `If-Range`; a range that begins behind
/// the end is answered with 416. The path may hold slashes: `logs/baseline.stderr.log`.
// `Range` is told in words: which ranges a file can satisfy depends on its size, and no schema says that.
#[utoipa::path(get, path = "/runs/{run_id}/artifacts/{*path}", tag = "artifacts", operation_id = "get_artifact",
    params(("run_id" = RunId, Path), ("path" = String, Path, description = "As listed", min_length = 1),
        ("If-None-Match" = Option<String>, Header, description = "An ETag that the client has")),
    responses((status = 200, description = "The file, in its own media type", content(("*/*")),
                  headers(("ETag" = String, description = "SHA-256 of the file, in quotes"))),
              (status = 206, description = "The range", content(("*/*"))),
              (status = 304, description = "The client has it")))]
pub async fn download(State(app): State<App>, FilePath(id, path): FilePath, headers: HeaderMap) -> Result<Response, ApiError> {
    let Some(artifact) = app.store.artifact(id, &path).await? else {
        let run = find(&app, id).await?;
        let when = if run.state.is_final() { "" } else { "; its files are listed when it ends" };
        return Err(ApiError::new(ErrorCode::ArtifactNotFound, format!("the run left no {path}{when}")));
    };
    send(&app.runs.join(id.to_string()), &artifact, &headers).await
}

/// Serves a file of `dir` that the store lists.
pub async fn send(dir: &Path, artifact: &ArtifactRecord, headers: &HeaderMap) -> Result<Response, ApiError> {
    let etag = format!("\"{}\"", artifact.sha256);
    let given = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let matches = |list: &str| {
        list.split(',')
            .any(|tag| matches!(tag.trim().trim_start_matches("W/"), "*") || tag.trim().trim_start_matches("W/") == etag)
    };
    let mut response = Response::builder()
        .header(header::ETAG, &etag)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CACHE_CONTROL, "private, no-cache")
        .header(header::CONTENT_TYPE, &artifact.media_type)
        .header(header::CONTENT_SECURITY_POLICY, CONTENT_POLICY);
    if !shows_inline(&artifact.media_type) {
        response = response.header(header::CONTENT_DISPOSITION, disposition(&artifact.path));
    }
    if given(header::IF_NONE_MATCH).is_some_and(matches) {
        return finish(response.status(StatusCode::NOT_MODIFIED), Body::empty());
    }
    let range = given(header::RANGE).filter(|_| given(header::IF_RANGE).is_none_or(|tag| tag == etag));
    let (start, length) = match range.map_or(Wanted::All, |range| wanted(range, artifact.bytes)) {
        Wanted::All => (0, artifact.bytes),
        Wanted::Part { start, end } => {
            let part = format!("bytes {start}-{end}/{}", artifact.bytes);
            response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, part);
            (start, end - start + 1)
        }
        Wanted::Nothing => {
            let mut refused =
                ApiError::new(ErrorCode::RangeNotSatisfiable, format!("the file has {} bytes", artifact.bytes)).into_response();
            if let Ok(size) = HeaderValue::from_str(&format!("bytes */{}", artifact.bytes)) {
                refused.headers_mut().insert(header::CONTENT_RANGE, size);
            }
            return Ok(refused);
        }
    };
    let path = dir.join(&artifact.path);
    let opened = tokio::task::spawn_blocking(move || packed::open_stored(&path)).await;
    let opened = opened.map_err(io::Error::other).and_then(|opened| opened);
    let (file, is_packed) = opened.map_err(|error| ApiError::internal(&error))?;
    let response = response.header(header::CONTENT_LENGTH, length);
    let source = Source::part(file, is_packed, start, length).map_err(|error| ApiError::internal(&error))?;
    finish(response, body(dir, source))
}

fn finish(response: axum::http::response::Builder, body: Body) -> Result<Response, ApiError> {
    response.body(body).map_err(|error| ApiError::internal(&error))
}

fn shows_inline(media_type: &str) -> bool {
    media_type.starts_with("text/") || media_type.starts_with("application/json") || media_type == "application/yaml"
}

/// Names a download; names are ours, but a quote in one must not end the header's value.
fn disposition(path: &str) -> String {
    let name: String =
        path.rsplit('/').next().unwrap_or(path).chars().filter(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\')).collect();
    format!("attachment; filename=\"{name}\"")
}

enum Wanted {
    All,
    Part { start: u64, end: u64 },
    Nothing,
}

/// Reads one range of bytes. Several, or something else, is answered with the whole file, as RFC 9110 allows.
fn wanted(range: &str, size: u64) -> Wanted {
    let Some((first, last)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Wanted::All;
    };
    let number = |text: &str| {
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
    };
    match (number(first.trim()), number(last.trim())) {
        (Some(start), _) if start >= size && (last.trim().is_empty() || number(last.trim()).is_some()) => Wanted::Nothing,
        (Some(start), None) if last.trim().is_empty() => Wanted::Part { start, end: size - 1 },
        (Some(start), Some(end)) if start <= end => Wanted::Part { start, end: end.min(size - 1) },
        (None, Some(0)) if first.trim().is_empty() => Wanted::Nothing,
        (None, Some(_)) if first.trim().is_empty() && size == 0 => Wanted::Nothing,
        (None, Some(length)) if first.trim().is_empty() => Wanted::Part { start: size.saturating_sub(length), end: size - 1 },
        _ => Wanted::All,
    }
}

/// Download all files of an ended run as one stream
///
/// `curl ... | tar --zstd -x` unpacks it into a folder named by the run.
#[utoipa::path(get, path = "/runs/{run_id}/bundle", tag = "artifacts", operation_id = "get_bundle", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "A tar, compressed with Zstandard", body = Vec<u8>, content_type = "application/zstd")))]
pub async fn bundle(State(app): State<App>, RunPath(id): RunPath) -> Result<Response, ApiError> {
    let run = find(&app, id).await?;
    if !run.state.is_final() {
        return Err(ApiError::new(ErrorCode::RunNotFinished, format!("the run has not ended; follow it at /runs/{id}/events")));
    }
    let artifacts = app.store.artifacts(id).await?;
    let dir = app.runs.join(id.to_string());
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "application/zstd")
        .header(header::CONTENT_DISPOSITION, format!("attachment; filename=\"llmprof-{id}.tar.zst\""));
    let bundle = Bundle::new(dir.clone(), id, artifacts);
    finish(response, body(&dir, Source::Bundle(Box::new(bundle))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(range: &str, size: u64) -> String {
        match wanted(range, size) {
            Wanted::All => "all".into(),
            Wanted::Nothing => "nothing".into(),
            Wanted::Part { start, end } => format!("{start}..={end}"),
        }
    }

    #[test]
    fn ranges_are_read_as_rfc_9110_says() {
        let cases = [
            ("bytes=0-9", 100, "0..=9"),
            ("bytes=90-200", 100, "90..=99"),
            ("bytes=90-", 100, "90..=99"),
            ("bytes=-10", 100, "90..=99"),
            ("bytes=-200", 100, "0..=99"),
            ("bytes=100-", 100, "nothing"),
            ("bytes=-0", 100, "nothing"),
            ("bytes=-1", 0, "nothing"),
            ("bytes=0-", 0, "nothing"),
            ("bytes=9-0", 100, "all"),
            ("bytes=0-1,5-6", 100, "all"),
            ("items=0-1", 100, "all"),
            ("bytes=99999999999999999999-", 100, "nothing"),
        ];
        for (range, size, expected) in cases {
            assert_eq!(part(range, size), expected, "{range} of {size}");
        }
    }
}
