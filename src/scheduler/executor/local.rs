//! Executes runs on this host, each as a process of its own: `llmprof execute`, as on a cluster. A
//! fault or an exhausted memory limit of one ends neither the service nor another run.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Executor, ExecutorError, JobStatus, LostJob, collect_result};
use crate::{
    artifact::layout,
    collect::process::{child::ExitReason, job_process::JobProcess},
    domain::{device::Device, ids::RunId, outcome::Outcome},
    job::job_spec::{self, JobSpec},
};

/// Longest wait of a poll, and so the delay with which clients see a run's steps.
const POLL: Duration = Duration::from_millis(200);

/// Runs under way on this host.
#[derive(Debug)]
pub struct LocalExecutor {
    program: PathBuf,
    options: Vec<OsString>,
    /// The service's data folder.
    data: PathBuf,
    jobs: Mutex<HashMap<RunId, LocalJob>>,
}

#[derive(Debug, Clone)]
struct LocalJob {
    stop: CancellationToken,
    /// End of the process.
    end: watch::Receiver<Option<String>>,
}

impl LocalExecutor {
    /// Executes the runs of the service with this data folder by `program execute`, with `options`.
    pub fn new(program: PathBuf, options: Vec<OsString>, data: PathBuf) -> Self {
        Self { program, options, data, jobs: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, LocalJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, id: RunId) -> Option<LocalJob> {
        self.lock().get(&id).cloned()
    }

    fn dir(&self, id: RunId) -> PathBuf {
        self.data.join("runs").join(id.to_string())
    }
}

/// Waits for a job's end, and stops it when `stop` fires; returns the end in words.
async fn run_to_end(mut job: JobProcess, stop: CancellationToken, grace: Duration) -> String {
    let ended = tokio::select! {
        ended = job.wait() => ended,
        () = stop.cancelled() => job.stop(grace).await,
    };
    ended.as_ref().map_or_else(io::Error::to_string, ExitReason::to_string)
}

impl Executor for LocalExecutor {
    const JOBS_OUTLIVE_SERVICE: bool = false;

    async fn submit(&self, spec: &JobSpec, device: &Device) -> Result<(), ExecutorError> {
        let dir = self.dir(spec.id);
        let spec = JobSpec {
            device: Some(device.clone()),
            state: Some(self.data.clone()),
            ..spec.clone()
        };
        fs::create_dir_all(&dir)
            .and_then(|()| job_spec::write(&dir, layout::JOB, &spec))
            .map_err(|source| ExecutorError::Spec { source })?;
        let job = JobProcess::start(&self.program, &self.options, &dir, spec.id)
            .await
            .map_err(|source| ExecutorError::Start { source })?;
        let (sender, end) = watch::channel(None);
        let stop = CancellationToken::new();
        self.lock().insert(spec.id, LocalJob { stop: stop.clone(), end });
        let grace = Duration::from_secs(spec.grace_s.into());
        tokio::spawn(async move {
            sender.send_replace(Some(run_to_end(job, stop, grace).await));
        });
        Ok(())
    }

    async fn poll(&self, spec: &JobSpec) -> Result<JobStatus, ExecutorError> {
        let Some(mut job) = self.job(spec.id) else { return Ok(JobStatus::Ended) };
        let ended = timeout(POLL, job.end.wait_for(Option::is_some)).await.is_ok();
        Ok(if ended { JobStatus::Ended } else { JobStatus::Active(None) })
    }

    async fn cancel(&self, id: RunId) -> Result<(), ExecutorError> {
        if let Some(job) = self.job(id) {
            job.stop.cancel();
        }
        Ok(())
    }

    async fn collect(&self, spec: &JobSpec) -> Result<Outcome, LostJob> {
        let job = self.lock().remove(&spec.id);
        let end = job.and_then(|job| job.end.borrow().clone()).unwrap_or_default();
        collect_result(&self.dir(spec.id), spec.attempt, async {
            format!("the job left no result: its process {end}")
        })
        .await
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(self.lock().keys().copied().collect())
    }
}
