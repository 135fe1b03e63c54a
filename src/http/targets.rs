//! `GET /targets`: the commands that a run may name in place of a model, and what a submission of one has to hold to.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
    submissions::SubmitCommand,
    submit,
};
use crate::{
    config::nearest,
    profiling::{Change, Profiling},
    run::{
        RunSpec, Subject,
        command::{CallError, CommandCall, CommandKind, CommandTarget, Param},
        subject::CommandSubject,
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

/// Checks a submission of a command, and fills in what was left open.
pub(super) fn check(app: &App, run: SubmitCommand) -> Result<RunSpec, ApiError> {
    let call = &run.target;
    call.check_form().map_err(|message| ApiError::new(ErrorCode::InvalidRequest, message))?;
    let (mut passes, common) = submit::common(app, &run.passes())?;
    let command = find(app, &call.command)?;
    let plan = command.plan(call).map_err(|error| unfit(&error))?;
    enough_devices(app, &run.device, plan.gpus)?;
    let gpus = Some(plan.gpus).filter(|gpus| *gpus > 0);
    let call = CommandCall { command: call.command.clone(), params: plan.params, gpus };
    let change = run.profiling.unwrap_or_default();
    passes.profiling = passes.profiling.map(|profiling| windowed(profiling, &change, command));
    Ok(RunSpec { subject: Subject::Command(CommandSubject { call, passes }), common })
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
