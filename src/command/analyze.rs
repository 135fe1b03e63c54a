//! `llmprof analyze`: reports from a saved run, with no GPU, no database and no server.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use llmprof::{config, report, worker::offline};

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
