//! The subject of a run: a model, a part of one, a command of the host, or captures taken elsewhere.
//!
//! Plain values. A field exists only where its subject has it, so nothing is filled in for the others.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Dtype, Mode, UnknownWord,
    command::CommandCall,
    import::Import,
    legacy::StoredSpec,
    part::{AlignWith, MockChange, PartPath},
    words,
};
use crate::profiling::Profiling;

words! {
    /// Kind of a run's subject.
    SubjectKind {
        /// A configured model, run by our runner.
        Model = "model",
        /// A part of a configured model, run by our runner.
        Part = "part",
        /// A command that the operator of the host allows.
        Command = "command",
        /// Captures that were taken elsewhere.
        Import = "import",
    }
}

impl Default for SubjectKind {
    /// The subject of which every pass exists.
    fn default() -> Self {
        Self::Model
    }
}

impl SubjectKind {
    /// Whether our runner executes it: its events give stages, operators, tokens and FLOPs, and its request and inputs are known.
    pub const fn has_runner(self) -> bool {
        matches!(self, Self::Model | Self::Part)
    }

    /// Whether this service starts it: it has an unprofiled pass, step logs and the environment of its host.
    pub const fn runs_here(self) -> bool {
        !matches!(self, Self::Import)
    }
}

/// A run as it was submitted, with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(from = "StoredSpec")]
pub struct RunSpec {
    pub subject: Subject,
    pub common: Common,
}

/// Settings that a run of every subject has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Common {
    /// Free words to find the run by.
    pub labels: Vec<String>,
    /// Higher runs first.
    pub priority: i32,
    /// Limit on the whole run, in seconds.
    pub timeout_s: u32,
}

/// What a run profiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    Model(ModelSubject),
    Part(PartSubject),
    Command(CommandSubject),
    Import(Import),
}

/// A whole model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelSubject {
    pub workload: Workload,
    pub passes: Passes,
}

/// A part of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PartSubject {
    pub workload: Workload,
    pub part: PartPath,
    /// What the part is aligned with; then the whole model is profiled, and the part next to it.
    pub align_with: Option<AlignWith>,
    /// Differences of the part that runs alone.
    pub mock: Option<MockChange>,
    pub passes: Passes,
}

/// A command of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandSubject {
    pub call: CommandCall,
    pub passes: Passes,
}

/// The work that our runner is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Workload {
    /// Name of a configured model (`GET /models`).
    #[schema(example = "deepseek-ocr-tiny")]
    pub model: String,
    /// Manifest of inputs, relative to the service's inputs folder.
    #[schema(example = "inputs.yaml")]
    pub inputs_manifest: String,
    /// Tokens to generate after prefill.
    pub max_new_tokens: u32,
    /// Seed of synthetic weights.
    pub seed: u64,
    /// `null`: the model's default for the device.
    pub dtype: Option<Dtype>,
}

/// How a subject that runs here is measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Passes {
    pub mode: Mode,
    /// Measured repeats of the unprofiled pass.
    pub repeats: u32,
    /// Unmeasured repeats before them.
    pub warmup: u32,
    /// `auto`, `cpu`, `cuda:INDEX` in the order of nvidia-smi, the UUID of a GPU or of an instance of one, or the model of either.
    #[schema(example = "auto")]
    pub device: String,
    /// Every setting of the passes: the mode's, with the request's changes over them. Absent in runs that were stored without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiling: Option<Profiling>,
}

impl RunSpec {
    /// Kind of the subject.
    pub const fn kind(&self) -> SubjectKind {
        match self.subject {
            Subject::Model(_) => SubjectKind::Model,
            Subject::Part(_) => SubjectKind::Part,
            Subject::Command(_) => SubjectKind::Command,
            Subject::Import(_) => SubjectKind::Import,
        }
    }

    /// Name that lists show: of the model, of the command, or of the capture.
    pub fn name(&self) -> &str {
        match &self.subject {
            Subject::Model(it) => &it.workload.model,
            Subject::Part(it) => &it.workload.model,
            Subject::Command(it) => &it.call.command,
            Subject::Import(it) => it.model.as_ref().unwrap_or(&it.name),
        }
    }

    /// Name of the model that ran; `None` of a command, and of captures whose sender named none.
    pub fn model(&self) -> Option<&str> {
        match &self.subject {
            Subject::Import(it) => it.model.as_deref(),
            _ => self.workload().map(|it| it.model.as_str()),
        }
    }

    /// The work of our runner; `None` where another program ran.
    pub const fn workload(&self) -> Option<&Workload> {
        match &self.subject {
            Subject::Model(it) => Some(&it.workload),
            Subject::Part(it) => Some(&it.workload),
            Subject::Command(_) | Subject::Import(_) => None,
        }
    }

    /// How it is measured; `None` of captures that were taken elsewhere.
    pub const fn passes(&self) -> Option<&Passes> {
        match &self.subject {
            Subject::Model(it) => Some(&it.passes),
            Subject::Part(it) => Some(&it.passes),
            Subject::Command(it) => Some(&it.passes),
            Subject::Import(_) => None,
        }
    }

    /// The command and its parameters.
    pub const fn call(&self) -> Option<&CommandCall> {
        match &self.subject {
            Subject::Command(it) => Some(&it.call),
            _ => None,
        }
    }

    /// What was imported.
    pub const fn import(&self) -> Option<&Import> {
        match &self.subject {
            Subject::Import(it) => Some(it),
            _ => None,
        }
    }

    /// The mode of collection.
    pub fn mode(&self) -> Option<Mode> {
        self.passes().map(|it| it.mode)
    }

    /// The device as it was requested; `None` of a run that needs no device.
    pub fn device(&self) -> Option<&str> {
        self.passes().map(|it| it.device.as_str())
    }

    /// Devices that the run gets at once.
    pub fn gpus(&self) -> u32 {
        self.call().and_then(|call| call.gpus).unwrap_or(1).max(1)
    }
}

#[cfg(test)]
impl RunSpec {
    /// A run of a tiny model, for tests.
    pub(crate) fn tiny(mode: Mode, priority: i32, labels: &[&str]) -> Self {
        let workload =
            Workload { model: "tiny".into(), inputs_manifest: "inputs.yaml".into(), max_new_tokens: 4, seed: 0, dtype: None };
        let passes = Passes { mode, repeats: 1, warmup: 0, device: "auto".into(), profiling: None };
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let subject = Subject::Model(ModelSubject { workload, passes });
        Self { subject, common: Common { labels, priority, timeout_s: 60 } }
    }

    /// The same on another device.
    pub(crate) fn on(mut self, device: &str) -> Self {
        if let Subject::Model(it) = &mut self.subject {
            it.passes.device = device.into();
        }
        self
    }
}
