//! What every request has: an id, what a path names, a query, each with errors of ours.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, Path, Query, Request},
    http::{HeaderName, HeaderValue, request::Parts},
    middleware::Next,
    response::Response,
};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::error::{ApiError, ErrorCode};
use crate::run::{AlignmentId, RunId};

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const LONGEST: usize = 64;

tokio::task_local! {
    static ID: String;
}

/// The id of the request that is being answered.
pub fn id() -> String {
    ID.try_with(Clone::clone).unwrap_or_default()
}

/// Gives the request an id, the client's if it sent a plain one, and puts it on the answer.
pub async fn identify(request: Request, next: Next) -> Response {
    let plain = |id: &&str| {
        (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let given = request.headers().get(HEADER).and_then(|value| value.to_str().ok()).filter(plain);
    let id = given.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let start = std::time::Instant::now();
    let mut response = ID.scope(id.clone(), next.run(request)).await;
    tracing::debug!(%method, path, status = response.status().as_u16(), request_id = id, ms = start.elapsed().as_millis(), "answered");
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

/// The run that a path names.
pub struct RunPath(pub RunId);

impl<S: Send + Sync> FromRequestParts<S> for RunPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse(&id).map(Self)
    }
}

/// The run and the file that a path names.
pub struct FilePath(pub RunId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for FilePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((id, path)) = Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_path)?;
        Ok(Self(parse(&id)?, path))
    }
}

/// The alignment that a path names.
pub struct AlignmentPath(pub AlignmentId);

impl<S: Send + Sync> FromRequestParts<S> for AlignmentPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse(&id).map(Self)
    }
}

/// The alignment and the file that a path names.
pub struct AlignmentFile(pub AlignmentId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for AlignmentFile {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((id, name)) = Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_path)?;
        Ok(Self(parse(&id)?, name))
    }
}

fn bad_path(rejection: axum::extract::rejection::PathRejection) -> ApiError {
    ApiError::new(ErrorCode::InvalidParameter, rejection.body_text())
}

/// An id in its usual form; other spellings of UUIDs would give one run several addresses.
pub fn parse<T: FromStr>(id: &str) -> Result<T, ApiError> {
    let wrong = || ApiError::new(ErrorCode::InvalidParameter, format!("id {id:?} is no UUID"));
    if id.len() != 36 {
        return Err(wrong());
    }
    id.parse().map_err(|_| wrong())
}

/// A query, parsed whole: unknown names are refused.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(ErrorCode::InvalidParameter, rejection.body_text())),
        }
    }
}
