//! A run as it is ordered: all that whoever carries it out must know, and the result that comes back. Files of the run's folder.
//!
//! With these files a run is carried out where there is neither the database nor the service.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Context, steps::Ended};
use crate::{
    artifact::{layout, manifest},
    config::{Limits, Tools},
    model::ModelSpec,
    profiling::Profiling,
    run::{
        Finding, RunId, RunSpec, Subject,
        command::{CommandCall, CommandPlan},
        subject::Passes,
    },
    store::{Claimed, Outcome},
    trace::device::Device,
};

/// What is started, resolved by the settings of the service that orders it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderedSubject {
    /// A model, or a part of it.
    Model { model: ModelSpec, profiling: Profiling },
    /// A command with its parameters in place.
    Command { plan: CommandPlan, profiling: Profiling },
    /// Nothing: captures are read.
    Import,
}

/// One attempt at a run. It holds no secret: people download what lies in the folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub id: RunId,
    /// Counts from 1; a result of another attempt is none of this.
    pub attempt: u32,
    pub spec: RunSpec,
    pub subject: OrderedSubject,
    /// Folder that the manifest of inputs is read from.
    pub inputs: PathBuf,
    /// Devices that the executing host may use; empty: those that it finds.
    pub devices: Vec<String>,
    /// GPUs that the job asked the scheduler for.
    pub gpus: u32,
    pub tools: Tools,
    pub limits: Limits,
    pub grace_s: u32,
    /// GPUs that the run has beside the one that it is told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<Device>,
}

impl Order {
    /// Orders a claimed run by the settings of this service, or says in one line what is no longer configured.
    pub fn new(run: &Claimed, cx: &Context) -> Result<Self, String> {
        let spec = &run.spec;
        let model = |name: &str| cx.models.get(name).cloned().ok_or_else(|| format!("model {name} is no longer configured"));
        let profiling = |passes: &Passes| {
            let settings = passes.profiling.as_ref().or(cx.presets.get(&passes.mode)).cloned();
            settings.ok_or_else(|| format!("mode {} is no longer configured", passes.mode))
        };
        let of_model = |name: &str, passes| Ok(OrderedSubject::Model { model: model(name)?, profiling: profiling(passes)? });
        let subject: Result<_, String> = match &spec.subject {
            Subject::Model(it) => of_model(&it.workload.model, &it.passes),
            Subject::Part(it) => of_model(&it.workload.model, &it.passes),
            Subject::Command(it) => Ok(OrderedSubject::Command { plan: plan(&it.call, cx)?, profiling: profiling(&it.passes)? }),
            Subject::Import(_) => Ok(OrderedSubject::Import),
        };
        Ok(Self {
            id: run.id,
            attempt: run.attempt,
            subject: subject?,
            inputs: cx.inputs.clone(),
            devices: cx.config.worker.devices.clone(),
            gpus: 0,
            tools: cx.config.tools.clone(),
            limits: cx.config.limits.clone(),
            grace_s: cx.config.worker.grace_s,
            spec: spec.clone(),
            beside: Vec::new(),
        })
    }

    /// The most time that the run may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(self.spec.common.timeout_s.min(self.limits.run_s).into())
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
