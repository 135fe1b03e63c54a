//! `llmprof sweep`: starts a grid of runs on a service, or on one of its own for the time of the
//! sweep, and prints its table.
//!
//! The service queues the points; this only follows them. An interrupted sweep continues when the
//! same command runs again.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof_analyze::sweep::SweepResults;
use llmprof_report::sweep::SweepTable;
use llmprof_service::config::TlsSettings;
use serde_json::{Map, Value, json};

use super::{
    INTERRUPTED, ServerOptions, ServiceClient,
    local_inputs::{LocalInputs, manifest_in},
    submit,
    terminal::{escaped, print, print_notice},
};
use crate::command::serve::{self, LogFormat, Logging, ServeOptions, Service};

/// Exit code of a sweep without a measured point, and of a cancelled one.
const FAILED: u8 = 1;
/// Time between two looks at the sweep.
const PERIOD: Duration = Duration::from_secs(1);

/// Start a grid of runs, and print its table
///
/// FILE is the body of `POST /sweeps`; `inputs` of its base may be a path that starts with `/`,
/// `./` or `../`: a manifest of this machine, relative to FILE, which is stored first. With --local
/// DIR no service is needed: one serves DIR on a free loopback port until the sweep ends. If a
/// sweep of the same name, base and axes has not ended, it is continued, so that an interrupted
/// command can be repeated. Exit code 0: some point was measured; 1: none was, or the sweep was
/// cancelled; 3: bad input, or the service refuses or does not answer; 130: Ctrl-C, which ends this
/// command, and with --local the service.
#[derive(Debug, Args)]
pub struct SweepOptions {
    /// Sweep as of `POST /sweeps`, JSON or YAML; `-` is standard input
    file: PathBuf,
    /// Follow the sweep until it ends, and print its table
    #[arg(long, conflicts_with = "local")]
    wait: bool,
    /// Data folder of a service of its own; implies --wait
    #[arg(long, value_name = "DIR")]
    local: Option<PathBuf>,
    /// Print the table as CSV
    #[arg(long)]
    csv: bool,
    #[command(flatten)]
    service: ServerOptions,
}

impl SweepOptions {
    /// True if it starts a service.
    pub fn is_local(&self) -> bool {
        self.local.is_some()
    }
}

pub fn run(options: &SweepOptions) -> ExitCode {
    match &options.local {
        Some(data) => run_local(options, data).unwrap_or_else(|error| super::failed(&error)),
        None => super::run(&options.service, async |client| {
            let body = submit::read_object(&options.file)?;
            let id = start(&client, &options.file, body).await?;
            if !options.wait {
                return print_id(&client, &id);
            }
            tokio::select! {
                code = follow(&client, &id, options.csv) => code,
                _ = tokio::signal::ctrl_c() => {
                    let page = client.url(&page(&id));
                    print_notice(format_args!("the sweep {id} continues: {page}"));
                    Ok(ExitCode::from(INTERRUPTED))
                }
            }
        }),
    }
}

fn page(id: &str) -> String {
    format!("/ui/sweeps/{id}")
}

fn print_id(client: &ServiceClient, id: &str) -> Result<ExitCode> {
    print(&format!("{id}\n"))?;
    print_notice(client.url(&page(id)));
    Ok(ExitCode::SUCCESS)
}

/// Executes the sweep by a service of its own over a data folder.
fn run_local(options: &SweepOptions, data: &Path) -> Result<ExitCode> {
    let body = submit::read_object(&options.file)?;
    let log = Logging { format: LogFormat::Human, level: "warn" };
    serve::start_logging(log.format, log.level);
    let serving = ServeOptions {
        listen: Some("127.0.0.1:0".into()),
        behind_proxy: false,
        data: Some(data.to_owned()),
        inputs: None,
        config: None,
        log: LogFormat::Human,
    };
    let mut config = serve::settings(&serving)?;
    serve::create_private_files();
    // It talks to itself over loopback, in plain HTTP.
    config.server.tls = TlsSettings { certificate: PathBuf::new(), key: PathBuf::new() };
    serve::block_on(async {
        let mut stopped = serve::StopSignals::catch()?;
        let service = Service::start(config, log).await?;
        let client = ServiceClient::new(&options.service.with_server(service.base()))?;
        let sweep = async {
            let id = start(&client, &options.file, body).await?;
            follow(&client, &id, options.csv).await
        };
        let ended = tokio::select! {
            ended = sweep => ended,
            () = stopped.signalled() => {
                print_notice(format_args!("interrupted; the same command continues the sweep"));
                Ok(ExitCode::from(INTERRUPTED))
            }
        };
        service.stop().await?;
        ended
    })
}

/// Starts the sweep, or resumes the one of the same name, base and axes; returns its id.
async fn start(
    client: &ServiceClient,
    file: &Path,
    mut body: Map<String, Value>,
) -> Result<String> {
    let listed = client.get("/sweeps").await?;
    let active = listed["sweeps"].as_array().into_iter().flatten().find(|it| is_same(it, &body));
    let sweep = match active {
        Some(sweep) => {
            let id = id_of(sweep)?;
            print_notice(format_args!("continuing the sweep {id}"));
            client.post(&format!("/sweeps/{id}/resume"), &json!({})).await?
        }
        None => {
            if let Some(base) = body.get_mut("base")
                && let Some(manifest) = manifest_in(base, file)
            {
                base["inputs"] = LocalInputs::read(&manifest)?.store(client).await?;
            }
            client.post("/sweeps", &Value::from(body)).await?
        }
    };
    id_of(&sweep)
}

fn id_of(sweep: &Value) -> Result<String> {
    let id = sweep["sweep_id"].as_str().context("the service named no sweep")?;
    Ok(id.to_owned())
}

/// True if an active sweep of a service is the one of this request. The service adds defaults to
/// the base and stores inputs that the base contains.
fn is_same(sweep: &Value, body: &Map<String, Value>) -> bool {
    let field = |name: &str| body.get(name).unwrap_or(&Value::Null);
    let is_active = matches!(sweep["state"].as_str(), Some("running" | "paused"));
    let theirs = &sweep["request"];
    let same_base = field("base").as_object().is_some_and(|base| {
        base.iter().all(|(name, value)| theirs["base"][name] == *value || name == "inputs")
    });
    is_active && sweep["name"] == *field("name") && theirs["axes"] == *field("axes") && same_base
}

/// Prints the progress until the sweep ends, then its table.
async fn follow(client: &ServiceClient, id: &str, csv: bool) -> Result<ExitCode> {
    let path = format!("/sweeps/{id}");
    let mut shown = String::new();
    loop {
        let sweep = client.get(&path).await?;
        let line = progress(&sweep);
        if line != shown {
            print_notice(escaped(&line));
            shown = line;
        }
        match sweep["state"].as_str() {
            Some("done" | "cancelled") => {
                let results: SweepResults = client.read(&format!("{path}/results")).await?;
                let table = SweepTable::of(&results);
                print(&if csv { table.csv() } else { escaped_lines(&table.text()) })?;
                let measured = sweep["counts"]["measured"].as_u64().unwrap_or(0);
                let is_success = sweep["state"] == "done" && measured > 0;
                return Ok(if is_success { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
            }
            Some("paused") => {
                let why = sweep["message"].as_str().unwrap_or("resume it, or cancel it");
                bail!("the sweep {id} is paused: {why}");
            }
            _ => tokio::time::sleep(PERIOD).await,
        }
    }
}

fn progress(sweep: &Value) -> String {
    let count = |name: &str| sweep["counts"][name].as_u64().unwrap_or(0);
    let mut line = format!("{} of {} measured", count("measured"), count("points"));
    for (name, text) in [("reused", "before"), ("gaps", "gaps"), ("running", "running")] {
        if count(name) > 0 {
            line += &format!(", {} {text}", count(name));
        }
    }
    line
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(|line| escaped(line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_active_sweep_of_the_same_request_is_continued() {
        let request = json!({ "base": { "model": "m", "mode": "basic" }, "axes": { "a": [1] } });
        let sweep = |state: &str| json!({ "state": state, "name": null, "request": request });
        let body = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
        let same = body(r#"{"base": {"model": "m"}, "axes": {"a": [1]}}"#);
        assert!(is_same(&sweep("running"), &same) && is_same(&sweep("paused"), &same));
        assert!(!is_same(&sweep("done"), &same));
        for other in [
            r#"{"base": {"model": "n"}, "axes": {"a": [1]}}"#,
            r#"{"base": {"model": "m"}, "axes": {"a": [1, 2]}}"#,
            r#"{"base": {"model": "m"}, "axes": {"a": [1]}, "name": "x"}"#,
        ] {
            assert!(!is_same(&sweep("running"), &body(other)), "{other}");
        }
    }

    #[test]
    fn the_progress_names_what_there_is() {
        let sweep = json!({ "counts": { "points": 24, "measured": 3, "gaps": 1, "running": 0 } });
        assert_eq!(progress(&sweep), "3 of 24 measured, 1 gaps");
    }
}
