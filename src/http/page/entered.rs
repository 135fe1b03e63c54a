//! What somebody entered into the form of a submission: as the body that the API takes, and back from a run's spec.
//!
//! Checks nothing: the body goes the way of every other one, and what is wrong in it is told as it is told there.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::run::RunSpec;

/// Fields that the API takes as numbers.
const NUMBERS: [&str; 6] = ["repeats", "warmup", "max_new_tokens", "seed", "timeout_s", "priority"];
const TEXTS: [&str; 5] = ["model", "mode", "inputs_manifest", "dtype", "device"];
/// Labels, with commas between them.
const LABELS: &str = "labels";

/// Field and text, for every field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entered(BTreeMap<String, String>);

impl Entered {
    /// A form without anything in it.
    pub fn nothing() -> Self {
        let fields = NUMBERS.iter().chain(&TEXTS).chain([&LABELS]);
        Self(fields.map(|field| ((*field).to_owned(), String::new())).collect())
    }

    /// The fields of a form that was sent; others than those of a submission are left out.
    pub fn of(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut entered = Self::nothing();
        for (field, text) in pairs {
            if let Some(known) = entered.0.get_mut(&field) {
                text.trim().clone_into(known);
            }
        }
        entered
    }

    /// What was asked of a run, to be asked again.
    pub fn again(spec: &RunSpec) -> Self {
        let common = serde_json::to_value(&spec.common).unwrap_or_default();
        let workload = serde_json::to_value(spec.workload()).unwrap_or_default();
        let passes = serde_json::to_value(spec.passes()).unwrap_or_default();
        let parts = [common, workload, passes].into_iter().filter_map(|part| part.as_object().cloned());
        let mut fields: Map<String, Value> = parts.flatten().collect();
        fields.insert(LABELS.into(), spec.common.labels.join(", ").into());
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        Self::of(fields.iter().filter_map(|(field, value)| Some((field.clone(), text(value)?))))
    }

    /// The body of a submission; an empty field is left to its default.
    pub fn body(&self) -> Value {
        let mut body = Map::new();
        for (field, text) in self.0.iter().filter(|(_, text)| !text.is_empty()) {
            let value = match field.as_str() {
                LABELS => text.split(',').map(str::trim).filter(|label| !label.is_empty()).map(Value::from).collect(),
                // What is no number is refused by name with the rest.
                field if NUMBERS.contains(&field) => text.parse::<i64>().map_or_else(|_| Value::from(text.as_str()), Value::from),
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
        Entered::of(pairs.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))).body()
    }

    #[test]
    fn a_form_is_the_body_that_the_api_takes() {
        let entered = [
            ("model", "llama-tiny"),
            ("repeats", " 4 "),
            ("labels", "a, b,,c d "),
            ("dtype", ""),
            ("key", "x"),
            ("priority", "-3"),
        ];
        assert_eq!(of(&entered), json!({ "model": "llama-tiny", "repeats": 4, "labels": ["a", "b", "c d"], "priority": -3 }));
    }

    #[test]
    fn what_is_no_number_stays_as_it_was_entered() {
        assert_eq!(
            of(&[("repeats", "1e9"), ("seed", "99999999999999999999")]),
            json!({ "repeats": "1e9", "seed": "99999999999999999999" })
        );
    }
}
