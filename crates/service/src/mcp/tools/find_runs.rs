//! Tool `find_runs`: runs by their properties, with headline figures.

use llmprof_core::domain::json_numbers::Within;
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::Value;

use super::{Effect, FIGURES, items, known, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// Runs that are named in the text.
const NAMED: usize = 8;

/// A filter. All given conditions hold.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// State: queued, running, succeeded, partial, failed or cancelled
    #[schemars(length(max = 20), example = &"succeeded")]
    state: Option<String>,
    /// Kind of what ran: model, part, command or import
    #[schemars(length(max = 20))]
    kind: Option<String>,
    /// Name of the model, of the command or of the capture
    #[schemars(length(max = 200))]
    name: Option<String>,
    /// A label
    #[schemars(length(max = 64), example = &"nightly")]
    label: Option<String>,
    #[schemars(length(max = 64))]
    mode: Option<String>,
    /// Product name of the device
    #[schemars(length(max = 200))]
    device: Option<String>,
    /// Commit of the profiled program
    #[schemars(length(max = 64))]
    revision: Option<String>,
    /// Id of a series of comparable runs
    #[schemars(length(max = 32))]
    series: Option<String>,
    /// Submitted at this time or later, RFC 3339
    #[schemars(length(max = 40), example = &"2026-11-01T00:00:00Z")]
    since: Option<String>,
    /// Submitted before this time
    #[schemars(length(max = 40))]
    until: Option<String>,
    /// Best first by ttft, tpot, wall or tokens_per_s; newest first when absent
    #[schemars(length(max = 20))]
    sort: Option<String>,
    /// Runs to return; 20 when absent
    #[serde(default, deserialize_with = "Within::<1, 50>::optional")]
    #[schemars(range(min = 1, max = 50))]
    limit: Option<u32>,
    /// `next_cursor` of the answer before
    #[schemars(length(max = 40))]
    cursor: Option<String>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "find_runs",
        "Find runs",
        "Lists runs, newest first, with their headline figures in ms (medians; ttft: time to \
         first token, tpot: time per output token, wall: whole repeat), and change_pct against \
         the previous comparable run. A figure that is absent was not measured; source_of_figure \
         has the source of ttft, tpot, wall and tokens_per_s (table aggregates). Use it to find \
         the run_ids for ledger and compare_runs.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let it = arguments;
    let limit = it.limit.unwrap_or(20);
    let call = ApiCall::get("/runs")
        .with("state", it.state)
        .with("kind", it.kind)
        .with("name", it.name)
        .with("label", it.label)
        .with("mode", it.mode)
        .with("device", it.device)
        .with("revision", it.revision)
        .with("series", it.series)
        .with("since", it.since)
        .with("until", it.until)
        .with("sort", it.sort)
        .with("cursor", it.cursor)
        .with("limit", Some(limit));
    let query = call.target();
    let page: Value = read(api, call).await?;
    let runs = items(&page["runs"]);
    let mut answer = ToolAnswer::default();
    answer.line(match (runs.len(), page["next_cursor"].is_null()) {
        (0, _) => "no run matches; drop a condition".to_owned(),
        (count, true) => format!("{count} runs"),
        (count, false) => format!("{count} runs; more by cursor"),
    });
    for run in runs.iter().take(NAMED) {
        let (id, state, name) = (text(run, "run_id"), text(run, "state"), text(run, "name"));
        answer.line(format!("{id} {state} {name} {}", text(run, "queued_at")));
    }
    let rows = runs.iter().map(|run| {
        let mut row = known(
            run,
            &[
                "run_id",
                "name",
                "kind",
                "state",
                "mode",
                "device",
                "labels",
                "revision",
                "series",
                "owner",
                "queued_at",
                "message",
            ],
        );
        for name in ["headline", "change_pct"] {
            let figures = known(&run[name], &FIGURES);
            if figures != serde_json::json!({}) {
                row[name] = figures;
            }
        }
        row
    });
    answer.list("runs", rows.collect(), "a smaller limit with cursor, or more conditions");
    answer.field("next_cursor", page["next_cursor"].clone());
    answer.field("evidence", query);
    Ok(answer)
}
