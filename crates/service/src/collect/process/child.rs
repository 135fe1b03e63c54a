//! Child processes that always end.
//!
//! A child leads its own session, so that its group can be ended with it; processes outside the
//! group are found by a mark in their environment. At its deadline, when it is stopped and when the
//! service dies, a child gets TERM and, after a grace period, KILL.

use std::{
    fmt, fs::File, io, os::unix::process::ExitStatusExt, path::PathBuf, process::ExitStatus,
    time::Duration,
};

use llmprof_core::domain::ids::RunMark;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid},
};
use tokio::{
    process::Child,
    sync::mpsc::UnboundedSender,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    argv::Argv,
    output::{Logs, copy_output},
};
use crate::{
    collect::process::{
        disk_quota::{DiskQuota, QuotaLimit},
        line_stream::{ChildLine, Lines},
        orphans::{StartedProcess, end_with, make_scratch, marked, scratch, targets},
        resources::{self, ResourceLimits},
        start::{command, spawn},
    },
    runtime,
};

/// Default time between TERM and KILL.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);
/// Time to wait for an output that stays open after every known process has ended.
const DRAIN: Duration = Duration::from_secs(2);

/// Limits of a child: its run, deadline, stop token, listener and disk quota. A run has one child
/// at a time, or a server and a client.
#[derive(Debug, Clone)]
pub struct ProcessLimits {
    pub run: RunMark,
    pub deadline: Instant,
    pub grace: Duration,
    /// At the deadline, the profiled processes get TERM first, and the profiler one more grace
    /// period to write its report.
    pub target_first: bool,
    pub stop: CancellationToken,
    pub lines: Option<UnboundedSender<ChildLine>>,
    /// Disk quota of the run; `None`: unlimited.
    pub quota: Option<DiskQuota>,
    /// Limits on memory and CPU time; `None`: unlimited.
    pub resources: Option<ResourceLimits>,
    /// Signal to the child when the service dies.
    pub death_signal: Signal,
}

impl ProcessLimits {
    /// Limits the children of `run` to `limit` from now, without a listener.
    pub fn new(run: impl Into<RunMark>, limit: Duration, stop: CancellationToken) -> Self {
        Self {
            run: run.into(),
            deadline: Instant::now() + limit,
            grace: DEFAULT_GRACE,
            target_first: false,
            stop,
            lines: None,
            quota: None,
            resources: None,
            death_signal: Signal::SIGTERM,
        }
    }

    /// Returns the same limits for a short command: at most `limit` from now, without a listener.
    pub fn short(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), lines: None, ..self.clone() }
    }
}

/// Reason why a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitReason {
    Exited(i32),
    /// Ended by a signal from elsewhere.
    Signalled(i32),
    DeadlinePassed,
    /// The run exceeded its disk quota, with this many bytes of temporary files.
    QuotaExceeded {
        temporary: u64,
    },
    /// The disk of the runs is nearly full.
    DiskFull,
    Stopped,
}

impl ExitReason {
    /// The reason by an exit code; a negative one is a signal.
    pub fn of_code(code: i32) -> Self {
        if code < 0 { Self::Signalled(-code) } else { Self::Exited(code) }
    }

    /// Returns the exit code, if the child exited by itself.
    pub fn exit_code(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }
}

impl From<ExitStatus> for ExitReason {
    fn from(status: ExitStatus) -> Self {
        // A status of `wait` is either a code or a signal.
        status
            .code()
            .map_or_else(|| Self::Signalled(status.signal().unwrap_or_default()), Self::Exited)
    }
}

impl From<QuotaLimit> for ExitReason {
    fn from(limit: QuotaLimit) -> Self {
        match limit {
            QuotaLimit::Run { temporary } => Self::QuotaExceeded { temporary },
            QuotaLimit::Disk => Self::DiskFull,
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signalled(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {signal}"),
            },
            Self::DeadlinePassed => f.write_str("ran past its deadline and was ended"),
            Self::QuotaExceeded { .. } => {
                f.write_str("exceeded the disk quota of a run and was ended")
            }
            Self::DiskFull => f.write_str("was ended because the disk of the runs is nearly full"),
            Self::Stopped => f.write_str("was stopped"),
        }
    }
}

/// Runs `argv` until it exits, exceeds a limit or is stopped; returns the reason.
///
/// Afterwards none of its processes is running, its output is in `logs`, and its folder for
/// temporary files is removed: an interrupted profiler leaves gigabytes there.
pub async fn run(argv: &Argv, logs: &Logs, limits: &ProcessLimits) -> io::Result<ExitReason> {
    run_to_exit(argv, logs, limits, ChildScope::Run).await
}

/// Runs `argv` alongside another child of the run: only its own process group is ended with it.
pub async fn run_alongside(
    argv: &Argv,
    logs: &Logs,
    limits: &ProcessLimits,
) -> io::Result<ExitReason> {
    run_to_exit(argv, logs, limits, ChildScope::Group).await
}

async fn run_to_exit(
    argv: &Argv,
    logs: &Logs,
    limits: &ProcessLimits,
    scope: ChildScope,
) -> io::Result<ExitReason> {
    if limits.stop.is_cancelled() {
        File::create(&logs.stdout)?;
        File::create(&logs.stderr)?;
        return Ok(ExitReason::Stopped);
    }
    let mut running = RunningChild::start(argv, logs, limits, scope).await?;
    let reason = running.wait(limits).await?;
    running.finish(reason, limits).await
}

/// Processes to end together with a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildScope {
    /// Every process of the run.
    Run,
    /// The child's process group.
    Group,
}

/// A running child.
pub struct RunningChild {
    child: Child,
    group: ProcessGroup,
    scratch: PathBuf,
    /// Keeps other services from removing the folder.
    _scratch_in_use: Option<File>,
    outputs: Vec<JoinHandle<io::Result<()>>>,
    /// Dropped after the child.
    _process: Option<StartedProcess>,
}

impl RunningChild {
    /// Starts `argv`. The child ends when this value is dropped.
    pub async fn start(
        argv: &Argv,
        logs: &Logs,
        limits: &ProcessLimits,
        scope: ChildScope,
    ) -> io::Result<Self> {
        let (stdout, stderr) = (File::create(&logs.stdout)?, File::create(&logs.stderr)?);
        let mut group = ProcessGroup { run: limits.run, leader: None, is_reaped: false, scope };
        let (scratch, lock) = match scope {
            ChildScope::Run => make_scratch(limits.run).map(|(path, lock)| (path, Some(lock)))?,
            ChildScope::Group => (scratch(limits.run), None),
        };
        let (mut child, process) = spawn(command(argv, limits, &scratch)).await?;
        group.leader = process.as_ref().map(|it| it.0);
        let lines = || Lines::new(limits.lines.clone());
        let out = child
            .stdout
            .take()
            .map(|from| tokio::spawn(copy_output(from, stdout, logs.cap, lines())));
        let err = child
            .stderr
            .take()
            .map(|from| tokio::spawn(copy_output(from, stderr, logs.cap, lines())));
        let outputs = [out, err].into_iter().flatten().collect();
        Ok(Self { child, group, scratch, outputs, _process: process, _scratch_in_use: lock })
    }

    /// Stops and slows down its processes.
    pub fn freezer(&self) -> Freezer {
        Freezer { run: self.group.run, leader: self.group.leader }
    }

    /// Waits until it exits, exceeds a limit or is stopped; returns the reason. May be called
    /// again.
    pub async fn wait(&mut self, limits: &ProcessLimits) -> io::Result<ExitReason> {
        Ok(tokio::select! {
            status = self.child.wait() => {
                self.group.is_reaped = true;
                status?.into()
            }
            () = limits.stop.cancelled() => ExitReason::Stopped,
            () = sleep_until(limits.deadline) => ExitReason::DeadlinePassed,
            limit = DiskQuota::exceeded(limits.quota.as_ref(), &self.scratch) => limit.into(),
        })
    }

    /// Ends its profiled processes and waits for their profiler.
    async fn end_target(&mut self, limits: &ProcessLimits) {
        let run = self.group.run;
        let ended = runtime::blocking(move || {
            let targets = targets(run);
            targets.iter().filter(|pid| kill(**pid, Signal::SIGTERM).is_ok()).count()
        });
        if ended.await.is_ok_and(|count| count > 0) {
            let exited = timeout(limits.grace, self.child.wait()).await;
            self.group.is_reaped |= matches!(exited, Ok(Ok(_)));
        }
    }

    /// Ends its remaining processes; a child that has not exited by itself gets TERM and a grace
    /// period first.
    pub async fn finish(
        mut self,
        mut reason: ExitReason,
        limits: &ProcessLimits,
    ) -> io::Result<ExitReason> {
        if limits.target_first && reason == ExitReason::DeadlinePassed {
            self.end_target(limits).await;
        }
        if matches!(
            reason,
            ExitReason::Stopped
                | ExitReason::DeadlinePassed
                | ExitReason::QuotaExceeded { .. }
                | ExitReason::DiskFull
        ) {
            self.group.signal(Signal::SIGTERM);
            let _ = timeout(limits.grace, self.child.wait()).await;
        }
        // A fast child may have written too much and exited between two checks.
        let limit = limits.quota.as_ref().and_then(|quota| quota.check(&self.scratch));
        if let (ExitReason::Exited(_), Some(limit @ QuotaLimit::Run { .. })) = (reason, limit) {
            reason = limit.into();
        }
        let group = self.group;
        runtime::blocking(move || drop(group)).await?;
        self.child.wait().await?;
        for output in self.outputs {
            drain(output).await?;
        }
        Ok(reason)
    }
}

/// Stops and continues the processes of a run, or lets them run only on idle CPUs.
#[derive(Debug, Clone, Copy)]
pub struct Freezer {
    run: RunMark,
    leader: Option<Pid>,
}

impl Freezer {
    /// Stops the processes until [`Freezer::thaw`]. Blocks while it searches them.
    pub fn freeze(self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn thaw(self) {
        self.signal(Signal::SIGCONT);
    }

    /// Gives the processes only time that no other process needs. Blocks while it searches them.
    pub fn run_when_idle(self) {
        resources::run_when_idle(&marked(self.run));
    }

    fn signal(self, sig: Signal) {
        signal_once(self.leader, Some(self.run), sig);
    }
}

/// Sends `sig` to the processes of the group and to the run's processes outside it, to each once: a
/// second TERM would interrupt what a program does in its handler of the first.
fn signal_once(leader: Option<Pid>, run: Option<RunMark>, sig: Signal) {
    if let Some(leader) = leader {
        let _ = killpg(leader, sig); // the group may have ended
    }
    let outside = |pid: &Pid| leader.is_none() || getpgid(Some(*pid)).ok() != leader;
    for pid in run.map(marked).unwrap_or_default().into_iter().filter(outside) {
        let _ = kill(pid, sig); // it may have ended
    }
}

/// All processes of a child, ended on drop, so also when the caller is cancelled.
struct ProcessGroup {
    run: RunMark,
    leader: Option<Pid>,
    is_reaped: bool,
    scope: ChildScope,
}

impl ProcessGroup {
    fn signal(&self, sig: Signal) {
        signal_once(self.leader, (self.scope == ChildScope::Run).then_some(self.run), sig);
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.scope == ChildScope::Run {
            end_with(self.run, self.leader.filter(|_| !self.is_reaped));
        }
    }
}

/// Waits until an output is copied, but only briefly for a foreign process that holds it open.
async fn drain(mut output: JoinHandle<io::Result<()>>) -> io::Result<()> {
    match timeout(DRAIN, &mut output).await {
        Ok(copied) => copied?,
        Err(_) => {
            output.abort();
            Ok(())
        }
    }
}

#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod tests;
