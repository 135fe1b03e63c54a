//! Children of llmprof that read uploaded files: llmprof itself, with limits on memory and CPU
//! time, at a low priority, and stopped while a pass measures; one that has waited its time goes on
//! next to the pass, on idle CPUs.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    thread::available_parallelism,
    time::Duration,
};

use llmprof_core::domain::ids::RunId;
use nix::sys::signal::Signal;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    collect::{
        ExitReason, ProcessLimits, end_orphans,
        process::{
            argv::Argv,
            child::{ChildScope, Freezer, RunningChild},
            output::Logs,
            resources::ResourceLimits,
        },
    },
    config::{RunLimits, environment},
    measuring::{Measuring, QuietWait},
    runtime,
};

/// Maximum number of threads of a child: each has a stack, which counts as memory.
const MAX_THREADS: usize = 8;
/// Lines of its output that are searched for the reason of a failure.
const LAST_LINES: usize = 50;
/// Message of Rust's allocator before it aborts the process.
const OUT_OF_MEMORY: &str = "memory allocation of";

/// Program, limits and passes of the children of one service.
#[derive(Debug, Clone)]
pub struct LimitedChildren {
    /// The llmprof to start.
    pub program: PathBuf,
    pub limits: RunLimits,
    /// Passes for which the children wait.
    pub measuring: Measuring,
    /// Longest wait of a child.
    pub max_wait: Duration,
}

/// One child.
pub(super) struct LimitedChild {
    /// Marks its processes.
    pub id: RunId,
    /// Subcommand and its arguments.
    pub args: Vec<OsString>,
    pub logs: Logs,
    pub time_limit: Duration,
}

impl LimitedChild {
    /// The last line of its output.
    pub fn last_words(&self) -> String {
        let last = last_line(self.logs.last_output(LAST_LINES));
        last.unwrap_or_else(|| "its process left no result".into())
    }
}

/// The last of these lines that is not a note of Rust on backtraces.
fn last_line(lines: Vec<String>) -> Option<String> {
    lines.into_iter().rfind(|line| !line.starts_with("note: "))
}

impl LimitedChildren {
    /// Children of the running service, whose program stays the same when its file is replaced.
    pub fn of_service(limits: &RunLimits, measuring: &Measuring, max_wait: Duration) -> Self {
        Self {
            program: environment::SELF.into(),
            limits: limits.clone(),
            measuring: measuring.clone(),
            max_wait,
        }
    }

    /// Runs a child until it exits, exceeds a limit or is stopped. `Ok` is the code of an exit by
    /// itself; the error is a reason for the client.
    pub(super) async fn run(
        &self,
        child: &LimitedChild,
        stop: &CancellationToken,
    ) -> Result<i32, String> {
        let threads = available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let argv = Argv::new(&self.program)
            .args(child.args.iter().cloned())
            // The reason of its end is among its last lines.
            .env("RUST_BACKTRACE", "0")
            .env("RAYON_NUM_THREADS", threads.to_string())
            .env("TOKIO_WORKER_THREADS", threads.min(2).to_string());
        let limits = ProcessLimits {
            deadline: Instant::now() + child.time_limit,
            // It has nothing to write on a stop.
            grace: Duration::ZERO,
            resources: Some(ResourceLimits {
                memory_bytes: self.limits.capture_memory_bytes,
                cpu_s: self.limits.capture_cpu_s,
            }),
            ..ProcessLimits::new(child.id, child.time_limit, stop.clone())
        };
        let ended = self.run_to_exit(&argv, child, &limits).await;
        match ended {
            Ok(ExitReason::Exited(code)) => Ok(code),
            Ok(reason) => Err(self.explain(reason, child)),
            Err(error) => Err(format!("cannot start {}: {error}", self.program.display())),
        }
    }

    async fn run_to_exit(
        &self,
        argv: &Argv,
        child: &LimitedChild,
        limits: &ProcessLimits,
    ) -> io::Result<ExitReason> {
        let mut wait = QuietWait::new(&self.measuring, self.max_wait);
        if !wait.wait(&limits.stop).await {
            return Ok(ExitReason::Stopped);
        }
        let dir = Path::new(child.args.last().map_or(OsStr::new(""), OsString::as_os_str));
        let simulated = runtime::simulated(|it| it.start_job(&child.args, dir, child.id.into()));
        if let Some(job) = simulated {
            let mut job = job?;
            return tokio::select! {
                biased;
                code = job.wait() => Ok(ExitReason::of_code(code)),
                () = limits.stop.cancelled() => {
                    end_orphans(child.id);
                    Ok(ExitReason::Stopped)
                }
            };
        }
        let mut running = RunningChild::start(argv, &child.logs, limits, ChildScope::Run).await?;
        let freezer = running.freezer();
        let reason = tokio::select! {
            biased;
            reason = running.wait(limits) => reason?,
            () = yield_to_passes(move |it: ChildChange| it.apply(freezer), wait, &limits.stop) => {
                ExitReason::Stopped
            }
        };
        running.finish(reason, limits).await
    }

    /// The reason of a failure, with the setting that limits it.
    fn explain(&self, reason: ExitReason, child: &LimitedChild) -> String {
        let RunLimits { capture_memory_bytes, capture_cpu_s, .. } = &self.limits;
        let output = child.logs.last_output(LAST_LINES);
        let killed_by = |signal: Signal| reason == ExitReason::Signalled(signal as i32);
        if output.iter().any(|line| line.contains(OUT_OF_MEMORY)) {
            return format!(
                "it needs more than {capture_memory_bytes} bytes of memory \
                 (limits.capture_memory_bytes)"
            );
        }
        if killed_by(Signal::SIGXCPU) {
            return format!(
                "it needs more than {capture_cpu_s} s of CPU time (limits.capture_cpu_s)"
            );
        }
        if killed_by(Signal::SIGKILL) {
            return "its process was killed, probably because the host ran out of memory".into();
        }
        let last = last_line(output).map(|line| format!(": {line}")).unwrap_or_default();
        format!("its process {reason}{last}")
    }
}

/// A change to the processes of a child next to a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChildChange {
    Freeze,
    Thaw,
    RunWhenIdle,
}

impl ChildChange {
    /// Blocks while it searches the processes.
    fn apply(self, freezer: Freezer) {
        match self {
            Self::Freeze => freezer.freeze(),
            Self::Thaw => freezer.thaw(),
            Self::RunWhenIdle => freezer.run_when_idle(),
        }
    }
}

/// Stops the processes while a pass measures, until their wait is used up, by calls of `change`;
/// returns only after `stop` has fired.
async fn yield_to_passes(
    change: impl Fn(ChildChange) + Clone + Send + 'static,
    mut wait: QuietWait,
    stop: &CancellationToken,
) {
    loop {
        wait.disturbs().await;
        if wait.is_used_up() {
            make(change.clone(), ChildChange::RunWhenIdle).await;
            return stop.cancelled().await;
        }
        tracing::debug!("stopping a child while a pass measures");
        make(change.clone(), ChildChange::Freeze).await;
        let go_on = wait.wait(stop).await;
        make(change.clone(), ChildChange::Thaw).await;
        if !go_on {
            return;
        }
    }
}

/// Makes a change on a thread where it may block. If it panics there, the child continues.
async fn make(change: impl Fn(ChildChange) + Send + 'static, it: ChildChange) {
    let _ = runtime::blocking(move || change(it)).await;
}

#[cfg(test)]
mod tests;
