//! Parameters in paths and queries, refused with the API's errors.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, Path, Query, rejection::PathRejection},
    http::request::Parts,
};
use llmprof_core::domain::{
    ids::{AlignmentId, InputsId, RunId, SessionId, SweepId},
    plain_words::with_value,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::error::{ApiError, ErrorCode};

/// The run in a path.
pub struct RunPath(pub RunId);

impl<S: Send + Sync> FromRequestParts<S> for RunPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse_id(&id).map(Self)
    }
}

/// The run and the file in a path.
pub struct FilePath(pub RunId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for FilePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((id, path)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_path)?;
        Ok(Self(parse_id(&id)?, path))
    }
}

/// The alignment in a path.
pub struct AlignmentPath(pub AlignmentId);

impl<S: Send + Sync> FromRequestParts<S> for AlignmentPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse_id(&id).map(Self)
    }
}

/// The alignment and the file in a path.
pub struct AlignmentFile(pub AlignmentId, pub String);

impl<S: Send + Sync> FromRequestParts<S> for AlignmentFile {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((id, name)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_path)?;
        Ok(Self(parse_id(&id)?, name))
    }
}

/// Name of a command.
#[derive(Debug, Clone)]
pub struct CommandPath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for CommandPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(bad_path)
    }
}

/// The session in a path.
pub struct SessionPath(pub SessionId);

impl<S: Send + Sync> FromRequestParts<S> for SessionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse_id(&id).map(Self)
    }
}

/// The sweep in a path.
pub struct SweepPath(pub SweepId);

impl<S: Send + Sync> FromRequestParts<S> for SweepPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse_id(&id).map(Self)
    }
}

/// The stored inputs in a path.
pub struct InputsPath(pub InputsId);

impl<S: Send + Sync> FromRequestParts<S> for InputsPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(bad_path)?;
        parse_id(&id).map(Self)
    }
}

/// The stored inputs and the position of an image in a path.
pub struct ImagePath(pub InputsId, pub u32);

impl<S: Send + Sync> FromRequestParts<S> for ImagePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Path((id, at)) =
            Path::<(String, String)>::from_request_parts(parts, state).await.map_err(bad_path)?;
        let invalid = || {
            let message = format!("invalid image {at:?}; expected a number");
            ApiError::new(ErrorCode::InvalidParameter, message)
        };
        Ok(Self(parse_id(&id)?, canonical(&at).ok_or_else(invalid)?))
    }
}

/// The error of a path that does not parse.
pub fn bad_path(rejection: PathRejection) -> ApiError {
    ApiError::new(ErrorCode::InvalidParameter, rejection.body_text())
}

/// Parses an id, so that a run has one address.
pub fn parse_id<T: FromStr + ToString>(id: &str) -> Result<T, ApiError> {
    canonical(id).ok_or_else(|| {
        let form = if id.bytes().any(|it| it.is_ascii_uppercase()) { " in lower case" } else { "" };
        let message = format!("invalid id {id:?}; expected a UUID{form}");
        ApiError::new(ErrorCode::InvalidParameter, message)
    })
}

/// Parses the form of a value in which the service writes it, and no other.
fn canonical<T: FromStr + ToString>(text: &str) -> Option<T> {
    text.parse().ok().filter(|it: &T| it.to_string() == text)
}

/// Start of axum's errors about a query.
const QUERY_REFUSED: &str = "Failed to deserialize query string: ";

/// A query string; unknown names are refused.
pub struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text.strip_prefix(QUERY_REFUSED).unwrap_or(&text);
                let pairs = Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
                let value = |name: &str| {
                    let pair = pairs.as_ref().ok()?.iter().find(|pair| pair.0 == name)?;
                    Some(Value::from(pair.1.as_str()))
                };
                let message = with_value(text, value).replace("unknown field", "unknown parameter");
                Err(ApiError::new(ErrorCode::InvalidParameter, message))
            }
        }
    }
}
