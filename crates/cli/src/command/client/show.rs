//! `llmprof show`: a run of a service with the first page of its report, one of its tables, or its
//! report.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_core::{domain::json_numbers::Within, layout};
use llmprof_report::{MissingStep, tables::NO_MESSAGE};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    ServerOptions, ServiceClient,
    answers::{ArtifactsAnswer, FindingAnswer, RunAnswer, StepAnswer},
    run_path,
    terminal::{self, Column, TerminalTable, between, duration, escaped, print, print_json},
};

/// Rows of a table on a terminal.
const ROWS: u32 = 40;

/// Show a run of a service: its first page, steps and findings, one of its tables, or its report
///
/// Not on a terminal, the columns of a table are separated by tabs. Exit code 0, or 3: bad input,
/// or the service refuses or does not answer.
#[derive(Debug, Args)]
pub struct ShowOptions {
    /// Id of the run
    #[arg(value_name = "ID")]
    run: String,
    /// Show a table, as in kernels; `--table list` names all
    #[arg(long, value_name = "NAME", conflicts_with = "report")]
    table: Option<String>,
    /// Only rows that match: COLUMN=VALUE, COLUMN!=VALUE, COLUMN~TEXT (contains), or
    /// COLUMN=MIN..MAX of numbers; several may be given
    #[arg(long = "where", value_name = "FILTER", requires = "table")]
    filters: Vec<String>,
    /// Only rows with this text in any cell
    #[arg(long, value_name = "TEXT", requires = "table")]
    text: Option<String>,
    /// A column to sort by; descending after a `-`
    #[arg(long, value_name = "COLUMN", requires = "table", allow_hyphen_values = true)]
    sort: Option<String>,
    /// Maximum number of rows; 40 on a terminal, else all
    #[arg(long, requires = "table", value_parser = Within::<1, 1_000_000>::text::<u32>)]
    limit: Option<u32>,
    /// Columns to show, separated by commas
    #[arg(long, value_delimiter = ',', requires = "table")]
    columns: Vec<String>,
    /// Print the report as Markdown
    #[arg(long)]
    report: bool,
    /// Print the answer as JSON: the run, the table or the report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServerOptions,
}

#[derive(Deserialize)]
struct TableList {
    tables: Vec<TableHead>,
}

#[derive(Deserialize)]
struct TableHead {
    name: String,
    columns: Vec<String>,
    total: u64,
}

#[derive(Deserialize)]
struct TableRows {
    columns: Vec<String>,
    total: u64,
    rows: Vec<Map<String, Value>>,
}

pub fn run(options: &ShowOptions) -> ExitCode {
    super::run(&options.service, async |client| {
        match options.table.as_deref() {
            Some("list") => tables(&client, options).await?,
            Some(name) => table(&client, name, options).await?,
            None if options.report => report(&client, options).await?,
            None => show(&client, options).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn show(client: &ServiceClient, options: &ShowOptions) -> Result<()> {
    let path = run_path(&options.run)?;
    let answer = client.get(&path).await?;
    if options.json {
        return Ok(print_json(&answer)?);
    }
    let run: RunAnswer = client.understood(answer, &path).await?;
    let mut text = head(client, &run);
    text += &format!("\n{}\n", first_page(client, &path, &run).await?);
    let mut steps = TerminalTable::new(vec![
        Column::name("step"),
        Column::name("state"),
        Column::number("took"),
        Column::text("message"),
    ]);
    for step in &run.steps {
        let took = step.ended_at.as_deref().and_then(|end| between(&step.started_at, end));
        steps.row(vec![
            step.step.clone(),
            step.state.clone(),
            took.map(duration).unwrap_or_default(),
            step.message.clone().unwrap_or_default(),
        ]);
    }
    if !run.steps.is_empty() {
        text += &format!("\n{}", steps.text(terminal::width()));
    }
    for finding in &run.findings {
        text += &finding_text(finding);
    }
    Ok(print(&text)?)
}

/// A finding in the form of the report: severity, id and message, then the advice.
fn finding_text(it: &FindingAnswer) -> String {
    let (severity, id) = (escaped(&it.severity), escaped(&it.id));
    let mut text = format!("\n{severity} {id}: {}\n", escaped(&it.message));
    if let Some(advice) = &it.advice {
        text += &format!("  {}\n", escaped(advice));
    }
    text
}

/// The first page of the run's report; without a report, the run's state and the reason.
async fn first_page(client: &ServiceClient, path: &str, run: &RunAnswer) -> Result<String> {
    let state = &run.state;
    if !run.has_ended() {
        let queued = run.queue_position.map(|at| format!(", at position {at} of the queue"));
        return Ok(escaped(&format!(
            "No result yet: the run is {state}{}",
            queued.unwrap_or_default()
        )));
    }
    let files: ArtifactsAnswer = client.read(&format!("{path}/artifacts")).await?;
    let lost = |it: &&StepAnswer| matches!(&*it.state, "skipped" | "failed" | "cancelled");
    if files.artifacts.iter().all(|file| file.path != layout::REPORT_JSON) {
        let step = run.steps.iter().rfind(lost).and_then(|step| step.message.as_deref());
        let reason = run.message.as_deref().or(step).unwrap_or("see its logs by `llmprof fetch`");
        return Ok(escaped(&format!("No result: the run ended {state}: {reason}")));
    }
    let report = format!("{path}/artifacts/{}", layout::REPORT_JSON);
    let request = client.http.get(client.url(&report));
    let bytes = client.send(request, &report).await?.bytes().await?;
    let missing: Vec<MissingStep> = run.steps.iter().filter(lost).map(missing_step).collect();
    let page = llmprof_report::stored_first_page(&bytes, &missing)
        .with_context(|| format!("cannot read {report}; use the same version of both"))?;
    if page.is_empty() {
        return Ok("The report has no first page: print it by --report".into());
    }
    let captured = llmprof_report::stored_capture_time(&bytes).unwrap_or_default();
    let captured = captured.iter().map(|at| format!("Captured {}.\n\n", escaped(at)));
    let tables = format!("\n\nTables: `llmprof show {} --table NAME`.", escaped(&run.run_id));
    Ok(captured.collect::<String>() + page.trim_end() + &tables)
}

fn missing_step(it: &StepAnswer) -> MissingStep<'_> {
    let message = it.message.as_deref().unwrap_or(NO_MESSAGE);
    MissingStep { step: &it.step, state: &it.state, message }
}

fn head(client: &ServiceClient, run: &RunAnswer) -> String {
    let mut lines = vec![
        ("run", run.run_id.clone()),
        ("name", run.name.clone()),
        ("state", run.state.clone()),
        ("queued", run.queued_at.clone()),
    ];
    let took = run.started_at.as_deref().zip(run.ended_at.as_deref());
    let took = took.and_then(|(start, end)| between(start, end)).map(duration);
    let pending = run.expected.as_ref().map(|it| it.pending.join(", "));
    lines.extend(run.queue_position.map(|at| ("position", at.to_string())));
    lines.extend(took.map(|took| ("took", took)));
    lines.extend(pending.filter(|it| !it.is_empty()).map(|steps| ("pending", steps)));
    lines.extend(run.owner.clone().map(|owner| ("owner", owner)));
    lines.extend(run.message.clone().map(|message| ("message", message)));
    lines.push(("page", client.url(&format!("/ui/runs/{}", run.run_id))));
    lines.iter().map(|(name, value)| format!("{name:<9} {}\n", escaped(value))).collect()
}

async fn tables(client: &ServiceClient, options: &ShowOptions) -> Result<()> {
    let path = format!("{}/tables", run_path(&options.run)?);
    let answer = client.get(&path).await?;
    if options.json {
        return Ok(print_json(&answer)?);
    }
    let list: TableList = client.understood(answer, &path).await?;
    let columns = vec![Column::name("table"), Column::number("rows"), Column::text("columns")];
    let mut table = TerminalTable::new(columns);
    for head in list.tables {
        table.row(vec![head.name, head.total.to_string(), head.columns.join(", ")]);
    }
    Ok(print(&table.text(terminal::width()))?)
}

async fn table(client: &ServiceClient, name: &str, options: &ShowOptions) -> Result<()> {
    let tables = format!("{}/tables/", run_path(&options.run)?);
    let mut url = reqwest::Url::parse(&client.url(&tables))?;
    url.path_segments_mut().ok().context("the URL has no path")?.pop_if_empty().push(name);
    let width = terminal::width();
    let mut query: Vec<(&str, String)> =
        options.filters.iter().map(|filter| ("where", filter.clone())).collect();
    query.extend(options.text.clone().map(|text| ("q", text)));
    query.extend(options.sort.clone().map(|sort| ("sort", sort)));
    let limit = options.limit.or(width.filter(|_| !options.json).map(|_| ROWS));
    query.extend(limit.map(|limit| ("limit", limit.to_string())));
    let path = format!("{tables}{name}");
    let request = client.http.get(url).query(&query).header("accept", "application/json");
    let answer = client.json(request, &path).await?;
    if options.json {
        return Ok(print_json(&answer)?);
    }
    let rows: TableRows = client.understood(answer, &path).await?;
    if let Some(unknown) = options.columns.iter().find(|it| !rows.columns.contains(it)) {
        anyhow::bail!("table {name} has no column {unknown}; it has {}", rows.columns.join(", "));
    }
    let shown = if options.columns.is_empty() { &rows.columns } else { &options.columns };
    print(&table_of(&rows, shown).text(width))?;
    if rows.total > rows.rows.len() as u64 {
        terminal::print_notice(format_args!(
            "{} of {} rows; more by --limit",
            rows.rows.len(),
            rows.total
        ));
    }
    Ok(())
}

fn table_of(rows: &TableRows, shown: &[String]) -> TerminalTable {
    let column = |name: &String| {
        let is_number = rows.rows.iter().any(|row| row.get(name).is_some_and(Value::is_number));
        if is_number { Column::number(name) } else { Column::text(name) }
    };
    let mut table = TerminalTable::new(shown.iter().map(column).collect());
    for row in &rows.rows {
        let cell = |name: &String| match row.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        table.row(shown.iter().map(cell).collect());
    }
    table
}

async fn report(client: &ServiceClient, options: &ShowOptions) -> Result<()> {
    let path = format!("{}/report", run_path(&options.run)?);
    let kind = if options.json { "application/json" } else { "text/markdown" };
    let request = client.http.get(client.url(&path)).header("accept", kind);
    let text = client.send(request, &path).await?.text().await?;
    if options.json {
        return Ok(print_json(&text.trim_end())?);
    }
    let lines: Vec<String> = text.lines().map(escaped).collect();
    Ok(print(&format!("{}\n", lines.join("\n")))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_shown_with_its_severity_and_id() {
        let finding = FindingAnswer {
            id: "overhead_high".into(),
            severity: "warning".into(),
            message: "Tracing lengthened decode by 46 %.".into(),
            advice: Some("Trace less.".into()),
        };
        assert_eq!(
            finding_text(&finding),
            "\nwarning overhead_high: Tracing lengthened decode by 46 %.\n  Trace less.\n"
        );
    }
}
