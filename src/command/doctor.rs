//! `llmprof doctor`: looks at the host and says what is missing, with the command that gets it.

use std::{
    fmt::Write as _,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use llmprof::{
    collect::{Collector, Look},
    config::{self, Config},
    run::{Finding, Severity},
    trace::checkup::{Check, CheckState, Checkup},
};
use tokio_util::sync::CancellationToken;

use super::serve;

/// Look at the host: driver, GPUs, tools, permissions, space
///
/// Every complaint comes with what to do about it. Nothing is changed; where there is a GPU, one kernel is profiled once per boot to
/// find out whether counters may be read. Exit codes: 0 runs can succeed here, 1 something that makes them impossible was found.
#[derive(Debug, Args)]
pub struct Options {
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that go over the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How the checks are printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let config = Config::load(options.config.as_deref(), std::env::vars())?;
    let data = options.data.clone().unwrap_or_else(|| config.server.data.clone());
    // A folder that is not there yet is not made for a look.
    let collector = Collector { state: data.is_dir().then(|| data.clone()), ..serve::collector(&config.tools, &config.limits)? };
    let checkup = serve::runtime()?.block_on(collector.checkup(&data, Look::Thorough, CancellationToken::new()));
    let checkup = Checkup::of(checkup.checked_at, checkup.checks.into_iter().chain([models(&config.server.models)]).collect());
    let text = match options.format {
        Format::Text => told(&checkup),
        Format::Json => serde_json::to_string_pretty(&checkup)? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if checkup.state == CheckState::Failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Looks whether every model of the folder can be used.
fn models(folder: &Path) -> Check {
    let checked = match config::models(Some(folder).filter(|folder| !folder.as_os_str().is_empty())) {
        Ok(found) if found.refused.is_empty() => Ok(format!("{} models can be used", found.models.len())),
        Ok(found) => {
            let message =
                format!("{} of {} models cannot be used", found.refused.len(), found.refused.len() + found.models.len());
            let finding = Finding::new("models", Severity::Warning, message);
            let finding = found.refused.iter().fold(finding, |finding, model| finding.with(&model.name, &model.reason));
            Err(finding.advise("correct them, or move them out of the models folder"))
        }
        Err(error) => {
            let message = format!("the models folder cannot be read: {}", llmprof::chain(&error));
            Err(Finding::new("models", Severity::Critical, message).advise("correct server.models"))
        }
    };
    Check::of("models", checked)
}

/// One line a check, and its remedy below.
fn told(checkup: &Checkup) -> String {
    let mut text = String::new();
    for check in &checkup.checks {
        let message: String = check.message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(text, "{:<8} {:<20} {message}", check.state.as_str(), check.id);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<29} -> {remedy}", "");
        }
    }
    let count = |state| checkup.checks.iter().filter(|check| check.state == state).count();
    let _ = writeln!(text, "\n{} warnings, {} failures", count(CheckState::Warning), count(CheckState::Failure));
    text
}
