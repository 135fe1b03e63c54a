//! `GET /targets`: the commands that a run may name in place of a model, and what a submission of one has to hold to.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
    submit::{self, SubmitRun, check_device},
    target::contradictory,
};
use crate::{
    config::nearest,
    profiling::{Change, Profiling},
    run::{
        RunSpec,
        command::{CallError, CommandCall, CommandKind, CommandTarget, Param},
        target::Target,
    },
};

/// The commands that this host allows, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    pub commands: Vec<CommandView>,
}

/// One command, as a submitter needs to know it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandView {
    #[schema(example = "torch-generate")]
    pub command: String,
    pub description: String,
    pub kind: CommandKind,
    /// Its parameters by name.
    pub params: BTreeMap<String, Param>,
    /// GPUs that it gets, unless a request says otherwise; 0: it needs none.
    pub gpus: u32,
    /// Most GPUs that a request may ask for.
    pub gpus_max: u32,
    /// Which ranges are stages.
    #[schema(example = json!(["prefill=ctx@vllm"]))]
    pub stages: Vec<String>,
    /// Only what lies in ranges of these names counts; all does when there is none.
    pub within: Vec<String>,
    /// Nothing in ranges of these names counts.
    pub without: Vec<String>,
    /// Seconds after the start until nsys records, unless a request says otherwise.
    pub delay_s: u32,
    /// Seconds that nsys records, unless a request says otherwise; 0: to the end.
    pub duration_s: u32,
    /// Whether a client is run against it, and timed.
    pub has_client: bool,
}

impl CommandView {
    /// Paths and variables of this host are nobody's business.
    pub fn of(name: &str, command: &CommandTarget) -> Self {
        Self {
            command: name.to_owned(),
            description: command.description.clone(),
            kind: command.kind,
            params: command.params.clone(),
            gpus: command.gpus,
            gpus_max: command.most_gpus(),
            stages: command.stages.clone(),
            within: command.within.clone(),
            without: command.without.clone(),
            delay_s: command.delay_s,
            duration_s: command.duration_s,
            has_client: command.client.is_some(),
        }
    }
}

/// List the commands that a run may name as its target, with their parameters
///
/// The operator of the host writes them; a request chooses values of their parameters.
#[utoipa::path(get, path = "/targets", tag = "models", operation_id = "list_targets",
    responses((status = 200, description = "The commands; none where the operator allows none", body = TargetList)))]
pub async fn targets(State(app): State<App>) -> Json<TargetList> {
    Json(TargetList { commands: app.targets.iter().map(|(name, command)| CommandView::of(name, command)).collect() })
}

/// Checks a submission whose target is a command, and fills in what was left open.
pub(super) fn check(app: &App, run: SubmitRun, call: &CommandCall) -> Result<RunSpec, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    call.check_form().map_err(invalid)?;
    let command = find(app, &call.command)?;
    let none_of = [
        ("model", run.model.is_some()),
        ("inputs_manifest", run.inputs_manifest.is_some()),
        ("dtype", run.dtype.is_some()),
        ("align_with", run.align_with.is_some()),
        ("mock", run.mock.is_some()),
    ];
    if let Some((field, _)) = none_of.iter().find(|(_, given)| *given) {
        return Err(contradictory(format!("{field}: it is for models; a command is told by target.params")));
    }
    check_device(app, &run)?;
    let plan = command.plan(call).map_err(|error| unfit(&error))?;
    enough_devices(app, &run.device, plan.gpus)?;
    let preset = app.presets.get(&run.mode).ok_or_else(|| invalid(format!("mode {} is not configured", run.mode)))?;
    let change = run.profiling.clone().unwrap_or_default();
    let profiling = preset.changed(change.clone()).map_err(|error| invalid(format!("profiling: {error}")))?;
    let target =
        CommandCall { command: call.command.clone(), params: plan.params, gpus: Some(plan.gpus).filter(|gpus| *gpus > 0) };
    Ok(RunSpec {
        model: call.command.clone(),
        inputs_manifest: String::new(),
        mode: run.mode,
        repeats: run.repeats,
        warmup: run.warmup,
        max_new_tokens: 0,
        seed: 0,
        dtype: None,
        device: run.device,
        timeout_s: run.timeout_s,
        labels: submit::each_once(run.labels),
        priority: run.priority,
        profiling: Some(windowed(profiling, &change, command)),
        target: Some(Target::Command(target)),
        align_with: None,
        mock: None,
        import: None,
    })
}

fn find<'a>(app: &'a App, name: &str) -> Result<&'a CommandTarget, ApiError> {
    app.targets.get(name).ok_or_else(|| {
        let names = app.targets.keys().map(String::as_str);
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None if app.targets.is_empty() => "this host allows none (the setting server.targets)".to_owned(),
            None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
        };
        ApiError::new(ErrorCode::CommandNotFound, format!("there is no command {name}; {hint}"))
    })
}

fn unfit(error: &CallError) -> ApiError {
    ApiError::new(ErrorCode::ParamsUnfit, error.to_string())
}

/// Refuses what would wait for ever: more GPUs at once than there are.
fn enough_devices(app: &App, asked: &str, gpus: u32) -> Result<(), ApiError> {
    let there = app.devices.iter().filter(|device| device.serves(asked) && !device.is_cpu()).count();
    if gpus < 2 || app.devices.is_empty() || there >= gpus as usize {
        return Ok(());
    }
    let message = format!("target.gpus: {gpus} GPUs at once are asked for, and {there} serve the device {asked}");
    Err(ApiError::new(ErrorCode::DeviceNotFound, message))
}

/// The command's own window of recording, where the request names none.
fn windowed(profiling: Profiling, change: &Change, command: &CommandTarget) -> Profiling {
    let says = |key: &str| change.get("nsys").is_some_and(|nsys| nsys.get(key).is_some());
    let mut profiling = profiling;
    if !says("delay_s") && !says("duration_s") {
        (profiling.nsys.delay_s, profiling.nsys.duration_s) = (command.delay_s, command.duration_s);
    }
    profiling
}
