//! Subject of a run: a model, a part of a model, a command of the host, or imported captures.
//!
//! Plain values. Each subject has only the fields that apply to it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    command::CommandCall,
    ids::{InputsId, SessionId},
    import::Import,
    legacy::StoredSpec,
    part::{AlignWith, MockChange, PartPath},
};
use crate::domain::{
    dtype::Dtype, hex::hex, mode::Mode, named_values::named_values, profiling::Profiling,
};

named_values! {
    /// Kind of a run's subject.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    SubjectKind {
        /// A configured model, executed by model-runner.
        Model = "model",
        /// A part of a configured model, executed by model-runner.
        Part = "part",
        /// An allowed command of the host.
        Command = "command",
        /// Captures taken elsewhere.
        Import = "import",
    }
}

impl Default for SubjectKind {
    /// The subject that has every pass.
    fn default() -> Self {
        Self::Model
    }
}

impl SubjectKind {
    /// True if model-runner executes it: its events give stages, operators, tokens and FLOPs, and
    /// its request and inputs are known.
    pub const fn has_runner(self) -> bool {
        matches!(self, Self::Model | Self::Part)
    }

    /// True if this service executes it: it has an unprofiled pass, step logs and the environment
    /// of its host.
    pub const fn runs_here(self) -> bool {
        !matches!(self, Self::Import)
    }
}

/// Spec of a run with every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(from = "StoredSpec")]
pub struct RunSpec {
    pub subject: Subject,
    pub common: Common,
}

/// Settings of every run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Common {
    /// Free text to find the run by.
    pub labels: Vec<String>,
    /// Runs of higher priority start first.
    pub priority: i32,
    /// Time limit of the run, seconds.
    pub timeout_s: u32,
    /// Revision of the profiled program, as submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// Subject of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Subject {
    Model(ModelSubject),
    Part(PartSubject),
    Command(CommandSubject),
    Import(Import),
}

/// A whole model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ModelSubject {
    pub workload: Workload,
    pub passes: Passes,
}

/// A part of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartSubject {
    pub workload: Workload,
    pub part: PartPath,
    /// Counterpart to align the part with; the run then also profiles the whole model.
    pub align_with: Option<AlignWith>,
    /// Changes of the part that runs alone.
    pub mock: Option<MockChange>,
    pub passes: Passes,
}

/// A command of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CommandSubject {
    pub call: CommandCall,
    pub passes: Passes,
}

/// Work of model-runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Workload {
    /// Name of a configured model (`GET /models`).
    #[cfg_attr(feature = "schema", schema(example = "deepseek-ocr-tiny"))]
    pub model: String,
    /// Manifest of inputs, relative to the service's inputs folder, or the id of stored inputs.
    #[cfg_attr(feature = "schema", schema(example = "inputs.yaml"))]
    pub inputs_manifest: String,
    /// Tokens to generate after prefill.
    pub max_new_tokens: u32,
    /// Sequences generated together.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub batch: u32,
    /// Seed of synthetic weights.
    pub seed: u64,
    /// `null`: the model's default for the device.
    pub dtype: Option<Dtype>,
}

const fn one() -> u32 {
    1
}

/// Passes over a subject that runs on this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Passes {
    pub mode: Mode,
    /// Measured repeats of the unprofiled pass.
    pub repeats: u32,
    /// Warm-up repeats before them.
    pub warmup: u32,
    /// `auto`, `cpu`, `cuda:INDEX` in the order of nvidia-smi, the UUID of a GPU or of a MIG
    /// instance, or a GPU model.
    #[cfg_attr(feature = "schema", schema(example = "auto"))]
    pub device: String,
    /// Settings of the passes: the mode's preset with the request's changes. Absent in old runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiling: Option<Profiling>,
}

/// The name of a model, a command or a capture for readers: a part is named with its model.
pub fn title(name: String, part: Option<String>) -> String {
    match part {
        Some(part) => format!("{part} of {name}"),
        None => name,
    }
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

    /// Name in lists: of the model, the command or the capture.
    pub fn name(&self) -> &str {
        match &self.subject {
            Subject::Model(it) => &it.workload.model,
            Subject::Part(it) => &it.workload.model,
            Subject::Command(it) => &it.call.command,
            Subject::Import(it) => it.model.as_ref().unwrap_or(&it.name),
        }
    }

    /// Name in the identity of its series. An import without a model has the name of its file
    /// without the extension.
    pub fn series_name(&self) -> &str {
        match &self.subject {
            Subject::Import(it) if it.model.is_none() => it.series_name(),
            _ => self.name(),
        }
    }

    /// Name for readers: a part is named with its model.
    pub fn title(&self) -> String {
        title(self.name().to_owned(), self.part().map(str::to_owned))
    }

    /// The path of a part of a model that ran by itself.
    pub fn part(&self) -> Option<&str> {
        match &self.subject {
            Subject::Part(it) => Some(&it.part.0),
            _ => None,
        }
    }

    /// The part whose times the first passes have; `None` if it runs next to the whole model.
    pub fn timed_part(&self) -> Option<&str> {
        match &self.subject {
            Subject::Part(it) if it.align_with.is_none() => Some(&it.part.0),
            _ => None,
        }
    }

    /// Name of the model; `None` for commands, and for captures without one.
    pub fn model(&self) -> Option<&str> {
        match &self.subject {
            Subject::Import(it) => it.model.as_deref(),
            _ => self.workload().map(|it| it.model.as_str()),
        }
    }

    /// Work of model-runner; `None` for other programs.
    pub const fn workload(&self) -> Option<&Workload> {
        match &self.subject {
            Subject::Model(it) => Some(&it.workload),
            Subject::Part(it) => Some(&it.workload),
            Subject::Command(_) | Subject::Import(_) => None,
        }
    }

    /// Passes of the run; `None` for imported captures.
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

    /// The session on which it records.
    pub fn session(&self) -> Option<SessionId> {
        self.call().and_then(|call| call.session)
    }

    /// The imported captures.
    pub const fn import(&self) -> Option<&Import> {
        match &self.subject {
            Subject::Import(it) => Some(it),
            _ => None,
        }
    }

    /// Replaces the name of its inputs.
    pub fn set_inputs(&mut self, name: String) {
        match &mut self.subject {
            Subject::Model(it) => it.workload.inputs_manifest = name,
            Subject::Part(it) => it.workload.inputs_manifest = name,
            Subject::Command(_) | Subject::Import(_) => {}
        }
    }

    /// The stored inputs that it names.
    pub fn stored_inputs(&self) -> Option<InputsId> {
        self.workload().and_then(|it| InputsId::of_name(&it.inputs_manifest))
    }

    /// The mode of collection.
    pub fn mode(&self) -> Option<&Mode> {
        self.passes().map(|it| &it.mode)
    }

    /// The requested device; `None` for a run that needs none.
    pub fn device(&self) -> Option<&str> {
        self.passes().map(|it| it.device.as_str())
    }

    /// Hash of what it measures: of its subject and its revision, without labels and queueing.
    pub fn fingerprint(&self) -> String {
        let facts = serde_json::to_string(&(&self.subject, &self.common.revision));
        let digest = Sha256::digest(facts.unwrap_or_default());
        hex(&digest[..16])
    }

    /// Number of devices of the run.
    pub fn gpus(&self) -> u32 {
        self.call().and_then(|call| call.gpus).unwrap_or(1).max(1)
    }
}

#[cfg(any(test, feature = "testing"))]
impl RunSpec {
    /// Returns a run of a tiny model, for tests.
    pub fn tiny(mode: Mode, priority: i32, labels: &[&str]) -> Self {
        let workload = Workload {
            model: "tiny".into(),
            inputs_manifest: "inputs.yaml".into(),
            max_new_tokens: 4,
            batch: 1,
            seed: 0,
            dtype: None,
        };
        let passes = Passes { mode, repeats: 1, warmup: 0, device: "auto".into(), profiling: None };
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let subject = Subject::Model(ModelSubject { workload, passes });
        Self { subject, common: Common { labels, priority, timeout_s: 60, revision: None } }
    }

    /// Returns an import without files, for tests.
    pub fn import_of_nothing() -> Self {
        let import = Import {
            name: "capture".into(),
            model: None,
            files: vec![],
            stages: vec![],
            include_ranges: vec![],
            exclude_ranges: vec![],
            computes: None,
            new_tokens: None,
        };
        let common = Common { timeout_s: 60, ..Common::default() };
        Self { subject: Subject::Import(import), common }
    }

    /// Returns the same run on another device.
    pub fn on_device(mut self, device: &str) -> Self {
        if let Subject::Model(it) = &mut self.subject {
            it.passes.device = device.into();
        }
        self
    }
}
