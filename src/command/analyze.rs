//! `llmprof analyze`: reports from a saved run, with no GPU, no database and no server.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use llmprof::{artifact::layout, config, run::RunId, worker::offline};

/// Analyse a saved run again, and print its report
///
/// DIR is the folder of a run, or an unpacked bundle. What the passes left there is read as it is; nothing is measured.
#[derive(Debug, Args)]
pub struct Options {
    /// Folder of a run
    dir: PathBuf,
    /// Write the report's files here, as a run does
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Format::Md)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Md,
    Json,
    Html,
}

pub fn run(options: &Options) -> Result<()> {
    let analyzed = offline::analyze(&options.dir, &config::devices()?)?;
    let id = run_id(&options.dir)?;
    if let Some(out) = &options.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        analyzed.write(id, out)?;
    }
    let wanted = match options.format {
        Format::Md => layout::REPORT_MD,
        Format::Json => layout::REPORT_JSON,
        Format::Html => layout::REPORT_HTML,
    };
    let files = analyzed.render(id);
    let (_, text) = files.iter().find(|(name, _)| *name == wanted).context("the report lacks that form")?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// A run's folder is named by its id.
fn run_id(dir: &Path) -> Result<RunId> {
    let dir = dir.canonicalize().with_context(|| format!("cannot read {}", dir.display()))?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    name.parse().with_context(|| format!("{} is no folder of a run: its name is no run id", dir.display()))
}
