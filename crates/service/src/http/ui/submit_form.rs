//! The form of a submission: converted to the API's body, and filled from a run's spec.
//!
//! The API checks the body.

use std::collections::BTreeMap;

use llmprof_core::domain::{
    profiling::Presets,
    settings::{BadAssignment, Settings, assign_all},
    subject::{Passes, RunSpec, Subject},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::forms;
use crate::{
    artifact::inputs::staging::UploadedSamples,
    http::error::{ApiError, ErrorCode},
};

/// Fields that are numbers in the API.
const NUMBERS: [&str; 7] =
    ["repeats", "warmup", "max_new_tokens", "batch", "seed", "timeout_s", "priority"];
const TEXTS: [&str; 8] =
    ["model", "mode", "inputs", "dtype", "device", "revision", "target", "align_with"];
/// Prompt of the form's images; not a field of the body.
const PROMPT: &str = "prompt";
/// Set if each image is a sample of its own; not a field of the body.
const EACH_IMAGE: &str = "each_image";
/// Its text for one sample of all images, as without the field.
const NOT_EACH_IMAGE: &str = "false";
/// Labels of the run, separated by commas.
const RUN_LABELS: &str = "labels";
/// Changes of the mode's settings, each on a line: `ncu.max_launches=3`.
const PROFILING: &str = "profiling";

/// Labels of the fields.
pub(super) const LABELS: &forms::Labels = &[
    ("model", "Model"),
    ("mode", "Mode"),
    ("prompt", "Prompt"),
    ("inputs.prompt", "Prompt"),
    ("each_image", "Each image is a sample of its own"),
    ("inputs", "Stored inputs"),
    ("labels", "Labels"),
    ("revision", "Revision"),
    ("target", "Part"),
    ("align_with", "Align it with the same part inside the whole model"),
    ("repeats", "Repeats"),
    ("warmup", "Warm-up"),
    ("max_new_tokens", "New tokens"),
    ("batch", "Batch"),
    ("seed", "Seed"),
    ("timeout_s", "Time limit"),
    ("priority", "Priority"),
    ("dtype", "Dtype"),
    ("device", "Device"),
    ("profiling", "Settings of the passes"),
];

/// Text of every field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SubmitForm(BTreeMap<String, String>);

impl SubmitForm {
    /// An empty form.
    pub fn empty() -> Self {
        Self(Self::names().map(|field| (field.to_owned(), String::new())).collect())
    }

    /// Names of the fields.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NUMBERS.into_iter().chain(TEXTS).chain([RUN_LABELS, PROFILING, PROMPT, EACH_IMAGE])
    }

    /// The form of these fields without those of other names, which [`forms::check`] refuses in a
    /// request.
    pub fn from_fields(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut form = Self::empty();
        for (field, text) in pairs {
            if let Some(known) = form.0.get_mut(&field) {
                text.trim().clone_into(known);
            }
        }
        form
    }

    /// The form with the settings of a run; `presets` has the settings of its mode.
    pub fn from_spec(spec: &RunSpec, presets: &Presets) -> Self {
        let common = serde_json::to_value(&spec.common).unwrap_or_default();
        let workload = serde_json::to_value(spec.workload()).unwrap_or_default();
        let passes = serde_json::to_value(spec.passes()).unwrap_or_default();
        let parts =
            [common, workload, passes].into_iter().filter_map(|part| part.as_object().cloned());
        let mut fields: Map<String, Value> = parts.flatten().collect();
        if let Some(inputs) = fields.remove("inputs_manifest") {
            fields.insert("inputs".into(), inputs);
        }
        fields.insert(RUN_LABELS.into(), spec.common.labels.join(", ").into());
        fields.insert(PROFILING.into(), changes(spec.passes(), presets).join("\n").into());
        if let Subject::Part(part) = &spec.subject {
            fields.insert("target".into(), part.part.0.as_str().into());
            let with = part.align_with.map(|with| with.as_str().into());
            fields.extend(with.map(|with| ("align_with".to_owned(), with)));
        }
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let texts = fields.iter().filter_map(|(field, value)| Some((field.clone(), text(value)?)));
        Self::from_fields(texts)
    }

    /// The same form with these stored inputs or this manifest, unless the name is empty.
    pub fn with_inputs(self, name: &str) -> Self {
        self.with("inputs", name)
    }

    /// The same form with these settings of the passes, each on a line, in place of settings with
    /// the same names.
    pub fn with_settings(self, settings: &str) -> Self {
        let name = |line: &str| line.split('=').next().unwrap_or_default().trim().to_owned();
        let changed: Vec<String> = settings.lines().map(name).collect();
        let before = self.0.get(PROFILING).map_or("", String::as_str).lines();
        let others = before.filter(|line| !changed.contains(&name(line)));
        let lines: Vec<&str> = others.chain(settings.lines()).collect();
        let text = lines.join("\n");
        self.with(PROFILING, &text)
    }

    fn with(mut self, field: &str, text: &str) -> Self {
        if !text.is_empty() {
            self.0.insert(field.into(), text.trim().to_owned());
        }
        self
    }

    /// The prompt of the form's inputs; `None` if it is empty.
    pub fn prompt(&self) -> Option<&str> {
        self.0.get(PROMPT).map(String::as_str).filter(|prompt| !prompt.is_empty())
    }

    /// Fields of the samples that the form has.
    pub fn samples(&self) -> UploadedSamples {
        let is_set = |text: &String| !["", NOT_EACH_IMAGE].contains(&text.as_str());
        let each_image = self.0.get(EACH_IMAGE).is_some_and(is_set);
        UploadedSamples { prompt: self.prompt().map(str::to_owned), each_image }
    }

    /// The body of the submission, without empty fields. A prompt without images is a part of it.
    pub fn body(&self, has_images: bool) -> Result<Value, ApiError> {
        let mut body = Map::new();
        let each_image = self.0.get(EACH_IMAGE).map_or("", String::as_str);
        if !["", "true", NOT_EACH_IMAGE].contains(&each_image) {
            let message = format!("invalid each_image {each_image:?}; expected true or false");
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        if let (Some(prompt), false) = (self.prompt(), has_images) {
            body.insert("inputs".into(), json!({ "prompt": prompt, "images": [] }));
        }
        let is_field = |field: &str| ![PROMPT, EACH_IMAGE].contains(&field);
        for (field, text) in
            self.0.iter().filter(|(field, text)| !text.is_empty() && is_field(field))
        {
            if field == "inputs" && (has_images || body.contains_key("inputs")) {
                let message = "inputs: contradicts the prompt or the images of the form; enter one \
                               of them";
                return Err(ApiError::new(ErrorCode::RequestContradictory, message));
            }
            let value = match field.as_str() {
                RUN_LABELS => text
                    .split(',')
                    .map(str::trim)
                    .filter(|label| !label.is_empty())
                    .map(Value::from)
                    .collect(),
                PROFILING => read_settings(text)?.into(),
                field if NUMBERS.contains(&field) => forms::number_or_text(text),
                _ => Value::from(text.as_str()),
            };
            body.insert(field.clone(), value);
        }
        Ok(Value::Object(body))
    }
}

/// Changes of a run to the settings of its mode, as lines of a form; none if the service no longer
/// has the mode.
fn changes(passes: Option<&Passes>, presets: &Presets) -> Vec<String> {
    let changed = passes.and_then(|it| Some((presets.get(&it.mode)?, it.profiling.as_ref()?)));
    changed.map_or(vec![], |(preset, profiling)| profiling.assignments_over(&preset.profiling))
}

/// Settings of the passes, each on a line.
fn read_settings(text: &str) -> Result<Settings, ApiError> {
    let mut settings = Settings::new();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = assign_all(&mut settings, lines);
    let invalid =
        |error: BadAssignment| ApiError::new(ErrorCode::InvalidRequest, error.to_string());
    read.map(|()| settings).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::{
        mode::Mode,
        profiling::{Preset, Profiling},
    };
    use serde_json::json;

    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Value {
        let pairs = pairs.iter().map(|(field, text)| ((*field).to_owned(), (*text).to_owned()));
        SubmitForm::from_fields(pairs).body(false).unwrap()
    }

    #[test]
    fn a_form_becomes_the_body_of_the_api() {
        let entered = [
            ("model", "llama-tiny"),
            ("repeats", " 4 "),
            ("labels", "a, b,,c d "),
            ("dtype", ""),
            ("priority", "-3"),
            ("revision", " 3f2c1ab"),
        ];
        assert_eq!(
            of(&entered),
            json!({
                "model": "llama-tiny", "repeats": 4, "labels": ["a", "b", "c d"], "priority": -3,
                "revision": "3f2c1ab"
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

    #[test]
    fn a_form_of_a_run_has_the_settings_that_its_submission_changed() {
        let deep = Profiling::bundled(&Mode::DEEP).unwrap();
        let preset = Preset { description: String::new(), profiling: deep.clone() };
        let presets = Presets::from([(Mode::DEEP, preset)]);
        let submitted = json!({
            "nsys": { "trace": ["cuda", "nvtx", "osrt"], "sample": "process-tree" },
            "ncu": { "max_launches": 3 }
        });
        let Value::Object(change) = submitted.clone() else { panic!() };
        let profiling = Some(deep.with_changes(change).unwrap());
        let passes =
            Passes { mode: Mode::DEEP, repeats: 1, warmup: 0, device: "auto".into(), profiling };
        let lines = changes(Some(&passes), &presets).join("\n");
        let form = SubmitForm::from_fields([(PROFILING.to_owned(), lines)]);
        assert_eq!(form.body(false).unwrap()["profiling"], submitted);

        assert_eq!(form.clone().with_settings(""), form);
        let form = form.with_settings("nsys.trace=[\"cuda\",\"nvtx\"]\nnsys.cpuctxsw=none");
        let mut lighter = submitted;
        lighter["nsys"]["trace"] = json!(["cuda", "nvtx"]);
        lighter["nsys"]["cpuctxsw"] = json!("none");
        assert_eq!(form.body(false).unwrap()["profiling"], lighter);
    }

    #[test]
    fn the_choice_of_a_sample_for_each_image_is_read_as_its_text_says() {
        let of = |text: &str| {
            let form = SubmitForm::from_fields([(EACH_IMAGE.to_owned(), text.to_owned())]);
            (form.samples().each_image, form.body(true).is_ok())
        };
        assert_eq!(["true", "false", ""].map(of), [(true, true), (false, true), (false, true)]);
        assert!(!of("maybe").1, "neither");
    }

    #[test]
    fn a_line_that_is_no_setting_is_refused() {
        let form = SubmitForm::empty().with_settings("nsys.sample");
        let refused = form.body(false).unwrap_err();
        assert!(refused.message().starts_with("setting nsys.sample: there is no ="));
    }
}
