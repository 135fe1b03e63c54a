//! A server as the target of a pass: started, awaited, used by its client, and stopped with all of
//! its descendants.
//!
//! Under a profiler only the server is signalled: the profiler writes its recording and exits by
//! itself.

use std::{collections::HashMap, fs, io, time::Duration};

use llmprof_core::{
    domain::{
        command::{GateSettings, ReadyCheck, WindowSettings},
        finding::{Finding, catalogue},
        runner::Progress,
    },
    layout,
    trace::command::{CommandTimes, Timed},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    failure::THE_SERVER,
    pass::{LAST_WORDS, PassFolder},
};
use crate::{
    collect::{
        CollectError, Pass, ProcessLimits,
        passes::readiness,
        process::{
            argv::Argv,
            child::{ChildScope, ExitReason, RunningChild, run_alongside},
            line_stream::ChildLine,
            orphans::{scratch, targets},
            output::Logs,
        },
    },
    runtime,
};

/// Maximum time from the failure of a client to the exit of its dead server and of nsys.
const EXIT_AFTER_CLIENT: Duration = Duration::from_secs(10);
/// Time between two checks for the exit of a stopped server.
const PERIOD: Duration = Duration::from_millis(50);
/// Maximum time from a profiler's delay to the start of its recording.
const MAX_RECORDING_DELAY: Duration = Duration::from_secs(30);

/// A server with its client, repeats and times.
pub struct ServedTarget<'a> {
    pub ready: &'a ReadyCheck,
    /// URL of the readiness check, with its port.
    pub url: Option<String>,
    pub client: Option<Argv>,
    /// True if the client is llmprof's load generator, which records its requests.
    pub is_load: bool,
    /// Recording within the load, in place of one of the whole load.
    pub window: Option<WindowSettings>,
    /// Gate of its own profiler, which records the window in place of nsys.
    pub gate: Option<GateSettings>,
    pub warmup: u32,
    pub repeats: u32,
    /// Time between the start of the server and the recording; a client waits for it.
    pub delay: Duration,
    /// Duration of the recording, and of a server without a client; zero: until the server ends.
    pub duration: Duration,
    pub times: CommandTimes,
}

/// Processes to stop when the client has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopTarget {
    Everything,
    Target,
}

impl ServedTarget<'_> {
    /// Runs the server without a profiler.
    pub async fn run_unprofiled(
        &mut self,
        folder: &PassFolder<'_>,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.serve(folder, name, argv, limits, StopTarget::Everything).await
    }

    /// Runs the server under a profiler, which `argv` starts.
    pub async fn run_profiled(
        &mut self,
        folder: &PassFolder<'_>,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.serve(folder, name, argv, limits, StopTarget::Target).await
    }

    async fn serve(
        &mut self,
        folder: &PassFolder<'_>,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
        stop: StopTarget,
    ) -> Result<Pass, CollectError> {
        self.times = CommandTimes {
            of: Timed::Client,
            warmup: self.warmup,
            wall_ns: vec![],
            ready_ns: None,
        };
        folder.record_command(argv)?;
        let logs = folder.logs(name);
        let not_started =
            |source: io::Error| CollectError::Run { program: argv.program.clone(), source };
        let started = Instant::now();
        let mut running =
            RunningChild::start(argv, &logs, limits, ChildScope::Run).await.map_err(not_started)?;
        let used = tokio::select! {
            ended = running.wait(limits) => Err(match ended {
                Ok(ended) => CollectError::Ended { what: THE_SERVER, ended, last_words: vec![] },
                Err(source) => not_started(source),
            }),
            used = async {
                let is_windowed = stop == StopTarget::Target || self.gate.is_some();
                if self.window.is_some() && is_windowed {
                    return self.use_windowed(folder, (name, &logs, started), limits).await;
                }
                self.use_server(folder, name, &logs, started, stop, limits).await
            } => used,
        };
        let mut used = used;
        if matches!(&used, Err(CollectError::Ended { what: "the client", .. }))
            && let Ok(Ok(ended)) = timeout(EXIT_AFTER_CLIENT, running.wait(limits)).await
            && matches!(ended, ExitReason::Exited(_) | ExitReason::Signalled(_))
        {
            // A client fails when its server has died; nsys writes its report meanwhile.
            used = Err(CollectError::Ended { what: THE_SERVER, ended, last_words: vec![] });
        }
        let ended = match &used {
            Ok(_) if stop == StopTarget::Target => {
                stop_targets(limits).await;
                running.wait(limits).await.map_err(not_started)?
            }
            Err(CollectError::Ended { ended, what: THE_SERVER, .. }) => *ended,
            _ => ExitReason::Stopped,
        };
        let ended = running.finish(ended, limits).await.map_err(not_started)?;
        match used {
            // The exit of a stopped server is not a result.
            Ok(findings)
                if matches!(ended, ExitReason::Exited(_) | ExitReason::Signalled(_))
                    || stop == StopTarget::Everything && ended == ExitReason::Stopped =>
            {
                Ok(Pass { wall: started.elapsed(), findings })
            }
            Ok(_) => Err(folder.failure(THE_SERVER, ended, &logs, limits)),
            Err(CollectError::Ended { what: THE_SERVER, .. }) => {
                Err(folder.failure(THE_SERVER, ended, &logs, limits))
            }
            Err(CollectError::NotReady { how, within_s, .. }) => Err(CollectError::NotReady {
                how,
                within_s,
                last_words: logs.last_output(LAST_WORDS),
            }),
            Err(error) => Err(error),
        }
    }

    /// Waits until the server is ready and recorded, and runs the client; returns the findings.
    pub(super) async fn use_server(
        &mut self,
        folder: &PassFolder<'_>,
        name: &str,
        logs: &Logs,
        started: Instant,
        stop: StopTarget,
        limits: &ProcessLimits,
    ) -> Result<Vec<Finding>, CollectError> {
        self.wait_until_ready(logs).await?;
        self.times.ready_ns = i64::try_from(started.elapsed().as_nanos()).ok();
        let mut findings = Vec::new();
        let mut recorded_since = None;
        if stop == StopTarget::Target {
            let latest = started + self.delay + MAX_RECORDING_DELAY;
            let temporary = scratch(limits.run);
            recorded_since =
                timeout_at(latest, readiness::wait_for_recording(&temporary)).await.ok();
            if recorded_since.is_none() {
                findings.push(self.incomplete_recording("did not start before the client"));
            }
        }
        let Some(client) = self.client.clone() else {
            sleep(self.duration).await;
            return Ok(findings);
        };
        for turn in 0..self.warmup + self.repeats {
            let measured = turn.checked_sub(self.warmup);
            let log = measured.map_or_else(
                || format!("{name}-client-warmup-{}", turn + 1),
                |turn| format!("{name}-client-{}", turn + 1),
            );
            report_progress(
                limits,
                measured.is_some(),
                measured.unwrap_or(turn),
                if measured.is_some() { self.repeats } else { self.warmup },
            );
            let mut client = client.clone();
            if self.is_load {
                client = client.args(["--quiet", "--partial"]);
                if let Some(turn) = measured {
                    let path = folder.path().join(layout::requests(turn as usize + 1));
                    client = client.arg("--out").arg(path);
                }
            }
            let wall = folder.run_alongside("the client", &log, &client, limits).await?;
            if measured.is_some() {
                self.times.wall_ns.push(i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX));
            }
        }
        report_progress(limits, true, self.repeats, self.repeats);
        let lasted = recorded_since.and_then(|since| since.elapsed().ok()).unwrap_or_default();
        if !self.duration.is_zero() && lasted > self.duration {
            findings.push(self.incomplete_recording("ended before the client"));
        }
        Ok(findings)
    }

    pub(super) async fn wait_until_ready(&self, logs: &Logs) -> Result<(), CollectError> {
        let text = self.ready.log.as_deref().unwrap_or_default();
        let ready = async {
            match &self.url {
                Some(url) => readiness::wait_for_url(url).await,
                None => readiness::wait_for_line(logs, text).await,
            }
        };
        let limit = Duration::from_secs(self.ready.within_s.into());
        timeout(limit, ready).await.map_err(|_| CollectError::NotReady {
            how: match &self.url {
                Some(url) => format!("no 2xx response at {url}"),
                None => format!("no line of output contains {text:?}"),
            },
            within_s: self.ready.within_s,
            last_words: vec![],
        })
    }

    /// Finding of a recording that may not cover the client.
    fn incomplete_recording(&self, how: &str) -> Finding {
        Finding::new(
            catalogue::CLIENT_OUTSIDE_RECORDING,
            format!("The recording {how}: it may not contain all requests of the client."),
        )
        .with("delay_s", self.delay.as_secs())
        .with("duration_s", self.duration.as_secs())
        .advise(
            "set the command's delay_s close to the time at which it is ready, and its duration_s \
             above the runtime of its clients",
        )
    }
}

/// Reports the progress of the repeats.
pub fn report_progress(limits: &ProcessLimits, measured: bool, done: u32, total: u32) {
    let phase = if measured { "measure" } else { "warmup" };
    if let Some(lines) = &limits.lines {
        // The listener may be closed.
        let _ = lines.send(ChildLine::Progress(Progress {
            phase: phase.into(),
            done: done.into(),
            total: total.into(),
            sample: None,
        }));
    }
}

/// Stops the server and its descendants: TERM, and KILL after a grace period.
///
/// Each program gets TERM once: a second one would interrupt what its handler does. Processes that
/// were just started get theirs when they are found, and again when they execute their program,
/// which has none of its parent's handlers.
pub(super) async fn stop_targets(limits: &ProcessLimits) {
    let mut signalled: HashMap<Pid, Vec<u8>> = HashMap::new();
    for (signal, grace) in
        [(Signal::SIGTERM, limits.grace), (Signal::SIGKILL, Duration::from_secs(1))]
    {
        let until = Instant::now() + grace;
        loop {
            let run = limits.run;
            let left = runtime::blocking(move || targets(run)).await.unwrap_or_default();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let program = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let is_new = signalled.get(&pid) != Some(&program);
                if is_new || signal == Signal::SIGKILL {
                    let _ = kill(pid, signal); // it may have ended
                    signalled.insert(pid, program);
                }
            }
            if Instant::now() >= until {
                break;
            }
            sleep(PERIOD).await;
        }
    }
}

impl PassFolder<'_> {
    /// Runs one command of the pass alongside another child and returns its runtime.
    pub(super) async fn run_alongside(
        &self,
        what: &'static str,
        name: &str,
        argv: &Argv,
        limits: &ProcessLimits,
    ) -> Result<Duration, CollectError> {
        self.record_command(argv)?;
        let (logs, started) = (self.logs(name), Instant::now());
        match run_alongside(argv, &logs, limits).await {
            Ok(ExitReason::Exited(0)) => Ok(started.elapsed()),
            Ok(ended) => Err(self.failure(what, ended, &logs, limits)),
            Err(source) => Err(CollectError::Run { program: argv.program.clone(), source }),
        }
    }
}
