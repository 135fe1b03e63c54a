//! `llmprof list`: the runs of a service, newest first.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use llmprof_core::domain::json_numbers::Within;
use serde_json::Value;

use super::{
    ServerOptions, ServiceClient,
    answers::{RunListAnswer, RunSummaryAnswer},
    terminal::{self, Column, TerminalTable, between, duration, print, print_json, since},
};

/// The rule of the times that stand for a run, which `headline::times` of the report applies.
const TIMES: &str = "ttft and tpot are medians: over repeats, over the requests of a load, or over \
                     the steps of an engine (`llmprof show ID` states which)";

/// List the runs of a service, newest first
///
/// ttft, the time to first token, and tpot, the time per token, are medians: over repeats, over the
/// requests of a load, or over the steps of an engine. The first page of `llmprof show ID` states
/// which.
///
/// Not on a terminal, columns are separated by tabs and times are RFC 3339. Exit code 0, or 3: bad
/// input, or the service refuses or does not answer.
#[derive(Debug, Args)]
pub struct ListOptions {
    /// Only runs in this state: queued, running, succeeded, partial, failed or cancelled
    #[arg(long)]
    state: Option<String>,
    /// Only runs of this name: of a model, a command or a capture
    #[arg(long)]
    name: Option<String>,
    /// Only runs with this label; several may be given
    #[arg(long)]
    label: Vec<String>,
    /// Only runs of this owner
    #[arg(long)]
    owner: Option<String>,
    /// Best first by this figure, as in ttft or tpot
    #[arg(long, value_name = "FIGURE")]
    sort: Option<String>,
    /// Maximum number of runs
    #[arg(long, default_value_t = 20, value_parser = Within::<1, 200>::text::<u32>)]
    limit: u32,
    /// Print the answer of `GET /runs`
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServerOptions,
}

pub fn run(options: &ListOptions) -> ExitCode {
    super::run(&options.service, async |client| list(&client, options).await)
}

async fn list(client: &ServiceClient, options: &ListOptions) -> Result<ExitCode> {
    let mut query = vec![("limit", options.limit.to_string())];
    let filters = [
        ("state", &options.state),
        ("name", &options.name),
        ("owner", &options.owner),
        ("sort", &options.sort),
    ];
    query.extend(filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    if !options.label.is_empty() {
        let is_blank = options.label.iter().any(|label| label.trim().is_empty());
        ensure!(!is_blank, "--label is empty; name a label, or omit the option");
        query.push(("labels", options.label.join(",")));
    }
    let request = client.http.get(client.url("/runs")).query(&query);
    let answer: Value = client.json(request, "/runs").await?;
    if options.json {
        print_json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let list: RunListAnswer = client.understood(answer, "/runs").await?;
    let width = terminal::width();
    if list.runs.is_empty() && width.is_some() {
        print("no runs\n")?;
    } else {
        print(&table(&list.runs, width.is_some()).text(width))?;
    }
    if width.is_some() {
        notes(&list).iter().for_each(terminal::print_notice);
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines below the table on a terminal.
fn notes(list: &RunListAnswer) -> Vec<&'static str> {
    let is_timed = |run: &RunSummaryAnswer| {
        let figures = run.headline.as_ref();
        figures.is_some_and(|it| ["ttft", "tpot"].iter().any(|name| it.contains_key(*name)))
    };
    let times = list.runs.iter().any(is_timed).then_some(TIMES);
    let older = list.next_cursor.is_some().then_some("older runs: --limit, up to 200");
    times.into_iter().chain(older).collect()
}

fn table(runs: &[RunSummaryAnswer], for_people: bool) -> TerminalTable {
    let mut table = TerminalTable::new(vec![
        Column::name("run"),
        Column::name("state"),
        Column::text("name"),
        Column::name("queued"),
        Column::number("took"),
        Column::name("mode"),
        Column::number("ttft, ms"),
        Column::number("tpot, ms"),
        Column::text("device"),
        Column::text("labels"),
    ]);
    for run in runs {
        let figure = |name: &str| {
            let value = run.headline.as_ref().and_then(|figures| *figures.get(name)?);
            value.map(llmprof_report::format::ms).unwrap_or_default()
        };
        let took = run.started_at.as_deref().zip(run.ended_at.as_deref());
        let took = took.and_then(|(start, end)| between(start, end));
        let queued = since(&run.queued_at).filter(|_| for_people);
        table.row(vec![
            run.run_id.clone(),
            run.state.clone(),
            run.name.clone(),
            queued.map_or_else(|| run.queued_at.clone(), |age| format!("{} ago", duration(age))),
            took.map(duration).unwrap_or_default(),
            run.mode.clone().unwrap_or_default(),
            figure("ttft"),
            figure("tpot"),
            run.device.clone().unwrap_or_default(),
            run.labels.join(","),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_with_times_states_their_statistic() {
        let list = |headline: Value| -> RunListAnswer {
            let run = json!({
                "run_id": "1", "state": "succeeded", "name": "a", "mode": "deep",
                "queued_at": "2026-11-20T09:00:00Z", "started_at": null, "ended_at": null,
                "headline": headline,
            });
            serde_json::from_value(json!({ "runs": [run], "next_cursor": null })).unwrap()
        };
        assert_eq!(notes(&list(json!({ "tpot": 1.5 }))), [TIMES]);
        assert!(notes(&list(json!({ "wall": 3.0 }))).is_empty());
        assert!(notes(&list(Value::Null)).is_empty());
    }
}
