//! The subcommands: options, and the parts of the packages that each puts together.

pub mod align;
pub mod analyze;
pub mod backup;
pub mod check;
pub mod client;
pub mod cost;
pub mod diff;
pub mod doctor;
pub mod engines;
pub mod execute;
pub mod gate;
pub mod inspect;
pub mod load;
mod local_file;
pub mod openapi;
mod progress;
pub mod quickstart;
pub mod serve;
pub mod stated;
pub mod token;

use std::path::Path;

use llmprof_service::config::{self, Config, ConfigError, FoundModels};

/// The configured models: from `folder`, else from the setting `server.models`.
fn models(folder: Option<&Path>) -> Result<FoundModels, ConfigError> {
    let config = Config::load(None)?;
    let folder = folder.unwrap_or(config.server.models.as_path());
    config::models(Some(folder).filter(|folder| !folder.as_os_str().is_empty()))
}

/// The form of a report on standard output.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ReportFormat {
    Md,
    Json,
    Html,
}
