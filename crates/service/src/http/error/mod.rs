//! Errors of the API: one body for every status, a code from the contract, and the request's id.
//!
//! An internal error contains only the request's id; the log has the cause under the same id.

mod codes;
pub mod responses;

use std::io;

use axum::{
    Json,
    body::Body,
    http::{HeaderValue, Response, Uri, header},
    response::IntoResponse,
};
use llmprof_core::domain::visible::visible;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use codes::ErrorCode;

use crate::{http::request_id, store::StoreError};

/// The body of every error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

/// The error itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    pub code: ErrorCode,
    /// For people: the failure, the value, and the remedy.
    pub message: String,
    /// Also in the header `x-request-id`, and in the service's log.
    pub request_id: String,
}

/// Maximum length of a message, bytes: it may quote a value of any length.
const MAX_MESSAGE: usize = 8192;

/// Message of a request that could not be stored.
const DISK_FULL: &str = "cannot store the request: the disk of the data folder is full; free some \
                         bytes on it, then delete runs";

/// The message, with hidden characters of quoted values as symbols, and cut if it is too long.
fn readable(message: &str) -> String {
    let mut text = visible(message).into_owned();
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
        text.push_str("...");
    }
    text
}

/// An error of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    code: ErrorCode,
    message: String,
    retry_after_s: Option<u64>,
}

impl ApiError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { code, message: readable(&message), retry_after_s: None }
    }

    /// Sets the seconds after which a retry can succeed.
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// The error of `code` with the message of its example.
    pub fn of(code: ErrorCode) -> Self {
        Self::new(code, code.example())
    }

    pub fn code(&self) -> ErrorCode {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// Logs `error` and returns a 500 without its cause; a 507 if the disk is full.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        if is_disk_full(error) {
            let error = llmprof_core::chain(error);
            tracing::error!(request_id = request_id::current(), %error, "the disk is full");
            return Self::new(ErrorCode::DiskFull, DISK_FULL).retry_after(60);
        }
        let error = llmprof_core::chain(error);
        tracing::error!(request_id = request_id::current(), %error, "request failed");
        Self::of(ErrorCode::Internal)
    }

    /// Logs the `error` of a stored file, which the store lists by `path`. Names the file and its
    /// damage, or returns an internal error if the file may be intact.
    pub fn of_file(path: &str, error: &io::Error) -> Self {
        let damage = match error.kind() {
            io::ErrorKind::NotFound => "is missing".to_owned(),
            io::ErrorKind::InvalidInput | io::ErrorKind::NotADirectory => {
                "is not a regular file".to_owned()
            }
            io::ErrorKind::InvalidData => format!("has {error}"),
            _ => return Self::internal(error),
        };
        tracing::error!(request_id = request_id::current(), path, %error, "stored file is damaged");
        let remedy = "ask the operator to run `llmprof check`";
        Self::new(ErrorCode::FileDamaged, format!("{path}: the stored file {damage}; {remedy}"))
    }
}

/// Returns true if the error, or one of its causes, is a full disk.
fn is_disk_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_full = |error: &io::Error| {
        error.kind() == io::ErrorKind::StorageFull
            || error.raw_os_error() == Some(nix::libc::EDQUOT)
    };
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        error.downcast_ref::<StoreError>().is_some_and(StoreError::is_disk_full)
            || error.downcast_ref::<io::Error>().is_some_and(is_full)
    })
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        Self::internal(&error)
    }
}

impl IntoResponse for ApiError {
    /// The response carries the error as an extension too, from which pages render it.
    fn into_response(self) -> Response<Body> {
        let detail = ErrorDetail {
            code: self.code,
            message: self.message.clone(),
            request_id: request_id::current(),
        };
        let mut response = (self.code.status(), Json(ErrorBody { error: detail })).into_response();
        let headers = response.headers_mut();
        if self.code == ErrorCode::Unauthenticated {
            let challenge = HeaderValue::from_static("Bearer realm=\"llmprof\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Refuses an unknown path.
pub async fn no_route(uri: Uri) -> ApiError {
    let message = format!("no route {}; the API is documented at /docs", uri.path());
    ApiError::new(ErrorCode::RouteNotFound, message)
}

/// Returns a 500 for a handler that panicked.
pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!(request_id = request_id::current(), "a handler panicked");
    ApiError::of(ErrorCode::Internal).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::import_staging::IntakeError;

    #[test]
    fn a_full_disk_is_507_with_a_remedy_as_the_error_or_its_cause() {
        let full = || io::Error::from_raw_os_error(nix::libc::ENOSPC);
        let quota = io::Error::from_raw_os_error(nix::libc::EDQUOT);
        for error in [
            ApiError::internal(&full()),
            ApiError::internal(&quota),
            ApiError::internal(&IntakeError::from(full())),
        ] {
            assert_eq!(error.code(), ErrorCode::DiskFull);
            assert!(error.message().contains("free some bytes"), "{}", error.message());
        }
        let other = io::Error::from_raw_os_error(nix::libc::EIO);
        assert_eq!(ApiError::internal(&other).code(), ErrorCode::Internal);
    }
}
