//! Forms: their fields, and keys that make a repeated submission one.

use std::collections::HashSet;

use axum::{
    Form,
    extract::{FromRequest, Request, rejection::FormRejection},
    http::StatusCode,
};
use llmprof_core::{domain::named_values::UnknownName, hex};
use sha2::{Digest, Sha256};

use crate::http::{
    error::{ApiError, ErrorCode},
    extract::body::{BODY_TIMEOUT, too_late},
};

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

/// Refuses a field that is given twice: one of them would be ignored.
pub(super) fn check_once(fields: &Fields) -> Result<(), ApiError> {
    let mut seen = HashSet::new();
    match fields.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => {
            let message = format!("{name}: given more than once; send it once");
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
        None => Ok(()),
    }
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
    fn a_field_that_is_given_twice_is_refused_by_name() {
        let fields = |names: &[&str]| -> Fields {
            names.iter().map(|name| ((*name).to_owned(), String::new())).collect()
        };
        assert!(check_once(&fields(&["model", "mode"])).is_ok());
        let error = check_once(&fields(&["model", "mode", "model"])).unwrap_err();
        assert_eq!(error.message(), "model: given more than once; send it once");
    }
}
