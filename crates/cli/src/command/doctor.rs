//! `llmprof doctor`: checks the host and lists problems with their remedies.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use llmprof_core::{
    domain::{
        finding::{Finding, Severity, catalogue},
        visible::{one_line, pretty_json},
    },
    trace::checkup::{CheckState, Checkup, HostCheck},
};
use llmprof_service::{
    collect::{CheckDepth, Collector},
    config::{self, Config},
};
use tokio_util::sync::CancellationToken;

use super::{client::terminal, serve};

/// Check the host: driver, GPUs, tools, permissions, space
///
/// Every problem has a remedy. Changes nothing; on a GPU, one kernel is profiled once per boot to
/// check the permission to read counters. Exit codes: 0 runs can succeed here, 1 they cannot.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// Folder of the database and the runs [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// File with settings that override the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = DoctorFormat::Text)]
    format: DoctorFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DoctorFormat {
    Text,
    Json,
}

pub fn run(options: &DoctorOptions) -> Result<ExitCode> {
    let config = Config::load(options.config.as_deref())?;
    let data = options.data.clone().unwrap_or_else(|| config.server.data.clone());
    // A folder that is not there yet is not made for a look.
    let collector = Collector {
        state: data.is_dir().then(|| data.clone()),
        ..serve::collector(&config.tools, &config.limits)?
    };
    let checkup = serve::runtime()?.block_on(collector.checkup(
        &data,
        CheckDepth::Thorough,
        CancellationToken::new(),
    ));
    let checkup = Checkup::of(
        checkup.checked_at,
        checkup.checks.into_iter().chain([models(&config.server.models)]).collect(),
    );
    let text = match options.format {
        DoctorFormat::Text => as_text(&checkup),
        DoctorFormat::Json => pretty_json(&checkup)?,
    };
    terminal::print(&text)?;
    Ok(if checkup.state == CheckState::Failure { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Looks whether every model of the folder can be used.
fn models(folder: &Path) -> HostCheck {
    let checked = match config::models(Some(folder).filter(|folder| !folder.as_os_str().is_empty()))
    {
        Ok(found) if found.refused.is_empty() => {
            Ok(format!("{} models can be used", found.models.len()))
        }
        Ok(found) => {
            let message = format!(
                "{} of {} models cannot be used",
                found.refused.len(),
                found.refused.len() + found.models.len()
            );
            let finding = Finding::new(catalogue::MODELS, message);
            let finding = found
                .refused
                .iter()
                .fold(finding, |finding, model| finding.with(&model.name, &model.reason));
            Err(finding.advise("correct them, or move them out of the models folder"))
        }
        Err(error) => {
            let message =
                format!("the models folder cannot be read: {}", llmprof_core::chain(&error));
            Err(Finding::new(catalogue::MODELS, message)
                .severity(Severity::Critical)
                .advise("correct server.models"))
        }
    };
    HostCheck::of("models", checked)
}

/// One line a check, and its remedy below.
fn as_text(checkup: &Checkup) -> String {
    let mut text = String::new();
    for check in &checkup.checks {
        let message = one_line(&check.message);
        let _ = writeln!(text, "{:<8} {:<20} {message}", check.state.as_str(), check.id);
        if let Some(remedy) = &check.remedy {
            let _ = writeln!(text, "{:<29} -> {}", "", one_line(remedy));
        }
    }
    let count = |state| checkup.checks.iter().filter(|check| check.state == state).count();
    let _ = writeln!(
        text,
        "\n{} warnings, {} failures",
        count(CheckState::Warning),
        count(CheckState::Failure)
    );
    text
}
