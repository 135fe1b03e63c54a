//! A window of a server: recorded in the middle of its load, between unprofiled loads.
//!
//! The server runs under `nsys launch`. Its load runs once before the recording, which gives the
//! length of the window; then until the recording has ended; then once after it.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use llmprof_core::{
    domain::{
        bounded_read::read_bounded_text,
        command::{GateSettings, WindowSettings},
        finding::{Finding, catalogue},
    },
    layout,
    trace::{
        requests::{LoadLine, RequestRecord},
        windows::{self, Window, WindowTimes},
    },
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    gate,
    pass::PassFolder,
    server::{ServedTarget, report_progress},
    session::SessionAccess,
};
use crate::{
    artifact::packed::open_own,
    collect::{
        CollectError, ProcessLimits,
        process::{
            argv::Argv,
            child::{ExitReason, run_alongside},
            orphans::scratch,
            output::{Logs, read_answer},
        },
        tools::nsys_window::{START_LIMIT_S, STOP_LIMIT_S, WindowFiles},
    },
};

/// Time between two checks for a file.
const PERIOD: Duration = Duration::from_millis(20);
/// Additional time for a command that has a limit of its own.
const MARGIN: Duration = Duration::from_secs(20);
/// Options of a load that has no end of its own.
const ENDLESS: &str = "--requests=10000000";
/// Maximum size of the record of a load, bytes; the rest is not needed for a plan.
const MAX_RECORD: u64 = 64 << 20;

impl ServedTarget<'_> {
    /// Uses a server that runs under `nsys launch`; returns the findings.
    pub(super) async fn use_windowed(
        &mut self,
        folder: &PassFolder<'_>,
        (name, logs, started): (&str, &Logs, Instant),
        limits: &ProcessLimits,
    ) -> Result<Vec<Finding>, CollectError> {
        let (Some(settings), Some(client)) = (self.window, self.client.clone()) else {
            return Ok(Vec::new());
        };
        self.wait_until_ready(logs).await?;
        self.times.ready_ns = i64::try_from(started.elapsed().as_nanos()).ok();
        let recorder = match self.gate.clone() {
            Some(gate) => Recorder::Gate(gate),
            None => Recorder::Files(WindowFiles::of(&scratch(limits.run))),
        };
        self.record_within_load(folder, (name, client), (settings, &recorder), limits).await
    }

    /// Runs the load before, during and after a window that `recorder` records.
    pub(super) async fn record_within_load(
        &self,
        folder: &PassFolder<'_>,
        (name, client): (&str, Argv),
        (settings, recorder): (WindowSettings, &Recorder<'_>),
        limits: &ProcessLimits,
    ) -> Result<Vec<Finding>, CollectError> {
        let client = client.args(["--quiet", "--partial", "--out"]);
        let before = folder.path().join(layout::REQUESTS_BEFORE);
        report_progress(limits, false, 0, 2);
        let log = format!("{name}-client-before");
        folder.run_alongside("the client", &log, &client.clone().arg(&before), limits).await?;
        let max_s = f64::from(settings.max_s);
        let times = windows::plan(&read_requests(&before), settings.min_steps, max_s);
        let times = times.unwrap_or(WindowTimes { lead_s: 1.0, length_s: max_s });
        report_progress(limits, true, 0, 1);
        let (window, mut findings) =
            record(folder, (name, &client), recorder, times, limits).await?;
        let recorded = Window { min_steps: settings.min_steps, ..window.window };
        let path = folder.path().join(layout::WINDOW);
        let write = || fs::write(&path, serde_json::to_vec_pretty(&recorded)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        report_progress(limits, false, 1, 2);
        let after = folder.path().join(layout::REQUESTS_AFTER);
        let log = format!("{name}-client-after");
        folder.run_alongside("the client", &log, &client.arg(after), limits).await?;
        report_progress(limits, true, 1, 1);
        if let (Recorder::Gate(gate), Some(since)) = (recorder, window.since) {
            let traces = gate::collect(gate, folder.dir(), since).await?;
            let message = "The server's own profiler recorded the window.";
            let finding = Finding::new(catalogue::WINDOW_BY_GATE, message);
            findings.push(finding.with("traces", traces));
        }
        Ok(findings)
    }
}

/// Starts and stops a recording.
pub(super) enum Recorder<'a> {
    /// A server under `nsys launch` that was started for this pass.
    Files(WindowFiles),
    /// The server of a session, with the options of `nsys start` and the stem of the report.
    Session(&'a SessionAccess, String, PathBuf),
    Gate(GateSettings),
}

impl Recorder<'_> {
    /// The error is a text.
    async fn start(&self) -> Result<(), String> {
        match self {
            Self::Files(files) => request(&files.start(), files.started(), START_LIMIT_S).await,
            Self::Session(session, options, _) => {
                session.start_window(options, START_LIMIT_S).await
            }
            Self::Gate(gate) => gate::start(gate).await,
        }
    }

    async fn stop(&self) -> Result<(), String> {
        match self {
            Self::Files(files) => request(&files.stop(), files.stopped(), STOP_LIMIT_S).await,
            Self::Session(session, _, stem) => session.stop_window(stem, STOP_LIMIT_S).await,
            Self::Gate(gate) => gate::stop(gate).await,
        }
    }
}

/// A window, and the time at which its recording was requested.
struct RecordedWindow {
    window: Window,
    since: Option<SystemTime>,
}

/// Runs the load until a window of it is recorded.
async fn record(
    folder: &PassFolder<'_>,
    (name, client): (&str, &Argv),
    recorder: &Recorder<'_>,
    times: WindowTimes,
    limits: &ProcessLimits,
) -> Result<(RecordedWindow, Vec<Finding>), CollectError> {
    let mut endless = client.clone().arg(folder.path().join(layout::requests(1)));
    endless.args.retain(|arg| !is_bound(arg));
    endless.args.insert(2, ENDLESS.into());
    folder.record_command(&endless)?;
    let stop = limits.stop.child_token();
    let until_recorded = ProcessLimits { stop: stop.clone(), ..limits.clone() };
    let logs = folder.logs(&format!("{name}-client-1"));
    let load = run_alongside(&endless, &logs, &until_recorded);
    let recording = async {
        let recorded = recorded(recorder, times).await;
        stop.cancel();
        recorded
    };
    let (ran, recorded) = tokio::join!(load, recording);
    let (mut window, findings) = recorded?;
    let program = || endless.program.clone();
    let ended = ran.map_err(|source| CollectError::Run { program: program(), source })?;
    // A load that ended by itself left a part of the window without requests.
    window.window.is_cut = ended != ExitReason::Stopped;
    Ok((window, findings))
}

/// True for an option that bounds a load.
fn is_bound(arg: &OsStr) -> bool {
    let arg = arg.to_string_lossy();
    arg.starts_with("--requests=") || arg.starts_with("--seconds=")
}

/// Starts and stops the recording by the window's `times`.
async fn recorded(
    recorder: &Recorder<'_>,
    times: WindowTimes,
) -> Result<(RecordedWindow, Vec<Finding>), CollectError> {
    let mut window = Window { planned_s: times.length_s, ..Window::default() };
    let mut findings = Vec::new();
    sleep(Duration::from_secs_f64(times.lead_s)).await;
    let (requested, since) = (Instant::now(), SystemTime::now());
    let started = recorder.start().await;
    let recording = Instant::now();
    window.start_s = Some((recording - requested).as_secs_f64());
    if let Err(why) = started {
        if let Recorder::Gate(_) = recorder {
            return Err(CollectError::GateClosed { why });
        }
        findings.push(failed("start", &why));
        return Ok((RecordedWindow { window, since: None }, findings));
    }
    sleep(Duration::from_secs_f64(times.length_s)).await;
    let requested = Instant::now();
    window.recorded_s = Some((requested - recording).as_secs_f64());
    let stopped = recorder.stop().await;
    window.stop_s = Some(requested.elapsed().as_secs_f64());
    findings.extend(stopped.err().map(|why| failed("stop", &why)));
    Ok((RecordedWindow { window, since: Some(since) }, findings))
}

/// Requests a command of a session by a file and waits for its exit code.
async fn request(file: &Path, answer: PathBuf, limit_s: u32) -> Result<(), String> {
    fs::write(file, "").map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    let written = async {
        loop {
            if let Some(code) = read_answer(&answer) {
                return code;
            }
            sleep(PERIOD).await;
        }
    };
    let limit = Duration::from_secs(limit_s.into()) + MARGIN;
    match timeout(limit, written).await {
        Ok(code) if code == "0" => Ok(()),
        Ok(code) if code == "124" => Err(format!("nsys did not end within {limit_s} s")),
        Ok(code) => Err(format!("nsys exited with code {code}")),
        Err(_) => Err("no exit code of nsys".into()),
    }
}

/// Finding of a recording that did not start or stop.
fn failed(action: &str, why: &str) -> Finding {
    let message = format!("The {action} of the recording failed: the window may be incomplete.");
    Finding::new(catalogue::WINDOW_FAILED, message)
        .with("reason", why)
        .advise("Read logs/nsys.stdout.log and logs/nsys.stderr.log; update the profiler.")
}

/// The requests of a load that were recorded whole.
fn read_requests(path: &Path) -> Vec<RequestRecord> {
    let text = open_own(path).and_then(|file| read_bounded_text(file, MAX_RECORD));
    let text = text.unwrap_or_default();
    let lines = text.lines().filter_map(|line| match serde_json::from_str(line).ok()? {
        LoadLine::Request(record) => Some(record),
        _ => None,
    });
    lines.collect()
}
