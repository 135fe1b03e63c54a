//! The form of an alignment: converted to the API's body, and filled from an alignment's spec.
//!
//! The API checks the body.

use llmprof_core::domain::alignment::{AlignmentSpec, ThresholdChanges};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::forms::{Labels, number_or_text};
use crate::http::error::{ApiError, ErrorCode};

/// Ways to select the operation: the API's field, and its label.
pub(super) const SELECTORS: [(&str, &str); 3] = [
    ("range", "ranges of this name"),
    ("operator", "the operator at this path"),
    ("kernels", "kernels with this in their names"),
];

/// Labels of the fields.
pub(super) const LABELS: &Labels = &[
    ("mock", "Mock"),
    ("e2e", "Whole model"),
    ("selector", "Operation"),
    ("name", "Name"),
    ("range", "Name"),
    ("operator", "Name"),
    ("kernels", "Name"),
    ("stage", "Stage"),
    ("include_ranges", "Only in these ranges"),
    ("exclude_ranges", "Not in these ranges"),
    ("forwards", "Minimum instances on each side"),
];

/// Text of every field.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct AlignmentForm {
    mock: String,
    e2e: String,
    /// One of [`SELECTORS`]; empty: the mock's own sequence.
    selector: String,
    name: String,
    stage: String,
    include_ranges: String,
    exclude_ranges: String,
    forwards: String,
    previous: String,
    /// Key of the form.
    key: String,
}

/// Returns true if the form has fields for everything in the spec.
pub(super) fn is_expressible(spec: &AlignmentSpec) -> bool {
    spec.waivers.is_empty() && spec.thresholds == ThresholdChanges::default()
}

impl AlignmentForm {
    /// The form with two runs selected.
    pub(super) fn of_runs(mock: &str, e2e: &str) -> Self {
        Self { mock: mock.to_owned(), e2e: e2e.to_owned(), ..Self::default() }
    }

    /// The form with the settings of an alignment.
    pub(super) fn from_spec(spec: &AlignmentSpec) -> Self {
        let (selector, name) = match (&spec.range, &spec.operator, spec.kernels.as_slice()) {
            (Some(range), ..) => ("range", range.clone()),
            (_, Some(operator), _) => ("operator", operator.clone()),
            (.., []) => ("", String::new()),
            (.., kernels) => ("kernels", kernels.join(", ")),
        };
        Self {
            mock: spec.mock.to_string(),
            e2e: spec.e2e.to_string(),
            selector: selector.to_owned(),
            name,
            stage: spec.stage.clone().unwrap_or_default(),
            include_ranges: spec.include_ranges.join(", "),
            exclude_ranges: spec.exclude_ranges.join(", "),
            forwards: spec.forwards.map(|count| count.to_string()).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Sets the alignment to compare with.
    pub(super) fn set_previous(&mut self, id: &str) {
        id.clone_into(&mut self.previous);
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn runs(&self) -> [&str; 2] {
        [&self.mock, &self.e2e]
    }

    /// Refuses a name that would be ignored.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let is_known = SELECTORS.iter().any(|(selector, _)| *selector == self.selector);
        let text = match (is_known, self.selector.as_str(), self.name.trim()) {
            (true, ..) | (false, "", "") => return Ok(()),
            (false, "", name) => {
                format!(
                    "name: {name:?} selects no operation; choose ranges, an operator or kernels"
                )
            }
            (false, selector, _) => {
                let known = SELECTORS.map(|(selector, _)| selector).join(", ");
                format!("invalid selector {selector:?}; expected one of {known}")
            }
        };
        Err(ApiError::new(ErrorCode::InvalidRequest, text))
    }

    /// The body of the submission, without empty fields.
    pub(super) fn body(&self) -> Value {
        let mut body = Map::new();
        let list = |text: &str| -> Value {
            text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
        };
        for (field, text) in [
            ("mock", &self.mock),
            ("e2e", &self.e2e),
            ("stage", &self.stage),
            ("previous", &self.previous),
        ] {
            body.insert(field.into(), text.trim().into());
        }
        for (field, text) in
            [("include_ranges", &self.include_ranges), ("exclude_ranges", &self.exclude_ranges)]
        {
            body.insert(field.into(), list(text));
        }
        body.insert("forwards".into(), number_or_text(self.forwards.trim()));
        let name = self.name.trim();
        if SELECTORS.iter().any(|(selector, _)| *selector == self.selector) {
            // The API refuses `*`; without the field it would select the mock's sequence.
            let name = if name.is_empty() { "*" } else { name };
            let value = if self.selector == "kernels" { list(name) } else { name.into() };
            body.insert(self.selector.clone(), value);
        }
        body.retain(|_, value| *value != json!("") && *value != json!([]));
        Value::Object(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_the_body_of_the_api_and_a_spec_becomes_the_form() {
        let ids = ["019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11"];
        let minimal = AlignmentForm::of_runs(ids[0], ids[1]);
        assert_eq!(minimal.body(), json!({ "mock": ids[0], "e2e": ids[1] }));
        for (selector, name, expected) in [
            ("range", "decoder.self_attn", json!("decoder.self_attn")),
            ("operator", "decoder.layers.*.mlp", json!("decoder.layers.*.mlp")),
            ("kernels", "gemm, softmax", json!(["gemm", "softmax"])),
        ] {
            let form = AlignmentForm {
                include_ranges: "a, b".into(),
                stage: "decode".into(),
                selector: selector.to_owned(),
                name: name.to_owned(),
                forwards: "16".to_owned(),
                ..minimal.clone()
            };
            let body = form.body();
            assert_eq!(
                (&body[selector], &body["include_ranges"], &body["forwards"]),
                (&expected, &json!(["a", "b"]), &json!(16))
            );
            assert_eq!(AlignmentForm::from_spec(&serde_json::from_value(body).unwrap()), form);
        }
    }

    #[test]
    fn a_selector_without_a_name_and_invalid_numbers_are_left_to_the_api() {
        let form = AlignmentForm {
            selector: "range".into(),
            name: " ".into(),
            forwards: "few".into(),
            ..AlignmentForm::default()
        };
        assert_eq!(form.body(), json!({ "range": "*", "forwards": "few" }));
    }
}
