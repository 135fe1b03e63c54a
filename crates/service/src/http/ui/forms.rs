//! Forms: their fields, their numbers, and keys that make a repeated submission one.

use std::collections::HashSet;

use axum::{
    Form,
    extract::{FromRequest, Request, rejection::FormRejection},
    http::StatusCode,
};
use llmprof_core::domain::{hex::hex, named_values::UnknownName, settings::nearest};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::http::{
    error::{ApiError, ErrorCode},
    extract::body::{BODY_TIMEOUT, too_late},
};

/// Name of the field with the key of a form.
pub(super) const KEY: &str = "key";
/// Maximum characters of an unknown field's name in a message.
const MAX_NAME: usize = 40;

/// The fields of a form.
pub(super) type Fields = Vec<(String, String)>;

/// Reads the fields of a form within the time of a body.
pub(super) async fn read(request: Request) -> Result<Fields, ApiError> {
    let read = tokio::time::timeout(BODY_TIMEOUT, Form::from_request(request, &()))
        .await
        .map_err(|_| too_late())?;
    read.map(|Form(fields)| fields).map_err(|rejection: FormRejection| {
        let code = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ErrorCode::BodyTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ErrorCode::UnsupportedMediaType,
            _ => ErrorCode::MalformedBody,
        };
        ApiError::new(code, rejection.body_text())
    })
}

/// The text of a field; empty if it is missing.
pub(super) fn field<'a>(fields: &'a Fields, name: &str) -> &'a str {
    fields.iter().find(|(field, _)| field == name).map_or("", |(_, text)| text)
}

/// Refuses a field that would be ignored: a field that is not `known`, or one that is given twice.
pub(super) fn check<S: AsRef<str>>(fields: &Fields, known: &[S]) -> Result<(), ApiError> {
    let invalid = |message: String| Err(ApiError::new(ErrorCode::InvalidRequest, message));
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    let mut seen = HashSet::new();
    for (name, _) in fields {
        if !known.contains(&name.as_str()) {
            let hint = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("expected one of {}", known.join(", ")),
            };
            return invalid(format!("unknown field `{name:.MAX_NAME$}`; {hint}"));
        }
        if !seen.insert(name) {
            return invalid(format!("{name}: given more than once; send it once"));
        }
    }
    Ok(())
}

/// Names of the fields of a form that is a struct.
pub(super) fn names_of<T: Default + Serialize>() -> Vec<String> {
    match serde_json::to_value(T::default()) {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

/// A whole number, or the text as it is, which the API refuses by field and range.
pub(super) fn number_or_text(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| text.into(), Value::from)
}

/// The idempotency key of `body`, submitted with the form `key`. The same form with other fields
/// has another key.
pub(super) fn idempotency_key(key: &str, body: &str) -> String {
    let hash = hex(&Sha256::digest(format!("{key} {body}")));
    format!("form-{hash}")
}

/// The trimmed text of a field of a query; `None` if it is empty, as browsers send it.
pub(super) fn non_empty(text: &str) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Parses a named value of a filter, such as a state.
pub(super) fn parse_state<T>(text: &str) -> Result<Option<T>, ApiError>
where
    T: std::str::FromStr<Err = UnknownName>,
{
    let invalid =
        |error: UnknownName| ApiError::new(ErrorCode::InvalidParameter, error.to_string());
    non_empty(text).map(|state| state.parse()).transpose().map_err(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_unknown_or_given_twice_is_refused_by_name() {
        let check = |names: &[&str]| {
            let fields = names.iter().map(|name| ((*name).to_owned(), String::new())).collect();
            check(&fields, &["model", "mode", "repeats"])
        };
        assert!(check(&["model", "mode"]).is_ok());
        let refused = |names: &[&str]| check(names).unwrap_err().message().to_owned();
        assert_eq!(
            refused(&["model", "mode", "model"]),
            "model: given more than once; send it once"
        );
        assert_eq!(refused(&["repeat"]), "unknown field `repeat`; did you mean `repeats`?");
        assert_eq!(
            refused(&["model", "xyz"]),
            "unknown field `xyz`; expected one of model, mode, repeats"
        );
    }
}
