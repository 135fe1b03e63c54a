//! Executes runs in this process, as tasks whose child processes end with it.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Executor, ExecutorError, JobStatus, LostJob};
use crate::{
    domain::{device::Device, ids::RunId, outcome::Outcome},
    job::{self, JobHost, job_spec::JobSpec},
};

/// Longest wait of a poll, and so the delay with which clients see a run's steps.
const POLL: Duration = Duration::from_millis(200);

/// Runs under way in this process.
#[derive(Debug)]
pub struct LocalExecutor {
    host: JobHost,
    runs: PathBuf,
    jobs: Mutex<HashMap<RunId, LocalJob>>,
}

#[derive(Debug, Clone)]
struct LocalJob {
    stop: CancellationToken,
    outcome: watch::Receiver<Option<Outcome>>,
}

impl LocalExecutor {
    /// Executes runs in the folders under `runs`.
    pub fn new(host: JobHost, runs: PathBuf) -> Self {
        Self { host, runs, jobs: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, LocalJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, id: RunId) -> Option<LocalJob> {
        self.lock().get(&id).cloned()
    }
}

impl Executor for LocalExecutor {
    const JOBS_OUTLIVE_SERVICE: bool = false;

    async fn submit(&self, spec: &JobSpec, device: &Device) -> Result<(), ExecutorError> {
        let (sender, outcome) = watch::channel(None);
        let stop = CancellationToken::new();
        self.lock().insert(spec.id, LocalJob { stop: stop.clone(), outcome });
        let (spec, device, host) = (spec.clone(), device.clone(), self.host.clone());
        let dir = self.runs.join(spec.id.to_string());
        let task = async move {
            let outcome = job::execute(&spec, &dir, &device, &host, &stop).await;
            sender.send_replace(Some(outcome));
        };
        tokio::spawn(tracing::Instrument::in_current_span(task));
        Ok(())
    }

    async fn poll(&self, spec: &JobSpec) -> Result<JobStatus, ExecutorError> {
        let Some(mut job) = self.job(spec.id) else { return Ok(JobStatus::Ended) };
        let ended = timeout(POLL, job.outcome.wait_for(Option::is_some)).await.is_ok();
        Ok(if ended { JobStatus::Ended } else { JobStatus::Active(None) })
    }

    async fn cancel(&self, id: RunId) -> Result<(), ExecutorError> {
        if let Some(job) = self.job(id) {
            job.stop.cancel();
        }
        Ok(())
    }

    async fn collect(&self, spec: &JobSpec) -> Result<Outcome, LostJob> {
        let outcome = self.lock().remove(&spec.id).and_then(|job| job.outcome.borrow().clone());
        Ok(outcome.unwrap_or_else(|| job::failed("the run stopped by a fault of llmprof".into())))
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(self.lock().keys().copied().collect())
    }
}
