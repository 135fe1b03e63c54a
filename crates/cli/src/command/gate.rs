//! `llmprof gate`: compares runs with a baseline of a service, for CI.
//!
//! The service decides; this submits runs, repeats them while that may decide, and prints the
//! result.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use llmprof_analyze::series::{
    gate::{GateVerdict, MAX_RUNS},
    gate_thresholds::THRESHOLD_PCT,
};
use llmprof_core::domain::{json_numbers::Within, subject::RunSpec, visible};
use llmprof_report::gate::{GateFigure, GateReport};
use serde_json::{Map, Value, json};

use super::{
    client::{BAD_INPUT, ServerOptions, ServiceClient, run_path, submit::read_object, terminal},
    serve,
};

/// Exit code of a regression.
const REGRESSION: u8 = 1;
/// Exit code of an inconclusive gate.
const INCONCLUSIVE: u8 = 2;

/// Form of the result.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum GateFormat {
    Text,
    Json,
    /// JUnit; an inconclusive figure is an error
    Junit,
    /// Annotations of GitHub
    Github,
    /// A comment
    Markdown,
}

/// Fail if runs are worse than a baseline, beyond their noise
///
/// Exit code 0: passed, or a regression was accepted; 1: regression; 2: inconclusive, which is
/// never a pass (noise above the threshold, a named figure that was not measured, not comparable);
/// 3: bad input, or the service does not answer.
#[derive(Debug, Args)]
pub struct GateOptions {
    /// Name of the baseline (`POST /baselines` sets it)
    #[arg(long)]
    baseline: String,
    /// A run to test; give several of one build
    #[arg(long, value_name = "ID", required_unless_present = "submit", conflicts_with = "submit")]
    run: Vec<String>,
    /// Submission to run and to test, as of `POST /runs`, JSON or YAML; `-` is standard input
    #[arg(long, value_name = "FILE")]
    submit: Option<PathBuf>,
    /// Revision of the submission
    #[arg(long, requires = "submit")]
    revision: Option<String>,
    /// Thresholds, as in slower=3%,ttft=5%,energy=10%; slower is every time that was measured
    #[arg(long, value_name = "FIGURE=PERCENT,...", default_value = "slower=3%")]
    fail_on: String,
    /// Runs of the candidate, repeats included
    #[arg(long, default_value_t = 5, value_parser = Within::<1, 5>::text::<u32>)]
    max_runs: u32,
    /// Accept a regression, for this reason
    #[arg(long, value_name = "REASON")]
    accept: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = GateFormat::Text)]
    format: GateFormat,
    #[command(flatten)]
    service: ServerOptions,
}

/// Runs the gate; returns its exit code.
pub fn run(options: &GateOptions) -> ExitCode {
    let decided = serve::runtime().and_then(|runtime| runtime.block_on(decide(options)));
    match decided.and_then(|report| print(&report, options.format).map(|()| report)) {
        Ok(report) => {
            if let Some(remedy) = remedy(&report) {
                terminal::print_notice(format_args!("llmprof: to decide it, {remedy}"));
            }
            exit_code(&report)
        }
        Err(error) => {
            terminal::print_notice(format_args!("llmprof: {error:#}"));
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn exit_code(report: &GateReport) -> ExitCode {
    if report.is_accepted() { ExitCode::SUCCESS } else { verdict_code(report.verdict) }
}

/// The exit code of a verdict.
pub fn verdict_code(verdict: GateVerdict) -> ExitCode {
    match verdict {
        GateVerdict::Passed => ExitCode::SUCCESS,
        GateVerdict::Regression => ExitCode::from(REGRESSION),
        GateVerdict::Inconclusive => ExitCode::from(INCONCLUSIVE),
    }
}

fn print(report: &GateReport, format: GateFormat) -> Result<()> {
    let text = match format {
        GateFormat::Text => report.text(),
        GateFormat::Json => visible::pretty_json(report)?,
        GateFormat::Junit => report.junit(),
        GateFormat::Github => report.github(),
        GateFormat::Markdown => report.markdown(),
    };
    Ok(terminal::print(&text)?)
}

/// The remedies of an inconclusive gate.
fn remedy(report: &GateReport) -> Option<String> {
    if report.verdict != GateVerdict::Inconclusive {
        return None;
    }
    if !report.reasons.is_empty() || report.figures.is_empty() {
        let text = "test runs that ended and have figures against a baseline of the same request \
                    and device; `POST /baselines` sets one";
        return Some(text.into());
    }
    let is_absent = |it: &&GateFigure| it.baseline.is_none() || it.candidate.is_none();
    let open: Vec<&GateFigure> =
        report.figures.iter().filter(|it| it.verdict == GateVerdict::Inconclusive).collect();
    let absent: Vec<&str> =
        open.iter().copied().filter(is_absent).map(|it| it.figure.as_str()).collect();
    let mut remedies = Vec::new();
    if !absent.is_empty() {
        let absent = absent.join(", ");
        remedies.push(format!("measure {absent} on both sides or omit it in --fail-on"));
    }
    if open.len() > absent.len() {
        if report.runs.len() < MAX_RUNS {
            remedies.push(format!(
                "test more runs of the candidate (--run ID for each, --max-runs up to {MAX_RUNS})"
            ));
        }
        remedies.push(
            "add runs of the baseline's build to its series (submit its request again with the \
             same revision)"
                .into(),
        );
        remedies.push("raise `repeats` of the submission".into());
        let found = open.iter().filter_map(|it| it.detectable_pct).reduce(f64::max);
        remedies.extend(found.map(last_remedy));
    }
    Some(remedies.join("; "))
}

/// The remedy if nothing else decides, by the smallest change that the runs show, percent.
fn last_remedy(pct: f64) -> String {
    let max = THRESHOLD_PCT.end();
    if pct <= *max {
        return format!(
            "or raise the threshold of --fail-on: these runs show changes from {pct:.1} %"
        );
    }
    format!(
        "or make the runs equal to each other (`llmprof doctor` checks the host): they show \
         changes from {pct:.1} %, and a threshold is at most {max} %"
    )
}

/// Gates the runs, and adds repeats while they may decide.
async fn decide(options: &GateOptions) -> Result<GateReport> {
    let thresholds = thresholds(&options.fail_on)?;
    let paths = options.run.iter().map(|run| run_path(run)).collect::<Result<Vec<_>>>()?;
    let client = ServiceClient::new(&options.service)?;
    let mut runs = options.run.clone();
    for (run, path) in runs.iter().zip(&paths) {
        client.get(path).await?;
        client.wait_for_end(run).await?;
    }
    let submission = match &options.submit {
        Some(path) => {
            let mut body = Value::from(read_object(path)?);
            if let Some(revision) = &options.revision {
                body["revision"] = json!(revision);
            }
            runs.push(submit(&client, &body).await?);
            body
        }
        None => {
            let first = paths.first().context("no run")?;
            submission_of(&client.get(first).await?["spec"])?
        }
    };
    let repeated = repeat_of(submission);
    loop {
        let gate = json!({
            "baseline": options.baseline, "runs": runs, "fail_on": thresholds,
            "max_runs": options.max_runs, "accept": options.accept,
        });
        let report: GateReport = serde_json::from_value(client.post("/gates", &gate).await?)?;
        if !report.more_runs || runs.len() >= options.max_runs as usize || repeated.is_null() {
            return Ok(report);
        }
        terminal::print_notice(format_args!(
            "llmprof: {} of {} runs: repeating",
            runs.len(),
            options.max_runs
        ));
        runs.push(submit(&client, &repeated).await?);
    }
}

/// Submits a run and waits for its end.
async fn submit(client: &ServiceClient, body: &Value) -> Result<String> {
    let submitted = client.post("/runs", body).await?;
    let id = submitted["run_id"].as_str().context("the submission queued no run")?.to_owned();
    client.wait_for_end(&id).await?;
    Ok(id)
}

/// The submission that repeats a run by its spec; null for an import, which cannot be repeated.
fn submission_of(spec: &Value) -> Result<Value> {
    let spec: RunSpec = serde_json::from_value(spec.clone())
        .context("the run's spec is unknown to this version")?;
    Ok(spec.submission().map_or(Value::Null, Value::from))
}

/// The submission of a repeat. It has no labels: a baseline by rule is the newest run with a label,
/// and a repeat of the candidate must not become it.
fn repeat_of(mut submission: Value) -> Value {
    if let Some(fields) = submission.as_object_mut() {
        fields.remove("labels");
    }
    submission
}

/// Parses thresholds in percent.
pub fn thresholds(text: &str) -> Result<Map<String, Value>> {
    let mut thresholds = Map::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, threshold) = part
            .split_once('=')
            .with_context(|| format!("--fail-on {part:?}: expected FIGURE=PERCENT"))?;
        let threshold: f64 = threshold
            .trim()
            .trim_end_matches('%')
            .trim_end()
            .parse()
            .ok()
            .filter(|it| THRESHOLD_PCT.contains(it))
            .with_context(|| {
                let (min, max) = (THRESHOLD_PCT.start(), THRESHOLD_PCT.end());
                format!("--fail-on {part:?}: expected a number from {min} to {max}")
            })?;
        if thresholds.insert(name.trim().to_owned(), json!(threshold)).is_some() {
            bail!("--fail-on: {name:?} is given more than once");
        }
    }
    if thresholds.is_empty() {
        bail!("--fail-on: no threshold; expected FIGURE=PERCENT");
    }
    Ok(thresholds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_percentages_by_figure() {
        let parsed = thresholds("slower=3%, ttft=5 %,energy=10").unwrap();
        assert_eq!(Value::from(parsed), json!({ "slower": 3.0, "ttft": 5.0, "energy": 10.0 }));
        let invalid = ["", "slower", "slower=much", "ttft=1,ttft=2", "ttft=1, ttft =1"];
        let out_of_range = ["tpot=nan", "tpot=inf", "tpot=-inf", "tpot=0", "tpot=-3%", "tpot=1001"];
        for invalid in invalid.into_iter().chain(out_of_range) {
            assert!(thresholds(invalid).is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn no_remedy_is_a_threshold_that_is_refused() {
        for pct in [0.5, 3.0, 1000.0] {
            let remedy = last_remedy(pct);
            assert!(remedy.contains("raise the threshold"), "{remedy}");
            thresholds(&format!("slower={pct:.1}%")).unwrap();
        }
        for pct in [1000.1, 5091.9] {
            let remedy = last_remedy(pct);
            assert!(!remedy.contains("raise") && remedy.ends_with("at most 1000 %"), "{remedy}");
            assert!(thresholds(&format!("slower={pct}%")).is_err(), "{pct}");
        }
    }

    #[test]
    fn a_repeat_is_the_same_request_without_labels() {
        let submission = json!({ "model": "m", "revision": "r2", "labels": ["main", "nightly"] });
        assert_eq!(repeat_of(submission), json!({ "model": "m", "revision": "r2" }));
        assert_eq!(repeat_of(Value::Null), Value::Null);
    }
}
