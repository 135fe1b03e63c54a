//! `llmprof diff`: what changed from one saved run to another.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof::{
    artifact::layout,
    parse::aliases,
    report::diff::{StoredReport, run_diff, stored},
};

use super::ReportFormat;

/// Compare two saved runs: whether they may be compared, then what changed by stage, operator and
/// kernel
///
/// A and B are folders of runs, unpacked bundles, or files report.json. A change counts where
/// Welch's t-test finds it; what changed most comes first.
#[derive(Debug, Args)]
pub struct DiffOptions {
    /// The run before
    a: PathBuf,
    /// The run after
    b: PathBuf,
    /// An earlier run of the same kind as A, to learn how runs differ from each other; give several
    #[arg(long, value_name = "RUN")]
    history: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Md)]
    format: ReportFormat,
}

pub fn run(options: &DiffOptions) -> Result<()> {
    let history = options.history.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let diff = run_diff(&read(&options.a)?, &read(&options.b)?, &history);
    let text = match options.format {
        ReportFormat::Md => diff.markdown(),
        ReportFormat::Json => diff.json(),
        ReportFormat::Html => diff.html(),
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn read(path: &Path) -> Result<StoredReport> {
    let report = if path.is_dir() { path.join(layout::REPORT_JSON) } else { path.to_owned() };
    let text = fs::read(&report).with_context(|| format!("cannot read {}", report.display()))?;
    // The table of all kernels is next to the run's report.
    let is_report = report.file_name().is_some_and(|name| name == layout::REPORT_JSON);
    let kernels =
        is_report.then(|| fs::read(report.with_file_name(layout::KERNELS_JSON)).ok()).flatten();
    stored(&text, kernels.as_deref(), aliases::read)
        .with_context(|| format!("cannot compare {}", report.display()))
}
