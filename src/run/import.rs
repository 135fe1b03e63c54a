//! Captures that were taken elsewhere: what came, and which ranges of it are stages.
//!
//! Plain values. How a file is checked is in `artifact::intake`, how it is read in `parse`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Mode, RunSpec, UnknownWord, words};

/// The device of a run that needs none.
pub const NO_DEVICE: &str = "none";

words! {
    /// Whether this service carried the run out, or its captures came from elsewhere.
    RunKind {
        Profiled = "profiled",
        Imported = "imported",
    }
}

words! {
    /// What an imported file is, by its content.
    CaptureKind {
        /// An SQLite export of nsys.
        Timeline = "timeline",
        /// A report of nsys (`.nsys-rep`), exported by the nsys of this host.
        Report = "report",
        /// A page that ncu printed as CSV.
        Counters = "counters",
    }
}

/// What was imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Import {
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
    /// As whoever sent it called it.
    #[schema(example = "vllm.sqlite")]
    pub name: String,
    pub kind: CaptureKind,
    /// Of the file as it is kept, unpacked.
    pub bytes: u64,
    /// Relative to the run's folder.
    #[schema(example = "nsys/run.sqlite")]
    pub path: String,
}

impl RunSpec {
    /// What a run is of which nothing is known but its captures.
    pub fn of_captures(model: String, labels: Vec<String>, import: Option<Import>) -> Self {
        Self {
            model,
            inputs_manifest: String::new(),
            mode: Mode::Light,
            repeats: 0,
            warmup: 0,
            max_new_tokens: 0,
            seed: 0,
            dtype: None,
            device: NO_DEVICE.into(),
            timeout_s: 1800,
            labels,
            priority: 0,
            profiling: None,
            target: None,
            align_with: None,
            mock: None,
            import,
        }
    }

    /// Whether its captures came from elsewhere.
    pub const fn kind(&self) -> RunKind {
        if self.import.is_some() { RunKind::Imported } else { RunKind::Profiled }
    }
}
