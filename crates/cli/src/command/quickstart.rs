//! `llmprof quickstart`: a service, one run of the bundled sample over HTTP, and where to look
//! next.
//!
//! A client like any other: all that it shows comes over the API.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use llmprof_core::layout;
use llmprof_service::config;
use reqwest::{
    Client, Response,
    header::{self, HeaderMap, HeaderValue},
};
use serde_json::{Value, json};

use super::{
    client::{
        DEFAULT_SERVER,
        settings::change,
        terminal::{escaped, print, print_line},
    },
    serve::{self, LogFormat, Logging, Service},
};

/// Variable with a token, for a data folder that has some.
const TOKEN: &str = "LLMPROF_TOKEN";

/// Profile the bundled sample once, from submission to report
///
/// Starts the service on a free loopback port, submits one run over HTTP, follows it, prints the
/// stage table, and lists the paths of report, bundle and API. Set LLMPROF_TOKEN to a submitter's
/// token if the data folder has tokens.
#[derive(Debug, Args)]
pub struct QuickstartOptions {
    /// Model to profile (`GET /models` lists them)
    #[arg(long, default_value = "deepseek-ocr-tiny")]
    model: String,
    /// Collection mode: basic, light or deep
    #[arg(long, default_value = "deep")]
    mode: String,
    /// Setting of the passes to change, as in `nsys.cuda_graph_trace=graph` or
    /// `ncu.max_launches=3` (`GET /profiling` lists them)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Folder of the database and the runs
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Address to serve on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    listen: String,
    /// Keep serving after the run, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

pub fn run(options: QuickstartOptions) -> Result<()> {
    let log = Logging { format: LogFormat::Human, level: "warn" };
    serve::start_logging(log.format, log.level);
    let serving = serve::ServeOptions {
        listen: Some(options.listen.clone()),
        behind_proxy: false,
        data: Some(options.data.clone()),
        inputs: None,
        config: None,
        log: LogFormat::Human,
    };
    let mut config = serve::settings(&serving)?;
    serve::create_private_files();
    // It talks to itself over loopback, in plain HTTP.
    config.server.tls = config::TlsSettings { certificate: PathBuf::new(), key: PathBuf::new() };
    serve::block_on(async {
        let mut stopped = serve::StopSignals::catch()?;
        let service = Service::start(config, log).await?;
        let ended = tokio::select! {
            ended = profile(&service, &options) => ended,
            () = stopped.signalled() => {
                Err(anyhow!("interrupted; the run is queued in {}", options.data.display()))
            }
        };
        if ended.is_ok() && options.keep {
            print_line(format_args!("Serving until Ctrl-C."))?;
            stopped.signalled().await;
        }
        service.stop().await?;
        ended
    })
}

/// A client that shows `token` with every request.
fn client(token: Option<String>) -> Result<Client> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let value = HeaderValue::try_from(format!("Bearer {token}"))
            .with_context(|| format!("{TOKEN} holds no token"))?;
        headers.insert(header::AUTHORIZATION, value);
    }
    Ok(Client::builder().default_headers(headers).build()?)
}

/// Submits the run, follows it to its end, and prints what it found.
async fn profile(service: &Service, options: &QuickstartOptions) -> Result<()> {
    let base = format!("http://{}", service.address);
    let client = client(std::env::var(TOKEN).ok())?;
    let mut request = json!({ "model": options.model, "mode": options.mode });
    change(&mut request, &options.settings)?;
    let submitted = ask(client.post(format!("{base}/runs")).json(&request)).await?;
    let id = submitted["run_id"].as_str().context("the service named no run")?;
    print_line(format_args!(
        "llmprof {} serves {base}\nrun {id}: {} in mode {}\n",
        env!("CARGO_PKG_VERSION"),
        options.model,
        options.mode
    ))?;

    let bar = ProgressBar::new(1).with_style(
        ProgressStyle::with_template("{elapsed:>4} {bar:32} {msg}")
            .context("the bar's template")?,
    );
    bar.enable_steady_tick(Duration::from_millis(200));
    let followed = follow(&client, &format!("{base}/runs/{id}/events"), &bar).await;
    bar.finish_and_clear();
    followed?;

    let run = ask(client.get(format!("{base}/runs/{id}"))).await?;
    let outcome = outcome(&run);
    print(&outcome.to_string())?;
    if !matches!(run["state"].as_str(), Some("succeeded" | "partial")) {
        let reason = escaped(run["message"].as_str().unwrap_or("see its logs"));
        match outcome.contains(&reason) {
            true => bail!("the run has no result"),
            false => bail!("the run has no result: {reason}"),
        }
    }
    let report =
        ask(client.get(format!("{base}/runs/{id}/report")).header("accept", "application/json"))
            .await?;
    print_stages(&report)?;
    let folder = options.data.join("runs").join(id);
    print_line(format_args!("\nreport    {}", folder.join(layout::REPORT_HTML).display()))?;
    print_line(format_args!("summary   {}", folder.join(layout::SUMMARY_MD).display()))?;
    print_line(format_args!(
        "bundle    {}",
        save_bundle(&client, &base, id, options).await?.display()
    ))?;
    // The service ends with this command unless it is kept.
    if options.keep {
        print_line(format_args!("page      {base}/ui/runs/{id}"))?;
        print_line(format_args!("API       {base}/docs"))?;
    } else {
        let data = options.data.display();
        print_line(format_args!(
            "page      {DEFAULT_SERVER}/ui/runs/{id}, served by `llmprof serve --data {data}`"
        ))?;
    }
    Ok(())
}

/// Sends a request, and turns an error body into one line.
async fn ask(request: reqwest::RequestBuilder) -> Result<Value> {
    let response =
        refuse_errors(request.send().await.context("the service does not answer")?).await?;
    Ok(response.json().await?)
}

async fn refuse_errors(response: Response) -> Result<Response> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let body: Value = response.json().await.unwrap_or_default();
    bail!(
        "the service answered {status}: {}",
        body["error"]["message"].as_str().unwrap_or("no reason given")
    );
}

/// Shows the run's events on `bar` until the stream ends with the run.
async fn follow(client: &Client, url: &str, bar: &ProgressBar) -> Result<()> {
    let mut response = refuse_errors(client.get(url).send().await?).await?;
    let mut buffer = Vec::new();
    while let Some(chunk) = response.chunk().await.context("the stream of events broke off")? {
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let data = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix("data:"));
            if let Some(event) = data.and_then(|data| serde_json::from_str::<Value>(data).ok()) {
                show(&event, bar);
            }
        }
    }
    Ok(())
}

fn show(event: &Value, bar: &ProgressBar) {
    let step = |value: &Value| value["step"].as_str().unwrap_or_default().to_owned();
    match event["event"].as_str() {
        Some("step") => {
            bar.set_message(step(&event["step"]));
            bar.set_length(1);
            bar.set_position(0);
        }
        Some("progress") => {
            bar.set_message(format!(
                "{} · {}",
                step(event),
                event["phase"].as_str().unwrap_or_default()
            ));
            bar.set_length(event["total"].as_u64().unwrap_or(1));
            bar.set_position(event["done"].as_u64().unwrap_or(0));
        }
        _ => {}
    }
}

/// The state of a run, the steps that succeeded, and the other steps, by their reason with its
/// remedy.
fn outcome(run: &Value) -> String {
    let mut succeeded = Vec::new();
    let mut absent: Vec<(String, Vec<String>)> = Vec::new();
    for step in run["steps"].as_array().into_iter().flatten() {
        let text = |key: &str| escaped(step[key].as_str().unwrap_or_default());
        let (name, state) = (step_name(&text("step")).to_owned(), text("state"));
        if state == "succeeded" {
            succeeded.push(name);
            continue;
        }
        let reason = Some(text("message")).filter(|it| !it.is_empty()).unwrap_or(state);
        match absent.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, steps)) => steps.push(name),
            None => absent.push((reason, vec![name])),
        }
    }
    let state = escaped(run["state"].as_str().unwrap_or_default());
    let mut text = format!("The run ended {state}.\n");
    text += &format!("steps     {}\n", succeeded.join(", "));
    for (reason, steps) in absent {
        text += &format!("absent    {}: {reason}\n", steps.join(", "));
    }
    text
}

/// A step in words.
fn step_name(step: &str) -> &str {
    match step {
        "baseline" => "unprofiled pass",
        name => name,
    }
}

/// Prints the stage table of the report.
fn print_stages(report: &Value) -> Result<()> {
    print_line(format_args!("\n{:<12} {:>12} {:>10}", "stage", "mean ms", "std ms"))?;
    for row in report["stages"].as_array().into_iter().flatten() {
        let stage = row["stage"].as_str().unwrap_or_default();
        let time = &report["aggregates"]["stage_ms"][stage];
        let number =
            |key: &str| time[key].as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
        print_line(format_args!("{stage:<12} {:>12} {:>10}", number("mean"), number("std")))?;
    }
    Ok(())
}

/// Downloads the bundle next to the run's folder.
async fn save_bundle(
    client: &Client,
    base: &str,
    id: &str,
    options: &QuickstartOptions,
) -> Result<PathBuf> {
    let path = options.data.join(format!("{id}.tar.zst"));
    let mut response =
        refuse_errors(client.get(format!("{base}/runs/{id}/bundle")).send().await?).await?;
    let mut file = tokio::fs::File::create(&path)
        .await
        .with_context(|| format!("cannot write {}", path.display()))?;
    while let Some(chunk) = response.chunk().await.context("the bundle broke off")? {
        tokio::io::AsyncWriteExt::write_all(&mut file, &chunk).await?;
    }
    tokio::io::AsyncWriteExt::flush(&mut file).await?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, state: &str, message: Option<&str>) -> Value {
        json!({ "step": name, "state": state, "message": message })
    }

    #[test]
    fn a_partial_run_lists_its_steps_and_each_remedy_of_absent_ones_once() {
        let missing = Some("nsys is not installed: install it");
        let steps = [
            step("baseline", "succeeded", None),
            step("nsys", "skipped", missing),
            step("gpu_metrics", "skipped", missing),
            step("ncu", "failed", None),
            step("report", "succeeded", None),
        ];
        assert_eq!(
            outcome(&json!({ "state": "partial", "steps": steps })),
            "The run ended partial.\nsteps     unprofiled pass, report\n\
             absent    nsys, gpu_metrics: nsys is not installed: install it\n\
             absent    ncu: failed\n"
        );
        let whole = json!({ "state": "succeeded", "steps": [step("baseline", "succeeded", None)] });
        assert_eq!(outcome(&whole), "The run ended succeeded.\nsteps     unprofiled pass\n");
    }
}
