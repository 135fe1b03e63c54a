//! One claimed run, from its claim to its end: it is carried out while its lease is renewed, and finished or given back.
//!
//! Never decides what a run does; see [`super::job`]. Who carries it out, this process or a cluster, is the executor's to know.

use std::{path::Path, pin::pin};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    Context,
    executor::{Executor, Lost, RETRY, Status},
    job,
    order::Order,
    steps::Told,
};
use crate::{
    run::{RunState, Scheduled},
    store::{Claimed, Outcome, Renewal, StoreError},
    trace::device::Device,
};

/// Why a run that a worker carries has to stop before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interrupted {
    Cancelled,
    LeaseLost,
    ServiceStops,
}

/// Carries one run to its end, or to the point where it must be let go.
///
/// `submitted` is dropped once the executor has the run, or did not take it at the first time of asking.
#[tracing::instrument(skip_all, fields(run = %run.id, attempt = run.attempt, device = device.name))]
pub async fn carry<E: Executor>(
    run: &Claimed,
    (device, beside): (&Device, &[Device]),
    cx: &Context,
    executor: &E,
    submitted: Option<oneshot::Sender<()>>,
    stop: &CancellationToken,
) {
    tracing::info!(name = run.spec.name(), kind = %run.spec.kind(), "run begins");
    let halt = CancellationToken::new();
    let mut interrupted = None;
    let ended = match Order::new(run, cx) {
        Err(message) => Ok(job::lost(message)),
        Ok(order) => {
            let order = Order { beside: beside.to_vec(), ..order };
            let mut job = pin!(follow(run, &order, device, cx, executor, submitted, &halt));
            loop {
                tokio::select! {
                    ended = &mut job => break ended,
                    why = guard(run, cx, stop), if interrupted.is_none() => {
                        tracing::info!(?why, "run is interrupted");
                        interrupted = Some(why);
                        if E::OUTLIVES && why != Interrupted::Cancelled {
                            break Ok(job::lost("left to its job".into())); // which is found again by its name
                        }
                        halt.cancel();
                    }
                    () = stop.cancelled(), if E::OUTLIVES && interrupted == Some(Interrupted::Cancelled) => {
                        interrupted = Some(Interrupted::ServiceStops); // a scheduler may not answer: who claims it next cancels it
                        break Ok(job::lost("left to its job".into()));
                    }
                }
            }
        }
    };
    match settle(run, cx, interrupted, ended).await {
        Ok(state) => tracing::info!(state, "run ends"),
        Err(error) => tracing::error!(error = %crate::chain(&error), "cannot keep how the run ended; its lease will run out"),
    }
}

/// Has a run carried out and keeps what its job tells, until that has ended; `halt` ends it early.
async fn follow<E: Executor>(
    run: &Claimed,
    order: &Order,
    device: &Device,
    cx: &Context,
    executor: &E,
    mut submitted: Option<oneshot::Sender<()>>,
    halt: &CancellationToken,
) -> Result<Outcome, Lost> {
    let dir = cx.runs.join(run.id.to_string());
    let (mut told, mut shown) = (Told::default(), None);
    while let Err(error) = executor.submit(order, device).await {
        let message = crate::chain(&error);
        if error.is_refusal() || halt.is_cancelled() {
            return Ok(job::lost(message));
        }
        tracing::warn!(error = message, "the run is not submitted yet");
        submitted = None;
        show(run, cx, &mut shown, Scheduled { job: String::new(), state: "UNKNOWN".into(), reason: Some(message) }).await;
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = halt.cancelled() => {}
        }
    }
    drop(submitted);
    let mut asked = false;
    loop {
        let status = tokio::select! {
            status = executor.poll(order) => status,
            () = halt.cancelled(), if !asked => {
                match executor.cancel(run.id).await {
                    Ok(()) => asked = true,
                    Err(error) => {
                        tracing::warn!(error = %crate::chain(&error), "the run is not cancelled yet");
                        tokio::time::sleep(RETRY).await;
                    }
                }
                continue;
            }
        };
        keep_steps(run, cx, &dir, &mut told).await;
        match status {
            Ok(Status::Goes(None)) => {}
            Ok(Status::Goes(Some(scheduled))) => show(run, cx, &mut shown, scheduled).await,
            Ok(Status::Ended) => return executor.collect(order).await,
            Err(error) => {
                tracing::warn!(error = %crate::chain(&error), "nobody knows how the run stands");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Keeps the steps that the run's journal tells. That they could not be kept is logged: the run itself is not to blame.
async fn keep_steps(run: &Claimed, cx: &Context, dir: &Path, told: &mut Told) {
    match told.look(dir) {
        Ok(false) => {}
        Ok(true) => {
            if let Err(error) = cx.store.save_steps(run, &told.records).await {
                tracing::error!(error = %crate::chain(&error), "cannot keep a run's steps");
            }
        }
        Err(error) => tracing::warn!(%error, "cannot read the run's journal"),
    }
}

/// Keeps where the run stands with the scheduler, when that has changed.
async fn show(run: &Claimed, cx: &Context, shown: &mut Option<Scheduled>, scheduled: Scheduled) {
    if shown.as_ref() == Some(&scheduled) {
        return;
    }
    if let Err(error) = cx.store.save_scheduled(run, &scheduled).await {
        tracing::error!(error = %crate::chain(&error), "cannot keep where a run stands");
    }
    *shown = Some(scheduled);
}

/// Keeps how a run ended; says it in a word.
async fn settle(
    run: &Claimed,
    cx: &Context,
    interrupted: Option<Interrupted>,
    ended: Result<Outcome, Lost>,
) -> Result<&'static str, StoreError> {
    let (outcome, lost) = match ended {
        Ok(outcome) => (outcome, None),
        Err(Lost { why, outcome }) => (outcome, Some(why)),
    };
    // A run that came to its end before the interruption reached it has ended as it did.
    let well = matches!(outcome.state, RunState::Succeeded | RunState::Partial);
    match (interrupted, lost) {
        (Some(Interrupted::LeaseLost), _) => return Ok("lost"),
        (Some(Interrupted::ServiceStops), _) if !well => {
            return Ok(if cx.store.release(run).await? { "given back" } else { "lost" });
        }
        (Some(Interrupted::Cancelled), _) if !well => {
            let message = Some("cancelled while running".into());
            let outcome = Outcome { state: RunState::Cancelled, failed_step: None, message, ..outcome };
            return finish(run, cx, &outcome).await;
        }
        (None, Some(why)) => {
            tracing::warn!(why, "the run's job is lost: the run waits again, or is given up");
            return Ok(cx.store.retry(run, &why).await?.map_or("lost", RunState::as_str));
        }
        _ => {}
    }
    finish(run, cx, &outcome).await
}

async fn finish(run: &Claimed, cx: &Context, outcome: &Outcome) -> Result<&'static str, StoreError> {
    Ok(if cx.store.finish(run, outcome).await? { outcome.state.as_str() } else { "lost" })
}

/// Renews the lease until the run has to stop, and says why.
async fn guard(run: &Claimed, cx: &Context, stop: &CancellationToken) -> Interrupted {
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
