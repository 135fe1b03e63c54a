//! `llmprof analyze`: reports from a saved run or a bare capture, with no GPU, no database and no
//! server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use glob::Pattern;
use llmprof_analyze::parse::{
    foreign,
    stored::{read_own, resolved},
};
use llmprof_core::{
    domain::{ids::RunId, stated_model::CaptureStatement},
    layout,
    trace::stage::{StageRule, StageRules, check_stages},
};
use llmprof_report::{
    ReportForm,
    pipeline::{self, Analyzed, Statements},
};
use llmprof_service::{
    collect::{Collector, ProcessLimits},
    config,
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    ReportFormat,
    client::terminal,
    local_file,
    serve::{self, StopSignals},
    stated::StatedOptions,
};

/// Maximum time to export a report, seconds.
const EXPORT_S: u64 = 3600;

/// Analyse a saved run again, or a capture by nsys or PyTorch, and print its report
///
/// PATH is the folder of a run or an unpacked bundle, an SQLite export of nsys (`nsys export --type
/// sqlite`) or a report, if nsys is installed, or a trace by the profiler of PyTorch (`.json`,
/// `.json.gz`, `.json.zst`), or several traces or a folder of them: one per rank, and graph
/// captures. What is there is read as it is; nothing is measured.
#[derive(Debug, Args)]
pub struct AnalyzeOptions {
    /// Folder of a run, an SQLite export of nsys, traces of PyTorch, or a folder of them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// A page that ncu printed of the same program (`ncu --import R --csv --page raw`); may be
    /// given again
    #[arg(long, value_name = "CSV")]
    ncu: Vec<PathBuf>,
    /// Define a stage by ranges: `decode_all=generate@vllm`, `decode_all=step_*` (`*` stands for a
    /// number); repeatable
    #[arg(long, value_name = "NAME=RANGE[@DOMAIN]")]
    stage: Vec<StageRule>,
    #[command(flatten)]
    computes: StatedOptions,
    /// Peaks of devices that llmprof does not know, as TOML; its rows are preferred to the known
    /// ones
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// Include only ranges of this name; repeatable
    #[arg(long, value_name = "RANGE")]
    include_ranges: Vec<String>,
    /// Exclude ranges of this name; repeatable
    #[arg(long, value_name = "RANGE")]
    exclude_ranges: Vec<String>,
    /// List only ranges with matching names as regions: `decoder.layers.*`; repeatable
    #[arg(long, value_name = "GLOB")]
    include: Vec<Pattern>,
    /// List no ranges with matching names as regions; repeatable
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<Pattern>,
    /// Write the report's files here, as a run does, and print only the first page
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Output format; with --out, print the whole report, not only the first page [default: md]
    #[arg(long, value_enum)]
    format: Option<ReportFormat>,
}

pub fn run(options: &AnalyzeOptions) -> Result<()> {
    let (id, analyzed) = analyze(options)?;
    let form = options.format.map(|format| match format {
        ReportFormat::Md => ReportForm::Markdown,
        ReportFormat::Json => ReportForm::Json,
        ReportFormat::Html => ReportForm::Html,
    });
    let text = match &options.out {
        None => analyzed.render_one(form.unwrap_or(ReportForm::Markdown), id),
        Some(out) => {
            fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
            let files = analyzed.write(id, out)?;
            match form {
                None => analyzed.first_page(id) + &places(out),
                Some(form) => {
                    let wanted = files.into_iter().find(|(name, _)| *name == form.file());
                    wanted.context("the report lacks that form")?.1
                }
            }
        }
    };
    Ok(terminal::print(&text)?)
}

/// Places of the files that were written.
fn places(out: &Path) -> String {
    format!(
        "Whole report: {} (as text: {}). One page: {}. Tables: {} in the same folder, the longest \
         also as CSV files.\n",
        out.join(layout::REPORT_HTML).display(),
        layout::REPORT_MD,
        layout::SUMMARY_MD,
        layout::TABLES,
    )
}

fn analyze(options: &AnalyzeOptions) -> Result<(RunId, Analyzed)> {
    check_stages(&options.stage).context("--stage")?;
    let rules = StageRules::with(
        options.stage.clone(),
        options.include_ranges.clone(),
        options.exclude_ranges.clone(),
    )
    .with_regions(options.include.clone(), options.exclude.clone());
    let CaptureStatement { model, steps } = options.computes.resolve()?;
    let stated = Statements { rules, model, steps };
    let files = match options.paths.as_slice() {
        [path] => capture(path)?,
        paths => several(paths)?,
    };
    let mut given = files.iter().chain(&options.ncu).chain(&options.devices);
    given.try_for_each(|file| local_file::check_kind(file))?;
    let devices = config::devices_with(&options.devices.clone().unwrap_or_default())?;
    let exported = exported(&files)?;
    let files = exported.as_ref().map_or(files, |(_, export)| vec![export.clone()]);
    if !files.is_empty() {
        // It was not submitted, so it has no id.
        return Ok((
            RunId(Uuid::nil()),
            pipeline::analyze_capture(&files, &options.ncu, stated, &devices)?,
        ));
    }
    if !options.ncu.is_empty() {
        bail!("--ncu is for a bare capture: the folder of a run holds its own counters");
    }
    let path = options.paths.first().context("no path given")?;
    let analyzed = pipeline::analyze_with(path, stated, &devices)?;
    Ok((run_id(path)?, analyzed))
}

/// The export of a report of nsys, in a folder of its own; `None` for other captures, and on a host
/// without nsys, where the refusal of a report has the command that exports it.
fn exported(files: &[PathBuf]) -> Result<Option<(TempDir, PathBuf)>> {
    let [report] = files else { return Ok(None) };
    let collector = Collector::find(None, None, None);
    if collector.nsys.is_none() || !foreign::is_nsys_report(report) {
        return Ok(None);
    }
    let folder = tempfile::tempdir().context("cannot make a folder for the export")?;
    let cannot = || format!("cannot export {}", report.display());
    // nsys reads the target of a link; the export has the name of the argument.
    let data = report.canonicalize().with_context(cannot)?;
    let link = folder.path().join(layout::NSYS_REPORT);
    link.parent().map_or(Ok(()), fs::create_dir_all).with_context(cannot)?;
    std::os::unix::fs::symlink(&data, link).with_context(cannot)?;
    let (run, limit) = (RunId(Uuid::now_v7()), Duration::from_secs(EXPORT_S));
    let stop = CancellationToken::new();
    let limits = ProcessLimits::new(run, limit, stop.clone());
    serve::runtime()?
        .block_on(async {
            // A signal ends nsys, and the folder is removed.
            let mut stopped = StopSignals::catch()?;
            tokio::spawn(async move {
                stopped.signalled().await;
                stop.cancel();
            });
            anyhow::Ok(collector.export(&resolved(folder.path()), &limits).await?)
        })
        .with_context(cannot)?;
    // The report is named after its file.
    let name = report.file_stem().unwrap_or_default();
    let export = folder.path().join(name).with_added_extension("sqlite");
    fs::rename(folder.path().join(layout::NSYS_EXPORT), &export).with_context(cannot)?;
    Ok(Some((folder, export)))
}

/// The traces of several ranks, which are files.
fn several(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if let Some(folder) = paths.iter().find(|path| path.is_dir()) {
        bail!("{} is a folder; several paths are one trace of PyTorch each", folder.display());
    }
    Ok(paths.to_vec())
}

/// The capture at `path`; of a folder that is not a run's, its only export of nsys, or else all
/// traces by the profiler of PyTorch in it. Empty for the folder of a run.
fn capture(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    if path.join(layout::SPEC).exists() {
        return Ok(vec![]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let ending = |ends: &[&str]| -> Vec<PathBuf> {
        let has_end = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            ends.iter().any(|end| name.ends_with(end))
        };
        files.iter().filter(has_end).cloned().collect()
    };
    let exports = ending(&[".sqlite"]);
    let traces = ending(&[".json", ".json.gz", ".json.zst"]);
    let reports = ending(&[".nsys-rep", ".qdrep"]);
    match (exports.len(), reports.first()) {
        (1, _) => Ok(exports),
        (0, _) if !traces.is_empty() => Ok(traces),
        // The refusal of a report has the command that exports it.
        (0, Some(report)) => Ok(vec![report.clone()]),
        (0, None) => bail!(
            "{} holds neither a run nor a capture; pass the folder of a run, or captures",
            path.display()
        ),
        (count, _) => bail!("{} holds {count} exports of nsys; pass one of them", path.display()),
    }
}

/// The run id of a folder: the folder name, or `run_id` of its report.
fn run_id(dir: &Path) -> Result<RunId> {
    let dir = dir.canonicalize().with_context(|| format!("cannot read {}", dir.display()))?;
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let of_report = || -> Option<RunId> {
        let report = read_own(&dir.join(layout::REPORT_JSON)).ok()?;
        let report: serde_json::Value = serde_json::from_slice(&report).ok()?;
        report["run_id"].as_str()?.parse().ok()
    };
    name.parse().ok().or_else(of_report).with_context(|| {
        format!(
            "{0} has no id of a run: name the folder by the run's id, or keep its {1}",
            dir.display(),
            layout::REPORT_JSON
        )
    })
}
