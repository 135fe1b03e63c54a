//! Carries runs out in this process, as tasks whose children end with it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Executor, ExecutorError, Lost, Status};
use crate::{
    run::RunId,
    store::Outcome,
    trace::device::Device,
    worker::{
        job::{self, Host},
        order::Order,
    },
};

/// Longest that a poll waits: how late those who ask for a run's steps see them.
const PERIOD: Duration = Duration::from_millis(200);

/// Runs under way in this process.
#[derive(Debug)]
pub struct Local {
    host: Host,
    runs: PathBuf,
    jobs: Mutex<HashMap<RunId, Job>>,
}

#[derive(Debug, Clone)]
struct Job {
    halt: CancellationToken,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl Local {
    /// Carries runs out in the folders under `runs`.
    pub fn new(host: Host, runs: PathBuf) -> Self {
        Self { host, runs, jobs: Mutex::default() }
    }

    fn job(&self, id: RunId) -> Option<Job> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }
}

impl Executor for Local {
    const OUTLIVES: bool = false;

    async fn submit(&self, order: &Order, device: &Device) -> Result<(), ExecutorError> {
        let (sender, outcome) = watch::channel(None);
        let halt = CancellationToken::new();
        let (order, device, host) = (order.clone(), device.clone(), self.host.clone());
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).insert(order.id, Job { halt: halt.clone(), outcome });
        let dir = self.runs.join(order.id.to_string());
        let task = async move {
            let outcome = job::execute(&order, &dir, &device, &host, &halt).await;
            sender.send_replace(Some(outcome));
        };
        tokio::spawn(tracing::Instrument::in_current_span(task));
        Ok(())
    }

    async fn poll(&self, order: &Order) -> Result<Status, ExecutorError> {
        let Some(mut job) = self.job(order.id) else { return Ok(Status::Ended) };
        let ended = timeout(PERIOD, job.outcome.wait_for(Option::is_some)).await.is_ok();
        Ok(if ended { Status::Ended } else { Status::Goes(None) })
    }

    async fn cancel(&self, id: RunId) -> Result<(), ExecutorError> {
        if let Some(job) = self.job(id) {
            job.halt.cancel();
        }
        Ok(())
    }

    async fn collect(&self, order: &Order) -> Result<Outcome, Lost> {
        let job = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).remove(&order.id);
        let outcome = job.and_then(|job| job.outcome.borrow().clone());
        Ok(outcome.unwrap_or_else(|| job::lost("the run broke off by a fault of llmprof".into())))
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(self.jobs.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect())
    }
}
