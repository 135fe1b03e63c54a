//! The form of a submission: converted to the API's body, and filled from a run's spec.
//!
//! The API checks the body.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::domain::subject::RunSpec;

/// Fields that are numbers in the API.
const NUMBERS: [&str; 6] = ["repeats", "warmup", "max_new_tokens", "seed", "timeout_s", "priority"];
const TEXTS: [&str; 5] = ["model", "mode", "inputs_manifest", "dtype", "device"];
/// Labels separated by commas.
const LABELS: &str = "labels";

/// Text of every field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubmitForm(BTreeMap<String, String>);

impl SubmitForm {
    /// An empty form.
    pub fn empty() -> Self {
        let fields = NUMBERS.iter().chain(&TEXTS).chain([&LABELS]);
        Self(fields.map(|field| ((*field).to_owned(), String::new())).collect())
    }

    /// The form of received fields; unknown fields are ignored.
    pub fn from_fields(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut form = Self::empty();
        for (field, text) in pairs {
            if let Some(known) = form.0.get_mut(&field) {
                text.trim().clone_into(known);
            }
        }
        form
    }

    /// The form with the settings of a run.
    pub fn from_spec(spec: &RunSpec) -> Self {
        let common = serde_json::to_value(&spec.common).unwrap_or_default();
        let workload = serde_json::to_value(spec.workload()).unwrap_or_default();
        let passes = serde_json::to_value(spec.passes()).unwrap_or_default();
        let parts =
            [common, workload, passes].into_iter().filter_map(|part| part.as_object().cloned());
        let mut fields: Map<String, Value> = parts.flatten().collect();
        fields.insert(LABELS.into(), spec.common.labels.join(", ").into());
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let texts = fields.iter().filter_map(|(field, value)| Some((field.clone(), text(value)?)));
        Self::from_fields(texts)
    }

    /// The body of the submission, without empty fields.
    pub fn body(&self) -> Value {
        let mut body = Map::new();
        for (field, text) in self.0.iter().filter(|(_, text)| !text.is_empty()) {
            let value = match field.as_str() {
                LABELS => text
                    .split(',')
                    .map(str::trim)
                    .filter(|label| !label.is_empty())
                    .map(Value::from)
                    .collect(),
                // The API refuses other text, and names the field.
                field if NUMBERS.contains(&field) => {
                    text.parse::<i64>().map_or_else(|_| Value::from(text.as_str()), Value::from)
                }
                _ => Value::from(text.as_str()),
            };
            body.insert(field.clone(), value);
        }
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Value {
        let pairs = pairs.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
        SubmitForm::from_fields(pairs).body()
    }

    #[test]
    fn a_form_becomes_the_body_of_the_api() {
        let entered = [
            ("model", "llama-tiny"),
            ("repeats", " 4 "),
            ("labels", "a, b,,c d "),
            ("dtype", ""),
            ("key", "x"),
            ("priority", "-3"),
        ];
        assert_eq!(
            of(&entered),
            json!({
                "model": "llama-tiny", "repeats": 4, "labels": ["a", "b", "c d"], "priority": -3
            })
        );
    }

    #[test]
    fn text_in_a_number_field_is_unchanged() {
        assert_eq!(
            of(&[("repeats", "1e9"), ("seed", "99999999999999999999")]),
            json!({ "repeats": "1e9", "seed": "99999999999999999999" })
        );
    }
}
