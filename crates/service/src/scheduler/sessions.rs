//! Leads a claimed session to its end: starts its server, executes the runs that are queued for it
//! one at a time, and stops the server.
//!
//! The session ends when it is requested, by its lifetime, with the service or with its server. A
//! run that has started then ends first, within its own time limit.

mod hold;
#[cfg(test)]
mod tests;

use std::{convert::Infallible, fs, future::pending, path::PathBuf, pin::pin, time::Duration};

use llmprof_core::domain::{
    device::Device,
    ids::{RunId, SessionId},
    session::SessionState,
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::hold::{SessionEnd, SessionHold};
use super::{
    Context, executor::Executor, job_resolution::resolve_session, recovery::keep_evidence,
    run_lifecycle::run_to_end,
};
use crate::{
    artifact::folder::remove_tree,
    collect::{
        CollectError, CommandRun, ProcessLimits, RunningSession, end_orphans,
        process::disk_quota::DiskQuota, tools::nsys_window::STOP_LIMIT_S,
    },
    job::visible_gpus,
    runtime::{
        self,
        work::{SlicedWork, ignore_stop},
    },
    store::{ClaimedRun, ClaimedSession, StoreError},
};

/// Longest time between two claims of an idle session; a queued run wakes it earlier.
const IDLE: Duration = Duration::from_secs(1);
/// Lines of the server's output that are kept of an ended session, and their characters.
const LAST_LINES: usize = 40;
const LAST_CHARS: usize = 8_000;
/// Time beyond a session's lifetime after which its processes are ended in any case.
const DEADLINE_MARGIN: Duration = Duration::from_secs(24 * 3600);

/// Leads a session to its end.
#[tracing::instrument(skip_all, fields(session = %session.id, device = device.name))]
pub async fn serve<E: Executor>(
    session: &ClaimedSession,
    (device, others): (&Device, &[Device]),
    cx: &Context,
    executor: &E,
    stop: &CancellationToken,
) {
    tracing::info!(command = session.spec.call.command, "session starts");
    let serving = Serving { session, device, others, cx, dir: folder(cx, session.id) };
    let hold = SessionHold::start(session, cx, stop);
    let end = match serving.start(&hold).await {
        Ok(server) => serving.serve(server, &hold, executor, stop).await,
        Err(end) => end,
    };
    let lost = end == SessionEnd::LeaseLost;
    let log = serving.last_output();
    remove(serving.dir.clone(), &SlicedWork::new(stop)).await;
    if lost {
        return;
    }
    let ended = end.ended(session.spec.lifetime_s, log);
    match cx.store.end_session(session, &ended).await {
        Ok(failed) => {
            tracing::info!(state = %ended.state, reason = ended.message, "session ends");
            seal_runs(cx, &failed.unwrap_or_default(), &SlicedWork::new(stop)).await;
        }
        Err(error) => {
            let error = llmprof_core::chain(&error);
            tracing::error!(error, "cannot record the end of a session; its lease will expire");
        }
    }
}

/// A claimed session on its devices.
struct Serving<'a> {
    session: &'a ClaimedSession,
    device: &'a Device,
    others: &'a [Device],
    cx: &'a Context,
    dir: PathBuf,
}

impl Serving<'_> {
    /// Starts the server and waits until it is ready.
    async fn start(&self, hold: &SessionHold) -> Result<RunningSession, SessionEnd> {
        let (spec, cx) = (&self.session.spec, self.cx);
        let plan = resolve_session(spec, cx).map_err(SessionEnd::Failed)?;
        let Some(ready) = plan.ready.clone() else {
            let why = format!("command {} is not a server any more", spec.call.command);
            return Err(SessionEnd::Failed(why));
        };
        fs::create_dir_all(&self.dir).map_err(|error| {
            SessionEnd::Failed(format!("cannot create the folder of the session: {error}"))
        })?;
        let gpus = visible_gpus(std::iter::once(self.device).chain(self.others));
        let run = CommandRun { plan, warmup: 0, repeats: 0, gpus, session: None };
        let limits = self.limits();
        let start = cx.collector.start_session(
            self.session.id,
            &self.dir,
            (&run, &ready),
            &spec.nsys,
            limits,
        );
        let started = tokio::select! {
            biased;
            end = hold.ends() => return Err(end),
            started = start => started,
        };
        let server = started.map_err(|error| SessionEnd::Failed(describe(&error)))?;
        self.set_state(SessionState::Ready).await;
        Ok(server)
    }

    fn limits(&self) -> ProcessLimits {
        let (spec, config) = (&self.session.spec, &self.cx.config);
        let lifetime = Duration::from_secs(spec.lifetime_s.into());
        let quota = DiskQuota {
            dir: self.dir.clone(),
            max_bytes: config.limits.run_bytes,
            free_bytes: config.limits.free_bytes,
        };
        ProcessLimits {
            grace: Duration::from_secs(config.worker.grace_s.into()),
            quota: Some(quota),
            ..ProcessLimits::new(
                self.session.id.mark(self.cx.folder),
                lifetime + DEADLINE_MARGIN,
                CancellationToken::new(),
            )
        }
    }

    /// Executes runs until the session ends, and stops the server.
    async fn serve<E: Executor>(
        &self,
        mut server: RunningSession,
        hold: &SessionHold,
        executor: &E,
        stop: &CancellationToken,
    ) -> SessionEnd {
        let end = loop {
            let mut woken = pin!(self.cx.queued.notified());
            woken.as_mut().enable();
            if let Some(end) = hold.reason() {
                break end;
            }
            match self.next_run().await {
                Ok(Some(run)) => {
                    if let Some(end) = self.execute(&run, &mut server, hold, executor, stop).await {
                        break end;
                    }
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(error = %llmprof_core::chain(&error), "cannot lease a run");
                }
            }
            tokio::select! {
                biased;
                end = hold.ends() => break end,
                why = server.ended() => break SessionEnd::Failed(why),
                () = woken => {}
                () = sleep(IDLE) => {}
            }
        };
        if end != SessionEnd::LeaseLost {
            self.set_state(SessionState::Ending).await;
        }
        server.stop().await;
        end
    }

    async fn next_run(&self) -> Result<Option<ClaimedRun>, StoreError> {
        if !self.cx.has_space() {
            return Ok(None);
        }
        let devices: Vec<&str> =
            std::iter::once(self.device).chain(self.others).map(|it| it.name.as_str()).collect();
        let session = self.session;
        self.cx.store.claim_of_session(session.id, &session.worker, &devices, self.cx.lease()).await
    }

    /// Executes one run; returns the reason if the session ends with it.
    async fn execute<E: Executor>(
        &self,
        run: &ClaimedRun,
        server: &mut RunningSession,
        hold: &SessionHold,
        executor: &E,
        stop: &CancellationToken,
    ) -> Option<SessionEnd> {
        self.set_state(SessionState::Busy).await;
        let access = server.access.clone();
        let place = (self.device, self.others, Some(&access));
        let mut failed = None;
        // All are polled until the run has ended: an unpolled one could hold the writer of the
        // database.
        tokio::select! {
            biased;
            () = runtime::task(run_to_end(run, place, self.cx, executor, None, stop)) => {}
            never = runtime::task(self.set_ending(hold)) => match never {},
            // The run's job sees the end of the server by itself.
            never = note_server_end(server, &mut failed) => match never {},
        }
        server.access.earlier_runs += 1;
        if let Some(end) = failed.map(SessionEnd::Failed).or_else(|| hold.reason()) {
            return Some(end);
        }
        // A run that was cancelled or ran out of time leaves its recording open.
        if let Err(why) = server.access.drop_window(STOP_LIMIT_S).await {
            let why = format!("a recording that its run left open cannot be stopped: {why}");
            return Some(SessionEnd::Failed(why));
        }
        self.set_state(SessionState::Ready).await;
        None
    }

    /// Saves that the session is ending once it is to end; never returns.
    async fn set_ending(&self, hold: &SessionHold) -> Infallible {
        hold.ends().await;
        self.set_state(SessionState::Ending).await;
        pending().await
    }

    async fn set_state(&self, state: SessionState) {
        if let Err(error) = self.cx.store.set_session_state(self.session, state).await {
            let error = llmprof_core::chain(&error);
            tracing::error!(error, %state, "cannot save the state of a session");
        }
    }

    /// The last lines of the server's output; `None` without any.
    fn last_output(&self) -> Option<String> {
        let lines = RunningSession::logs_in(&self.dir).last_output(LAST_LINES).join("\n");
        let text = lines.replace(&self.dir.display().to_string(), "{session}");
        let skipped = text.chars().count().saturating_sub(LAST_CHARS);
        let text: String = text.chars().skip(skipped).collect();
        (!text.is_empty()).then_some(text)
    }
}

/// Notes the reason if the server ends by itself; never returns.
async fn note_server_end(server: &mut RunningSession, reason: &mut Option<String>) -> Infallible {
    *reason = Some(server.ended().await);
    pending().await
}

/// Seals the folders of runs that failed with their session after an earlier attempt. The next
/// start of the service repeats what fails here.
async fn seal_runs(cx: &Context, runs: &[RunId], work: &SlicedWork) {
    for id in runs {
        if let Err(error) = keep_evidence(cx, *id, work).await {
            let error = llmprof_core::chain(&error);
            tracing::warn!(run = %id, error, "cannot keep the files of a failed run");
        }
    }
}

fn describe(error: &CollectError) -> String {
    match error {
        CollectError::NotInstalled { .. } => {
            format!("{error}; a session needs it: run scripts/install-nsight.sh")
        }
        error => llmprof_core::chain(error),
    }
}

/// Folder of a session that has not ended.
fn folder(cx: &Context, id: SessionId) -> PathBuf {
    cx.sessions.join(id.to_string())
}

async fn remove(dir: PathBuf, work: &SlicedWork) {
    let removed = runtime::stoppable(work, move |work| remove_tree(&dir, work)).await;
    // The next start removes the rest.
    if let Err(error) = removed.or_else(ignore_stop) {
        tracing::warn!(%error, "cannot remove the folder of a session");
    }
}

/// Ends the processes of sessions whose worker is gone (`all`: every held one, at start), and fails
/// those that waited for a device too long. Returns the runs that fail with them, or were requeued
/// after the end of their session.
pub async fn recover(cx: &Context, all: bool, work: &SlicedWork) -> Result<Vec<RunId>, StoreError> {
    let abandoned = cx.store.abandoned_sessions(all).await?;
    for &id in &abandoned {
        let mark = id.mark(cx.folder);
        // A panic there does not prevent the end.
        runtime::blocking(move || end_orphans(mark)).await.ok();
        remove(folder(cx, id), work).await;
        tracing::warn!(session = %id, "worker lost: the processes of its session were stopped");
    }
    let mut failed = cx.store.lose_sessions(&abandoned).await?;
    cx.store.expire_waiting_sessions().await?;
    failed.extend(cx.store.fail_runs_of_ended_sessions().await?);
    Ok(failed)
}
