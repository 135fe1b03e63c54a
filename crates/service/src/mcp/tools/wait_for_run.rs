//! Tool `wait_for_run`: the progress of a run, after a bounded wait for its end.

use std::time::Duration;

use llmprof_core::domain::json_numbers::Within;
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Effect, items, known, links, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::run_path,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// Wait of a call that states none, seconds.
const WAIT_S: u32 = 25;
/// Longest wait of a call, seconds: clients give up on an answer after a minute.
const MAX_WAIT_S: i64 = 50;
/// Shortest and longest pause between two questions about the state.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// The run and the longest wait.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    run_id: String,
    /// Seconds to wait for the end of the run at most; 25 when absent, 0 to return at once
    #[serde(default, deserialize_with = "Within::<0, MAX_WAIT_S>::optional")]
    #[schemars(range(min = 0, max = MAX_WAIT_S))]
    timeout_s: Option<u32>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "wait_for_run",
        "Wait for a run",
        "Waits up to timeout_s for a run to end, and returns its state with finished, running and \
         pending steps. If it has not ended, call it again; a run takes minutes. States: queued, \
         running, succeeded, partial (something could not be collected; the rest is there), \
         failed, cancelled. After succeeded or partial: ledger.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let path = run_path(&arguments.run_id)?;
    let wait = arguments.timeout_s.unwrap_or(WAIT_S);
    let deadline = Instant::now() + Duration::from_secs(wait.into());
    let mut pause = PAUSES[0];
    loop {
        let run: Value = read(api, ApiCall::get(&*path)).await?;
        let has_ended = !run["ended_at"].is_null();
        let is_late = Instant::now() >= deadline;
        if has_ended || is_late {
            return Ok(progress(&run, has_ended));
        }
        // At the deadline the state is read once more.
        _ = timeout_at(deadline, sleep(pause)).await;
        pause = (pause * 2).min(PAUSES[1]);
    }
}

/// The answer about a run.
fn progress(run: &Value, has_ended: bool) -> ToolAnswer {
    let (id, state) = (text(run, "run_id"), text(run, "state"));
    let steps: Vec<Value> = items(&run["steps"])
        .iter()
        .map(|it| known(it, &["step", "state", "started_at", "ended_at", "message"]))
        .collect();
    let pending = run["expected"]["pending"].clone();
    let mut answer = ToolAnswer::default();
    answer.line(format!("run {id} ({}) is {state}", text(run, "name")));
    if let Some(message) = run["message"].as_str() {
        answer.line(message);
    }
    let running = steps.iter().find(|it| it["state"] == "running").map(|it| text(it, "step"));
    answer.lines_of_progress(running, &pending);
    answer.line(match (has_ended, state) {
        (false, _) => format!("next: wait_for_run with run_id {id} again"),
        (true, "succeeded" | "partial") => format!("next: ledger with run_id {id}"),
        (true, _) => format!("no report; its logs: /runs/{id}/artifacts"),
    });
    for name in ["run_id", "name", "state", "queue_position", "queued_at", "started_at", "ended_at"]
    {
        answer.field(name, run[name].clone());
    }
    for name in ["message", "failed_step"] {
        answer.field(name, run[name].clone());
    }
    answer.field("has_ended", has_ended);
    answer.list("steps", steps, "GET /runs/{run_id}");
    answer.list("pending", items(&pending).to_vec(), "GET /runs/{run_id}");
    let duration = &run["expected"]["duration"];
    answer.field("expected_s", duration["seconds"].clone());
    answer.field("no_estimate_because", duration["unknown_because"].clone());
    answer.field("links", links(id));
    answer
}

impl ToolAnswer {
    /// Lines on the running step and those after it.
    fn lines_of_progress(&mut self, running: Option<&str>, pending: &Value) {
        let pending: Vec<&str> = items(pending).iter().filter_map(Value::as_str).collect();
        if let Some(step) = running {
            self.line(format!("running step: {step}"));
        }
        if !pending.is_empty() {
            self.line(format!("pending steps: {}", pending.join(", ")));
        }
    }
}
