//! Collects what a run asks for: the only place that starts processes.
//!
//! Each pass has a folder of its own with the request, the command, and what the pass left; its output is under `logs/`. A pass that
//! fails says how and keeps its files. "Exit 0 and empty" is a failure here.

pub mod argv;
mod checks;
pub mod child;
mod command;
mod counters;
pub mod devices;
mod doctor;
pub mod gauge;
pub mod host;
pub mod lines;
mod loader;
pub mod ncu;
pub mod nsys;
pub mod nvml;
pub mod output;
mod pass;
mod permission;
pub mod preflight;
mod ready;
mod sampler;
mod server;
pub mod slurm;
pub mod space;
pub mod sweep;
pub mod tools;
mod watch;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use self::{argv::Argv, output::Logs, pass::Folder, sampler::Sampler, server::Served, watch::Watch};
pub use self::{
    child::{Ended, Leash},
    command::CommandRun,
    doctor::Look,
    lines::ChildLine,
    pass::{CollectError, Pass},
    preflight::Preflight,
    sweep::sweep,
};
use crate::{
    artifact::layout,
    profiling::{CaptureRange, NsysSettings, NvmlSettings},
    run::{Finding, Severity},
    runner::{self, RunnerRequest},
};

/// The programs that collect, and their bounds.
#[derive(Debug, Clone)]
pub struct Collector {
    pub runner: PathBuf,
    /// `None`: not installed.
    pub nsys: Option<PathBuf>,
    pub ncu: Option<PathBuf>,
    /// Variables of the service that children see besides [`argv::PASSED`].
    pub pass: Vec<String>,
    /// Whether nsys is kept from seeing other processes, where the system lets us.
    pub isolate: bool,
    /// Most bytes of each output of a child.
    pub log_cap: u64,
    /// Free space that a run wants to begin with.
    pub min_free_bytes: u64,
    /// The service's data folder, where what holds until the next boot is kept.
    pub state: Option<PathBuf>,
}

impl Collector {
    /// A collector with this runner and no other tool.
    pub fn new(runner: impl Into<PathBuf>) -> Self {
        let (log_cap, min_free_bytes) = (output::DEFAULT_CAP, 1 << 30);
        Self {
            runner: runner.into(),
            nsys: None,
            ncu: None,
            pass: Vec::new(),
            isolate: true,
            log_cap,
            min_free_bytes,
            state: None,
        }
    }

    /// Finds the tools of this host; a configured path is taken as it is.
    pub fn find(runner: Option<&Path>, nsys: Option<&Path>, ncu: Option<&Path>) -> Self {
        let (nsys, ncu) = (tools::find_tool("nsys", nsys), tools::find_tool("ncu", ncu));
        Self { nsys, ncu, ..Self::new(tools::find_runner(runner)) }
    }

    /// The plain pass, the only source of timings: the runner alone, into `baseline/`. A GPU is sampled beside it.
    pub async fn baseline(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        nvml: &NvmlSettings,
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        let folder = Folder::fresh(self, dir, layout::BASELINE)?;
        let sampled = request.gpu.as_deref().filter(|_| nvml.enabled);
        // Only readings of power want stages to run on.
        let steady_ms = if sampled.is_some() { nvml.steady_ms } else { 0 };
        let runner = self.runner_argv(&RunnerRequest { steady_ms, ..request.clone() }, &folder)?;
        let sampler = sampled.map(|gpu| Sampler::start(gpu, dir.join(layout::NVML), nvml.hz));
        let pass = folder.run("the model runner", "baseline", &runner, leash).await;
        let not_sampled = match sampler {
            Some(sampler) => sampler.stop().await,
            None => None,
        };
        let mut pass = pass?;
        pass.findings.extend(not_sampled);
        folder.holds(runner::EVENTS, "the model runner", "baseline")?;
        Ok(pass)
    }

    /// The timeline pass: the runner once more under nsys, exported to SQLite, into `nsys/`.
    pub async fn nsys(
        &self,
        dir: &Path,
        request: &RunnerRequest,
        settings: &NsysSettings,
        leash: &Leash,
    ) -> Result<Pass, CollectError> {
        self.nsys.as_ref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let folder = Folder::fresh(self, dir, layout::NSYS)?;
        // What repeats adds to a trace is size; ceilings are measured in the plain pass.
        let once = RunnerRequest {
            repeats: request.repeats.min(settings.repeats),
            warmup: request.warmup.min(settings.warmup),
            max_new_tokens: request.max_new_tokens.min(settings.max_new_tokens),
            ceilings: false,
            ..request.clone()
        };
        let mut runner = self.runner_argv(&once, &folder)?;
        if settings.capture_range != CaptureRange::None {
            // Otherwise nsys waits for registered strings only.
            runner = runner.env("NSYS_NVTX_PROFILER_REGISTER_ONLY", "0");
        }
        let pass = self.record(&folder, dir, settings, request.device != "cpu", &runner, leash, Recorded::Runner).await?;
        folder.holds(runner::EVENTS, "the model runner under nsys", "nsys")?;
        Ok(pass)
    }

    /// Has nsys record `target`, to its end or while it is used, and exports what it recorded to SQLite. A race inside of nsys is not an
    /// answer: the recording is started again.
    #[expect(clippy::too_many_arguments, reason = "a pass, its folder, its settings and its bounds")]
    async fn record(
        &self,
        folder: &Folder<'_>,
        dir: &Path,
        settings: &NsysSettings,
        on_gpu: bool,
        target: &Argv,
        leash: &Leash,
        mut recorded: Recorded<'_, '_>,
    ) -> Result<Pass, CollectError> {
        let nsys = self.nsys.as_deref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let report = dir.join(layout::NSYS_REPORT);
        let profile = nsys::profile(nsys, settings, on_gpu, &report.with_extension(""), target);
        let (profile, exposed) = self.isolated(profile, dir, leash).await;
        let mut again = Vec::new();
        let mut pass = loop {
            let (stage, error) = match self.record_once(nsys, folder, dir, &profile, leash, &mut recorded).await {
                Ok(pass) => break pass,
                Err(lost) => lost,
            };
            // The tool ended by itself, and the last of its commands that ran says so.
            let itself = matches!(error.ended(), Some(Ended::Exited(_)));
            match nsys::RACES.iter().find_map(|words| folder.says(stage, words)).filter(|_| itself) {
                Some(words) if again.len() < nsys::MOST_AGAIN => again.push(words),
                _ => return Err(error),
            }
            for half in [&report, &report.with_extension("qdstrm")] {
                let _ = std::fs::remove_file(half); // there may be none
            }
        };
        pass.findings.extend(exposed);
        pass.findings.extend(nsys::begun_again(&again));
        pass.findings.extend(folder.import_errors("nsys"));
        Ok(pass)
    }

    /// One try of a recording and its export; the failure comes with the log of the command that failed.
    async fn record_once(
        &self,
        nsys: &Path,
        folder: &Folder<'_>,
        dir: &Path,
        profile: &Argv,
        leash: &Leash,
        recorded: &mut Recorded<'_, '_>,
    ) -> Result<Pass, (&'static str, CollectError)> {
        let (report, export) = (dir.join(layout::NSYS_REPORT), dir.join(layout::NSYS_EXPORT));
        let ran = match recorded {
            Recorded::Runner => folder.run("nsys profile", "nsys", profile, leash).await,
            Recorded::Program(wall) => {
                let watch = Watch::start(leash.run);
                let ran = folder.run("nsys profile", "nsys", profile, leash).await;
                **wall = watch.stop().await;
                ran
            }
            Recorded::Server(served) => served.under(folder, "nsys", profile, leash).await,
        };
        let raw = report.with_extension("qdstrm");
        // What it left is the target's own failure.
        let whose = if report.exists() || raw.exists() { "nsys-target" } else { "nsys" };
        let mut pass = ran.map_err(|error| (whose, error))?;
        if !report.exists() {
            let log = if raw.exists() { "nsys-import" } else { "nsys" };
            pass.findings.push(self.import(nsys, folder, &raw, &report, leash).await.map_err(|error| (log, error))?);
        }
        let whole = async {
            folder.holds("run.nsys-rep", "nsys profile", "nsys")?;
            folder.run("nsys export", "nsys-export", &nsys::export(nsys, &report, &export), leash).await?;
            folder.holds("run.sqlite", "nsys export", "nsys-export")
        };
        whole.await.map_err(|error| ("nsys-export", error))?;
        Ok(pass)
    }

    /// Exports the report that lies in the run's `nsys/`, which another nsys may have written, to SQLite beside it.
    pub async fn export(&self, dir: &Path, leash: &Leash) -> Result<Pass, CollectError> {
        let nsys = self.nsys.as_deref().ok_or(CollectError::NotInstalled { tool: "nsys" })?;
        let folder = Folder::at(self, dir, layout::NSYS)?;
        let command = nsys::export(nsys, &dir.join(layout::NSYS_REPORT), &dir.join(layout::NSYS_EXPORT));
        let exported = async {
            let pass = folder.run("nsys export", "nsys-export", &command, leash).await?;
            folder.holds("run.sqlite", "nsys export", "nsys-export")?;
            Ok(pass)
        };
        match exported.await {
            Err(error) if matches!(error, CollectError::Ended { .. } | CollectError::Empty { .. }) => {
                let Some(needs) = nsys::required_version(&folder.output("nsys-export")) else { return Err(error) };
                let installed = tools::version(nsys, &self.logs(dir, "nsys-version"), leash).await.ok();
                Err(CollectError::NewerReport { needs, installed })
            }
            exported => exported,
        }
    }

    /// The command in a process tree of its own, or as it was with a finding, where the system forbids that.
    async fn isolated(&self, command: Argv, dir: &Path, leash: &Leash) -> (Argv, Option<Finding>) {
        if !self.isolate {
            return (command, None);
        }
        for isolation in nsys::ISOLATIONS {
            let probe = nsys::isolated(isolation, Argv::new("true"));
            let tried = child::run(&probe, &self.logs(dir, "isolation"), &leash.short(Duration::from_secs(10))).await;
            if matches!(tried, Ok(Ended::Exited(0))) {
                return (nsys::isolated(isolation, command), None);
            }
        }
        let message = "nsys could read the environments of this user's other processes: its report holds them, secrets included";
        let remedy = "keep nsys/run.nsys-rep and nsys/run.sqlite to yourself, or let the service make namespaces (util-linux's unshare, \
                      and CAP_SYS_ADMIN or unprivileged user namespaces)";
        (command, Some(Finding::new("nsys_sees_environments", Severity::Warning, message).advise(remedy)))
    }

    /// Imports what the collector of nsys left behind, where its other half can be found.
    async fn import(
        &self,
        nsys: &Path,
        folder: &Folder<'_>,
        qdstrm: &Path,
        report: &Path,
        leash: &Leash,
    ) -> Result<Finding, CollectError> {
        let unlinked = nsys.canonicalize().unwrap_or_else(|_| nsys.into());
        let importer = nsys::importers(&unlinked).into_iter().find(|path| tools::is_program(path));
        let (true, Some(importer)) = (qdstrm.exists(), importer) else {
            return Err(folder.no_report(qdstrm.exists(), "nsys"));
        };
        folder.run("QdstrmImporter", "nsys-import", &nsys::import(&importer, qdstrm, report), leash).await?;
        folder.holds("run.nsys-rep", "QdstrmImporter", "nsys-import")?;
        let _ = std::fs::remove_file(qdstrm); // the report has all of it
        let message = "nsys did not find its importer and left raw data, which llmprof imported";
        Ok(Finding::new("nsys_importer_unlinked", Severity::Info, message)
            .with("importer", importer.display())
            .advise(pass::LINK_IMPORTER))
    }

    fn runner_argv(&self, request: &RunnerRequest, folder: &Folder) -> Result<Argv, CollectError> {
        let file = folder.write_request(request)?;
        let argv = Argv::new(&self.runner).arg("run").arg("--request").arg(file).arg("--out").arg(folder.path());
        Ok(Argv { pass: self.pass.clone(), ..confined(argv, request.gpu.as_deref()) })
    }

    fn logs(&self, dir: &Path, name: &str) -> Logs {
        Logs { cap: self.log_cap, ..Logs::named(&dir.join(layout::LOGS), name) }
    }
}

/// What nsys records: what is timed of it from outside, and how it ends.
enum Recorded<'a, 'b> {
    /// It tells everything itself.
    Runner,
    /// How long it ran, nanoseconds.
    Program(&'a mut Option<i64>),
    Server(&'a mut Served<'b>),
}

/// The command as it runs where it sees no GPU but this one.
fn confined(argv: Argv, gpu: Option<&str>) -> Argv {
    match gpu {
        Some(gpu) => argv.env("CUDA_VISIBLE_DEVICES", gpu),
        None => argv,
    }
}

#[cfg(test)]
mod tests;
