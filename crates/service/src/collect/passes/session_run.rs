//! Passes of a run on the server of a session: an unprofiled load, and windows recorded in the
//! middle of a load.
//!
//! Starts and stops no server: it belongs to the session and serves the runs after this one.

use std::{path::Path, time::Duration};

use llmprof_core::{
    domain::{
        command::ReadyCheck,
        finding::{Finding, catalogue},
    },
    layout,
    trace::command::CommandTimes,
};
use tokio::time::Instant;

use super::{
    command::{CommandRun, PassPlace},
    pass::{CollectError, Pass, PassFolder},
    server::{ServedTarget, StopTarget},
    session::SessionAccess,
    timeline::NsysPass,
    window::Recorder,
};
use crate::collect::{
    Collector, ProcessLimits,
    process::orphans::make_scratch,
    tools::{nsys_report, nsys_window::start_options},
};

impl Collector {
    /// Runs the unprofiled load of a run on a session.
    pub(super) async fn unprofiled_on_session(
        &self,
        folder: &PassFolder<'_>,
        (run, ready, session): (&CommandRun, &ReadyCheck, &SessionAccess),
        limits: &ProcessLimits,
    ) -> Result<(Pass, CommandTimes), CollectError> {
        let mut served =
            self.served_by_session(folder, (run, ready), session, (run.warmup, run.repeats))?;
        let started = Instant::now();
        let _scratch = make_scratch(limits.run).map_err(|source| write_error(folder, source))?;
        let (logs, name) = (session.server_logs(), layout::BASELINE);
        let everything = StopTarget::Everything;
        let used = served.use_server(folder, name, &logs, started, everything, limits);
        let mut findings = session.use_while_alive(used, limits).await?;
        // Its server was started before the run.
        served.times.ready_ns = None;
        session.copy_logs(folder.dir())?;
        findings.push(attached(session));
        Ok((Pass { wall: started.elapsed(), findings }, served.times))
    }

    /// Records the windows of a run on a session, each with its own report: the first in the
    /// folder of the pass, and further ones in folders in it.
    pub(super) async fn windows_of_session(
        &self,
        dir: &Path,
        (run, ready, session): (&CommandRun, &ReadyCheck, &SessionAccess),
        (nsys, pass): (&Path, &NsysPass<'_>),
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let recorded = self.record_windows(dir, (run, ready, session), (nsys, pass), limits).await;
        // It has the output of nsys too, also of a window that failed.
        session.copy_logs(dir)?;
        recorded
    }

    async fn record_windows(
        &self,
        dir: &Path,
        (run, ready, session): (&CommandRun, &ReadyCheck, &SessionAccess),
        (nsys, pass): (&Path, &NsysPass<'_>),
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        self.check_sampling(pass)?;
        let started = Instant::now();
        let windows = if pass.metrics.is_some() { 1 } else { pass.settings.repeats.max(1) };
        let (mut findings, mut folders) = (Vec::new(), Vec::new());
        for window in 1..=windows {
            let name = match window {
                1 => pass.folder(),
                _ => layout::further_window(window),
            };
            let folder = PassFolder::create(self, dir, &name)?;
            let mut served = self.served_by_session(&folder, (run, ready), session, (0, 0))?;
            let recorded =
                self.window_of_session(&folder, (run, &mut served), session, (nsys, pass), limits);
            findings.extend(recorded.await?);
            folder.write_times(&served.times)?;
            folders.push(name);
        }
        findings.extend((windows > 1).then(|| further_windows(windows)));
        let with_files = |it| nsys_report::with_recorded_files(it, dir, &folders);
        findings.extend(session.exposed().and_then(with_files));
        Ok(Pass { wall: started.elapsed(), findings })
    }

    /// Records one window and exports its report.
    async fn window_of_session(
        &self,
        folder: &PassFolder<'_>,
        (run, served): (&CommandRun, &mut ServedTarget<'_>),
        session: &SessionAccess,
        (nsys, pass): (&Path, &NsysPass<'_>),
        limits: &ProcessLimits,
    ) -> Result<Vec<Finding>, CollectError> {
        let client =
            served.client.clone().filter(|_| served.is_load).ok_or(CollectError::NoLoad)?;
        let stem = folder.path().join(layout::NSYS_REPORT_FILE).with_extension("");
        let options = start_options(pass.settings, pass.metrics.map(|it| it.rate_hz));
        let recorder = Recorder::Session(session, options, stem);
        let settings = run.plan.window.unwrap_or_default();
        let name = folder.log();
        let scratch = make_scratch(limits.run).map_err(|source| write_error(folder, source))?;
        let window = (settings, &recorder);
        let recorded = served.record_within_load(folder, (&name, client), window, limits);
        let findings = session.use_while_alive(recorded, limits).await?;
        drop(scratch);
        let report = folder.path().join(layout::NSYS_REPORT_FILE);
        if !report.exists() && !report.with_extension("qdstrm").exists() {
            let failure = findings.iter().find(|it| it.id == "window_failed");
            let reason = failure.and_then(|it| it.evidence.get("reason"));
            return Err(CollectError::NoWindow {
                why: reason.map_or_else(|| "it left no report".into(), ToString::to_string),
            });
        }
        let recorded = Pass { wall: Duration::ZERO, findings };
        let read = self.read_report(nsys, folder, limits, recorded).await;
        Ok(read.map_err(|(_, error)| error)?.findings)
    }

    fn served_by_session<'a>(
        &self,
        folder: &PassFolder<'_>,
        (run, ready): (&CommandRun, &'a ReadyCheck),
        session: &SessionAccess,
        turns: (u32, u32),
    ) -> Result<ServedTarget<'a>, CollectError> {
        let place = PassPlace { port: session.port, ..PassPlace::of(folder)? };
        self.served(run, ready, &place, turns, Duration::ZERO)
    }
}

fn write_error(folder: &PassFolder<'_>, source: std::io::Error) -> CollectError {
    CollectError::Write { path: folder.path().to_owned(), source }
}

/// States that the report is of one of several windows.
fn further_windows(windows: u32) -> Finding {
    let message = format!("{windows} windows were recorded; the report is of the first.");
    let last = layout::further_window(windows);
    Finding::new(catalogue::WINDOWS_RECORDED, message).with("the last is in", last).advise(
        "llmprof analyze reads run.sqlite of each folder; for a report of each window submit a \
         run for each",
    )
}

/// States the conditions of loads on a session.
fn attached(session: &SessionAccess) -> Finding {
    let message = "The server runs under nsys launch, which stays attached: its unprofiled load is \
                   slower than that of a server without it, and more so after the first window.";
    Finding::new(catalogue::SESSION_ATTACHED, message)
        .with("session", session.id)
        .with("earlier runs", session.earlier_runs)
        .advise("Compare with a run of the same command without a session")
}
