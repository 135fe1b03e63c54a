//! `llmprof align`: whether a mock layer launches what the whole model launches, from two captures.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_analyze::align::{
    Verdict,
    settings::{self, Operation, Question, Thresholds, waivers},
};
use llmprof_core::domain::json_numbers::Within;
use llmprof_report::{align::AlignmentReport, align::previous, pipeline::align_pair};

use super::{ReportFormat, client::terminal, local_file};

/// Maximum size of thresholds, waivers and an earlier alignment, bytes.
const MAX_TEXT: u64 = 64 << 20;
/// Exit code for invalid input.
pub const BAD_INPUT: u8 = 3;

/// Check that a mock layer launches the kernels that the same layer launches inside the whole
/// model
///
/// Each side is an SQLite export of nsys, a trace by the profiler of PyTorch, or the folder of a
/// run. Without --range, --operator and
/// --kernels the mock's sequence of kernels is looked for in the other timeline. Exits with 0 for
/// pass, 1 for fail, 2 for inconclusive, 3 for bad input or arguments.
#[derive(Debug, Args)]
pub struct AlignOptions {
    /// Capture or run of the mock layer
    #[arg(long, value_name = "PATH")]
    mock: PathBuf,
    /// Capture or run of the whole model
    #[arg(long, value_name = "PATH")]
    e2e: PathBuf,
    /// The operation is what ranges of this name launch; `*` stands for anything
    #[arg(long, value_name = "RANGE[@DOMAIN]", conflicts_with_all = ["operator", "kernels"])]
    range: Option<String>,
    /// The operation is what the operator at this module path launches:
    /// `decoder.layers.*.self_attn`
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    operator: Option<String>,
    /// Select the operation by kernels with this text in their names; repeatable
    #[arg(long, value_name = "PATTERN")]
    kernels: Vec<String>,
    /// Stage to compare: prefill, decode, or a name with its ranges: `prefill=forward@vllm`
    /// [default: everything except warm-up]
    #[arg(long, value_name = "NAME[=RANGE[@DOMAIN]]")]
    stage: Option<String>,
    /// Include only ranges of this name; repeatable
    #[arg(long, value_name = "RANGE")]
    include_ranges: Vec<String>,
    /// Exclude ranges of this name; repeatable
    #[arg(long, value_name = "RANGE")]
    exclude_ranges: Vec<String>,
    /// Instances (one layer in one forward) that must count on each side; with fewer nothing is
    /// decided
    #[arg(long, value_name = "N", value_parser = Within::<1, 1_000_000>::text::<u32>)]
    forwards: Option<u32>,
    /// Thresholds that replace conf/alignment.toml
    #[arg(long, value_name = "TOML")]
    thresholds: Option<PathBuf>,
    /// Known differences: `[[waiver]]` with pattern, reason, impact and expires
    #[arg(long, value_name = "TOML")]
    waivers: Option<PathBuf>,
    /// JSON of an earlier alignment of the pair, to list the changes
    #[arg(long, value_name = "JSON")]
    previous: Option<PathBuf>,
    /// Write alignment.json, .md and .html here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Md)]
    format: ReportFormat,
}

/// Aligns, prints the report and returns the verdict as exit code.
pub fn run(options: &AlignOptions) -> ExitCode {
    match align(options) {
        Ok(Verdict::Pass | Verdict::Warn) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => ExitCode::from(1),
        Ok(Verdict::Inconclusive) => ExitCode::from(2),
        Err(error) => {
            terminal::print_notice(format_args!("llmprof: {error:#}"));
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn align(options: &AlignOptions) -> Result<Verdict> {
    local_file::check_kind(&options.mock)?;
    local_file::check_kind(&options.e2e)?;
    let (stage, rules) = settings::stage(
        options.stage.as_deref(),
        &options.include_ranges,
        &options.exclude_ranges,
    )?;
    let question = Question {
        operation: Operation::of(
            options.range.as_deref(),
            options.operator.as_deref(),
            &options.kernels,
        )?,
        stage,
        forwards: options.forwards,
        thresholds: match &options.thresholds {
            Some(path) => Thresholds::with(&text(path)?)
                .with_context(|| format!("cannot use {}", path.display()))?,
            None => Thresholds::default(),
        },
        waivers: match &options.waivers {
            Some(path) => {
                waivers(&text(path)?).with_context(|| format!("cannot use {}", path.display()))?
            }
            None => vec![],
        },
        today: jiff::Timestamp::now().to_string().chars().take(10).collect(),
    };
    let before = options.previous.as_ref().map(|path| {
        previous(text(path)?.as_bytes())
            .with_context(|| format!("{} is not an alignment", path.display()))
    });
    let before = before.transpose()?;
    let name =
        |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let (mock, e2e) = (name(&options.mock), name(&options.e2e));
    let mut alignment =
        align_pair::compare((&mock, &options.mock), (&e2e, &options.e2e), &rules, &question)?;
    if let Some((verdict, checks)) = before {
        alignment.record_changes(&checks, verdict);
    }
    if let Some(out) = &options.out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        align_pair::write(&alignment, out, "alignment")?;
    }
    let report = AlignmentReport(&alignment);
    let text = match options.format {
        ReportFormat::Md => report.markdown(),
        ReportFormat::Json => report.json(),
        ReportFormat::Html => report.html(),
    };
    terminal::print(&text)?;
    Ok(alignment.verdict)
}

fn text(path: &Path) -> Result<String> {
    local_file::read_text(path, MAX_TEXT)
}
