//! The workers of the service: one per device, or one that submits runs to a scheduler in the order
//! of the queue.
//!
//! A device executes one run at a time, and a run may use several devices
//! ([`crate::scheduler::gpu_group`]). [`crate::scheduler::run_lifecycle`] leads a claimed run to
//! its end.

use std::{pin::pin, sync::Arc, time::Duration};

use llmprof_core::domain::device::Device;
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    Context,
    executor::{Executor, local::LocalExecutor, slurm::SlurmExecutor},
};
use crate::{
    runtime::{self, work::SlicedWork},
    scheduler::{
        alignments,
        gpu_group::{ClaimTurn, GpuGroup},
        imports,
        run_lifecycle::run_to_end,
        sessions, sweeps,
    },
    store::{ClaimedRun, StoreError},
};

/// Longest time between two claims of an idle worker; a queued run wakes it earlier.
const IDLE: Duration = Duration::from_secs(1);
/// Period of the search for jobs whose run has ended.
const ORPHAN_SEARCH: Duration = Duration::from_secs(15);

/// The workers of this service.
#[derive(Debug)]
pub struct Pool {
    workers: JoinSet<()>,
    stop: CancellationToken,
}

impl Pool {
    /// Starts one worker per device, which serves runs that request any of its names.
    pub fn for_devices(cx: &Context, local: &Arc<LocalExecutor>, devices: &[Device]) -> Self {
        let (mut pool, group) =
            (Self::without_devices(cx, local, devices), Arc::new(GpuGroup::of(devices)));
        for device in devices {
            pool.workers.spawn(runtime::task(serve_device(
                cx.clone(),
                Arc::clone(local),
                Arc::clone(&group),
                device.clone(),
                pool.stop.clone(),
            )));
        }
        pool
    }

    /// Starts the workers of alignments, sweeps and imports, which need no device.
    fn without_devices(cx: &Context, local: &Arc<LocalExecutor>, devices: &[Device]) -> Self {
        let (mut workers, stop) = (JoinSet::new(), CancellationToken::new());
        workers.spawn(runtime::task(alignments::work(cx.clone(), stop.clone())));
        workers.spawn(runtime::task(sweeps::work(cx.clone(), devices.into(), stop.clone())));
        let imports = if cx.config.worker.paused { 0 } else { imports::WORKERS };
        for _ in 0..imports {
            let work = imports::work(cx.clone(), Arc::clone(local), stop.clone());
            workers.spawn(runtime::task(work));
        }
        Self { workers, stop }
    }

    /// Starts a worker that submits runs for one of `names` to a scheduler, at most `max_jobs` at a
    /// time.
    pub fn for_scheduler(
        cx: &Context,
        local: &Arc<LocalExecutor>,
        executor: &Arc<SlurmExecutor>,
        max_jobs: usize,
        names: &[String],
    ) -> Self {
        let Self { mut workers, stop } = Self::without_devices(cx, local, &[]);
        workers.spawn(runtime::task(submit_in_order(
            cx.clone(),
            Arc::clone(executor),
            max_jobs,
            names.to_vec(),
            stop.clone(),
        )));
        let cancel = cancel_orphaned_jobs(cx.clone(), Arc::clone(executor), stop.clone());
        workers.spawn(runtime::task(cancel));
        Self { workers, stop }
    }

    /// Stops claiming, interrupts and releases running runs, and returns when all workers have
    /// ended.
    pub async fn drain(mut self) {
        self.stop.cancel();
        while self.workers.join_next().await.is_some() {}
    }
}

/// Claims and executes runs on one device, one at a time, until stopped.
async fn serve_device<E: Executor>(
    cx: Context,
    executor: Arc<E>,
    group: Arc<GpuGroup>,
    device: Device,
    stop: CancellationToken,
) {
    let worker = unique_worker(&device);
    let names: Vec<String> =
        device.names().into_iter().map(str::to_owned).chain(device.model()).collect();
    while !stop.is_cancelled() {
        // Listening first: a run queued during the claim still wakes the worker.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        let turn = match super::recover(&cx, false, &SlicedWork::new(&stop)).await {
            Ok(()) if !cx.has_space() => Ok(ClaimTurn::Wait),
            Ok(()) => group.next_turn(&cx, &worker, &device, &names).await,
            Err(error) => Err(error),
        };
        match turn {
            Ok(ClaimTurn::Run(run, others, held)) => {
                run_to_end(&run, (&device, &others, None), &cx, &*executor, None, &stop).await;
                drop(held);
                continue;
            }
            Ok(ClaimTurn::Session(session, others, held)) => {
                sessions::serve(&session, (&device, &others), &cx, &*executor, &stop).await;
                drop(held);
                continue;
            }
            Ok(ClaimTurn::Lent(done)) => {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => {}
                    () = done.cancelled() => {}
                }
                continue;
            }
            Ok(ClaimTurn::Wait) => {}
            Err(error) => {
                tracing::error!(error = %llmprof_core::chain(&error), "cannot lease a run")
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
        }
    }
}

/// Claims runs and executes them concurrently. Each is claimed after the one before it was
/// submitted or could not be, so that the scheduler gets them in the order of the queue.
async fn submit_in_order<E: Executor>(
    cx: Context,
    executor: Arc<E>,
    max_jobs: usize,
    names: Vec<String>,
    stop: CancellationToken,
) {
    let (free, scheduler) = (Arc::new(Semaphore::new(max_jobs)), Device::unknown("job"));
    let mut runs = JoinSet::new();
    while let Some(Ok(permit)) = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        permit = Arc::clone(&free).acquire_owned() => Some(permit),
    } {
        let worker = unique_worker(&scheduler);
        let Some(run) = wait_for_run(&cx, &worker, &names, &stop).await else { break };
        let (cx, executor, scheduler, stop) =
            (cx.clone(), Arc::clone(&executor), scheduler.clone(), stop.clone());
        let (submitted, was_submitted) = oneshot::channel();
        runs.spawn(runtime::task(async move {
            run_to_end(&run, (&scheduler, &[], None), &cx, &*executor, Some(submitted), &stop)
                .await;
            drop(permit);
        }));
        was_submitted.await.ok();
        while runs.try_join_next().is_some() {}
    }
    while runs.join_next().await.is_some() {}
}

/// A worker's name that no other worker had.
fn unique_worker(device: &Device) -> String {
    device.worker(&format!("{}:{}", std::process::id(), uuid::Uuid::now_v7()))
}

/// Waits until a run can be claimed; `None` when stopped.
async fn wait_for_run(
    cx: &Context,
    worker: &str,
    names: &[String],
    stop: &CancellationToken,
) -> Option<ClaimedRun> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    while !stop.is_cancelled() {
        // Listening first: a run queued during the claim still wakes the worker.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        match recover_and_claim(cx, worker, &names, stop).await {
            Ok(Some(run)) => return Some(run),
            Ok(None) => {}
            Err(error) => {
                tracing::error!(error = %llmprof_core::chain(&error), "cannot lease a run")
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
        }
    }
    None
}

async fn recover_and_claim(
    cx: &Context,
    worker: &str,
    names: &[&str],
    stop: &CancellationToken,
) -> Result<Option<ClaimedRun>, StoreError> {
    super::recover(cx, false, &SlicedWork::new(stop)).await?;
    if !cx.has_space() {
        return Ok(None);
    }
    cx.store.claim(worker, names, cx.lease()).await
}

/// Cancels jobs whose run has ended: the run was cancelled while no service ran, or its job was
/// submitted twice.
async fn cancel_orphaned_jobs<E: Executor>(cx: Context, executor: Arc<E>, stop: CancellationToken) {
    loop {
        let jobs = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            jobs = executor.jobs() => jobs,
        };
        match jobs {
            Ok(jobs) => {
                for id in jobs {
                    // An unknown run may belong to another service.
                    let ended = cx
                        .store
                        .run(id)
                        .await
                        .is_ok_and(|run| run.is_some_and(|run| run.state.is_final()));
                    if ended && let Err(error) = executor.cancel(id, None).await {
                        let error = llmprof_core::chain(&error);
                        tracing::warn!(run = %id, error, "cannot cancel the job of an ended run");
                    }
                }
            }
            Err(error) => tracing::warn!(error = %llmprof_core::chain(&error), "cannot list jobs"),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(ORPHAN_SEARCH) => {}
        }
    }
}
