//! Tool `compare_runs`: what changed from one run to another, and why.

use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Effect, items, known, of, text};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::{invalid, run_path},
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// Changes of kernels and operators in the answer, largest first.
const CHANGES: usize = 15;
/// Changes below this share of the largest one are counted, not listed.
const SMALL: f64 = 0.01;

/// The two runs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run before the change
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    a: String,
    /// Id of the run after it
    #[schemars(length(max = 40))]
    b: String,
    /// Ids of earlier runs like `a`, from which the noise between runs is estimated; by default the
    /// latest of its series
    #[serde(default)]
    #[schemars(length(max = 20))]
    history: Vec<String>,
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "compare_runs",
        "Compare two runs",
        "Compares run a (before) with run b (after): whether they are comparable, the change of \
         each stage, and the change of each cause with its kernel and operator, largest first: the \
         first entry of `causes` names the culprit of a regression. A verdict is slower, faster, \
         within noise or unknown; unknown means too few repeats, never no change. Small \
         changes are judged by other runs of the build of a.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let (a, b) = (run_path(&arguments.a)?, run_path(&arguments.b)?);
    let history = arguments.history.iter().map(|id| run_path(id)).collect::<Result<Vec<_>, _>>()?;
    if history.len() > 20 {
        return Err(invalid("history has at most 20 runs; give the newest"));
    }
    let history: Vec<&str> = history.iter().map(|path| id_of(path)).collect();
    let call = ApiCall::get(format!("{a}/diff/{}", id_of(&b)))
        .with("format", Some("json"))
        .with("history", Some(history.join(",")).filter(|it| !it.is_empty()));
    let target = call.target();
    let found: Value = read(api, call).await?;
    let diff = &found["diff"];
    let mut answer = ToolAnswer::default();
    let is_comparable = diff["comparable"].as_bool();
    if is_comparable == Some(false) {
        answer.line("not comparable: see differences; verdicts are withheld");
    }
    for stage in items(&found["ledger"]) {
        answer.line(text(stage, "summary"));
    }
    answer.field("a", arguments.a.as_str());
    answer.field("b", arguments.b.as_str());
    answer.field("comparable", is_comparable);
    let differs = |it: &&Value| it["same"] == false || it["forbids"] == true;
    let differences = items(&diff["checks"]).iter().filter(differs).cloned().collect();
    answer.list("differences", differences, "GET /runs/{a}/diff/{b}");
    let stages: Vec<Value> = items(&diff["stages"]).iter().map(change).collect();
    answer.list("stages", stages, "GET /runs/{a}/diff/{b}");
    largest(&mut answer, "causes", causes(&found["ledger"]), "change_ns");
    for name in ["operators", "kernels"] {
        let rows: Vec<Value> = items(&diff[name]).iter().map(change).collect();
        largest(&mut answer, name, rows, "change_ms");
    }
    answer.line(format!(
        "next: ledger or table with run_id {} to see the cause in its run",
        arguments.b
    ));
    answer.field("history_left_out", found["history_left_out"].clone());
    answer.field("rule", diff["rule"].clone());
    let page = format!("/ui/diff?a={}&b={}", arguments.a, arguments.b);
    answer.field("evidence", json!({ "diff": target, "page": page }));
    Ok(answer)
}

/// The id at the end of the path of a run.
fn id_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// A change of a stage, operator or kernel with its test.
fn change(it: &Value) -> Value {
    let flat = json!({
        "stage": it["stage"], "name": it["name"], "a_ms": it["a"]["ms"], "b_ms": it["b"]["ms"],
        "a_calls": it["a"]["calls"], "b_calls": it["b"]["calls"], "change_ms": it["change_ms"],
        "change_pct": it["change_pct"], "verdict": it["verdict"], "reason": it["reason"],
    });
    known(
        &flat,
        &[
            "stage",
            "name",
            "a_ms",
            "b_ms",
            "a_calls",
            "b_calls",
            "change_ms",
            "change_pct",
            "verdict",
            "reason",
        ],
    )
}

/// The changes of causes of all stages.
fn causes(ledger: &Value) -> Vec<Value> {
    let names = ["stage", "cause", "operator", "kernel", "a_ns", "b_ns", "change_ns"];
    let of_stage = |stage: &Value| -> Vec<Value> {
        let with_stage = |it: &Value| {
            let mut row = it.clone();
            row["stage"] = stage["stage"].clone();
            known(&row, &names)
        };
        items(&stage["changes"]).iter().map(with_stage).collect()
    };
    items(ledger).iter().flat_map(of_stage).collect()
}

/// Lists the largest changes; smaller ones are counted.
fn largest(answer: &mut ToolAnswer, name: &'static str, mut rows: Vec<Value>, by: &str) {
    let size = |row: &Value| row[by].as_f64().unwrap_or_default().abs();
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let all = rows.len();
    let least = rows.first().map(size).unwrap_or_default() * SMALL;
    rows.retain(|row| size(row) > least);
    rows.truncate(CHANGES);
    let left_out = all - rows.len();
    answer.list(name, rows, "GET /runs/{a}/diff/{b}, or table of each run");
    answer.leave_out(name, left_out as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_change_is_first_and_small_ones_are_counted() {
        let ledger = json!([
            { "stage": "prefill", "changes": [
                { "cause": "waves", "operator": null, "kernel": "a", "change_ns": 9 }] },
            { "stage": "decode_all", "changes": [
                { "cause": "gap_host", "kernel": "b", "change_ns": -2000, "a_ns": 1 },
                { "cause": "waves", "operator": "attn", "kernel": "c", "change_ns": 4000 }] },
        ]);
        let mut answer = ToolAnswer::default();
        largest(&mut answer, "causes", causes(&ledger), "change_ns");
        let content = answer.result(true).structured_content.unwrap();
        assert_eq!(
            content["causes"][0],
            json!({ "stage": "decode_all", "cause": "waves", "operator": "attn", "kernel": "c",
                "change_ns": 4000 })
        );
        assert_eq!(content["causes"].as_array().unwrap().len(), 2);
        assert_eq!(content["left_out"]["causes"]["count"], 1);
    }
}
