//! Forms: their fields, their numbers, and keys that make a repeated submission one. A button is a
//! form without fields.

use std::collections::HashSet;

use axum::{
    Form,
    body::Bytes,
    extract::{FromRequest, Request, rejection::FormRejection},
    http::{StatusCode, header},
};
use llmprof_core::domain::{hex::hex, named_values::UnknownName, plain_words, settings::nearest};
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

/// Texts before the name of a field in an error.
const STARTS: [&str; 4] = ["invalid ", "length of ", "missing field `", ""];

/// Names of the API, each with the label of its field on the page.
pub(super) type Labels = [(&'static str, &'static str)];

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

/// A button: a form without fields, whose body is read and refused if it has any.
pub(super) struct Button;

impl<S: Send + Sync> FromRequest<S> for Button {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        if request.headers().contains_key(header::CONTENT_TYPE) {
            check::<&str>(&read(request).await?, &[])?;
            return Ok(Self);
        }
        let read = tokio::time::timeout(BODY_TIMEOUT, Bytes::from_request(request, &())).await;
        match read.map_err(|_| too_late())? {
            Ok(body) if body.is_empty() => Ok(Self),
            Ok(_) => Err(ApiError::of(ErrorCode::UnsupportedMediaType)),
            Err(rejection) => Err(ApiError::new(ErrorCode::BodyTooLarge, rejection.body_text())),
        }
    }
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
                None if known.is_empty() => "this form has no fields".to_owned(),
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

/// The message of an error with the label of its field in place of the API's name.
pub(super) fn labelled(message: &str, labels: &Labels) -> String {
    let with_label = |start: &&str| {
        let rest = message.strip_prefix(start)?;
        labels.iter().find_map(|(name, label)| {
            let after = rest.strip_prefix(name)?;
            let goes_on = |next: char| next.is_alphanumeric() || matches!(next, '_' | '.');
            (!after.starts_with(goes_on)).then(|| format!("{start}{label}{after}"))
        })
    };
    STARTS.iter().find_map(with_label).unwrap_or_else(|| message.to_owned())
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

/// The value of the parameter `name` of a filter, one of several names such as a state.
pub(super) fn parse_name<T>(name: &str, text: &str) -> Result<Option<T>, ApiError>
where
    T: std::str::FromStr<Err = UnknownName>,
{
    let invalid = |error: UnknownName| {
        let expected = format!("one of {}", error.known.join(", "));
        invalid_parameter(name, &error.name, &expected)
    };
    non_empty(text).map(|text| text.parse()).transpose().map_err(invalid)
}

/// The refusal of the parameter `name` with the text that was given.
pub(super) fn invalid_parameter(name: &str, text: &str, expected: &str) -> ApiError {
    let message = plain_words::invalid(name, &format!("{text:?}"), expected);
    ApiError::new(ErrorCode::InvalidParameter, message)
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

    #[test]
    fn an_error_names_the_field_by_its_label() {
        let labels = [("batch", "Batch"), ("axes.batch", "Batch"), ("timeout_s", "Time limit, s")];
        for (message, expected) in [
            ("timeout_s: 0 is not between 1 and 9", "Time limit, s: 0 is not between 1 and 9"),
            ("invalid batch \"x\"; expected 1", "invalid Batch \"x\"; expected 1"),
            ("axes.batch: no values", "Batch: no values"),
            ("invalid batch[0] \"x\"", "invalid Batch[0] \"x\""),
            ("length of batch: 3", "length of Batch: 3"),
            ("missing field `batch`; see", "missing field `Batch`; see"),
            ("batches: 3", "batches: 3"),
            ("batch.x: 3", "batch.x: 3"),
            ("no run batch: 3", "no run batch: 3"),
        ] {
            assert_eq!(labelled(message, &labels), expected);
        }
    }

    /// Labels by the names of their fields.
    type FormLabels = Vec<(&'static str, &'static str)>;

    /// The labels of a form with the lines of its page that are in a form.
    fn pages() -> Vec<(FormLabels, Vec<&'static str>)> {
        use super::super::{alignment_form, baselines, commands, imports, submit_form, sweeps};
        let of_command = [submit_form::LABELS, commands::LABELS].concat();
        let in_forms = |page: &'static str| {
            let forms = page.split("method=\"post\"").skip(1);
            forms.flat_map(|form| form.split("</form>").take(1)).flat_map(str::lines).collect()
        };
        // All of its fields are in the forms of other pages.
        let parts = include_str!("templates/parts.html").lines().collect();
        vec![
            (of_command.clone(), parts),
            (submit_form::LABELS.to_vec(), in_forms(include_str!("templates/submit.html"))),
            (of_command, in_forms(include_str!("templates/command.html"))),
            (sweeps::LABELS.to_vec(), in_forms(include_str!("templates/sweeps.html"))),
            (alignment_form::LABELS.to_vec(), in_forms(include_str!("templates/alignments.html"))),
            (baselines::LABELS.to_vec(), in_forms(include_str!("templates/baselines.html"))),
            (imports::LABELS.to_vec(), in_forms(include_str!("templates/import.html"))),
        ]
    }

    /// Name of the field in a line of a page, if its label is in the line, too.
    fn named_field(line: &str) -> Option<&str> {
        let (_, label) = line.split_once("<label")?;
        let (name, _) = label.split_once(" name=\"")?.1.split_once('"')?;
        let is_fixed = |next: char| next.is_ascii_alphanumeric() || next == '_';
        name.chars().all(is_fixed).then_some(name)
    }

    #[test]
    fn the_labels_in_errors_are_those_of_the_pages_for_every_field() {
        let mut checked = 0;
        for (labels, lines) in pages() {
            let label_of = |field: &str| {
                let found = labels.iter().find(|(name, _)| *name == field);
                found.unwrap_or_else(|| panic!("no label of {field}")).1
            };
            // Labels of files and of choices are in other lines.
            let others = ["type=\"file\"", "type=\"radio\""];
            let is_labelled = |line: &&str| !others.iter().any(|it| line.contains(it));
            for line in lines.into_iter().filter(is_labelled) {
                if let Some(field) = named_field(line) {
                    assert!(line.contains(label_of(field)), "{field}: {line}");
                    checked += 1;
                }
                let numbers = line.split_once("numbers(").map_or("", |(_, fields)| fields);
                for field in numbers.split("(\"").skip(1) {
                    let mut texts = field.split('"').step_by(2);
                    let (name, title) = (texts.next().unwrap(), texts.next().unwrap());
                    assert!(title.starts_with(label_of(name)), "{name}: {title}");
                    checked += 1;
                }
            }
        }
        assert!(checked > 40, "only {checked} fields were found");
    }
}
