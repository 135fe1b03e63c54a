//! The passes of nsys: a target under it, with or without samples of the GPU's metrics, and the
//! export of its report to SQLite.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::{CaptureRange, NsysSettings},
        runner::{self, RunnerRequest},
    },
    layout,
};
use tokio::time::sleep;

use self::retries::{FailedAttempt, Retries};
use super::{
    pass::{self, CollectError, Pass, PassFolder},
    server::ServedTarget,
};
use crate::collect::{
    Collector, ExitReason, ProcessLimits,
    process::{argv::Argv, child, orphans, stall::StallWatch, watch::RuntimeWatch},
    tools::{self, gpu_metrics, nsys, nsys_report, nsys_window},
};

mod retries;

/// Target of a recording.
pub enum RecordedTarget<'a, 'b> {
    /// Model-runner, which reports its own times.
    Runner,
    /// A program whose runtime is measured from outside, nanoseconds.
    Program(&'a mut Option<i64>),
    Server(&'a mut ServedTarget<'b>),
}

impl RecordedTarget<'_, '_> {
    /// Runtime of a program that was seen.
    fn runtime(&self) -> Option<Duration> {
        match self {
            Self::Program(Some(ns)) => u64::try_from(*ns).ok().map(Duration::from_nanos),
            Self::Runner | Self::Program(None) | Self::Server(_) => None,
        }
    }
}

/// One pass of nsys.
#[derive(Debug, Clone)]
pub struct NsysPass<'a> {
    pub settings: &'a NsysSettings,
    /// The GPU's metrics to sample; `None` for the timeline pass.
    pub metrics: Option<SampledPass>,
}

/// A pass that samples the GPU's metrics.
#[derive(Debug, Clone, Copy)]
pub struct SampledPass {
    /// Samples per second.
    pub rate_hz: u32,
    /// Repeats and tokens of model-runner.
    pub repeats: u32,
    pub max_new_tokens: u32,
}

impl<'a> NsysPass<'a> {
    /// The timeline pass.
    pub fn timeline(settings: &'a NsysSettings) -> Self {
        Self { settings, metrics: None }
    }

    /// True if it samples processes outside the recorded process tree.
    pub fn is_system_wide(&self) -> bool {
        self.metrics.is_none() && self.settings.is_system_wide()
    }

    fn rate_hz(&self) -> Option<u32> {
        self.metrics.map(|it| it.rate_hz)
    }

    /// Its folder in the run's folder.
    pub fn folder(&self) -> String {
        self.metrics.map_or_else(|| layout::NSYS.to_owned(), |it| layout::metrics_pass(it.rate_hz))
    }
}

impl Collector {
    /// Runs a pass of nsys: the runner under it, exported to SQLite.
    pub async fn nsys(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        pass: &NsysPass<'_>,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.nsys.as_ref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let (folder, settings) = (PassFolder::create(self, dir, &pass.folder())?, pass.settings);
        // More repeats only enlarge a trace; ceilings are measured in the unprofiled pass.
        let (repeats, max_new_tokens) = match pass.metrics {
            Some(it) => (it.repeats, it.max_new_tokens),
            None => (request.repeats.min(settings.repeats), settings.max_new_tokens),
        };
        let once = RunnerRequest {
            repeats,
            warmup: request.warmup.min(settings.warmup),
            ceilings: false,
            ..request.with_new_tokens(max_new_tokens)
        };
        let (mark, marked) = orphans::TARGET;
        let mut runner = self.runner_argv(&once, &folder)?.env(mark, marked);
        if settings.capture_range != CaptureRange::None {
            // By default nsys matches registered strings only.
            runner = runner.env("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0");
        }
        let on_gpu = request.device != "cpu";
        let mut wall = None;
        // The failure of a pass that ends within its delay states its runtime.
        let recorded = match settings.delay_s {
            0 => RecordedTarget::Runner,
            _ => RecordedTarget::Program(&mut wall),
        };
        let pass = self.record(&folder, pass, on_gpu, &runner, limits, recorded).await?;
        folder.require(runner::EVENTS, "the model runner under nsys", &folder.log())?;
        Ok(pass)
    }

    /// Records `target` with nsys and exports the report to SQLite. A recording that hung, or
    /// failed by a race inside nsys, is repeated.
    pub(super) async fn record(
        &self,
        folder: &PassFolder<'_>,
        pass: &NsysPass<'_>,
        on_gpu: bool,
        target: &Argv,
        limits: &ProcessLimits,
        mut recorded: RecordedTarget<'_, '_>,
    ) -> Result<Pass, CollectError> {
        let nsys = self.nsys.as_deref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        self.check_sampling(pass)?;
        let report = folder.path().join(layout::NSYS_REPORT_FILE);
        let stem = report.with_extension("");
        let (settings, rate_hz) = (pass.settings, pass.rate_hz());
        let profile = match &recorded {
            RecordedTarget::Server(served) if served.window.is_some() => {
                let run = limits.run.run.0.simple().to_string();
                let session = (stem.as_path(), format!("llmprof-{run}"));
                nsys_window::session(nsys, settings, rate_hz, on_gpu, session, target)
            }
            _ => nsys::profile(nsys, settings, rate_hz, on_gpu, &stem, target),
        };
        let (profile, exposed) = self.isolated(profile, pass, folder.dir(), limits).await;
        let mut retries = Retries::default();
        let mut pass = loop {
            let started = Instant::now();
            let attempt = self.record_once(nsys, folder, &profile, limits, &mut recorded).await;
            let FailedAttempt { log, error, target_seen } = match attempt {
                Ok(pass) => break pass,
                Err(failed) => failed,
            };
            // A race shows in the output of a command that exited by itself, as does a refusal.
            let exited = matches!(error.ended(), Some(ExitReason::Exited(_)));
            if let (Some(_), true, Some(ended)) = (pass.metrics, exited, error.ended())
                && let Some(complaint) = gpu_metrics::find_refusal(&folder.output(&folder.log()))
            {
                let (tool, process) = ("nsys", folder.name().to_owned());
                return Err(CollectError::NoCounters { tool, process, complaint, ended });
            }
            let race = nsys::find_race(&folder.output(&log)).filter(|_| exited).cloned();
            let is_race = race.is_some();
            let ran = target_seen.map(|seen| seen.saturating_duration_since(started));
            let left = limits.deadline.into_std().saturating_duration_since(Instant::now());
            let raw = report.with_extension("qdstrm");
            let pause = match retries.add(error, race, ran, left) {
                Ok(pause) => pause,
                Err(error) if is_race || report.exists() || raw.exists() => return Err(error),
                Err(error) => {
                    let ran = recorded.runtime();
                    return Err(error.of_delayed(settings.delay_s, ran, started.elapsed()));
                }
            };
            for partial in [&report, &raw] {
                let _ = std::fs::remove_file(partial); // it may not exist
            }
            sleep(pause).await;
        };
        let with_files = |it| nsys_report::with_recorded_files(it, folder.dir(), &[folder.name()]);
        pass.findings.extend(exposed.and_then(with_files));
        pass.findings.extend(nsys::started_again(&retries.reasons));
        Ok(pass)
    }

    /// Records and exports once.
    async fn record_once(
        &self,
        nsys: &Path,
        folder: &PassFolder<'_>,
        profile: &Argv,
        limits: &ProcessLimits,
        recorded: &mut RecordedTarget<'_, '_>,
    ) -> Result<Pass, FailedAttempt> {
        let report = folder.path().join(layout::NSYS_REPORT_FILE);
        let name = folder.log();
        let (stall, limits) = StallWatch::start(limits, folder.path(), self.stall);
        let limits = &limits;
        let ran = match recorded {
            RecordedTarget::Runner => folder.run("nsys profile", &name, profile, limits).await,
            RecordedTarget::Program(wall) => {
                let watch = RuntimeWatch::start(limits.run);
                let ran = folder.run("nsys profile", &name, profile, limits).await;
                **wall = watch.stop().await;
                ran
            }
            RecordedTarget::Server(served) => {
                served.run_profiled(folder, &name, profile, limits).await
            }
        };
        let watched = stall.stop().await;
        let target_seen = watched.target_seen;
        let failed = |(log, error)| FailedAttempt { log, error, target_seen };
        if let Some(stall) = watched.stall {
            let target_seen = target_seen.is_some();
            return Err(failed((name, CollectError::Hung { stall, target_seen })));
        }
        let raw = report.with_extension("qdstrm");
        // With a report or raw data, the target failed and not nsys.
        let has_data = report.exists() || raw.exists();
        let of_target = if has_data { format!("{name}-target") } else { name };
        let deadline = limits.deadline.into_std();
        let alone = target_seen.map(|seen| deadline.saturating_duration_since(seen));
        let pass = ran.map_err(|error| failed((of_target, error.of_profiler(alone))))?;
        self.read_report(nsys, folder, limits, pass).await.map_err(failed)
    }

    /// Imports raw data if nsys left no report, and exports the report; a failure has the name of
    /// the failed command's log.
    pub(super) async fn read_report(
        &self,
        nsys: &Path,
        folder: &PassFolder<'_>,
        limits: &ProcessLimits,
        mut pass: Pass,
    ) -> Result<Pass, (String, CollectError)> {
        let [report, export] =
            [layout::NSYS_REPORT_FILE, layout::NSYS_EXPORT_FILE].map(|it| folder.path().join(it));
        let name = folder.log();
        let log = |command: &str| format!("{name}-{command}");
        let raw = report.with_extension("qdstrm");
        if !report.exists() {
            let of_import = if raw.exists() { log("import") } else { name.clone() };
            pass.findings.push(
                self.import(nsys, folder, &raw, &report, limits)
                    .await
                    .map_err(|error| (of_import, error))?,
            );
        }
        let of_export = log("export");
        let exported = async {
            folder.require(layout::NSYS_REPORT_FILE, "nsys profile", &name)?;
            let command = nsys::export(nsys, &report, &export);
            self.run_reader(folder, ("nsys export", &of_export, &report), &command, limits).await?;
            folder.require(layout::NSYS_EXPORT_FILE, "nsys export", &of_export)
        };
        exported.await.map_err(|error| (log("export"), error))?;
        // nsys may leave it; the report contains it.
        let _ = fs::remove_file(&raw);
        Ok(pass)
    }

    /// Runs a tool that reads `recording`, with the name of its log. It is stopped by the limits of
    /// a profiler whose program has ended.
    async fn run_reader(
        &self,
        folder: &PassFolder<'_>,
        (what, log, recording): (&'static str, &str, &Path),
        command: &Argv,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        // The watch counts files: the recording that an argument names is linked.
        let is_link = fs::symlink_metadata(recording).is_ok_and(|it| it.is_symlink());
        let linked = fs::metadata(recording).map_or(0, |it| if is_link { it.len() } else { 0 });
        let stall = self.stall.with_file(linked);
        let (watch, limits) = StallWatch::start(limits, folder.path(), stall);
        let ran = folder.run(what, log, command, &limits).await;
        match watch.stop().await.stall {
            Some(stall) if ran.is_err() => Err(CollectError::HungReader { what, stall }),
            _ => ran,
        }
    }

    /// Exports the report in the run's `nsys/`, possibly of another nsys, to SQLite next to it.
    pub async fn export(&self, dir: &Path, limits: &ProcessLimits) -> Result<Pass, CollectError> {
        let nsys = self.nsys.as_deref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let folder = PassFolder::open(self, dir, layout::NSYS)?;
        let report = dir.join(layout::NSYS_REPORT);
        let command = nsys::export(nsys, &report, &dir.join(layout::NSYS_EXPORT));
        let exported = async {
            let named = ("nsys export", "nsys-export", &*report);
            let pass = self.run_reader(&folder, named, &command, limits).await?;
            folder.require(layout::NSYS_EXPORT_FILE, "nsys export", "nsys-export")?;
            Ok(pass)
        };
        match exported.await {
            Err(error)
                if matches!(error, CollectError::Ended { .. } | CollectError::Empty { .. }) =>
            {
                let installed =
                    tools::version(nsys, &self.logs(dir, "nsys-version"), limits).await.ok();
                // Some versions fail for another reason than the version.
                let required = nsys::required_version(&folder.output("nsys-export"));
                let needs = match (required, &installed) {
                    (None, Some(installed)) => nsys_report::newer_writer(&report, installed).await,
                    (required, _) => required,
                };
                match needs {
                    Some(needs) => Err(CollectError::NewerReport { needs, installed }),
                    None => Err(error),
                }
            }
            exported => exported,
        }
    }

    /// Refuses system-wide sampling if the operator forbids it: the run may have been queued before
    /// the operator did.
    pub(super) fn check_sampling(&self, pass: &NsysPass<'_>) -> Result<(), CollectError> {
        let is_forbidden = pass.is_system_wide() && !self.system_wide_sampling;
        match pass.settings.system_wide_refusal().filter(|_| is_forbidden) {
            Some(refusal) => Err(CollectError::SamplingForbidden { refusal }),
            None => Ok(()),
        }
    }

    /// Returns the command of `pass` in a process tree of its own, or unchanged with a finding: if
    /// the pass samples all processes, or if the system does not permit such a tree.
    pub(super) async fn isolated(
        &self,
        command: Argv,
        pass: &NsysPass<'_>,
        dir: &Path,
        limits: &ProcessLimits,
    ) -> (Argv, Option<Finding>) {
        if pass.is_system_wide() {
            // In a tree of its own, nsys sees other processes with the id 0 and without a name.
            return (command, Some(nsys::sees_all_processes()));
        }
        if !self.isolate {
            return (command, None);
        }
        for isolation in nsys::ISOLATIONS {
            let probe = nsys::isolated(isolation, Argv::new("true"));
            let limits = limits.short(Duration::from_secs(10));
            let probed = child::run(&probe, &self.logs(dir, "isolation"), &limits).await;
            if matches!(probed, Ok(ExitReason::Exited(0))) {
                return (nsys::isolated(isolation, command), None);
            }
        }
        (command, Some(nsys::sees_environments()))
    }

    /// Imports the raw data of nsys, if its importer is found.
    async fn import(
        &self,
        nsys: &Path,
        folder: &PassFolder<'_>,
        qdstrm: &Path,
        report: &Path,
        limits: &ProcessLimits,
    ) -> Result<Finding, CollectError> {
        let unlinked = nsys.canonicalize().unwrap_or_else(|_| nsys.into());
        let importer = nsys::importers(&unlinked).into_iter().find(|path| tools::is_program(path));
        let (true, Some(importer)) = (qdstrm.exists(), importer) else {
            return Err(folder.missing_report(qdstrm.exists(), &folder.log()));
        };
        let log = format!("{}-import", folder.log());
        let command = nsys::import(&importer, qdstrm, report);
        self.run_reader(folder, ("QdstrmImporter", &log, qdstrm), &command, limits).await?;
        folder.require(layout::NSYS_REPORT_FILE, "QdstrmImporter", &log)?;
        let message = "nsys did not find its importer and left raw data, which llmprof imported";
        Ok(Finding::new(catalogue::NSYS_IMPORTER_UNLINKED, message)
            .with("importer", importer.display())
            .advise(pass::LINK_IMPORTER))
    }
}

#[cfg(test)]
mod hangs;
#[cfg(test)]
mod tests;
