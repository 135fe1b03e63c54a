//! Collection of a run's data; the only module that starts processes.
//!
//! Each pass has its own folder with request, commands and results; its output is in `logs/`. A
//! failed pass keeps its files. Exit code 0 without results is a failure.

pub mod gpu;
pub mod host;
pub mod passes;
pub mod process;
pub mod tools;

use std::path::{Path, PathBuf};

pub use crate::collect::{
    host::{doctor::CheckDepth, preflight::Preflight},
    passes::{
        command::CommandRun,
        counters::CounterPass,
        pass::{CollectError, Pass},
        session::{RunningSession, SessionAccess},
        timeline::{NsysPass, SampledPass},
    },
    process::{
        child::{ExitReason, ProcessLimits},
        line_stream::ChildLine,
        orphans::end_orphans,
    },
};
use llmprof_core::{domain::runner::RunnerRequest, layout};

use crate::collect::{
    passes::pass::PassFolder,
    process::{
        argv::Argv,
        output::{self, Logs},
        stall::StallLimits,
    },
};

/// Programs that collect, and their limits.
#[derive(Debug, Clone)]
pub struct Collector {
    pub runner: PathBuf,
    /// `None` if not installed.
    pub nsys: Option<PathBuf>,
    pub ncu: Option<PathBuf>,
    /// Variables of the service that children get in addition to [`argv::PASSED`].
    pub pass: Vec<String>,
    /// Hide other processes from nsys, if the system allows it.
    pub isolate: bool,
    /// Samples of all processes are permitted.
    pub system_wide_sampling: bool,
    /// Maximum times of nsys once its program has ended.
    pub stall: StallLimits,
    /// Maximum size of each output of a child, bytes.
    pub log_cap: u64,
    /// Free disk space required to start a run, bytes.
    pub min_free_bytes: u64,
    /// Share of the unprofiled pass with waiting tasks from which the host counts as busy, percent;
    /// 0: never.
    pub host_busy_pct: u32,
    /// The service's data folder, for results that are valid until the next boot.
    pub state: Option<PathBuf>,
}

impl Collector {
    /// Creates a collector with this runner and no other tool.
    pub fn new(runner: impl Into<PathBuf>) -> Self {
        let (log_cap, min_free_bytes) = (output::DEFAULT_CAP, 1 << 30);
        Self {
            runner: runner.into(),
            nsys: None,
            ncu: None,
            pass: Vec::new(),
            isolate: true,
            system_wide_sampling: true,
            stall: StallLimits::default(),
            log_cap,
            min_free_bytes,
            host_busy_pct: 0,
            state: None,
        }
    }

    /// Finds the tools of this host; a configured path is used as is.
    pub fn find(runner: Option<&Path>, nsys: Option<&Path>, ncu: Option<&Path>) -> Self {
        let (nsys, ncu) = (tools::find_tool("nsys", nsys), tools::find_tool("ncu", ncu));
        Self { nsys, ncu, ..Self::new(tools::find_runner(runner)) }
    }

    /// Programs that collect.
    fn programs(&self) -> Vec<&Path> {
        let tools = [&self.nsys, &self.ncu].into_iter().flatten().map(PathBuf::as_path);
        tools.chain([self.runner.as_path()]).collect()
    }

    /// Returns the command of a pass of model-runner and writes its request.
    fn runner_argv(
        &self,
        request: &RunnerRequest,
        folder: &PassFolder,
    ) -> Result<Argv, CollectError> {
        let file = folder.write_request(request)?;
        let argv = Argv::new(&self.runner)
            .arg("run")
            .arg("--request")
            .arg(file)
            .arg("--out")
            .arg(folder.path());
        Ok(Argv { pass: self.pass.clone(), ..confined(argv, request.gpu.as_deref()) })
    }

    fn logs(&self, dir: &Path, name: &str) -> Logs {
        Logs { cap: self.log_cap, ..Logs::named(&dir.join(layout::LOGS), name) }
    }
}

/// Returns the command with this GPU as the only visible one.
fn confined(argv: Argv, gpu: Option<&str>) -> Argv {
    match gpu {
        Some(gpu) => argv.env("CUDA_VISIBLE_DEVICES", gpu),
        None => argv,
    }
}

#[cfg(test)]
mod tests;
