//! The spec of one attempt at a run, resolved by the service's settings, and its result: files of
//! the run's folder.
//!
//! With these files a run executes without the database and without the service.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::{
    domain::{
        command::CommandPlan,
        device::Device,
        finding::Finding,
        ids::{FolderId, RunId, RunMark},
        model::ModelSpec,
        outcome::Outcome,
        profiling::Profiling,
        state::RunState,
        subject::RunSpec,
    },
    layout,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    artifact::{manifest, packed::read_own},
    collect::{SessionAccess, host::exhaustion},
    config::{RunLimits, ToolSettings},
    job::step_journal::StepResult,
};

/// A run's subject, resolved by the settings of the service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobSubject {
    /// A model, or a part of it.
    Model { model: ModelSpec, profiling: Profiling },
    /// A command with its parameters in place.
    Command { plan: CommandPlan, profiling: Profiling },
    /// Imported captures; starts no program.
    Import,
}

/// One attempt at a run. Contains no secret: clients download the files of the folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    pub id: RunId,
    /// The service's data folder; absent in job specs of old versions.
    #[serde(default)]
    pub folder: FolderId,
    /// Counts from 1. A result of another attempt does not count.
    pub attempt: u32,
    pub spec: RunSpec,
    pub subject: JobSubject,
    /// Folder of the inputs' manifests.
    pub inputs: PathBuf,
    /// Devices that the executing host may use; empty: all that it finds.
    pub devices: Vec<String>,
    /// GPUs that the job requests from the scheduler.
    pub gpus: u32,
    pub tools: ToolSettings,
    pub limits: RunLimits,
    pub grace_s: u32,
    /// The device, if the service has chosen it; otherwise the job looks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The service's data folder on this host, for results that are valid until the next boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PathBuf>,
    /// GPUs of the run in addition to its device.
    #[serde(default, skip_serializing_if = "Vec::is_empty", alias = "beside")]
    pub other_gpus: Vec<Device>,
    /// The session whose server it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionAccess>,
}

impl JobSpec {
    /// Mark of the run's processes.
    pub fn mark(&self) -> RunMark {
        RunMark { folder: self.folder, run: self.id }
    }

    /// Limit on the whole run.
    pub fn time_limit(&self) -> Duration {
        Duration::from_secs(self.spec.common.timeout_s.min(self.limits.run_s).into())
    }

    /// Maximum bytes of the run's folder.
    pub fn folder_bytes(&self) -> u64 {
        self.limits.folder_bytes(self.spec.kind())
    }
}

/// State after the steps that collect, for the steps that analyze.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GatheredSteps {
    pub attempt: u32,
    /// Result of the step that stopped the run.
    pub stopped: Option<StepResult>,
    pub findings: Vec<Finding>,
    /// The failure of the host for which the run is requeued.
    #[serde(default)]
    pub exhausted: Option<Finding>,
}

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    pub attempt: u32,
    /// The job was stopped from outside; its service decides whether the run starts again.
    pub interrupted: bool,
    /// Exit code of the process: 0 for a run with a report.
    pub exit_code: u8,
    pub outcome: Outcome,
}

impl JobResult {
    /// The result of an attempt that `stopped` from outside, or not. An attempt with a report
    /// counts in both cases, unless the host lacked resources for it.
    pub fn new(attempt: u32, outcome: Outcome, stopped: bool) -> Self {
        let has_report = matches!(outcome.state, RunState::Succeeded | RunState::Partial);
        Self {
            attempt,
            interrupted: (stopped && !has_report) || exhaustion::of_outcome(&outcome).is_some(),
            exit_code: u8::from(!has_report),
            outcome,
        }
    }
}

/// Writes `value` into the run's folder, atomically.
pub fn write(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    manifest::write_whole(&dir.join(name), &serde_json::to_vec_pretty(value)?)
}

/// Reads a file of the run's folder; `None` if it does not exist.
pub fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> io::Result<Option<T>> {
    match read_own(&dir.join(name)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of this attempt, if its job left one.
pub fn result(dir: &Path, attempt: u32) -> io::Result<Option<JobResult>> {
    Ok(read(dir, layout::RESULT)?.filter(|result: &JobResult| result.attempt == attempt))
}
