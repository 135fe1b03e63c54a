//! `llmprof align`: whether a mock layer launches what the whole model launches, from two captures.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof::{
    analyze::align::{
        Verdict,
        settings::{self, Operation, Question, Thresholds, waivers},
    },
    report::align::previous,
    worker::pair,
};

use super::Format;

/// What the command ends with when it was asked what it cannot answer.
pub const BAD_INPUT: u8 = 3;

/// Tell whether a mock layer launches the kernels that the same layer launches inside the whole model
///
/// Each side is an SQLite export of nsys, or the folder of a run. Without --range, --operator and --kernels the mock's sequence of kernels
/// is looked for in the other timeline. Exits with 0 for pass, 1 for fail, 2 for inconclusive, 3 for bad input or arguments.
#[derive(Debug, Args)]
pub struct Options {
    /// Capture or run of the mock layer
    #[arg(long, value_name = "PATH")]
    mock: PathBuf,
    /// Capture or run of the whole model
    #[arg(long, value_name = "PATH")]
    e2e: PathBuf,
    /// The operation is what ranges of this name launch; `*` stands for anything
    #[arg(long, value_name = "RANGE[@DOMAIN]", conflicts_with_all = ["operator", "kernels"])]
    range: Option<String>,
    /// The operation is what the operator at this module path launches: `decoder.layers.*.self_attn`
    #[arg(long, value_name = "PATH", conflicts_with = "kernels")]
    operator: Option<String>,
    /// The operation is kernels with this in their names; may be given again
    #[arg(long, value_name = "PATTERN")]
    kernels: Vec<String>,
    /// Stage that counts (prefill, decode), or which ranges are one: `prefill=forward@vllm`; all but the warm-up without
    #[arg(long, value_name = "NAME[=RANGE[@DOMAIN]]")]
    stage: Option<String>,
    /// Look only at what lies in ranges of this name; may be given again
    #[arg(long, value_name = "RANGE")]
    within: Vec<String>,
    /// Leave out what lies in ranges of this name; may be given again
    #[arg(long, value_name = "RANGE")]
    without: Vec<String>,
    /// Instances (one layer in one forward) that must count on each side; with fewer nothing is decided
    #[arg(long, value_name = "N")]
    forwards: Option<u32>,
    /// Thresholds in place of those of conf/alignment.toml
    #[arg(long, value_name = "TOML")]
    thresholds: Option<PathBuf>,
    /// Known differences: `[[waiver]]` with pattern, reason, impact and expires
    #[arg(long, value_name = "TOML")]
    waivers: Option<PathBuf>,
    /// The JSON of an earlier alignment of the pair, to tell what changed
    #[arg(long, value_name = "JSON")]
    previous: Option<PathBuf>,
    /// Write alignment.json, .md and .html here
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Md)]
    format: Format,
}

/// Aligns, prints, and says how it came out.
pub fn run(options: &Options) -> ExitCode {
    match carry_out(options) {
        Ok(Verdict::Pass | Verdict::Warn) => ExitCode::SUCCESS,
        Ok(Verdict::Fail) => ExitCode::from(1),
        Ok(Verdict::Inconclusive) => ExitCode::from(2),
        Err(error) => {
            eprintln!("llmprof: {error:#}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn carry_out(options: &Options) -> Result<Verdict> {
    let (stage, rules) = settings::stage(options.stage.as_deref(), &options.within, &options.without)?;
    let question = Question {
        operation: Operation::of(options.range.as_deref(), options.operator.as_deref(), &options.kernels)?,
        stage,
        forwards: options.forwards,
        thresholds: match &options.thresholds {
            Some(path) => Thresholds::with(&text(path)?).with_context(|| format!("cannot use {}", path.display()))?,
            None => Thresholds::default(),
        },
        waivers: match &options.waivers {
            Some(path) => waivers(&text(path)?).with_context(|| format!("cannot use {}", path.display()))?,
            None => vec![],
        },
        today: jiff::Timestamp::now().to_string().chars().take(10).collect(),
    };
    let before = options
        .previous
        .as_ref()
        .map(|path| previous(text(path)?.as_bytes()).with_context(|| format!("{} is no alignment", path.display())));
    let before = before.transpose()?;
    let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let (mock, e2e) = (name(&options.mock), name(&options.e2e));
    let mut alignment = pair::compare((&mock, &options.mock), (&e2e, &options.e2e), &rules, &question)?;
    if let Some((verdict, checks)) = before {
        alignment.since(&checks, verdict);
    }
    if let Some(out) = &options.out {
        fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        pair::write(&alignment, out, "alignment")?;
    }
    let text = match options.format {
        Format::Md => alignment.markdown(),
        Format::Json => alignment.json(),
        Format::Html => alignment.html(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(alignment.verdict)
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
