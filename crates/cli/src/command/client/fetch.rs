//! `llmprof fetch`: downloads the files of a run of a service.

use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use llmprof_analyze::parse::sealed::is_inside;
use llmprof_core::domain::units::quantity;
use llmprof_report::format::bytes;
use serde_json::json;

use super::{
    ServerOptions, ServiceClient,
    answers::{ArtifactAnswer, ArtifactsAnswer},
    download::{Downloaded, download},
    run_path,
    terminal::{escaped, print, print_json},
};

/// Download the files of a run of a service
///
/// Files that are there already are kept, and a download that was cut is resumed by the same
/// command. Each file is compared with its SHA-256. Exit code 0, or 3: bad input, a file that
/// cannot be written, or the service refuses or does not answer.
#[derive(Debug, Args)]
pub struct FetchOptions {
    /// Id of the run
    #[arg(value_name = "ID")]
    run: String,
    /// Files to download, as in report.html or 'logs/*'; all when absent
    file: Vec<String>,
    /// Folder for the files; the id of the run when absent
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// Print the files as JSON, one a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: ServerOptions,
}

pub fn run(options: &FetchOptions) -> ExitCode {
    super::run(&options.service, async |client| fetch(&client, options).await)
}

async fn fetch(client: &ServiceClient, options: &FetchOptions) -> Result<ExitCode> {
    let path = run_path(&options.run)?;
    let listed: ArtifactsAnswer = client.read(&format!("{path}/artifacts")).await?;
    if listed.artifacts.is_empty() {
        let run = client.run(&options.run).await?;
        if !run.has_ended() {
            bail!(
                "run {0} is {1}; its files are listed when it ends: `llmprof watch {0}`",
                options.run,
                run.state
            );
        }
    }
    let wanted = select(listed.artifacts, &options.file)?;
    let folder = options.into.clone().unwrap_or_else(|| options.run.clone().into());
    let targets: Vec<(PathBuf, ArtifactAnswer)> = wanted
        .into_iter()
        .map(|artifact| Ok((folder.join(safe_path(&artifact.path)?), artifact)))
        .collect::<Result<_>>()?;
    let total = targets.iter().map(|(_, artifact)| artifact.bytes).sum();
    let bar = bar(total)?;
    for (to, artifact) in &targets {
        bar.set_message(escaped(&artifact.path));
        let done = download(client, &path, artifact, to, |bytes| bar.inc(bytes)).await;
        let done = done.inspect_err(|_| bar.finish_and_clear())?;
        if options.json {
            let line = json!({ "path": to, "bytes": artifact.bytes, "state": word(done) });
            bar.suspend(|| print_json(&line))?;
        }
    }
    bar.finish_and_clear();
    if !options.json {
        let count = quantity(targets.len() as u64, "file");
        print(&format!("{count}, {}, in {}\n", bytes(total), folder.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

const fn word(done: Downloaded) -> &'static str {
    match done {
        Downloaded::Present => "present",
        Downloaded::Complete => "downloaded",
        Downloaded::Resumed => "resumed",
    }
}

fn bar(total: u64) -> Result<ProgressBar> {
    let template = "{bytes} of {total_bytes} {bar:20} {eta:>4} {wide_msg}";
    let style = ProgressStyle::with_template(template).context("the bar")?;
    let bar = ProgressBar::new(total).with_style(style);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    Ok(bar)
}

/// The listed files that match one of the patterns; each pattern must match one.
fn select(listed: Vec<ArtifactAnswer>, patterns: &[String]) -> Result<Vec<ArtifactAnswer>> {
    if patterns.is_empty() {
        return Ok(listed);
    }
    let parse = |text: &String| {
        glob::Pattern::new(text).with_context(|| format!("invalid pattern {text:?}"))
    };
    let parsed: Vec<glob::Pattern> = patterns.iter().map(parse).collect::<Result<_>>()?;
    for pattern in &parsed {
        if !listed.iter().any(|it| pattern.matches(&it.path)) {
            bail!("no file matches {:?}; `llmprof fetch --help` has examples", pattern.as_str());
        }
    }
    let is_wanted = |it: &ArtifactAnswer| parsed.iter().any(|pattern| pattern.matches(&it.path));
    Ok(listed.into_iter().filter(is_wanted).collect())
}

/// A path of a service that stays inside the folder of the download.
fn safe_path(path: &str) -> Result<&Path> {
    if !is_inside(path) || path.chars().any(char::is_control) {
        bail!("the service lists a file outside the folder of the run: {path:?}");
    }
    Ok(Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_stays_inside_its_folder() {
        assert_eq!(safe_path("logs/a.log").unwrap(), Path::new("logs/a.log"));
        for outside in ["../a", "/etc/passwd", "a/../../b", "", "a\nb", "./../x"] {
            assert!(safe_path(outside).is_err(), "{outside}");
        }
    }

    #[test]
    fn files_are_selected_by_patterns_and_an_unknown_one_is_refused() {
        let listed = || {
            ["report.md", "report.html", "logs/a.log"]
                .map(|path| ArtifactAnswer { path: path.into(), bytes: 1, sha256: "0".into() })
                .to_vec()
        };
        let paths = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|it| (*it).to_owned()).collect();
            select(listed(), &patterns)
                .map(|found| found.into_iter().map(|it| it.path).collect::<Vec<_>>())
        };
        assert_eq!(paths(&["report.*"]).unwrap(), ["report.md", "report.html"]);
        assert_eq!(paths(&["logs/*"]).unwrap(), ["logs/a.log"]);
        assert_eq!(paths(&[]).unwrap().len(), 3);
        assert!(paths(&["report.md", "nothing"]).is_err());
    }
}
