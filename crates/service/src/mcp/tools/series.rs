//! Tool `series`: comparable runs over time, with noise and change points.

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
    arguments::invalid,
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// A series, or a page of the list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of a series; the list of series when absent
    #[schemars(length(max = 32), example = &"5e884898da28047151d0e56f8dc62927")]
    series_id: Option<String>,
    /// Points or series to return, newest first; 20 when absent
    #[serde(default, deserialize_with = "Within::<1, 100>::optional")]
    #[schemars(range(min = 1, max = 100))]
    limit: Option<u32>,
    /// `next_cursor` of the answer before
    #[schemars(length(max = 40))]
    cursor: Option<String>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "series",
        "Figures over time",
        "A series is all runs that can be compared: same model, inputs, device and settings. With \
         series_id: its points (newest first), the noise of each figure between runs of one build, \
         and change points: the first run after a figure changed, with the means before and after. \
         Compare that run with the one before it by compare_runs. Without series_id: the list.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let limit = arguments.limit.unwrap_or(20);
    let path = match &arguments.series_id {
        None => "/series".to_owned(),
        Some(id) if id.len() == 32 && id.bytes().all(|it| it.is_ascii_hexdigit()) => {
            format!("/series/{id}")
        }
        Some(id) => {
            let message = format!("series {id:.40?} is not an id; series without it lists all");
            return Err(invalid(message));
        }
    };
    let call = ApiCall::get(path).with("cursor", arguments.cursor).with("limit", Some(limit));
    let target = call.target();
    let found: Value = read(api, call).await?;
    let mut answer = ToolAnswer::default();
    match &arguments.series_id {
        None => listed(&mut answer, &found),
        Some(_) => one(&mut answer, &found),
    }
    answer.field("next_cursor", found["next_cursor"].clone());
    answer.field("evidence", target);
    Ok(answer)
}

fn listed(answer: &mut ToolAnswer, found: &Value) {
    let all = items(&found["series"]);
    answer.line(format!("{} series", all.len()));
    let row = |it: &Value| known(it, &["id", "name", "device", "runs", "changes", "last_run"]);
    answer.list("series", all.iter().map(row).collect(), "cursor");
}

fn one(answer: &mut ToolAnswer, found: &Value) {
    let changes = items(&found["change_points"]);
    answer.line(format!(
        "series of {}: {} runs, {} change points",
        text(&found["series"], "name"),
        found["series"]["runs"],
        changes.len()
    ));
    for change in changes.iter().take(5) {
        answer.line(format!(
            "{} changed by {:+.1} % at run {}",
            text(change, "figure"),
            change["change_pct"].as_f64().unwrap_or_default(),
            text(change, "run_id")
        ));
    }
    answer.field("series", known(&found["series"], &["id", "name", "device", "identity", "runs"]));
    answer.field("noise_pct", known(&found["noise_pct"], &FIGURES));
    answer.list("change_points", changes.to_vec(), "GET /series/{series_id}");
    let point = |it: &Value| {
        let mut row = known(it, &["run_id", "queued_at", "revision", "mode", "build", "driver"]);
        row["headline"] = known(&it["headline"], &FIGURES);
        row
    };
    answer.list("points", items(&found["points"]).iter().map(point).collect(), "cursor");
}
