//! Captures that were taken elsewhere: their files, and which ranges of them are stages.
//!
//! Plain values. How a file is checked is in `artifact::intake`, how it is read in `parse`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{UnknownWord, words};

words! {
    /// Kind of an imported file, by its content.
    CaptureKind {
        /// An SQLite export of nsys.
        Timeline = "timeline",
        /// A report of nsys (`.nsys-rep`), exported by the nsys of this host.
        Report = "report",
        /// A page that ncu printed as CSV.
        Counters = "counters",
    }
}

/// Imported captures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
    /// Name of the first file, without its extension.
    #[schema(example = "vllm")]
    pub name: String,
    /// Name of the model that ran, as the sender gave it; `null` where it is not known.
    pub model: Option<String>,
    pub files: Vec<ImportedFile>,
    /// Which ranges are a stage, instead of those named like it: `NAME=RANGE` or `NAME=RANGE@DOMAIN`.
    #[schema(example = json!(["prefill=ctx@vllm"]))]
    pub stages: Vec<String>,
    /// Only what lies in ranges of these names counts; all does when there is none.
    pub within: Vec<String>,
    /// Nothing in ranges of these names counts.
    pub without: Vec<String>,
}

/// One imported file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedFile {
    /// As its sender named it.
    #[schema(example = "vllm.sqlite")]
    pub name: String,
    pub kind: CaptureKind,
    /// Of the file as it is kept, unpacked.
    pub bytes: u64,
    /// Relative to the run's folder.
    #[schema(example = "nsys/run.sqlite")]
    pub path: String,
}
