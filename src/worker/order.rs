//! A run as it is ordered: all that whoever carries it out must know, and the result that comes back. Files of the run's folder.
//!
//! With these files a run is carried out where there is neither the database nor the service.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Context, offline, steps::Ended};
use crate::{
    artifact::{layout, manifest},
    config::{Limits, Tools},
    model::ModelSpec,
    profiling::Profiling,
    run::{
        Finding, RunId, RunSpec,
        command::{CommandCall, CommandPlan},
        target::Target,
    },
    store::{Claimed, Outcome},
    trace::device::Device,
};

/// One attempt at a run. It holds no secret: people download what lies in the folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub id: RunId,
    /// Counts from 1; a result of another attempt is none of this.
    pub attempt: u32,
    pub spec: RunSpec,
    pub profiling: Profiling,
    pub model: ModelSpec,
    /// Folder that the manifest of inputs is read from.
    pub inputs: PathBuf,
    /// Devices that the executing host may use; empty: those that it finds.
    pub devices: Vec<String>,
    /// GPUs that the job asked the scheduler for.
    pub gpus: u32,
    pub tools: Tools,
    pub limits: Limits,
    pub grace_s: u32,
    /// The command that is the run's target, with its parameters in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandPlan>,
    /// GPUs that the run has beside the one that it is told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Device>,
}

impl Order {
    /// Orders a claimed run by the settings of this service, or says in one line what is no longer configured.
    pub fn new(run: &Claimed, cx: &Context) -> Result<Self, String> {
        let spec = &run.spec;
        let call = spec.target.as_ref().and_then(Target::command);
        let command = call.map(|call| plan(call, cx)).transpose()?;
        let model = match &spec.import {
            Some(_) => offline::unknown_model(&spec.model),
            None if command.is_some() => offline::unknown_model(&spec.model),
            None => cx.models.get(&spec.model).ok_or_else(|| format!("model {} is no longer configured", spec.model))?.clone(),
        };
        let stored = spec.profiling.as_ref().or(cx.presets.get(&spec.mode));
        Ok(Self {
            id: run.id,
            attempt: run.attempt,
            profiling: stored.cloned().ok_or_else(|| format!("mode {} is no longer configured", spec.mode))?,
            model,
            inputs: cx.inputs.clone(),
            devices: cx.config.worker.devices.clone(),
            gpus: 0,
            tools: cx.config.tools.clone(),
            limits: cx.config.limits.clone(),
            grace_s: cx.config.worker.grace_s,
            spec: spec.clone(),
            command,
            beside: Vec::new(),
        })
    }

    /// The most time that the run may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.spec.timeout_s.min(self.limits.run_s).into())
    }
}

/// The command as it is allowed now: what was allowed when the run was submitted may be no longer.
fn plan(call: &CommandCall, cx: &Context) -> Result<CommandPlan, String> {
    let command = cx.targets.get(&call.command).ok_or_else(|| format!("command {} is no longer configured", call.command))?;
    command.plan(call).map_err(|error| format!("command {}: {error}", call.command))
}

/// How far the steps on the device came, for those after them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Gathered {
    pub attempt: u32,
    /// The step that stopped the run, where one did.
    pub stopped: Option<Ended>,
    pub findings: Vec<Finding>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    pub attempt: u32,
    /// The job was told to end before its end: whether the run is to be begun again is for its service to say.
    pub interrupted: bool,
    /// What the process exits with: 0 for a run with a report.
    pub exit_code: u8,
    pub outcome: Outcome,
}

/// Writes `value` into the run's folder so that a reader finds all of it or none.
pub fn write(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    manifest::write_whole(&dir.join(name), &serde_json::to_vec_pretty(value)?)
}

/// Reads a file of the run's folder; `None` where there is none.
pub fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> io::Result<Option<T>> {
    match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The result of this attempt, where its job left one.
pub fn result(dir: &Path, attempt: u32) -> io::Result<Option<JobResult>> {
    Ok(read(dir, layout::RESULT)?.filter(|result: &JobResult| result.attempt == attempt))
}
