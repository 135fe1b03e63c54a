//! A window of a server: recorded in the middle of its load, between unprofiled loads.
//!
//! The server runs under `nsys launch`. Its load runs once before the recording, which gives the
//! length of the window; then until the recording has ended; then once after it.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    pass::PassFolder,
    server::{ServedTarget, report_progress},
};
use crate::{
    artifact::layout,
    collect::{
        CollectError, ProcessLimits,
        process::{
            argv::Argv,
            child::{ExitReason, run_alongside},
            orphans::scratch,
            output::Logs,
        },
        tools::nsys_window::{START_LIMIT_S, STOP_LIMIT_S, WindowFiles},
    },
    domain::finding::{Finding, Severity},
    trace::{
        requests::{LoadLine, RequestRecord},
        windows::{self, Window, WindowTimes},
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
        let client = client.args(["--quiet", "--partial", "--out"]);
        let before = folder.path().join(layout::REQUESTS_BEFORE);
        report_progress(limits, false, 0, 2);
        let log = format!("{name}-client-before");
        folder.run_alongside("the client", &log, &client.clone().arg(&before), limits).await?;
        let max_s = f64::from(settings.max_s);
        let times = windows::plan(&read_requests(&before), settings.min_steps, max_s);
        let times = times.unwrap_or(WindowTimes { lead_s: 1.0, length_s: max_s });
        report_progress(limits, true, 0, 1);
        let (window, findings) = record(folder, name, &client, times, limits).await?;
        let window = Window { min_steps: settings.min_steps, ..window };
        let path = folder.path().join(layout::WINDOW);
        let write = || fs::write(&path, serde_json::to_vec_pretty(&window)?);
        write().map_err(|source| CollectError::Write { path: path.clone(), source })?;
        report_progress(limits, false, 1, 2);
        let after = folder.path().join(layout::REQUESTS_AFTER);
        let log = format!("{name}-client-after");
        folder.run_alongside("the client", &log, &client.arg(after), limits).await?;
        report_progress(limits, true, 1, 1);
        Ok(findings)
    }
}

/// Runs the load until a window of it is recorded.
async fn record(
    folder: &PassFolder<'_>,
    name: &str,
    client: &Argv,
    times: WindowTimes,
    limits: &ProcessLimits,
) -> Result<(Window, Vec<Finding>), CollectError> {
    let mut endless = client.clone().arg(folder.path().join(layout::requests(1)));
    endless.args.retain(|arg| !is_bound(arg));
    endless.args.insert(2, ENDLESS.into());
    folder.record_command(&endless)?;
    let stop = limits.stop.child_token();
    let until_recorded = ProcessLimits { stop: stop.clone(), ..limits.clone() };
    let logs = folder.logs(&format!("{name}-client-1"));
    let load = run_alongside(&endless, &logs, &until_recorded);
    let files = WindowFiles::of(&scratch(limits.run));
    let recording = async {
        let recorded = recorded(&files, times).await;
        stop.cancel();
        recorded
    };
    let (ran, recorded) = tokio::join!(load, recording);
    let (mut window, findings) =
        recorded.map_err(|source| CollectError::Write { path: files.start(), source })?;
    let program = || endless.program.clone();
    let ended = ran.map_err(|source| CollectError::Run { program: program(), source })?;
    // A load that ended by itself left a part of the window without requests.
    window.is_cut = ended != ExitReason::Stopped;
    Ok((window, findings))
}

/// True for an option that bounds a load.
fn is_bound(arg: &OsStr) -> bool {
    let arg = arg.to_string_lossy();
    arg.starts_with("--requests=") || arg.starts_with("--seconds=")
}

/// Starts and stops the recording; the times are those of the window.
async fn recorded(files: &WindowFiles, times: WindowTimes) -> io::Result<(Window, Vec<Finding>)> {
    let mut window = Window { planned_s: times.length_s, ..Window::default() };
    let mut findings = Vec::new();
    sleep(Duration::from_secs_f64(times.lead_s)).await;
    let requested = Instant::now();
    fs::write(files.start(), "")?;
    let code = exit_code(files.started(), START_LIMIT_S).await;
    let started = Instant::now();
    window.start_s = Some((started - requested).as_secs_f64());
    if code != Some(0) {
        findings.push(failed("start", code));
        return Ok((window, findings));
    }
    sleep(Duration::from_secs_f64(times.length_s)).await;
    let requested = Instant::now();
    window.recorded_s = Some((requested - started).as_secs_f64());
    fs::write(files.stop(), "")?;
    let code = exit_code(files.stopped(), STOP_LIMIT_S).await;
    window.stop_s = Some(requested.elapsed().as_secs_f64());
    if code != Some(0) {
        findings.push(failed("stop", code));
    }
    Ok((window, findings))
}

/// Waits for the exit code of a command; `None` if it was ended at its limit.
async fn exit_code(path: PathBuf, limit_s: u32) -> Option<i32> {
    let written = async {
        loop {
            if let Ok(text) = fs::read_to_string(&path) {
                return text.trim().parse().ok();
            }
            sleep(PERIOD).await;
        }
    };
    let limit = Duration::from_secs(limit_s.into()) + MARGIN;
    timeout(limit, written).await.ok().flatten()
}

/// Finding of a command of the session that failed.
fn failed(command: &str, code: Option<i32>) -> Finding {
    let message = format!("nsys {command} failed: the window has no complete recording.");
    let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
    Finding::new("window_failed", Severity::Warning, message)
        .with("exit code (124: it ran past its limit)", code)
        .advise("read logs/nsys.stdout.log and logs/nsys.stderr.log; update nsys")
}

/// The requests of a load that were recorded whole.
fn read_requests(path: &Path) -> Vec<RequestRecord> {
    let is_small = fs::metadata(path).is_ok_and(|it| it.len() <= MAX_RECORD);
    let text = if is_small { fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    let lines = text.lines().filter_map(|line| match serde_json::from_str(line).ok()? {
        LoadLine::Request(record) => Some(record),
        _ => None,
    });
    lines.collect()
}
