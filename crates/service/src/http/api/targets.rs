//! `GET /targets`: the commands that a run may name in place of a model.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use llmprof_core::domain::command::{CommandKind, CommandTarget, Param};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    config,
    http::{error::responses::GuardedErrors, state::App},
};

/// The commands that this host allows, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TargetList {
    pub commands: Vec<CommandView>,
}

/// One command, without the host's paths and variables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandView {
    #[schema(example = "torch-generate")]
    pub command: String,
    pub description: String,
    pub kind: CommandKind,
    /// Its parameters by name.
    pub params: BTreeMap<String, Param>,
    /// GPUs by default; 0: it needs none.
    pub gpus: u32,
    /// Maximum number of GPUs of a request.
    pub gpus_max: u32,
    /// Ranges that are stages.
    #[schema(example = json!(["prefill=ctx@vllm"]))]
    pub stages: Vec<String>,
    /// Only kernels in ranges of these names count; all when empty.
    pub include_ranges: Vec<String>,
    /// Kernels in ranges of these names do not count.
    pub exclude_ranges: Vec<String>,
    /// Seconds from the start until nsys records, by default.
    pub delay_s: u32,
    /// Seconds that nsys records, by default; 0: to the end.
    pub duration_s: u32,
    /// True if a client is run against it and timed.
    pub has_client: bool,
}

impl CommandView {
    pub fn of(name: &str, command: &CommandTarget) -> Self {
        Self {
            command: name.to_owned(),
            description: command.description.clone(),
            kind: command.kind,
            params: command.params.clone(),
            gpus: command.gpus,
            gpus_max: command.max_gpus(),
            stages: command.stages.clone(),
            include_ranges: command.include_ranges.clone(),
            exclude_ranges: command.exclude_ranges.clone(),
            delay_s: command.delay_s,
            duration_s: command.duration_s,
            has_client: command.client.is_some() || command.load.is_some(),
        }
    }
}

impl TargetList {
    fn example() -> Self {
        let commands = config::example_targets().unwrap_or_default();
        let view = |(name, command): (&String, &CommandTarget)| CommandView::of(name, command);
        Self { commands: commands.iter().take(1).map(view).collect() }
    }
}

/// List the commands that a run may name as its target, with their parameters
///
/// The operator of the host defines them; a request sets their parameters.
#[utoipa::path(get, path = "/targets", tag = "models", operation_id = "list_targets",
    responses(
        (status = 200, description = "The commands; none where the operator allows none",
            body = TargetList, example = json!(TargetList::example())),
        GuardedErrors))]
pub async fn targets(State(app): State<App>) -> Json<TargetList> {
    let view = |(name, command): (&String, &CommandTarget)| CommandView::of(name, command);
    Json(TargetList { commands: app.targets.iter().map(view).collect() })
}
