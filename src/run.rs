//! The words of a run: what was asked, where it stands, what was found.
//!
//! Plain values, open to every module. No files, no clock, no database.

pub mod alignment;
pub mod command;
pub mod import;
pub mod part;
pub mod subject;
pub mod whole;

mod legacy;

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

pub use self::subject::{Common, RunSpec, Subject, SubjectKind};

/// Declares an id: a UUID of version 7, so ids sort by the time at which they were made.
macro_rules! ids {
    ($(#[$meta:meta])* $name:ident) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        $(#[$meta])*
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Makes the id of what is submitted now.
            pub fn now() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                s.parse().map(Self)
            }
        }
    };
}

ids! {
    /// Identifies a run.
    #[schema(value_type = Uuid, example = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    RunId
}

ids! {
    /// Identifies an alignment.
    #[schema(value_type = Uuid, example = "019aa1c2-0f3b-7a60-8c1d-5b2e9d4f6a71")]
    AlignmentId
}

/// Declares a word with one lower-case name per variant, the same in JSON, in the database and on the command line.
///
/// The names are `tt`: the derive of the schema does not see a `literal` that went through a macro, and would show the variants.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:tt),+ $(,)? }) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        $(#[$doc])*
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every variant, in order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word as it is written everywhere.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(s: &str) -> Result<Self, UnknownWord> {
                match s {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(UnknownWord { word: s.to_owned(), known: &[$($text),+] }),
                }
            }
        }
    };
}

pub(crate) use words;

/// A text that is none of the words it could have been.
#[derive(Debug, thiserror::Error)]
#[error("{word:?} is none of {}", known.join(", "))]
pub struct UnknownWord {
    pub(crate) word: String,
    pub(crate) known: &'static [&'static str],
}

words! {
    /// How much of the picture a run collects.
    Mode {
        /// Plain run, Nsight Systems with graph nodes, Nsight Compute, GEMM log.
        Deep = "deep",
        /// Plain run and a light Nsight Systems pass.
        Light = "light",
        /// Plain run, static costs, operators and an early MFU: no Nsight tool.
        Basic = "basic",
    }
}

words! {
    /// Where a run stands. `partial`: something asked for could not be collected, everything else is there.
    RunState {
        Queued = "queued",
        Running = "running",
        Succeeded = "succeeded",
        Partial = "partial",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

impl RunState {
    /// Says whether the run has ended: its state will not change again.
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

words! {
    /// A part of a run, in the order in which they happen.
    Step {
        Preflight = "preflight",
        Baseline = "baseline",
        Nsys = "nsys",
        Ncu = "ncu",
        GemmLog = "gemm_log",
        /// The part alone, held to the same part inside the whole model.
        Align = "align",
        Analyze = "analyze",
        Report = "report",
    }
}

words! {
    /// How a step stands or ended. `skipped`: could not be collected here, and the message says why.
    StepState {
        Running = "running",
        Succeeded = "succeeded",
        Skipped = "skipped",
        Failed = "failed",
        Cancelled = "cancelled",
    }
}

words! {
    /// The number format that weights and activations are kept in.
    Dtype {
        F32 = "f32",
        F16 = "f16",
        Bf16 = "bf16",
    }
}

impl Dtype {
    /// Bytes per element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

words! {
    /// How much a finding matters.
    Severity {
        Info = "info",
        Warning = "warning",
        Critical = "critical",
    }
}

/// Where a run stands with a cluster's scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scheduled {
    /// The scheduler's number of the job.
    #[schema(example = "4711")]
    pub job: String,
    /// As the scheduler calls it.
    #[schema(example = "PENDING")]
    pub state: String,
    /// What it waits for, as the scheduler calls it: `Resources`, `Priority`, `Dependency`; `null` while it runs.
    #[schema(example = "Resources")]
    pub reason: Option<String>,
}

/// One step of a run, as it stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepRecord {
    pub step: Step,
    pub state: StepState,
    /// RFC 3339, UTC.
    pub started_at: String,
    /// RFC 3339, UTC; `null` while the step runs.
    pub ended_at: Option<String>,
    /// Exit code of the step's process; `null` when it had none or was ended by a signal.
    pub exit_code: Option<i32>,
    /// What went wrong or was left out, and the remedy.
    pub message: Option<String>,
}

/// Something worth telling a person, with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Stable name of the rule, snake case.
    #[schema(example = "nsys_missing")]
    pub id: String,
    pub severity: Severity,
    /// One sentence: what was seen.
    pub message: String,
    /// The rows or figures that show it, by name.
    #[serde(default)]
    pub evidence: BTreeMap<String, String>,
    /// What to do about it.
    pub advice: Option<String>,
    /// What following the advice saves at most; `null` where that cannot be known.
    #[serde(default)]
    pub saves_at_most: Option<Box<Saving>>,
}

/// Id of the finding that lists the passes which do not apply to a run's subject or host: its evidence is each with the reason.
pub const NOT_APPLICABLE: &str = "passes_not_applicable";

/// Time that could be saved: an upper bound, not a promise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Saving {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Milliseconds per repeat.
    pub ms: Option<f64>,
    /// Of the stage's mean time, percent.
    pub pct: f64,
}

impl Finding {
    /// Makes a finding without evidence rows or advice.
    pub fn new(id: &str, severity: Severity, message: impl Into<String>) -> Self {
        Self { id: id.into(), severity, message: message.into(), evidence: BTreeMap::new(), advice: None, saves_at_most: None }
    }

    /// Adds one row of evidence.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.evidence.insert(name.into(), value.to_string());
        self
    }

    /// Says what following the advice saves at most.
    pub fn saves(self, saving: Option<Saving>) -> Self {
        Self { saves_at_most: saving.map(Box::new), ..self }
    }

    /// Says what to do about it.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// One file that a run left.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactRecord {
    /// Relative to the run's folder.
    #[schema(example = "report.md")]
    pub path: String,
    pub bytes: u64,
    /// Lower-case hexadecimal.
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub sha256: String,
    #[schema(example = "text/markdown; charset=utf-8")]
    pub media_type: String,
    /// The step that wrote it; `null` for files about the run as a whole.
    pub step: Option<Step>,
}

/// One input of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputFile {
    /// Relative to the inputs folder.
    #[schema(example = "page.png")]
    pub path: String,
    pub bytes: u64,
    #[schema(example = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    pub sha256: String,
    pub width: u32,
    pub height: u32,
}
