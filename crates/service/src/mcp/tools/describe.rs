//! Tool `describe`: what the service can profile, and on which devices.

use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Effect, items, known, of};
use crate::mcp::{
    answer::ToolAnswer,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {}

pub fn tool() -> Tool {
    of::<Arguments>(
        "describe",
        "What can be profiled here",
        "Lists what this llmprof service can profile: its models, the commands that its operator \
         allows with their parameters, devices, and modes (how deep a profile is). Call it before \
         submit_run. Captures that were recorded elsewhere are imported with `llmprof upload`, not \
         by a tool; find_runs finds them.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, _: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let get = async |path: &str| read::<Value>(api, ApiCall::get(path)).await;
    let (version, models) = (get("/version").await?, get("/models").await?);
    let (targets, devices) = (get("/targets").await?, get("/devices").await?);
    let profiling = get("/profiling").await?;
    let pick = |list: &Value, names: &[&str]| -> Vec<Value> {
        items(list).iter().map(|it| known(it, names)).collect()
    };
    let names = |list: &[Value], name: &str| -> String {
        let names: Vec<&str> = list.iter().filter_map(|it| it[name].as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let models = pick(&models["models"], &["name", "description", "dtype", "weights"]);
    let commands =
        pick(&targets["commands"], &["command", "description", "kind", "params", "gpus", "stages"]);
    let devices = pick(&devices["devices"], &["name", "product", "uuid", "memory_bytes", "run_id"]);
    let modes = pick(&profiling["presets"], &["mode", "description"]);
    let mut answer = ToolAnswer::default();
    answer.line(format!("models: {}", names(&models, "name")));
    answer.line(format!("commands: {}", names(&commands, "command")));
    answer.line(format!("devices: {}", names(&devices, "name")));
    answer.line(format!("modes: {}", names(&modes, "mode")));
    answer.line("next: submit_run with a model or a command");
    answer.field("service", known(&version, &["version", "git_commit"]));
    answer.list("models", models, "GET /models");
    answer.list("commands", commands, "GET /targets");
    answer.list("devices", devices, "GET /devices");
    answer.list("modes", modes, "GET /profiling");
    Ok(answer)
}
