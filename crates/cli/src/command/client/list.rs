//! `llmprof list`: the runs of a service, newest first.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::{
    ServerOptions, ServiceClient,
    answers::{RunListAnswer, RunSummaryAnswer},
    terminal::{self, Column, TerminalTable, between, duration, print, since},
};

/// List the runs of a service, newest first
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
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
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
        query.push(("labels", options.label.join(",")));
    }
    let request = client.http.get(client.url("/runs")).query(&query);
    let answer: Value = client.json(request, "/runs").await?;
    if options.json {
        print(&format!("{answer}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let list: RunListAnswer = client.understood(answer, "/runs").await?;
    let width = terminal::width();
    if list.runs.is_empty() && width.is_some() {
        print("no runs\n")?;
    } else {
        print(&table(&list.runs, width.is_some()).text(width))?;
    }
    if list.next_cursor.is_some() && width.is_some() {
        eprintln!("older runs: --limit, up to 200");
    }
    Ok(ExitCode::SUCCESS)
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
