//! Specs as version 0.1 stored them: one flat struct for every subject, in sealed folders and reports.
//!
//! Read, never written. The database's copies are rewritten by `migrations/0060_subject.sql`, which agrees with this.

use serde::Deserialize;

use super::{
    Dtype, Mode, RunSpec,
    command::CommandCall,
    import::{Import, ImportedFile},
    part::{AlignWith, MockChange, PartPath},
    subject::{CommandSubject, Common, ModelSubject, PartSubject, Passes, Subject, Workload},
};
use crate::profiling::Profiling;

/// A spec of either form.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum StoredSpec {
    Subject { subject: Box<Subject>, common: Common },
    Flat(Box<FlatSpec>),
}

/// The flat form: fields that a subject lacked held stand-ins.
#[derive(Deserialize)]
pub(super) struct FlatSpec {
    model: String,
    inputs_manifest: String,
    mode: Mode,
    repeats: u32,
    warmup: u32,
    max_new_tokens: u32,
    seed: u64,
    dtype: Option<Dtype>,
    device: String,
    timeout_s: u32,
    labels: Vec<String>,
    priority: i32,
    profiling: Option<Profiling>,
    target: Option<FlatTarget>,
    align_with: Option<AlignWith>,
    mock: Option<MockChange>,
    import: Option<FlatImport>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FlatTarget {
    Part(PartPath),
    Command(CommandCall),
}

#[derive(Deserialize)]
struct FlatImport {
    files: Vec<ImportedFile>,
    stages: Vec<String>,
    within: Vec<String>,
    without: Vec<String>,
}

impl From<StoredSpec> for RunSpec {
    fn from(stored: StoredSpec) -> Self {
        match stored {
            StoredSpec::Subject { subject, common } => Self { subject: *subject, common },
            StoredSpec::Flat(flat) => (*flat).into(),
        }
    }
}

impl From<FlatSpec> for RunSpec {
    fn from(flat: FlatSpec) -> Self {
        let FlatSpec { model, inputs_manifest, mode, repeats, warmup, max_new_tokens, seed, dtype, device, .. } = flat;
        let common = Common { labels: flat.labels, priority: flat.priority, timeout_s: flat.timeout_s };
        let passes = Passes { mode, repeats, warmup, device, profiling: flat.profiling };
        let subject = match (flat.import, flat.target) {
            (Some(FlatImport { files, stages, within, without }), _) => {
                // Whether the sender named the model was not kept.
                Subject::Import(Import { name: model, model: None, files, stages, within, without })
            }
            (None, Some(FlatTarget::Command(call))) => Subject::Command(CommandSubject { call, passes }),
            (None, target) => {
                let workload = Workload { model, inputs_manifest, max_new_tokens, seed, dtype };
                match target {
                    Some(FlatTarget::Part(part)) => {
                        Subject::Part(PartSubject { workload, part, align_with: flat.align_with, mock: flat.mock, passes })
                    }
                    _ => Subject::Model(ModelSubject { workload, passes }),
                }
            }
        };
        Self { subject, common }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::run::subject::SubjectKind;

    fn flat(changes: Value) -> Value {
        let mut spec = json!({
            "model": "tiny", "inputs_manifest": "inputs.yaml", "mode": "light", "repeats": 3, "warmup": 2, "max_new_tokens": 8,
            "seed": 7, "dtype": "f32", "device": "auto", "timeout_s": 60, "labels": ["a"], "priority": 2,
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    }

    #[test]
    fn a_flat_spec_of_each_subject_reads_as_that_subject_and_keeps_what_it_had() {
        let import = json!({ "files": [{ "name": "a.sqlite", "kind": "timeline", "bytes": 5, "path": "nsys/run.sqlite" }],
            "stages": ["prefill=ctx"], "within": ["measured"], "without": [] });
        let of = [
            (SubjectKind::Model, flat(json!({}))),
            (
                SubjectKind::Part,
                flat(json!({ "target": "decoder.layers.0.mlp", "align_with": "e2e", "mock": { "dtype": "f16" } })),
            ),
            (
                SubjectKind::Command,
                flat(json!({ "model": "go", "target": { "command": "go", "params": { "n": 3 }, "gpus": 2 } })),
            ),
            (SubjectKind::Import, flat(json!({ "model": "vllm", "device": "none", "import": import }))),
        ];
        for (kind, flat) in of {
            let spec: RunSpec = serde_json::from_value(flat.clone()).unwrap();
            assert_eq!(spec.kind(), kind);
            assert_eq!(spec.name(), flat["model"].as_str().unwrap());
            assert_eq!(json!(spec.common), json!({ "labels": ["a"], "priority": 2, "timeout_s": 60 }));
            assert_eq!(spec.device(), (kind != SubjectKind::Import).then_some("auto"), "an import needs no device");
            let again: RunSpec = serde_json::from_value(json!(spec)).unwrap();
            assert_eq!(again, spec, "what is written reads back");
        }
    }

    #[test]
    fn an_old_import_keeps_its_rules_and_its_name_is_not_a_model() {
        let import = json!({ "files": [], "stages": ["prefill=ctx"], "within": ["measured"], "without": ["warm"] });
        let spec: RunSpec = serde_json::from_value(flat(json!({ "import": import }))).unwrap();
        assert_eq!((spec.model(), spec.mode()), (None, None));
        let import = spec.import().unwrap();
        assert_eq!(
            (import.within.as_slice(), import.without.as_slice()),
            (&["measured".to_owned()][..], &["warm".to_owned()][..])
        );
    }
}
