//! JSON bodies, read within limits of size and time.

use std::time::Duration;

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{HeaderMap, HeaderName, header},
};
use llmprof_core::domain::{
    plain_words::with_value,
    unique_keys::{MAX_LEVELS, UniqueKeys, is_too_deep},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::error::{ApiError, ErrorCode};

/// Bytes of a body without files.
pub const MAX_BODY: usize = 1 << 20;
/// Time in which a whole body must arrive.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// End of an error about a missing field.
const MORE: &str = "; /docs has the fields with an example";

/// The text of a header; empty without it.
pub fn header_text(headers: &HeaderMap, name: HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The media type of a body, without parameters.
pub fn media_type(headers: &HeaderMap) -> String {
    let value = header_text(headers, header::CONTENT_TYPE);
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The announced length of a body.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    header_text(headers, header::CONTENT_LENGTH).parse().ok()
}

/// The error of a body that arrives too slowly.
pub fn too_late() -> ApiError {
    let seconds = BODY_TIMEOUT.as_secs();
    let message = format!("the body did not arrive within {seconds} seconds");
    ApiError::new(ErrorCode::BodyTimeout, message)
}

/// Reads the bytes of a JSON body, at most `max`.
pub async fn read_json(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, ApiError> {
    if media_type(headers) != "application/json" {
        return Err(ApiError::of(ErrorCode::UnsupportedMediaType));
    }
    let too_large =
        || ApiError::new(ErrorCode::BodyTooLarge, format!("the body is larger than {max} bytes"));
    if content_length(headers).is_some_and(|length| length > max as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(too_late()),
    }
}

/// Parses a JSON object; an error names the path of the wrong field, its value and what is
/// expected.
pub fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parsed = serde_path_to_error::deserialize(&mut reader);
    let ended = reader.end();
    match parsed {
        // A derived deserializer accepts a list of a struct's fields too; the contract does not.
        Ok(parsed) if ended.is_ok() && body.trim_ascii_start().starts_with(b"{") => {
            check_unique(body)?;
            Ok(parsed)
        }
        parsed => Err(refused(body, parsed.err())),
    }
}

/// Refuses a repeated field of any object: a map would keep the last one. Errors of syntax are left
/// to the parser.
fn check_unique(body: &[u8]) -> Result<(), ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let read: Result<UniqueKeys, _> = serde_path_to_error::deserialize(&mut reader);
    match read {
        Err(error) if error.inner().is_data() => {
            let value = serde_json::from_slice(body).unwrap_or_default();
            Err(ApiError::new(ErrorCode::InvalidRequest, of_field(&value, &error)))
        }
        _ => Ok(()),
    }
}

/// The error of a body: of its syntax, or of the field that `error` names.
fn refused(body: &[u8], error: Option<serde_path_to_error::Error<serde_json::Error>>) -> ApiError {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    let value: Value = match serde_json::from_slice(body) {
        Ok(value) => value,
        Err(error) => {
            let message = match is_too_deep(&error) {
                true => format!("the body has more than {MAX_LEVELS} levels of arrays and objects"),
                false => format!("malformed JSON body: {error}"),
            };
            return ApiError::new(ErrorCode::MalformedBody, message);
        }
    };
    let Some(error) = error.filter(|_| value.is_object()) else {
        return invalid("the body is not a JSON object".into());
    };
    invalid(of_field(&value, &error))
}

/// The message on the field that `error` names.
fn of_field(value: &Value, error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    // serde_json reports a number in place of a name, as in `"dtype": 4`, as a syntax error.
    let text = match error.inner().is_data() {
        true => error.to_string(),
        false => format!("{}: expected a string", error.path()),
    };
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let hint = if text.contains("missing field") { MORE } else { "" };
    with_value(text, |path| at_path(value, path).cloned()) + hint
}

/// The value at a path such as `axes.dtype[0]`.
fn at_path<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    let step = |value: &'a Value, key: &str| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    };
    path.split(['.', '[']).map(|key| key.trim_end_matches(']')).try_fold(value, step)
}
