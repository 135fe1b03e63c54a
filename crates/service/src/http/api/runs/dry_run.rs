//! Answers to submissions that are only checked: the plan of the steps and a time estimate.

use axum::{Json, http::StatusCode, response::IntoResponse};
use llmprof_core::domain::{
    command::CommandKind,
    device::Device,
    median::median_of,
    run_plan::{self, PlanFacts, PlannedStep},
    settings::Settings,
    subject::RunSpec,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{example, submit_command::with_recording_window};
use crate::http::{error::ApiError, state::App};

/// A checked submission. Nothing was queued or stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DryRun {
    /// The run with every default filled in.
    pub spec: RunSpec,
    /// Steps in order.
    pub steps: Vec<PlannedStep>,
    pub duration: DurationEstimate,
    /// Settings without effect, one sentence for each pass that is off or skipped.
    pub notes: Vec<String>,
}

/// Expected duration of a run, without its time in the queue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DurationEstimate {
    /// Median of earlier runs; `null` without any.
    pub seconds: Option<f64>,
    pub basis: EstimateBasis,
    /// Number of earlier runs.
    pub runs: u64,
    /// Reason for a missing estimate.
    #[schema(example = "no estimate: no run of llama-tiny in mode deep has finished on this host")]
    pub unknown_because: Option<String>,
}

/// Earlier runs of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EstimateBasis {
    /// Runs of the same request.
    SameRequest,
    /// Runs of the same model or command in the same mode, with other settings.
    SameMode,
    /// No such run has finished on this host: there is no estimate; see `unknown_because`.
    None,
}

impl DryRun {
    pub(crate) fn example() -> Self {
        let spec = example::spec();
        let steps = run_plan::plan(&spec, PlanFacts::default());
        let duration = DurationEstimate {
            seconds: Some(8.1),
            basis: EstimateBasis::SameRequest,
            runs: 3,
            unknown_because: None,
        };
        Self { spec, steps, duration, notes: Vec::new() }
    }
}

/// The answer to a checked submission.
pub(crate) async fn answer(app: &App, spec: RunSpec) -> Result<impl IntoResponse, ApiError> {
    let steps = run_plan::plan(&spec, facts(app, &spec));
    let duration = estimate(app, &spec).await?;
    let notes = notes(app, &spec, &steps);
    Ok((StatusCode::OK, Json(DryRun { spec, steps, duration, notes })))
}

fn notes(app: &App, spec: &RunSpec, steps: &[PlannedStep]) -> Vec<String> {
    let passes = spec.passes();
    let preset = passes.and_then(|it| app.presets.get(&it.mode));
    let profiling = passes.and_then(|it| it.profiling.as_ref());
    let command = spec.call().and_then(|call| app.targets.get(&call.command));
    let preset = preset.map(|it| match command {
        Some(command) => with_recording_window(it.profiling.clone(), &Settings::new(), command),
        None => it.profiling.clone(),
    });
    let on_cpu = facts(app, spec).on_cpu;
    let notes = preset.zip(profiling).map(|(preset, it)| it.unused(&preset, spec, steps, on_cpu));
    notes.unwrap_or_default()
}

pub(super) fn facts(app: &App, spec: &RunSpec) -> PlanFacts {
    let device = spec.device().unwrap_or_default();
    let mut matching = app.devices.iter().filter(|it| it.matches(device)).peekable();
    let on_cpu = device == "cpu" || (matching.peek().is_some() && matching.all(Device::is_cpu));
    let command = spec.call().and_then(|call| app.targets.get(&call.command));
    PlanFacts {
        on_cpu,
        is_server: command.is_some_and(|it| it.kind == CommandKind::Server),
        torch_profiler: command.is_some_and(|it| it.torch_profiler),
    }
}

pub(super) async fn estimate(app: &App, spec: &RunSpec) -> Result<DurationEstimate, ApiError> {
    let same = app.store.durations_of(spec, true).await?;
    let (basis, durations) = if same.is_empty() {
        (EstimateBasis::SameMode, app.store.durations_of(spec, false).await?)
    } else {
        (EstimateBasis::SameRequest, same)
    };
    let runs = durations.len() as u64;
    let seconds = median_of(durations).map(|ms| ms as f64 / 1e3);
    let basis = if seconds.is_some() { basis } else { EstimateBasis::None };
    let unknown_because = seconds.is_none().then(|| {
        let mode = spec.mode().map_or_else(String::new, |mode| format!(" in mode {mode}"));
        format!("no estimate: no run of {}{mode} has finished on this host", spec.title())
    });
    Ok(DurationEstimate { seconds, basis, runs, unknown_because })
}
