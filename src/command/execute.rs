//! `llmprof execute`: one run from its folder alone, as a job of a cluster does it.
//!
//! Reads the order that a service left in the folder, and leaves journal, files and result there. Needs no service and no database.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof::{
    config,
    worker::execute::{self, Part},
};
use tokio_util::sync::CancellationToken;

use super::serve::{self, LogFormat, start_logging};

/// Carry out one run from its folder, with neither service nor database
///
/// For jobs of a cluster: `llmprof serve` with `executor.kind = "slurm"` writes the order (job.json) into the run's folder and submits this
/// command. It leaves the result there (result.json), and exits with 0 when the run has a report. SIGTERM ends it cleanly.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Folder of the run
    #[arg(long, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Take only the steps that need the device
    #[arg(long, conflicts_with = "conclude")]
    pub gather: bool,
    /// Analyse and report what `--gather` left
    #[arg(long)]
    pub conclude: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    start_logging(LogFormat::Human, "info");
    let dir = options.run_dir.canonicalize().with_context(|| format!("cannot use the folder {}", options.run_dir.display()))?;
    let order = execute::order(&dir)?;
    let part = match (options.gather, options.conclude) {
        (true, _) => Part::Gather,
        (_, true) => Part::Conclude,
        _ => Part::Whole,
    };
    let collector = serve::collector(&order.tools, &order.limits)?;
    let devices = config::devices()?;
    serve::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let told = stop.clone();
        let stopped = serve::stop_signal()?;
        tokio::spawn(async move {
            stopped.await;
            tracing::info!("told to end");
            told.cancel();
        });
        Ok(ExitCode::from(execute::execute(&order, &dir, part, collector, devices, &stop).await?))
    })
}
