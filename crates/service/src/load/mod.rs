//! Load generator: a client of OpenAI's streaming API that times each request and each token.
//!
//! Runs in a process of its own (`llmprof load`), alone or as the client of a server that llmprof
//! profiles. Sends requests to the given server alone and follows no redirects.

pub mod chunk;
mod client;
mod exchange;
pub mod plan;
pub mod schedule;
pub mod sse;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::plan::{Api, LoadPlan, Pace, PlanError, Prompts};
use llmprof_core::trace::requests::{LoadEnd, LoadHeader, RequestRecord};

use self::{client::LoadClient, schedule::Arrivals};

/// Requests under way at the same time in an open loop; more wait, and their wait is measured.
const MAX_IN_FLIGHT: usize = 8192;
/// Pause of a client after a failure, times the number of failures in sequence.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two checks for the end of the load during a long pause between arrivals.
const PERIOD: Duration = Duration::from_millis(50);

/// A failure to start a load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("cannot read the clock of the host")]
    Clock(#[source] nix::Error),
    #[error("cannot start the thread of the schedule")]
    Thread(#[source] std::io::Error),
}

/// A load that is ready to start.
#[derive(Debug)]
pub struct Load {
    plan: Arc<LoadPlan>,
    client: Arc<LoadClient>,
    started: Instant,
    header: LoadHeader,
}

impl Load {
    /// Prepares the client; times count from here.
    pub fn prepare(plan: LoadPlan) -> Result<Self, LoadError> {
        let plan = Arc::new(plan);
        let http = client::http_client(&plan, usize::MAX).map_err(LoadError::Client)?;
        let fresh = client::http_client(&plan, 0).map_err(LoadError::Client)?;
        let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
        let unix = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME);
        let started = Instant::now();
        let ns = |time: nix::sys::time::TimeSpec| {
            time.tv_sec().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec())
        };
        let header = plan
            .header(ns(unix.map_err(LoadError::Clock)?), ns(monotonic.map_err(LoadError::Clock)?));
        let client = Arc::new(LoadClient { http, fresh, plan: Arc::clone(&plan), started });
        Ok(Self { plan, client, started, header })
    }

    pub fn header(&self) -> &LoadHeader {
        &self.header
    }

    /// Sends all requests and passes each record to `records`. `stop` ends the load: requests under
    /// way are recorded as stopped.
    pub async fn run(
        self,
        stop: &CancellationToken,
        records: &Sender<RequestRecord>,
    ) -> Result<LoadEnd, LoadError> {
        let is_stopped = match self.plan.pace {
            Pace::Concurrency(concurrency) => self.closed_loop(concurrency, stop, records).await,
            Pace::Rate(rate_per_s) => self.open_loop(rate_per_s, stop, records).await?,
        };
        Ok(LoadEnd { ended_ns: client::since(self.started), is_stopped })
    }

    /// Each of `concurrency` tasks sends its next request when its last one has ended.
    async fn closed_loop(
        &self,
        concurrency: u32,
        stop: &CancellationToken,
        records: &Sender<RequestRecord>,
    ) -> bool {
        let next = Arc::new(AtomicU64::new(0));
        let is_cut = Arc::new(AtomicBool::new(false));
        let tracker = TaskTracker::new();
        for _ in 0..concurrency {
            let (client, plan, next) =
                (Arc::clone(&self.client), Arc::clone(&self.plan), Arc::clone(&next));
            let (is_cut, stop, records) = (Arc::clone(&is_cut), stop.clone(), records.clone());
            tracker.spawn(async move {
                let mut failures = 0;
                loop {
                    if stop.is_cancelled() {
                        is_cut.store(true, Ordering::Relaxed);
                        return;
                    }
                    let request = next.fetch_add(1, Ordering::Relaxed);
                    if plan.is_over(request, client.started.elapsed()) {
                        return;
                    }
                    let prepared = plan.request(request);
                    let intended_ns = client::since(client.started);
                    let record = client.send(prepared, intended_ns, &stop).await;
                    failures = if record.failure.is_some() { failures + 1 } else { 0 };
                    if records.send(record).is_err() {
                        return;
                    }
                    // A server that refuses everything is not flooded.
                    if failures > 0 {
                        tokio::time::sleep(PAUSE * failures.min(100)).await;
                    }
                }
            });
        }
        tracker.close();
        tracker.wait().await;
        is_cut.load(Ordering::Relaxed)
    }

    /// Requests are sent at their times, however many are under way. A thread of its own keeps the
    /// schedule: timers of the runtime have a resolution of one millisecond.
    async fn open_loop(
        &self,
        rate_per_s: f64,
        stop: &CancellationToken,
        records: &Sender<RequestRecord>,
    ) -> Result<bool, LoadError> {
        let (client, plan) = (Arc::clone(&self.client), Arc::clone(&self.plan));
        let (stop, records, started) = (stop.clone(), records.clone(), self.started);
        let (runtime, tracker) = (Handle::current(), TaskTracker::new());
        let (tasks, ended) = (tracker.clone(), CancellationToken::new());
        let guard = ended.clone().drop_guard();
        let schedule = move || {
            let _guard = guard;
            let slots = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
            for (request, at) in (0..).zip(Arrivals::poisson(plan.seed, rate_per_s)) {
                if plan.is_over(request, at) {
                    return false;
                }
                let prepared = plan.request(request);
                if !sleep_until(started, at, &stop) {
                    return true;
                }
                let (client, slots) = (Arc::clone(&client), Arc::clone(&slots));
                let (stop, records) = (stop.clone(), records.clone());
                let send = async move {
                    // The semaphore is never closed.
                    let _slot = slots.acquire().await.ok();
                    let intended_ns = i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
                    let record = client.send(prepared, intended_ns, &stop).await;
                    let _ = records.send(record); // the reader may have ended
                };
                tasks.spawn_on(send, &runtime);
            }
            false
        };
        let thread = thread::Builder::new().name("load-schedule".into()).spawn(schedule);
        let thread = thread.map_err(LoadError::Thread)?;
        ended.cancelled().await;
        let is_cut = thread.join().unwrap_or(true);
        tracker.close();
        tracker.wait().await;
        Ok(is_cut)
    }
}

/// Sleeps until `at` after `started`; false if the load is stopped before.
fn sleep_until(started: Instant, at: Duration, stop: &CancellationToken) -> bool {
    loop {
        if stop.is_cancelled() {
            return false;
        }
        let left = at.saturating_sub(started.elapsed());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(PERIOD));
    }
}
