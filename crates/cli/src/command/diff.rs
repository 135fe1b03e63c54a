//! `llmprof diff`: what changed from one saved run to another.
//!
//! Its exit code depends on the changes only with `--fail-on`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_analyze::{parse::aliases, series::gate::GateVerdict};
use llmprof_core::layout;
use llmprof_report::diff::{RunDiff, StoredReport, run_diff, stored};

use super::{
    ReportFormat,
    client::{BAD_INPUT, terminal},
    gate::verdict_code,
    local_file,
};

/// Maximum size of a report and of its table of kernels, bytes.
const MAX_REPORT: u64 = 256 << 20;

/// Compare two saved runs: whether they may be compared, then what changed by stage, operator and
/// kernel
///
/// A and B are folders of runs, unpacked bundles, or files report.json. A change counts if Welch's
/// t-test finds it; what changed most comes first.
///
/// With --fail-on, exit code 0: no stage or latency is slower by the limit; 1: one is, beyond
/// noise; 2: inconclusive, which is never a pass (not comparable, noise above the limit, measured
/// once); 3: bad input. Without it, the changes do not affect the exit code.
#[derive(Debug, Args)]
pub struct DiffOptions {
    /// The run before
    a: PathBuf,
    /// The run after
    b: PathBuf,
    /// Earlier run of A's build, used to estimate run-to-run noise; repeatable
    #[arg(long, value_name = "RUN")]
    history: Vec<PathBuf>,
    /// Limit, as in slower=3%, by which no stage or latency may be slower
    #[arg(long, value_name = "slower=PERCENT", value_parser = limit)]
    fail_on: Option<f64>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Md)]
    format: ReportFormat,
}

/// True if the arguments of the process ask for an exit code of the changes.
pub fn has_limit() -> bool {
    let is_it = |it: &std::ffi::OsString| it.to_string_lossy().starts_with("--fail-on");
    std::env::args_os().any(|it| is_it(&it))
}

pub fn run(options: &DiffOptions) -> Result<ExitCode> {
    match compare(options) {
        Err(error) if options.fail_on.is_some() => {
            terminal::print_notice(format_args!("llmprof: {error:#}"));
            Ok(ExitCode::from(BAD_INPUT))
        }
        result => result,
    }
}

fn compare(options: &DiffOptions) -> Result<ExitCode> {
    let history = options.history.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let diff = run_diff(&read(&options.a)?, &read(&options.b)?, &history);
    let text = match options.format {
        ReportFormat::Md => diff.markdown(),
        ReportFormat::Json => diff.json(),
        ReportFormat::Html => diff.html(),
    };
    terminal::print(&text)?;
    let Some(limit) = options.fail_on else { return Ok(ExitCode::SUCCESS) };
    let judged = diff.judge_slower(limit);
    let summary = match judged.verdict {
        GateVerdict::Passed => format!("passed: nothing is slower by {limit} %"),
        GateVerdict::Regression => format!("slower by at least {limit} %"),
        GateVerdict::Inconclusive => format!("inconclusive: {limit} % cannot be excluded"),
    };
    terminal::print_notice(format_args!(
        "llmprof: {}",
        [vec![summary], judged.reasons, judged.dropped].concat().join("; ")
    ));
    // More repeats measure no time that is absent; the reason has the remedy.
    let is_measured = !diff.diff.comparable || !diff.diff.stages.is_empty();
    if judged.verdict == GateVerdict::Inconclusive && is_measured {
        terminal::print_notice(format_args!(
            "llmprof: {}",
            remedy(diff.diff.comparable, is_submitted(&diff, &options.a))
        ));
    }
    Ok(verdict_code(judged.verdict))
}

/// True for a run whose request can measure it again: not for a capture, and not in a folder that
/// `llmprof analyze` wrote.
fn is_submitted(diff: &RunDiff, a: &Path) -> bool {
    diff.a_name.is_none() && (!a.is_dir() || a.join(layout::CONFIG).exists())
}

/// The remedy of a limit that is not decided.
const fn remedy(is_comparable: bool, is_submitted: bool) -> &'static str {
    match (is_comparable, is_submitted) {
        (true, true) => {
            "to decide it, measure both runs with more repeats (`llmprof submit A/config.yaml \
             --repeats 20`), add earlier runs of A's build (`--history RUN`, repeatable), or raise \
             the limit"
        }
        (true, false) => {
            "to decide it, record more repeats in both captures, add earlier captures of A's build \
             (`--history DIR`, repeatable), or raise the limit"
        }
        (false, true) => {
            "to decide it, measure B by the request of A, on the same device: `llmprof submit \
             A/config.yaml`, of A's folder"
        }
        (false, false) => {
            "to decide it, record B as A was recorded, on the same device, and analyse both with \
             the same options"
        }
    }
}

/// Parses the limit, percent.
fn limit(text: &str) -> Result<f64> {
    let thresholds = super::gate::thresholds(text)?;
    let slower = thresholds.get("slower").and_then(serde_json::Value::as_f64);
    slower
        .filter(|limit| thresholds.len() == 1 && (0.01..=1000.0).contains(limit))
        .with_context(|| format!("{text:?}: expected slower=PERCENT, from 0.01 to 1000"))
}

fn read(path: &Path) -> Result<StoredReport> {
    let report = if path.is_dir() { path.join(layout::REPORT_JSON) } else { path.to_owned() };
    let text = local_file::read(&report, MAX_REPORT)?;
    // The table of all kernels is next to the run's report.
    let is_report = report.file_name().is_some_and(|name| name == layout::REPORT_JSON);
    let table = report.with_file_name(layout::KERNELS_JSON);
    let has_table = is_report && table.exists();
    let kernels = has_table.then(|| local_file::read(&table, MAX_REPORT)).transpose()?;
    stored(&text, kernels.as_deref(), aliases::read)
        .with_context(|| format!("cannot compare {}", report.display()))
}
