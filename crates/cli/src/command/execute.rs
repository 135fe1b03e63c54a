//! `llmprof execute`: one run from only its folder, as a process of the service's host or as a job
//! of a cluster.
//!
//! Reads the job that a service left in the folder, and leaves journal, files and result there.
//! Needs no service and no database.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_service::{
    collect::{Collector, host::exhaustion, process::orphans},
    config,
    job::standalone_job::{self, JobPart},
};
use tokio_util::sync::CancellationToken;

use super::serve::{self, LogFormat, start_logging};

/// Execute one run from its folder, without service and database
///
/// `llmprof serve` writes the job (job.json) into the run's folder and starts this command, or
/// submits it to Slurm. It leaves the result there (result.json), and exits with 0 if the run has a
/// report. SIGTERM ends it cleanly.
#[derive(Debug, Clone, Args)]
pub struct ExecuteOptions {
    /// Folder of the run
    #[arg(long, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// Take only the steps that need the device
    #[arg(long, conflicts_with = "conclude")]
    pub gather: bool,
    /// Analyse and report what `--gather` left
    #[arg(long)]
    pub conclude: bool,
    /// Format of log lines on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    pub log: LogFormat,
    /// Level of logs; LLMPROF_LOG overrides it
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

pub fn run(options: &ExecuteOptions) -> Result<ExitCode> {
    serve::create_private_files();
    start_logging(options.log, &options.log_level);
    let dir = options
        .run_dir
        .canonicalize()
        .with_context(|| format!("cannot use the folder {}", options.run_dir.display()))?;
    let spec = standalone_job::read_spec(&dir)?;
    let part = match (options.gather, options.conclude) {
        (true, _) => JobPart::Gather,
        (_, true) => JobPart::Conclude,
        _ => JobPart::Whole,
    };
    orphans::adopt_orphans().context("cannot become the parent of orphaned processes")?;
    let state = spec.state.clone();
    let collector = Collector { state, ..serve::collector(&spec.tools, &spec.limits)? };
    let devices = config::devices_with(&spec.tools.devices)?;
    serve::runtime()?.block_on(async {
        let stop = CancellationToken::new();
        let stop_on_signal = stop.clone();
        let mut signals = serve::StopSignals::catch()?;
        tokio::spawn(async move {
            signals.signalled().await;
            tracing::info!("stop requested");
            stop_on_signal.cancel();
        });
        match standalone_job::execute(&spec, &dir, part, collector, devices, &stop).await {
            Err(error) if exhaustion::finding(&error).is_some() => {
                tracing::error!(error = llmprof_core::chain(&error), "the host lacks resources");
                Ok(ExitCode::from(exhaustion::EXIT))
            }
            ended => Ok(ExitCode::from(ended?)),
        }
    })
}
