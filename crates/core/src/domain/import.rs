//! Captures taken elsewhere: their files, stages and ranges.
//!
//! Plain values. `artifact::import_staging` checks the files, `parse` reads them.

use serde::{Deserialize, Serialize};

use crate::domain::{named_values::named_values, stated_model::StatedModel};

named_values! {
    /// Kind of an imported file, by its content.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    CaptureKind {
        /// An SQLite export of nsys.
        Timeline = "timeline",
        /// A report of nsys (`.nsys-rep`), exported by the nsys of this host.
        Report = "report",
        /// A page of ncu as CSV.
        Counters = "counters",
        /// A report of ncu (`.ncu-rep`), printed by the ncu of this host.
        CounterReport = "counter_report",
        /// A trace by the profiler of PyTorch (Kineto), of one process.
        PytorchTrace = "pytorch_trace",
    }
}

impl CaptureKind {
    /// Returns true for counters of ncu; an import may have several files with them.
    pub const fn has_counters(self) -> bool {
        matches!(self, Self::Counters | Self::CounterReport)
    }
}

/// Imported captures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// Name of the first file, as the sender gave it; runs of earlier versions lack its extension.
    #[cfg_attr(feature = "schema", schema(example = "vllm.sqlite"))]
    pub name: String,
    /// Name of the model that ran, from the sender; `null` if it is not known.
    pub model: Option<String>,
    pub files: Vec<ImportedFile>,
    /// Stages by range, instead of by the standard names: `NAME=RANGE` or `NAME=RANGE@DOMAIN`.
    #[cfg_attr(feature = "schema", schema(example = json!(["prefill=ctx@vllm"])))]
    pub stages: Vec<String>,
    /// Names of the only ranges to look at; everything when empty.
    #[serde(alias = "within")]
    pub include_ranges: Vec<String>,
    /// Names of ranges to leave out.
    #[serde(alias = "without")]
    pub exclude_ranges: Vec<String>,
    /// The model that ran, with the sizes of its inputs, as the sender states them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computes: Option<Box<StatedModel>>,
    /// Decode steps of one repeat, as the sender states them without the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_tokens: Option<u64>,
}

impl Import {
    /// Name in the identity of a series: of the first file, without its extension.
    pub fn series_name(&self) -> &str {
        let file = self.files.first().map_or("", |file| file.name.as_str());
        let stem = file.strip_suffix(".zst").unwrap_or(file);
        let stem = stem.rsplit_once('.').map_or(stem, |(stem, _)| stem);
        if stem.is_empty() { "capture" } else { stem }
    }
}

/// One imported file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImportedFile {
    /// Name from the sender.
    #[cfg_attr(feature = "schema", schema(example = "vllm.sqlite"))]
    pub name: String,
    pub kind: CaptureKind,
    /// Size as stored, unpacked.
    pub bytes: u64,
    /// Relative to the run's folder.
    #[cfg_attr(feature = "schema", schema(example = "nsys/run.sqlite"))]
    pub path: String,
}

#[cfg(any(test, feature = "testing"))]
impl ImportedFile {
    pub fn of_kind(kind: CaptureKind) -> Self {
        Self { name: kind.to_string(), kind, bytes: 1, path: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use crate::domain::subject::{RunSpec, Subject};

    use super::*;

    #[test]
    fn a_series_of_imports_is_named_by_the_file_without_its_extension() {
        for (name, expected) in [
            ("run.json", "run"),
            ("run.sqlite.zst", "run"),
            ("v1.2.nsys-rep", "v1.2"),
            ("run", "run"),
            (".zst", "capture"),
            ("", "capture"),
        ] {
            let file = ImportedFile {
                name: name.into(),
                ..ImportedFile::of_kind(CaptureKind::PytorchTrace)
            };
            let mut spec = RunSpec::import_of_nothing();
            let Subject::Import(import) = &mut spec.subject else { panic!("an import") };
            import.files = vec![file];
            import.name = name.into();
            assert_eq!((spec.name(), spec.series_name()), (name, expected));
        }
    }
}
