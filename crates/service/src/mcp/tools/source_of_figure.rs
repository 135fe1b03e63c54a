//! Tool `source_of_figure`: the pass, files, formula and number of samples behind one cell.

use llmprof_core::domain::headline::FigureName;
use llmprof_report::{
    headline::source::{HeadlineSource, why_unstated},
    profile::LLMProfileReport,
};
use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Effect,
    figures::{AggregateFigure, FigureSource, aggregate_figure, formula, source},
    items, known, of,
    table::{rows, table_path},
    text,
};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::{invalid, run_path},
    service_api::{ApiCall, ApiRefusal, ServiceApi, read, unreadable},
};

/// Columns that hold a number of launches, samples, repeats or gaps.
const COUNTS: [&str; 11] = [
    "n",
    "loads",
    "samples",
    "calls",
    "launch_ns.count",
    "ms.n",
    "instances",
    "profiled",
    "steps",
    "gaps",
    "evidence_pct",
];
/// Columns that name the row.
const KEYS: [&str; 18] = [
    "stage",
    "metric",
    "requests",
    "process",
    "context_mean",
    "cause",
    "operator",
    "path",
    "op",
    "kernel",
    "kernel_name",
    "name",
    "scope",
    "class",
    "grid",
    "block",
    "counter",
    "evidence",
];

/// A cell of a table.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// Id of the run
    #[schemars(length(max = 40), example = &"019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")]
    run_id: String,
    /// Table of the figure, or `aggregates` for ttft, tpot, wall and tokens_per_s as find_runs has
    /// them, for means (first_token_ms, tokens_per_s.mean) and medians over repeats
    /// (medians.ttft_ms)
    #[schemars(length(max = 100), example = &"ledger")]
    table: String,
    /// Column of the figure
    #[schemars(length(max = 200), example = &"max_saving_ns")]
    column: String,
    /// Conditions that choose the row, as of `table`; the first row that matches counts
    #[serde(default, rename = "where")]
    #[schemars(length(max = 16), example = ["stage=decode_all", "cause=waves"])]
    filters: Vec<String>,
}

/// A figure with its row.
struct Figure {
    /// The table and column that have it.
    table: String,
    column: String,
    value: Value,
    row: Map<String, Value>,
    matching: u64,
    target: String,
    /// Samples of the run.
    samples: usize,
    /// True if a run with an unprofiled pass has this figure of its traced pass.
    is_traced: bool,
    /// Reason of its absence, or a remark on it.
    note: Option<String>,
}

impl Figure {
    /// Parts of a median's formula that depend on the run.
    fn remarks(&self) -> String {
        let mut remarks = String::new();
        let is_over_samples = self.column.starts_with("medians.");
        let is_median = is_over_samples || self.column.starts_with("command.plain_p50");
        if self.samples > 1 && is_over_samples {
            remarks = format!("; each repeat is all {} samples", self.samples);
        }
        if is_median && self.row.get("ms.n") == Some(&Value::from(2)) {
            remarks.push_str("; of two repeats, their mean");
        }
        remarks
    }
}

pub fn tool() -> Tool {
    of::<Arguments>(
        "source_of_figure",
        "Source of a figure",
        "Proves one figure of a run: its value, the row that it is in, the pass that measured it, \
         the files of that pass with their SHA-256, the formula where it was computed, and the \
         number of samples or launches. Use it before you state a figure as a fact. No formula \
         means that the figure is as the tool recorded it.",
        Effect::Reads,
    )
}

pub async fn call(api: &impl ServiceApi, arguments: Arguments) -> Result<ToolAnswer, ApiRefusal> {
    let run = run_path(&arguments.run_id)?;
    let figure = match arguments.table.as_str() {
        "aggregates" => aggregate(api, &run, &arguments.column).await?,
        _ => cell(api, &arguments).await?,
    };
    let (table, column) = (figure.table.as_str(), figure.column.as_str());
    let listed: Value = read(api, ApiCall::get(format!("{run}/artifacts"))).await?;
    let files = items(&listed["artifacts"]);
    let has_baseline = !figure.is_traced && files.iter().any(|it| it["step"] == "baseline");
    let steps = steps(table, column, &figure.row, has_baseline);
    let files: Vec<Value> = files
        .iter()
        .filter(|it| is_of(it, &steps))
        .map(|it| {
            let mut file = known(it, &["path", "bytes", "sha256", "step"]);
            file["link"] = format!("{run}/artifacts/{}", text(it, "path")).into();
            file
        })
        .collect();
    let mut answer = ToolAnswer::default();
    let cause = figure.row.get("cause").and_then(Value::as_str);
    let formula = formula(table, column, cause).map(|it| format!("{it}{}", figure.remarks()));
    let found: Vec<&str> =
        steps.iter().map(String::as_str).filter(|step| has(&files, step)).collect();
    answer.line(match (figure.value.is_null(), &figure.note) {
        (true, Some(why)) => format!("{table}.{column} is absent: {why}"),
        (true, None) => {
            format!("{table}.{column} is unknown in this row; ledger states how to measure it")
        }
        (false, _) => format!("{table}.{column} = {}", figure.value),
    });
    if let Some(note) = figure.note.as_ref().filter(|_| !figure.value.is_null()) {
        answer.line(note.as_str());
    }
    answer.line(match found.is_empty() {
        true if steps.is_empty() => {
            "no pass measured it: it is of the request or the host, or computed from them"
                .to_owned()
        }
        true => "no file of the pass is listed".to_owned(),
        false => format!("pass: {}", found.join(", ")),
    });
    if let Some(formula) = &formula {
        answer.line(format!("formula: {formula}"));
    }
    if figure.matching > 1 {
        answer.line(format!("first of {} matching rows; narrow it by where", figure.matching));
    }
    let pick = |names: &[&str]| -> Value { known(&Value::from(figure.row.clone()), names) };
    answer.field("run_id", arguments.run_id.as_str());
    answer.field("figure", json!({ "table": table, "column": column, "value": figure.value }));
    answer.field("row", pick(&KEYS));
    answer.field("matching_rows", figure.matching);
    answer.field("pass", found.iter().map(|it| Value::from(*it)).collect::<Vec<_>>());
    answer.field("formula", formula);
    answer.field("counts", pick(&COUNTS));
    answer.list("files", files, "GET /runs/{run_id}/artifacts");
    answer.field("evidence", figure.target);
    Ok(answer)
}

/// The steps that have the figure's data: the steps that its row names, else its table's.
fn steps(table: &str, column: &str, row: &Map<String, Value>, has_baseline: bool) -> Vec<String> {
    let named = row.get("pass").and_then(Value::as_str).unwrap_or_default();
    let source = source(table, column);
    let steps = |source: FigureSource| {
        source.steps(has_baseline).iter().map(|&step| step.to_owned()).collect::<Vec<_>>()
    };
    if source != FigureSource::Derived || named.is_empty() {
        return steps(source);
    }
    let of_pass = |name: &str| match name.trim() {
        "unprofiled" => steps(FigureSource::Timed),
        "PyTorch profiler" => vec!["torch_profiler".to_owned()],
        // Passes of a load.
        "before_window" | "traced" | "after_window" => steps(FigureSource::Traced),
        step => vec![step.to_owned()],
    };
    named.split(',').flat_map(of_pass).collect()
}

/// Returns true for a file with data of one of `steps`. Imported traces have no step.
fn is_of(file: &Value, steps: &[String]) -> bool {
    let (path, step) = (text(file, "path"), step_of(file));
    let is_data = !path.starts_with("logs/") && !path.ends_with("cmd.txt");
    is_data && steps.iter().any(|it| it == step)
}

fn step_of(file: &Value) -> &str {
    let folder = text(file, "path").split('/').next().unwrap_or_default();
    match file["step"].as_str() {
        Some(step) => step,
        None if folder == "pytorch" => "torch_profiler",
        None => folder,
    }
}

/// Returns true if a file of the step is listed.
fn has(files: &[Value], step: &str) -> bool {
    files.iter().any(|file| step_of(file) == step)
}

/// The cell of a table.
async fn cell(api: &impl ServiceApi, arguments: &Arguments) -> Result<Figure, ApiRefusal> {
    let column = &arguments.column;
    let mut call = ApiCall::get(table_path(&arguments.run_id, &arguments.table)?);
    for filter in &arguments.filters {
        call = call.with("where", Some(filter));
    }
    let call = call.with("limit", Some(1));
    let target = call.target();
    let found = rows(api, call).await?;
    let table = &arguments.table;
    if !found.columns.contains(column) {
        let known = found.columns.join(", ");
        return Err(invalid(format!("table {table} has no column {column:.60?}; it has {known}")));
    }
    let Some(row) = found.rows.into_iter().next() else {
        return Err(invalid(format!("no row of table {table} matches; drop a condition of where")));
    };
    let value = row.get(column).cloned().unwrap_or_default();
    let (table, column) = (table.clone(), column.clone());
    let (matching, samples, is_traced, note) = (found.total, 1, false, None);
    Ok(Figure { table, column, value, row, matching, target, samples, is_traced, note })
}

/// A figure over all stages, which the report has outside its tables, or a headline figure.
async fn aggregate(
    api: &impl ServiceApi,
    run: &str,
    requested: &str,
) -> Result<Figure, ApiRefusal> {
    let kind = aggregate_figure(requested)?;
    let target = format!("{run}/report");
    let text = api.call(ApiCall::get(&*target)).await?;
    let all: Value = serde_json::from_slice(&text).map_err(|error| unreadable(&target, &error))?;
    let report =
        LLMProfileReport::deserialize(&all).map_err(|error| unreadable(&target, &error))?;
    let at = |path: &str| path.split('.').fold(&all["aggregates"], |at, name| &at[name]).clone();
    let figure = |table: &str, column: &str, value, row: Map<String, Value>| Figure {
        // Loads, whose row names the pass, and commands are timed without a profiler.
        is_traced: report.only_traced
            && !row.contains_key("pass")
            && !column.starts_with("command."),
        table: table.to_owned(),
        column: column.to_owned(),
        value,
        row,
        matching: 1,
        target: target.clone(),
        samples: report.samples.len(),
        note: None,
    };
    let name = match kind {
        AggregateFigure::Headline(name) => name,
        AggregateFigure::Path(path) => {
            let value = at(requested);
            let mut row = Map::new();
            row.insert("ms.n".into(), at(path.record())["n"].clone());
            let found = figure("aggregates", requested, value, row);
            let headline = path.headline.filter(|_| found.value.is_null());
            let stated = headline.and_then(|it| Some((it, HeadlineSource::of(&report, it)?)));
            let note = stated.map(|(name, source)| place(name, &source));
            return Ok(Figure { note, ..found });
        }
    };
    Ok(match HeadlineSource::of(&report, name) {
        Some(it) => {
            let note = Some(place(name, &it));
            Figure { note, ..figure(it.table, it.column, it.value.into(), it.row) }
        }
        None => {
            let found = figure("aggregates", requested, Value::Null, Map::new());
            Figure { note: why_unstated(&report, name), ..found }
        }
    })
}

/// Remark on the figures of a report without medians.
const MEANS_ONLY: &str = "; a report of an earlier version has means only";

/// The record that has a headline figure.
fn place(name: FigureName, source: &HeadlineSource) -> String {
    let remark = if source.is_mean() { MEANS_ONLY } else { "" };
    format!("{name} of this run is {} of {}{remark}", source.column, source.table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_names_its_pass_is_proved_by_its_files() {
        let row = json!({ "pass": "nsys, ncu" }).as_object().unwrap().clone();
        assert_eq!(steps("ledger", "ns", &row, true), ["nsys", "ncu"]);
        let row = json!({ "pass": "unprofiled, PyTorch profiler" }).as_object().unwrap().clone();
        assert_eq!(steps("ledger", "ns", &row, true), ["baseline", "torch_profiler"]);
        assert_eq!(steps("kernels", "total_ms", &Map::new(), true), ["nsys", "torch_profiler"]);
        assert_eq!(steps("stages", "ms.mean", &Map::new(), true), ["baseline"]);
        assert_eq!(steps("step_times", "p50_ms", &Map::new(), true), ["baseline"]);
        assert!(steps("costs.modules", "prefill_flops", &Map::new(), true).is_empty());
        for (pass, expected) in [
            ("unprofiled", &["baseline"][..]),
            ("traced", &["nsys", "torch_profiler"]),
            ("after_window", &["nsys", "torch_profiler"]),
        ] {
            let row = json!({ "pass": pass }).as_object().unwrap().clone();
            assert_eq!(steps("request_latency", "p99_ms", &row, true), expected, "{pass}");
        }
        let trace = json!({ "path": "pytorch/trace-1.json", "step": null });
        let log = json!({ "path": "logs/nsys.stderr.log", "step": "nsys" });
        let traced = ["nsys".to_owned(), "torch_profiler".to_owned()];
        assert!(is_of(&trace, &traced) && !is_of(&log, &traced));
    }
}
