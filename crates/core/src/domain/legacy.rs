//! Flat specs in sealed folders and reports that builds before [`Subject`] wrote: one struct for
//! every subject.
//!
//! Read, never written. `migrations/0060_subject.sql` converts the database's copies by the same
//! rules.

use serde::Deserialize;

use super::{
    command::CommandCall,
    import::{Import, ImportedFile},
    part::{AlignWith, MockChange, PartPath},
    subject::{CommandSubject, Common, ModelSubject, PartSubject, Passes, Subject, Workload},
};
use crate::domain::{dtype::Dtype, mode::Mode, profiling::Profiling, subject::RunSpec};

/// A spec in the current or the flat form.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredSpec {
    Subject { subject: Box<Subject>, common: Common },
    Flat(Box<FlatSpec>),
}

/// The flat form, with placeholders in fields that do not apply to the subject.
#[derive(Deserialize)]
pub(crate) struct FlatSpec {
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
    #[serde(rename = "within")]
    include_ranges: Vec<String>,
    #[serde(rename = "without")]
    exclude_ranges: Vec<String>,
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
        let FlatSpec {
            model,
            inputs_manifest,
            mode,
            repeats,
            warmup,
            max_new_tokens,
            seed,
            dtype,
            device,
            ..
        } = flat;
        let common = Common {
            labels: flat.labels,
            priority: flat.priority,
            timeout_s: flat.timeout_s,
            revision: None,
        };
        let passes = Passes { mode, repeats, warmup, device, profiling: flat.profiling };
        let subject = match (flat.import, flat.target) {
            (Some(FlatImport { files, stages, include_ranges, exclude_ranges }), _) => {
                // The flat form did not record whether the name is a model.
                Subject::Import(Import {
                    name: model,
                    model: None,
                    files,
                    stages,
                    include_ranges,
                    exclude_ranges,
                    computes: None,
                    new_tokens: None,
                })
            }
            (None, Some(FlatTarget::Command(call))) => {
                Subject::Command(CommandSubject { call, passes })
            }
            (None, target) => {
                let workload =
                    Workload { model, inputs_manifest, max_new_tokens, batch: 1, seed, dtype };
                match target {
                    Some(FlatTarget::Part(part)) => Subject::Part(PartSubject {
                        workload,
                        part,
                        align_with: flat.align_with,
                        mock: flat.mock,
                        passes,
                    }),
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
    use crate::domain::subject::SubjectKind;

    fn flat(changes: Value) -> Value {
        let mut spec = json!({
            "model": "tiny", "inputs_manifest": "inputs.yaml", "mode": "light", "repeats": 3,
            "warmup": 2, "max_new_tokens": 8, "seed": 7, "dtype": "f32", "device": "auto",
            "timeout_s": 60, "labels": ["a"], "priority": 2,
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    }

    #[test]
    fn a_flat_spec_of_each_subject_reads_as_that_subject_with_its_fields() {
        let file = json!({ "name": "a.sqlite", "kind": "timeline", "bytes": 5,
            "path": "nsys/run.sqlite" });
        let import = json!({ "files": [file], "stages": ["prefill=ctx"], "within": ["measured"],
            "without": [] });
        let of = [
            (SubjectKind::Model, flat(json!({}))),
            (
                SubjectKind::Part,
                flat(json!({ "target": "decoder.layers.0.mlp", "align_with": "e2e",
                        "mock": { "dtype": "f16" } })),
            ),
            (
                SubjectKind::Command,
                flat(json!({ "model": "go",
                        "target": { "command": "go", "params": { "n": 3 }, "gpus": 2 } })),
            ),
            (
                SubjectKind::Import,
                flat(json!({ "model": "vllm", "device": "none", "import": import })),
            ),
        ];
        for (kind, flat) in of {
            let spec: RunSpec = serde_json::from_value(flat.clone()).unwrap();
            assert_eq!(spec.kind(), kind);
            assert_eq!(spec.name(), flat["model"].as_str().unwrap());
            assert_eq!(
                json!(spec.common),
                json!({ "labels": ["a"], "priority": 2, "timeout_s": 60 })
            );
            assert_eq!(
                spec.device(),
                (kind != SubjectKind::Import).then_some("auto"),
                "an import needs no device"
            );
            let again: RunSpec = serde_json::from_value(json!(spec)).unwrap();
            assert_eq!(again, spec, "the current form round-trips");
        }
    }

    #[test]
    fn an_old_import_keeps_its_rules_and_its_name_is_not_a_model() {
        let import = json!({ "files": [], "stages": ["prefill=ctx"], "within": ["measured"],
            "without": ["warm"] });
        let spec: RunSpec = serde_json::from_value(flat(json!({ "import": import }))).unwrap();
        assert_eq!((spec.model(), spec.mode()), (None, None));
        let import = spec.import().unwrap();
        assert_eq!(
            (import.include_ranges.as_slice(), import.exclude_ranges.as_slice()),
            (&["measured".to_owned()][..], &["warm".to_owned()][..])
        );
    }
}
