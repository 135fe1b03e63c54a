//! Tool `cancel_run`: ends a run that has not ended.

use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::run_path,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// The run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    run_id: String,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "cancel_run",
        "Cancel a run",
        "Cancels a queued or running run. Its files stay, without a report. A token may cancel its \
         own runs, an admin's all.",
        Effect::Ends,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let path = format!("{}/cancel", run_path(&arguments.run_id)?);
    let run: Value = read(api, ApiCall::post(path, json!({}))).await?;
    let (id, state) = (text(&run, "run_id"), text(&run, "state"));
    let mut answer = ToolAnswer::default();
    let stopping = if state == "cancelled" { "" } else { "; it is stopping" };
    answer.line(format!("run {id} is {state}{stopping}"));
    answer.field("run_id", id);
    answer.field("state", state);
    Ok(answer)
}
