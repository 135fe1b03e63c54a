//! Tool `source_of_figure`: the pass, files, formula and number of samples behind one cell.

use rmcp::{
    model::Tool,
    schemars::{self, JsonSchema},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Effect,
    figures::{FigureSource, aggregate_path, formula, source},
    items, known, of,
    table::{rows, table_path},
    text,
};
use crate::mcp::{
    answer::ToolAnswer,
    arguments::{invalid, run_path},
    service_api::{ApiCall, ApiRefusal, ServiceApi, read},
};

/// Columns that hold a number of launches, samples, repeats or gaps.
const COUNTS: [&str; 9] = [
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
const KEYS: [&str; 14] = [
    "stage",
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
    /// Table of the figure, or `aggregates` for first_token_ms, per_token_ms, wall_ms, tokens_per_s
    /// and the medians over repeats, as medians.ttft_ms
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
    value: Value,
    row: Map<String, Value>,
    matching: u64,
    target: String,
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
    let (table, column) = (arguments.table.as_str(), arguments.column.as_str());
    let (figure, column) = match table {
        "aggregates" => {
            let path = aggregate_path(column)?;
            (aggregate(api, &run, path).await?, path)
        }
        _ => (cell(api, &arguments).await?, column),
    };
    let listed: Value = read(api, ApiCall::get(format!("{run}/artifacts"))).await?;
    let files = items(&listed["artifacts"]);
    let has_baseline = files.iter().any(|it| it["step"] == "baseline");
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
    let formula = formula(table, column, cause);
    let found: Vec<&str> =
        steps.iter().map(String::as_str).filter(|step| has(&files, step)).collect();
    answer.line(match figure.value.is_null() {
        true => format!("{table}.{column} is unknown in this row; ledger states how to measure it"),
        false => format!("{table}.{column} = {}", figure.value),
    });
    answer.line(match found.is_empty() {
        true if steps.is_empty() => {
            "no pass measured it: it is of the request or the host, or computed from them"
                .to_owned()
        }
        true => "no file of the pass is listed".to_owned(),
        false => format!("pass: {}", found.join(", ")),
    });
    if let Some(formula) = formula {
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
    Ok(Figure { value, row, matching: found.total, target })
}

/// A figure over all stages, which the report has outside its tables.
async fn aggregate(api: &impl ServiceApi, run: &str, path: &str) -> Result<Figure, ApiRefusal> {
    /// The part of a report with such figures.
    #[derive(Deserialize)]
    struct Report {
        aggregates: Value,
    }
    let target = format!("{run}/report");
    let report: Report = read(api, ApiCall::get(&*target)).await?;
    let figure = path.split('.').fold(&report.aggregates, |at, name| &at[name]).clone();
    let mut row = Map::new();
    row.insert("ms.n".into(), figure["n"].clone());
    Ok(Figure { value: figure, row, matching: 1, target })
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
