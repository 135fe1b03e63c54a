//! Children of the service that read captures, with limits on memory and CPU time: `llmprof
//! inspect` inspects an upload, `llmprof compute-alignment` computes an alignment.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use llmprof_service::scheduler::{alignments, inspection};

/// Inspect the files of an upload (started by the service)
#[derive(Debug, Clone, Args)]
pub struct InspectOptions {
    /// Folder of the inspection
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
}

/// Compute an alignment in its folder (started by the service)
#[derive(Debug, Clone, Args)]
pub struct ComputeOptions {
    /// Folder of the alignment
    #[arg(long, value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(options: &InspectOptions) -> Result<()> {
    inspection::execute(&options.folder)
        .with_context(|| format!("cannot inspect the upload in {}", options.folder.display()))
}

pub fn compute_alignment(options: &ComputeOptions) -> Result<()> {
    alignments::compute_in(&options.folder)
        .with_context(|| format!("cannot align the captures for {}", options.folder.display()))
}
