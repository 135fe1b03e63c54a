//! The resolved configuration of a run, `config.yaml`: a submission that repeats the run, and the
//! values that its host resolved.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    dtype::Dtype,
    json_numbers::{MAX_EXACT, Within},
    model::ModelSpec,
    subject::{RunSpec, Subject},
};

/// Values that the host of a run resolved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ResolvedConfig {
    /// Devices that executed it: a name, or the UUID of a GPU.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(max_items = 64, example = json!(["cpu"])))]
    pub devices: Vec<String>,
    /// Limit on the whole run, seconds: `timeout_s`, or `limits.run_s` if that is less.
    #[serde(deserialize_with = "Within::<0, 4_294_967_295>::integer")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 4294967295i64))]
    pub run_s: u32,
    /// Limit on the files of the run, bytes.
    #[serde(deserialize_with = "Within::<0, MAX_EXACT>::integer")]
    #[cfg_attr(feature = "schema", schema(minimum = 0, maximum = 9007199254740991i64))]
    pub run_bytes: u64,
    /// Dtype of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Values of a model, without the folder of its weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSpec>,
}

impl RunSpec {
    /// The body of `POST /runs` that submits the same run again, with every default; `None` for an
    /// import, whose captures were uploaded.
    pub fn submission(&self) -> Option<Map<String, Value>> {
        let (passes, common) = (fields(self.passes()?), fields(&self.common));
        let mut body = match &self.subject {
            Subject::Model(it) => fields(&it.workload),
            Subject::Part(it) => {
                let mut body = fields(&it.workload);
                body.insert("target".into(), value(&it.part));
                body.insert("align_with".into(), value(&it.align_with));
                body.insert("mock".into(), value(&it.mock));
                body
            }
            Subject::Command(it) => Map::from_iter([("target".to_owned(), value(&it.call))]),
            Subject::Import(_) => return None,
        };
        if let Some(inputs) = body.remove("inputs_manifest") {
            body.insert("inputs".into(), inputs);
        }
        body.extend(passes.into_iter().chain(common));
        body.retain(|_, value| !value.is_null());
        Some(body)
    }
}

fn value(of: &impl Serialize) -> Value {
    // Values of this package are JSON.
    serde_json::to_value(of).unwrap_or_default()
}

fn fields(of: &impl Serialize) -> Map<String, Value> {
    match value(of) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The first value in which a model differs from the stated one, as a sentence: `decoder.layers is
/// 4, not 12`. The folder of the weights is of a host.
pub fn model_difference(model: &ModelSpec, stated: &ModelSpec) -> Option<String> {
    let without_weights = |model: &ModelSpec| value(&ModelSpec { weights: None, ..model.clone() });
    difference(&without_weights(model), &without_weights(stated), "")
}

fn difference(is: &Value, stated: &Value, path: &str) -> Option<String> {
    if is == stated {
        return None;
    }
    if let (Value::Object(is), Value::Object(stated)) = (is, stated) {
        let mut keys: Vec<&String> = is.keys().chain(stated.keys()).collect();
        keys.sort();
        let of = |key: &String| {
            let null = &Value::Null;
            let (is, stated) = (is.get(key).unwrap_or(null), stated.get(key).unwrap_or(null));
            difference(is, stated, &format!("{path}{key}."))
        };
        return keys.into_iter().find_map(of);
    }
    Some(format!("{} is {is}, not {stated}", path.trim_end_matches('.')))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::mode::Mode;

    #[test]
    fn a_run_is_repeated_with_the_fields_of_its_subject() {
        let model = RunSpec::tiny(Mode::LIGHT, 3, &["a"]);
        let body = model.submission().unwrap();
        let expected = json!({
            "model": "tiny", "inputs": "inputs.yaml", "max_new_tokens": 4, "batch": 1, "seed": 0,
            "mode": "light", "repeats": 1, "warmup": 0, "device": "auto",
            "labels": ["a"], "priority": 3, "timeout_s": 60,
        });
        assert_eq!(Value::from(body), expected, "nothing is null");

        let passes = json!({ "mode": "light", "repeats": 2, "warmup": 1, "device": "cpu" });
        let common = json!({ "labels": [], "priority": 0, "timeout_s": 60, "revision": "r1" });
        let call = json!({ "command": "go", "params": { "n": 3 } });
        let subject = json!({ "kind": "command", "call": call, "passes": passes });
        let spec: RunSpec =
            serde_json::from_value(json!({ "subject": subject, "common": common })).unwrap();
        let body = spec.submission().unwrap();
        assert_eq!((&body["target"]["command"], &body["revision"]), (&json!("go"), &json!("r1")));
        assert_eq!(body["target"]["params"], json!({ "n": 3 }));
        let mut subject = json!({ "kind": "part", "part": "decoder.layers.0.mlp",
            "align_with": "e2e", "mock": null, "passes": passes });
        subject["workload"] = value(model.workload().unwrap());
        let spec: RunSpec =
            serde_json::from_value(json!({ "subject": subject, "common": common })).unwrap();
        let body = spec.submission().unwrap();
        assert_eq!(
            (&body["target"], &body["align_with"]),
            (&json!("decoder.layers.0.mlp"), &json!("e2e"))
        );
        assert!(body.get("mock").is_none());
        assert_eq!(RunSpec::import_of_nothing().submission(), None);
    }

    #[test]
    fn a_model_differs_by_its_first_value_and_not_by_the_folder_of_its_weights() {
        let text = crate::domain::model::PRESETS.iter().find(|it| it.0 == "llama-tiny").unwrap().1;
        let model: ModelSpec = toml::from_str(text).unwrap();
        let mut other = ModelSpec { weights: Some("/w".into()), ..model.clone() };
        assert_eq!(model_difference(&model, &other), None);
        other.decoder.layers += 1;
        let layers = model.decoder.layers;
        let expected = format!("decoder.layers is {layers}, not {}", layers + 1);
        assert_eq!(model_difference(&model, &other), Some(expected));
    }
}
