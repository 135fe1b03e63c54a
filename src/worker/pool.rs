//! One worker per device: it claims a run, carries it while renewing the lease, and finishes it or gives it back.
//!
//! Exactly one run at a time per device. A worker never decides what a run does; see [`super::job`].

use std::{pin::pin, time::Duration};

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Context, align, job};
use crate::{
    run::RunState,
    store::{Claimed, Outcome, Renewal, StoreError},
    trace::device::Device,
};

/// How long an idle worker waits before it looks again by itself; it is woken when a run arrives.
const IDLE: Duration = Duration::from_secs(1);

/// The workers of this service.
#[derive(Debug)]
pub struct Pool {
    workers: JoinSet<()>,
    stop: CancellationToken,
}

/// Why a run that a worker carries has to stop before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    Cancelled,
    LeaseLost,
    ServiceStops,
}

impl Pool {
    /// Starts one worker per device, and one task for alignments.
    pub fn start(cx: &Context, devices: &[Device]) -> Self {
        let stop = CancellationToken::new();
        let mut workers = JoinSet::new();
        for device in devices {
            workers.spawn(work(cx.clone(), device.clone(), stop.clone()));
        }
        workers.spawn(align::work(cx.clone(), stop.clone()));
        Self { workers, stop }
    }

    /// Stops claiming, ends what runs, gives it back to the queue, and returns when nothing is left.
    pub async fn drain(mut self) {
        self.stop.cancel();
        while self.workers.join_next().await.is_some() {}
    }
}

/// Claims and carries runs until told to stop.
async fn work(cx: Context, device: Device, stop: CancellationToken) {
    let worker = device.worker(&format!("{}:{}", std::process::id(), uuid::Uuid::now_v7()));
    let lease = Duration::from_secs(cx.config.worker.lease_s.into());
    while !stop.is_cancelled() {
        // Listening before looking: a run queued in between still wakes us.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        match recover_and_claim(&cx, &worker, &device, lease).await {
            Ok(Some(run)) => carry(&run, &device, &cx, lease, &stop).await,
            nothing => {
                if let Err(error) = nothing {
                    tracing::error!(error = %crate::chain(&error), "cannot claim a run");
                }
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep(IDLE) => {}
                    () = stop.cancelled() => {}
                }
            }
        }
    }
}

async fn recover_and_claim(cx: &Context, worker: &str, device: &Device, lease: Duration) -> Result<Option<Claimed>, StoreError> {
    super::recover(cx, false).await?;
    cx.store.claim(worker, &device.names(), lease).await
}

/// Carries one run to its end, or to the point where it must be let go.
#[tracing::instrument(skip_all, fields(run = %run.id, attempt = run.attempt, device = device.name))]
async fn carry(run: &Claimed, device: &Device, cx: &Context, lease: Duration, stop: &CancellationToken) {
    tracing::info!(model = run.spec.model, mode = %run.spec.mode, "run begins");
    let halt = CancellationToken::new();
    let mut job = pin!(job::execute(run, device, cx, &halt));
    let mut interrupted = None;
    let outcome = loop {
        tokio::select! {
            outcome = &mut job => break outcome,
            why = guard(run, cx, lease, stop), if interrupted.is_none() => {
                tracing::info!(?why, "run is interrupted");
                interrupted = Some(why);
                halt.cancel();
            }
        }
    };
    match settle(run, cx, interrupted, outcome).await {
        Ok(state) => tracing::info!(state, "run ends"),
        Err(error) => tracing::error!(error = %crate::chain(&error), "cannot keep how the run ended; its lease will run out"),
    }
}

/// Keeps how a run ended; says it in a word.
async fn settle(
    run: &Claimed,
    cx: &Context,
    interrupted: Option<Interrupted>,
    outcome: Outcome,
) -> Result<&'static str, StoreError> {
    // A run that came to its end before the interruption reached it has ended as it did.
    let ended = matches!(outcome.state, RunState::Succeeded | RunState::Partial);
    match interrupted {
        Some(Interrupted::LeaseLost) => return Ok("lost"),
        Some(Interrupted::ServiceStops) if !ended => {
            return Ok(if cx.store.release(run).await? { "given back" } else { "lost" });
        }
        Some(Interrupted::ServiceStops | Interrupted::Cancelled) | None => {}
    }
    let cancelled = interrupted == Some(Interrupted::Cancelled) && !ended;
    let outcome = if cancelled {
        Outcome { state: RunState::Cancelled, failed_step: None, message: Some("cancelled while running".into()), ..outcome }
    } else {
        outcome
    };
    Ok(if cx.store.finish(run, &outcome).await? { outcome.state.as_str() } else { "lost" })
}

/// Renews the lease until the run has to stop, and says why.
async fn guard(run: &Claimed, cx: &Context, lease: Duration, stop: &CancellationToken) -> Interrupted {
    let mut misses = 0;
    loop {
        let mut woken = pin!(cx.cancelled.notified());
        woken.as_mut().enable();
        match cx.store.renew(run, lease).await {
            Ok(Renewal::Kept) => misses = 0,
            Ok(Renewal::CancelRequested) => return Interrupted::Cancelled,
            Ok(Renewal::Lost) => return Interrupted::LeaseLost,
            Err(error) => {
                tracing::warn!(error = %crate::chain(&error), "cannot renew the lease");
                misses += 1;
                if misses >= 3 {
                    return Interrupted::LeaseLost;
                }
            }
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(lease / 3) => {}
            () = stop.cancelled() => return Interrupted::ServiceStops,
        }
    }
}
