//! Who claims runs: a worker per device, or one that hands runs to a scheduler in the order of the queue.
//!
//! A device has exactly one run at a time, and a run perhaps several devices ([`super::gang`]). What becomes of a claimed run is told in [`super::carry`].

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Context, align,
    carry::carry,
    executor::Executor,
    gang::{Gang, Turn},
    import,
};
use crate::{
    store::{Claimed, StoreError},
    trace::device::Device,
};

/// How long an idle worker waits before it looks again by itself; it is woken when a run arrives.
const IDLE: Duration = Duration::from_secs(1);
/// How often jobs are looked through for those whose run has ended.
const ORPHANS: Duration = Duration::from_secs(15);

/// The workers of this service.
#[derive(Debug)]
pub struct Pool {
    workers: JoinSet<()>,
    stop: CancellationToken,
}

impl Pool {
    /// Starts one worker per device, which serves runs that ask for it by any of its names.
    pub fn of_devices<E: Executor>(cx: &Context, executor: &Arc<E>, devices: &[Device]) -> Self {
        let (mut pool, gang) = (Self::of_none(cx), Arc::new(Gang::of(devices)));
        for device in devices {
            pool.workers.spawn(work(cx.clone(), Arc::clone(executor), Arc::clone(&gang), device.clone(), pool.stop.clone()));
        }
        pool
    }

    /// Starts what needs no device: the task that computes alignments, and those that carry imports.
    fn of_none(cx: &Context) -> Self {
        let (mut workers, stop) = (JoinSet::new(), CancellationToken::new());
        workers.spawn(align::work(cx.clone(), stop.clone()));
        let imports = if cx.config.worker.paused { 0 } else { import::AT_ONCE };
        for _ in 0..imports {
            workers.spawn(import::work(cx.clone(), stop.clone()));
        }
        Self { workers, stop }
    }

    /// Starts to hand runs that ask for one of `names` to a scheduler, `most` at a time.
    pub fn of_jobs<E: Executor>(cx: &Context, executor: &Arc<E>, most: usize, names: &[String]) -> Self {
        let Self { mut workers, stop } = Self::of_none(cx);
        workers.spawn(hand_over(cx.clone(), Arc::clone(executor), most, names.to_vec(), stop.clone()));
        workers.spawn(end_orphans(cx.clone(), Arc::clone(executor), stop.clone()));
        Self { workers, stop }
    }

    /// Stops claiming, ends what runs, gives it back to the queue, and returns when nothing is left.
    pub async fn drain(mut self) {
        self.stop.cancel();
        while self.workers.join_next().await.is_some() {}
    }
}

/// Claims and carries runs, one at a time, until told to stop.
async fn work<E: Executor>(cx: Context, executor: Arc<E>, gang: Arc<Gang>, device: Device, stop: CancellationToken) {
    let worker = unique(&device);
    let names: Vec<String> = device.names().into_iter().map(str::to_owned).chain(device.model()).collect();
    while !stop.is_cancelled() {
        // Listening before looking: a run queued in between still wakes us.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        let turn = match super::recover(&cx, false).await {
            Ok(()) => gang.turn(&cx, &worker, &device, &names).await,
            Err(error) => Err(error),
        };
        match turn {
            Ok(Turn::Carry(run, beside, held)) => {
                carry(&run, (&device, &beside), &cx, &*executor, None, &stop).await;
                drop(held);
                continue;
            }
            Ok(Turn::Lent(done)) => {
                tokio::select! {
                    () = done.cancelled() => {}
                    () = stop.cancelled() => {}
                }
                continue;
            }
            Ok(Turn::Wait) => {}
            Err(error) => tracing::error!(error = %crate::chain(&error), "cannot claim a run"),
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Claims runs and has each carried out beside the others. The next one is claimed when the one before it was submitted or could not
/// be, so that the scheduler gets them in the order of the queue.
async fn hand_over<E: Executor>(cx: Context, executor: Arc<E>, most: usize, names: Vec<String>, stop: CancellationToken) {
    let (free, scheduler) = (Arc::new(Semaphore::new(most)), Device::unknown("job"));
    let mut runs = JoinSet::new();
    while let Some(Ok(place)) = tokio::select! {
        place = Arc::clone(&free).acquire_owned() => Some(place),
        () = stop.cancelled() => None,
    } {
        let Some(run) = next(&cx, &unique(&scheduler), &names, &stop).await else { break };
        let (cx, executor, scheduler, stop) = (cx.clone(), Arc::clone(&executor), scheduler.clone(), stop.clone());
        let (submitted, turn) = oneshot::channel();
        runs.spawn(async move {
            carry(&run, (&scheduler, &[]), &cx, &*executor, Some(submitted), &stop).await;
            drop(place);
        });
        turn.await.ok();
        while runs.try_join_next().is_some() {}
    }
    while runs.join_next().await.is_some() {}
}

/// A name that no worker had before.
fn unique(device: &Device) -> String {
    device.worker(&format!("{}:{}", std::process::id(), uuid::Uuid::now_v7()))
}

/// Waits for a run to claim; `None` when told to stop.
async fn next(cx: &Context, worker: &str, names: &[String], stop: &CancellationToken) -> Option<Claimed> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    while !stop.is_cancelled() {
        // Listening before looking: a run queued in between still wakes us.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        match recover_and_claim(cx, worker, &names).await {
            Ok(Some(run)) => return Some(run),
            Ok(None) => {}
            Err(error) => tracing::error!(error = %crate::chain(&error), "cannot claim a run"),
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
            () = stop.cancelled() => {}
        }
    }
    None
}

async fn recover_and_claim(cx: &Context, worker: &str, names: &[&str]) -> Result<Option<Claimed>, StoreError> {
    super::recover(cx, false).await?;
    cx.store.claim(worker, names, cx.lease()).await
}

/// Ends jobs whose run has ended: it was cancelled while no service looked, or its job was begun twice.
async fn end_orphans<E: Executor>(cx: Context, executor: Arc<E>, stop: CancellationToken) {
    loop {
        let jobs = tokio::select! {
            jobs = executor.jobs() => jobs,
            () = stop.cancelled() => return,
        };
        match jobs {
            Ok(jobs) => {
                for id in jobs {
                    // A run that this service does not know may be another's.
                    let ended = cx.store.run(id).await.is_ok_and(|run| run.is_some_and(|run| run.state.is_final()));
                    if ended && let Err(error) = executor.cancel(id).await {
                        tracing::warn!(run = %id, error = %crate::chain(&error), "cannot end the job of a run that has ended");
                    }
                }
            }
            Err(error) => tracing::warn!(error = %crate::chain(&error), "cannot list jobs"),
        }
        tokio::select! {
            () = tokio::time::sleep(ORPHANS) => {}
            () = stop.cancelled() => return,
        }
    }
}
