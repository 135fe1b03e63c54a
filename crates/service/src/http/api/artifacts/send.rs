//! Responses with a stored file: validators, ranges and headers.

use std::{io, ops::RangeInclusive, path::Path};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response::Builder},
    response::{IntoResponse, Response},
};
use llmprof_core::domain::{run_files::ArtifactRecord, uri::percent_encoded};

use super::stream::{Source, body};
use crate::{
    artifact::packed,
    http::{
        error::{ApiError, ErrorCode},
        extract::content_negotiation::DOCUMENT_POLICY,
        state::App,
    },
    runtime,
};

/// Sends a file of `folder` that the store lists; `deleted` is the error if the folder was deleted
/// meanwhile.
pub(crate) async fn file(
    app: &App,
    folder: &Path,
    artifact: &ArtifactRecord,
    headers: &HeaderMap,
    deleted: impl FnOnce() -> ApiError,
) -> Result<Response, ApiError> {
    let etag = format!("\"{}\"", artifact.sha256);
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let mut response = builder(artifact, &etag);
    // A list may be in several lines.
    let mut known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|it| it.to_str().ok());
    if known.any(|list| matches(list, &etag)) {
        return finish(response.status(StatusCode::NOT_MODIFIED), Body::empty());
    }
    let range =
        text(header::RANGE).filter(|_| text(header::IF_RANGE).is_none_or(|tag| tag == etag));
    let size = artifact.bytes;
    let selected = range.map_or(RequestedRange::Whole, |range| requested_range(range, size));
    let (start, length) = match selected {
        RequestedRange::Whole => (0, size),
        RequestedRange::Part(part) => {
            let (start, end) = part.into_inner();
            response = response
                .status(StatusCode::PARTIAL_CONTENT)
                .header(header::CONTENT_RANGE, format!("bytes {start}-{end}/{size}"));
            (start, end - start + 1)
        }
        RequestedRange::Unsatisfiable => return Ok(unsatisfiable(size)),
    };
    let (dir, listed) = (folder.to_owned(), artifact.clone());
    let opened = runtime::blocking(move || packed::open_artifact(&dir, &listed));
    let opened = opened.await.map_err(io::Error::other).and_then(|opened| opened);
    let (file, is_packed) = match opened {
        Ok(opened) => opened,
        Err(error) => return Err(unreadable(folder, &artifact.path, &error, deleted).await),
    };
    let source =
        Source::part(file, is_packed, start, length).map_err(|error| ApiError::internal(&error))?;
    finish(response.header(header::CONTENT_LENGTH, length), body(folder, source, &app.measuring))
}

/// Checks the files of `folder` that the store lists, before the header of a response with all of
/// them.
pub(super) async fn check_files(
    folder: &Path,
    artifacts: &[ArtifactRecord],
    deleted: impl FnOnce() -> ApiError,
) -> Result<(), ApiError> {
    let (dir, listed) = (folder.to_owned(), artifacts.to_vec());
    let damaged = runtime::blocking(move || {
        listed.into_iter().find_map(|artifact| {
            let error = packed::check_stored(&dir, &artifact).err()?;
            Some((artifact.path, error))
        })
    });
    match damaged.await.map_err(|error| ApiError::internal(&error))? {
        None => Ok(()),
        Some((path, error)) => Err(unreadable(folder, &path, &error, deleted).await),
    }
}

/// The error of a file of `folder` that the store lists by `path` and that cannot be read;
/// `deleted` if the folder was deleted meanwhile.
pub(crate) async fn unreadable(
    folder: &Path,
    path: &str,
    error: &io::Error,
    deleted: impl FnOnce() -> ApiError,
) -> ApiError {
    if is_deleted(folder, error).await { deleted() } else { ApiError::of_file(path, error) }
}

/// Returns true if a file of `folder` could not be read because the folder was deleted after the
/// store listed the file.
async fn is_deleted(folder: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && !tokio::fs::try_exists(folder).await.unwrap_or(true)
}

fn builder(artifact: &ArtifactRecord, etag: &str) -> Builder {
    let response = Response::builder()
        .header(header::ETAG, etag)
        .header(header::ACCEPT_RANGES, "bytes")
        .header(header::CACHE_CONTROL, "private, no-cache")
        .header(header::CONTENT_TYPE, &artifact.media_type)
        .header(header::CONTENT_SECURITY_POLICY, DOCUMENT_POLICY);
    if is_shown_inline(&artifact.media_type) {
        return response;
    }
    response.header(header::CONTENT_DISPOSITION, disposition(&artifact.path))
}

fn finish(response: Builder, body: Body) -> Result<Response, ApiError> {
    response.body(body).map_err(|error| ApiError::internal(&error))
}

/// Returns true if a list of ETags contains `etag` or `*`.
fn matches(list: &str, etag: &str) -> bool {
    list.split(',').any(|tag| {
        let tag = tag.trim().trim_start_matches("W/");
        tag == "*" || tag == etag
    })
}

fn unsatisfiable(size: u64) -> Response {
    let message = format!("range not satisfiable: the file has {size} bytes");
    let mut response = ApiError::new(ErrorCode::RangeNotSatisfiable, message).into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    response
}

fn is_shown_inline(media_type: &str) -> bool {
    media_type.starts_with("text/")
        || media_type.starts_with("application/json")
        || media_type == "application/yaml"
}

/// The disposition of a download, with the file's name without control characters; a name that
/// cannot stand in quotes also encoded (RFC 6266, 4.3).
fn disposition(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path).chars().filter(|c| !c.is_control());
    let name: String = name.collect();
    let is_plain = |c: &char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
    let plain: String = name.chars().filter(is_plain).collect();
    if plain == name && !name.is_empty() {
        return format!("attachment; filename=\"{name}\"");
    }
    let stem = if plain.is_empty() || plain.starts_with('.') { "download" } else { "" };
    format!("attachment; filename=\"{stem}{plain}\"; filename*=UTF-8''{}", percent_encoded(&name))
}

/// Part of a file that a request selects.
#[derive(Debug, PartialEq)]
enum RequestedRange {
    Whole,
    Part(RangeInclusive<u64>),
    Unsatisfiable,
}

/// Selects one range of a file of `size` bytes. Several ranges and malformed ones select the whole
/// file, which RFC 9110 allows.
fn requested_range(range: &str, size: u64) -> RequestedRange {
    let Some(positions) = parse_range(range) else { return RequestedRange::Whole };
    match positions {
        (Some(first), Some(last)) if first > last => RequestedRange::Whole,
        (Some(first), _) if first >= size => RequestedRange::Unsatisfiable,
        (Some(first), last) => RequestedRange::Part(first..=last.unwrap_or(u64::MAX).min(size - 1)),
        (None, Some(0)) => RequestedRange::Unsatisfiable,
        (None, Some(_)) if size == 0 => RequestedRange::Unsatisfiable,
        (None, Some(length)) => RequestedRange::Part(size.saturating_sub(length)..=size - 1),
        (None, None) => RequestedRange::Whole,
    }
}

/// Parses `bytes=FIRST-LAST`, where one of them may be missing; `None` for anything else.
fn parse_range(range: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, positions) = range.trim().split_once('=')?;
    let (first, last) = positions.trim().split_once('-')?;
    unit.eq_ignore_ascii_case("bytes").then_some(())?;
    Some((parse_position(first)?, parse_position(last)?))
}

/// Parses digits, of any number; above `u64` they are past the end of any file.
fn parse_position(digits: &str) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    let valid = digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| Some(digits.parse().unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_download_is_whole_and_ends_in_its_header() {
        for (path, expected) in [
            ("nsys/run.sqlite", "filename=\"run.sqlite\""),
            ("a b.bin", "filename=\"ab.bin\"; filename*=UTF-8''a%20b.bin"),
            ("\u{6a21}.bin", "filename=\"download.bin\"; filename*=UTF-8''%E6%A8%A1.bin"),
            ("x\"; y=\".bin", "filename=\"x;y=.bin\"; filename*=UTF-8''x%22%3B%20y%3D%22.bin"),
            ("a\r\nb: c\u{7}.bin", "filename=\"ab:c.bin\"; filename*=UTF-8''ab%3A%20c.bin"),
        ] {
            let name = disposition(path);
            assert_eq!(name.strip_prefix("attachment; "), Some(expected), "{path:?}");
            assert!(HeaderValue::from_str(&name).is_ok(), "{name}");
        }
    }

    #[test]
    fn ranges_are_selected_by_rfc_9110() {
        let part = |start, end| RequestedRange::Part(start..=end);
        let (whole, nothing) = (|| RequestedRange::Whole, || RequestedRange::Unsatisfiable);
        let cases = [
            ("bytes=0-9", 100, part(0, 9)),
            ("bytes=90-200", 100, part(90, 99)),
            ("bytes=90-", 100, part(90, 99)),
            ("bytes=-10", 100, part(90, 99)),
            ("bytes=-200", 100, part(0, 99)),
            ("bytes=100-", 100, nothing()),
            ("bytes=-0", 100, nothing()),
            ("bytes=-1", 0, nothing()),
            ("bytes=0-", 0, nothing()),
            ("bytes=9-0", 100, whole()),
            ("bytes=0-1,5-6", 100, whole()),
            ("items=0-1", 100, whole()),
            ("bytes=200-100", 100, whole()),
            ("bytes=00-15", 100, part(0, 15)),
            ("bytes=0010-0015", 100, part(10, 15)),
            ("Bytes=0-15", 100, part(0, 15)),
            ("bytes=99999999999999999999-", 100, nothing()),
            ("bytes=99999999999999999999-99999999999999999999", 100, nothing()),
            ("bytes=90-99999999999999999999", 100, part(90, 99)),
            ("bytes=-99999999999999999999", 100, part(0, 99)),
            ("bytes=-", 100, whole()),
            ("bytes=+1-2", 100, whole()),
            ("bytes=1-2-3", 100, whole()),
        ];
        for (range, size, expected) in cases {
            assert_eq!(requested_range(range, size), expected, "{range} of {size}");
        }
    }
}
