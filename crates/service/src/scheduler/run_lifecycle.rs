//! Leads a claimed run to its end: submits it to the executor, renews its lease meanwhile, and
//! records its outcome or releases it.
//!
//! The steps of a run are in [`crate::job`]. The executor is this process or a cluster.

use std::{convert::Infallible, future::pending, pin::pin, sync::OnceLock, time::Duration};

use llmprof_core::{
    chain,
    domain::{
        device::Device,
        outcome::Outcome,
        state::{RunState, Scheduled, Step, StepRecord},
        subject::SubjectKind,
    },
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Context,
    executor::{Executor, JobStatus, LostJob, RETRY},
    job_resolution,
    recovery::keep_evidence,
    series,
};
use crate::{
    artifact::manifest::{self, SealedFolder},
    collect::{SessionAccess, host::exhaustion},
    job::{self, job_spec::JobSpec, step_journal::StepReader},
    measuring::MeasuringRun,
    runtime::{self, work::SlicedWork},
    store::{ClaimedRun, MAX_ATTEMPTS, Renewal, StoreError},
};

/// End of an attempt for which the host lacked resources.
const EXHAUSTED: &str = "exhausted";

/// Reason to stop a run before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    Cancelled,
    LeaseLost,
    ServiceStops,
}

/// The devices of a run, and the session whose server it uses.
pub type RunPlace<'a> = (&'a Device, &'a [Device], Option<&'a SessionAccess>);

/// Leads one run to its end, or until the service must release it.
///
/// `submitted` is dropped once the executor has the run, or has not accepted it at the first try.
#[tracing::instrument(skip_all, fields(run = %run.id, attempt = run.attempt, device = device.name))]
pub async fn run_to_end<E: Executor>(
    run: &ClaimedRun,
    (device, other_gpus, session): RunPlace<'_>,
    cx: &Context,
    executor: &E,
    submitted: Option<oneshot::Sender<()>>,
    stop: &CancellationToken,
) {
    tracing::info!(name = run.spec.name(), kind = %run.spec.kind(), "run starts");
    let (interrupted, end) = match job_resolution::resolve(run, cx) {
        Err(message) => (None, Ok(job::failed(message))),
        Ok(spec) => {
            let session = session.cloned();
            let spec = JobSpec { other_gpus: other_gpus.to_vec(), session, ..spec };
            let execution = Execution { run, spec: &spec, device, cx, executor };
            execution.run_with_lease(submitted, stop).await
        }
    };
    let recorded = tokio::select! {
        biased;
        recorded = runtime::task(record_end(run, cx, interrupted, end, stop)) => recorded,
        // A seal may take longer than the lease lasts.
        never = runtime::task(renew_lease(run, cx)) => match never {},
    };
    match recorded {
        Ok(EXHAUSTED) => {
            tracing::warn!("run is requeued: the host lacks resources");
            let wait = Duration::from_secs(cx.config.worker.exhausted_wait_s.max(1).into());
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        Ok(state) => tracing::info!(state, "run ends"),
        Err(error) => {
            let error = chain(&error);
            tracing::error!(error, "cannot record the run's outcome; its lease will expire")
        }
    }
}

/// A claimed run on its executor.
struct Execution<'a, E> {
    run: &'a ClaimedRun,
    spec: &'a JobSpec,
    device: &'a Device,
    cx: &'a Context,
    executor: &'a E,
}

impl<E: Executor> Execution<'_, E> {
    /// Executes the run while its lease is renewed, and stops it when it is interrupted.
    async fn run_with_lease(
        &self,
        submitted: Option<oneshot::Sender<()>>,
        stop: &CancellationToken,
    ) -> (Option<Interrupted>, Result<Outcome, LostJob>) {
        let (cancel, interrupted) = (CancellationToken::new(), OnceLock::new());
        // Both are polled until the run has ended: an unpolled one could hold the writer of the
        // database.
        tokio::select! {
            biased;
            end = runtime::task(self.run(submitted, &cancel)) => (interrupted.into_inner(), end),
            reason = runtime::task(self.hold(&interrupted, &cancel, stop)) => {
                (Some(reason), Ok(job::failed("left to its job".into())))
            }
        }
    }

    /// Renews the lease, and cancels the job once the run is interrupted. Returns the reason if the
    /// run is left to its job, which the next service finds by its name.
    async fn hold(
        &self,
        interrupted: &OnceLock<Interrupted>,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> Interrupted {
        let reason = hold_lease(self.run, self.cx, stop).await;
        tracing::info!(?reason, "run is interrupted");
        if E::JOBS_OUTLIVE_SERVICE && reason != Interrupted::Cancelled {
            return reason;
        }
        interrupted.get_or_init(|| reason);
        cancel.cancel();
        if reason == Interrupted::LeaseLost {
            return pending().await;
        }
        tokio::select! {
            biased;
            // Its job may need longer to end than the lease lasts.
            never = renew_lease(self.run, self.cx) => match never {},
            // The scheduler may not answer: the next service to claim the run cancels it.
            () = stop.cancelled(), if E::JOBS_OUTLIVE_SERVICE => Interrupted::ServiceStops,
        }
    }

    /// Submits the run and follows its job until that ends; `cancel` ends it early.
    async fn run(
        &self,
        submitted: Option<oneshot::Sender<()>>,
        cancel: &CancellationToken,
    ) -> Result<Outcome, LostJob> {
        let mut shown = None;
        if let Err(message) = self.submit(submitted, &mut shown, cancel).await {
            return Ok(job::failed(message));
        }
        let dir = self.cx.runs.join(self.run.id.to_string());
        let (mut steps, mut cancel_sent) = (StepReader::default(), false);
        let mut measuring = None::<MeasuringRun>;
        loop {
            let polled = tokio::select! {
                biased;
                () = cancel.cancelled(), if !cancel_sent => None,
                status = self.executor.poll(self.spec) => Some(status),
            };
            let Some(status) = polled else {
                cancel_sent = self.cancel_job().await;
                continue;
            };
            let new_steps = steps.read_new(&dir).unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot read the run's journal");
                false
            });
            // Before its steps are shown: background work waits for a pass that a client sees.
            measuring = self
                .measures(&steps.records)
                .then(|| measuring.take().unwrap_or_else(|| self.cx.measuring.start()));
            if new_steps {
                self.save_steps(&steps.records).await;
            }
            match status {
                Ok(JobStatus::Active(None)) => {}
                Ok(JobStatus::Active(Some(scheduled))) => {
                    self.save_scheduled(&mut shown, scheduled).await
                }
                Ok(JobStatus::Ended) => return self.executor.collect(self.spec).await,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "cannot poll the executor");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Requests that the job ends; returns false, after a pause, if the executor does not answer.
    async fn cancel_job(&self) -> bool {
        let Err(error) = self.executor.cancel(self.run.id, Some(self.run.attempt)).await else {
            return true;
        };
        tracing::warn!(error = chain(&error), "cannot cancel the job yet");
        tokio::time::sleep(RETRY).await;
        false
    }

    /// Submits the run, repeatedly if the executor does not answer, until it is cancelled; an error
    /// is final.
    async fn submit(
        &self,
        mut submitted: Option<oneshot::Sender<()>>,
        shown: &mut Option<Scheduled>,
        cancel: &CancellationToken,
    ) -> Result<(), String> {
        while let Err(error) = self.executor.submit(self.spec, self.device).await {
            let message = chain(&error);
            if error.is_refusal() {
                return Err(message);
            }
            if cancel.is_cancelled() {
                // The job may exist, because only the answer was lost: it is cancelled and followed
                // to its end.
                return Ok(());
            }
            tracing::warn!(error = message, "cannot submit the run yet");
            submitted = None;
            let reason = Some(message);
            let scheduled = Scheduled { job: String::new(), state: "UNKNOWN".into(), reason };
            self.save_scheduled(shown, scheduled).await;
            tokio::select! {
                biased;
                () = tokio::time::sleep(RETRY) => {}
                () = cancel.cancelled() => {}
            }
        }
        drop(submitted);
        Ok(())
    }

    /// Returns true if the run is in one of its passes on this host, or prepares them: a pass
    /// starts between two polls, so background work already waits for the preflight.
    fn measures(&self, steps: &[StepRecord]) -> bool {
        let is_pass = |it: &StepRecord| !matches!(it.step, Step::Analyze | Step::Report);
        let here = !E::JOBS_OUTLIVE_SERVICE && self.run.spec.kind() != SubjectKind::Import;
        here && steps.last().is_some_and(is_pass)
    }

    /// Saves the steps of the run. A failure is logged and does not affect the run.
    async fn save_steps(&self, steps: &[StepRecord]) {
        if let Err(error) = self.cx.store.save_steps(self.run, steps).await {
            tracing::error!(error = %chain(&error), "cannot save the run's steps");
        }
    }

    /// Saves the scheduler's state of the run, if it has changed.
    async fn save_scheduled(&self, shown: &mut Option<Scheduled>, scheduled: Scheduled) {
        if shown.as_ref() == Some(&scheduled) {
            return;
        }
        if let Err(error) = self.cx.store.save_scheduled(self.run, &scheduled).await {
            tracing::error!(error = %chain(&error), "cannot save the run's scheduler state");
        }
        *shown = Some(scheduled);
    }
}

/// Records the end of a run; returns its new state in a word.
async fn record_end(
    run: &ClaimedRun,
    cx: &Context,
    interrupted: Option<Interrupted>,
    end: Result<Outcome, LostJob>,
    stop: &CancellationToken,
) -> Result<&'static str, StoreError> {
    let (outcome, lost) = match end {
        Ok(outcome) => {
            let reason = exhaustion::retry_reason(&outcome);
            (outcome, reason.filter(|_| run.attempt < MAX_ATTEMPTS))
        }
        Err(LostJob { reason, outcome }) => (outcome, Some(reason)),
    };
    // A run may end with a report before the interruption reaches it.
    let has_report = matches!(outcome.state, RunState::Succeeded | RunState::Partial);
    if let Some(finding) = exhaustion::of_outcome(&outcome).filter(|_| interrupted.is_none()) {
        let requeued = cx.store.requeue(run, &finding.message).await?;
        return Ok(if requeued { EXHAUSTED } else { "lost" });
    }
    match (interrupted, lost) {
        (Some(Interrupted::LeaseLost), _) => return Ok("lost"),
        (Some(Interrupted::ServiceStops), _) if !has_report => {
            return Ok(if cx.store.release(run).await? { "released" } else { "lost" });
        }
        (Some(Interrupted::Cancelled), _) if !has_report => {
            let message = Some("cancelled while running".into());
            let state = RunState::Cancelled;
            let outcome = Outcome { state, failed_step: None, message, ..outcome };
            return finish(run, cx, &sealed(run, cx, outcome, stop).await).await;
        }
        (Some(Interrupted::Cancelled), Some(_)) => {
            return finish(run, cx, &sealed(run, cx, outcome, stop).await).await;
        }
        (None, Some(reason)) => {
            tracing::warn!(
                reason,
                "attempt lost: the run is requeued, or failed after its last attempt"
            );
            let state = cx.store.retry(run, &reason).await?;
            if state.is_some_and(RunState::is_final) {
                keep_evidence(cx, run.id, &SlicedWork::new(stop)).await?;
            }
            return Ok(state.map_or("lost", RunState::as_str));
        }
        _ => {}
    }
    finish(run, cx, &outcome).await
}

/// The outcome with the artifacts of the run's folder, which is sealed unless its job sealed it. A
/// failure or a stop leaves no artifacts; a failure is logged, and after a stop the next start of
/// the service seals the folder.
async fn sealed(
    run: &ClaimedRun,
    cx: &Context,
    outcome: Outcome,
    stop: &CancellationToken,
) -> Outcome {
    if !outcome.artifacts.is_empty() {
        return outcome;
    }
    let dir = cx.runs.join(run.id.to_string());
    let max_bytes = cx.config.limits.folder_bytes(run.spec.kind());
    let work = SlicedWork::new(stop).named("sealing a cancelled run");
    match runtime::stoppable(&work, move |work| manifest::seal(&dir, max_bytes, work)).await {
        Ok(SealedFolder { artifacts, finding }) => {
            let mut findings = outcome.findings;
            if let Some(finding) = finding {
                finding.as_sentence().add_to(&mut findings);
            }
            Outcome { artifacts, findings, ..outcome }
        }
        Err(error) => {
            tracing::warn!(%error, "cannot seal the folder of a cancelled run");
            outcome
        }
    }
}

async fn finish(
    run: &ClaimedRun,
    cx: &Context,
    outcome: &Outcome,
) -> Result<&'static str, StoreError> {
    if !cx.store.finish(run, outcome).await? {
        return Ok("lost");
    }
    if outcome.series.is_some() {
        series::refresh(&cx.store).await;
    }
    Ok(outcome.state.as_str())
}

/// Renews the lease of a run that is ending; never returns.
async fn renew_lease(run: &ClaimedRun, cx: &Context) -> Infallible {
    loop {
        tokio::time::sleep(cx.lease() / 3).await;
        if let Err(error) = cx.store.renew(run, cx.lease()).await {
            tracing::warn!(error = %chain(&error), "cannot renew the lease");
        }
    }
}

/// Renews the lease until the run must stop; returns the reason.
async fn hold_lease(run: &ClaimedRun, cx: &Context, stop: &CancellationToken) -> Interrupted {
    let lease = cx.lease();
    let mut misses = 0;
    loop {
        let mut woken = pin!(cx.cancelled.notified());
        woken.as_mut().enable();
        match cx.store.renew(run, lease).await {
            Ok(Renewal::Kept) => misses = 0,
            Ok(Renewal::CancelRequested) => return Interrupted::Cancelled,
            Ok(Renewal::Lost) => return Interrupted::LeaseLost,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot renew the lease");
                misses += 1;
                if misses >= 3 {
                    return Interrupted::LeaseLost;
                }
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return Interrupted::ServiceStops,
            () = woken => {}
            () = tokio::time::sleep(lease / 3) => {}
        }
    }
}
