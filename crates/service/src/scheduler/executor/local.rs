//! Executes runs on this host, each as a process of its own: `llmprof execute`, as on a cluster. A
//! fault or an exhausted memory limit of one ends neither the service nor another run. The process
//! of an import has limits, because it reads foreign files.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use llmprof_core::{
    domain::{
        device::Device,
        ids::{RunId, RunMark},
        outcome::Outcome,
    },
    layout,
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{Executor, ExecutorError, JobStatus, LostJob, collect_result};
use crate::{
    collect::{
        end_orphans,
        host::exhaustion,
        process::{child::ExitReason, job_process::JobProcess},
    },
    job::job_spec::{self, JobResult, JobSpec, JobSubject},
    runtime,
    scheduler::{import_job, limited_child::LimitedChildren},
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
    /// Processes of imports.
    children: LimitedChildren,
    jobs: Mutex<HashMap<RunId, LocalJob>>,
}

#[derive(Debug, Clone)]
struct LocalJob {
    attempt: u32,
    stop: CancellationToken,
    end: watch::Receiver<Option<JobEnd>>,
}

/// End of a job's process.
#[derive(Debug, Clone)]
enum JobEnd {
    /// In words, and true if it could not leave its result for lack of the host's resources.
    Process(String, bool),
    Import(Outcome),
}

impl LocalExecutor {
    /// Executes the runs of the service with this data folder by `program execute`, with `options`.
    pub fn new(
        program: PathBuf,
        options: Vec<OsString>,
        data: PathBuf,
        children: LimitedChildren,
    ) -> Self {
        Self { program, options, data, children, jobs: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, LocalJob>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, id: RunId) -> Option<LocalJob> {
        self.lock().get(&id).cloned()
    }

    /// The job of this attempt, not of a later one.
    fn job_of(&self, spec: &JobSpec) -> Option<LocalJob> {
        self.job(spec.id).filter(|job| job.attempt == spec.attempt)
    }

    /// Removes the job of this attempt.
    fn remove(&self, spec: &JobSpec) -> Option<LocalJob> {
        let mut jobs = self.lock();
        let is_own = jobs.get(&spec.id).is_some_and(|job| job.attempt == spec.attempt);
        if is_own { jobs.remove(&spec.id) } else { None }
    }

    /// Ends the job of an earlier attempt, whose worker stalled beyond its lease.
    async fn end_earlier(&self, spec: &JobSpec) -> Result<(), ExecutorError> {
        let Some(mut job) = self.job(spec.id) else { return Ok(()) };
        if job.attempt > spec.attempt {
            let message = format!("attempt {} is executed already", job.attempt);
            return Err(ExecutorError::Start { source: io::Error::other(message) });
        }
        job.stop.cancel();
        job.end.wait_for(Option::is_some).await.ok();
        Ok(())
    }

    fn dir(&self, id: RunId) -> PathBuf {
        self.data.join("runs").join(id.to_string())
    }
}

/// Waits for a job's end, and stops it when `stop` fires. Ends processes of `run` that it left.
async fn run_to_end(
    mut job: JobProcess,
    run: RunMark,
    stop: CancellationToken,
    grace: Duration,
) -> JobEnd {
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        ended = job.wait() => Some(ended),
    };
    let ended = match ended {
        Some(ended) => ended,
        None => job.stop(grace).await,
    };
    // A panic there does not affect the run's end.
    runtime::blocking(move || end_orphans(run)).await.ok();
    let exhausted =
        matches!(&ended, Ok(ExitReason::Exited(code)) if *code == i32::from(exhaustion::EXIT));
    JobEnd::Process(
        ended.as_ref().map_or_else(io::Error::to_string, ExitReason::to_string),
        exhausted,
    )
}

impl Executor for LocalExecutor {
    const JOBS_OUTLIVE_SERVICE: bool = false;

    async fn submit(&self, spec: &JobSpec, device: &Device) -> Result<(), ExecutorError> {
        self.end_earlier(spec).await?;
        let dir = self.dir(spec.id);
        let spec = JobSpec {
            device: Some(device.clone()),
            state: Some(self.data.clone()),
            ..spec.clone()
        };
        fs::create_dir_all(&dir)
            .and_then(|()| job_spec::write(&dir, layout::JOB, &spec))
            .map_err(|source| ExecutorError::Spec { source })?;
        let (sender, end) = watch::channel(None);
        let stop = CancellationToken::new();
        let job = LocalJob { attempt: spec.attempt, stop: stop.clone(), end };
        // Before the process starts, so that another attempt waits for it.
        self.lock().insert(spec.id, job);
        if spec.subject == JobSubject::Import {
            let children = self.children.clone();
            tokio::spawn(runtime::task(async move {
                let outcome = import_job::execute(&spec, &dir, &children, &stop).await;
                keep_result(dir, spec.attempt, outcome.clone(), stop.is_cancelled()).await;
                sender.send_replace(Some(JobEnd::Import(outcome)));
            }));
            return Ok(());
        }
        let started = JobProcess::start(&self.program, &self.options, &dir, spec.mark()).await;
        let process = started.map_err(|source| {
            self.remove(&spec);
            ExecutorError::Start { source }
        })?;
        let grace = Duration::from_secs(spec.grace_s.into());
        tokio::spawn(runtime::task(async move {
            let end = run_to_end(process, spec.mark(), stop, grace).await;
            sender.send_replace(Some(end));
        }));
        Ok(())
    }

    async fn poll(&self, spec: &JobSpec) -> Result<JobStatus, ExecutorError> {
        let Some(mut job) = self.job_of(spec) else { return Ok(JobStatus::Ended) };
        let ended = timeout(POLL, job.end.wait_for(Option::is_some)).await.is_ok();
        Ok(if ended { JobStatus::Ended } else { JobStatus::Active(None) })
    }

    async fn cancel(&self, id: RunId, attempt: Option<u32>) -> Result<(), ExecutorError> {
        if let Some(job) = self.job(id).filter(|job| attempt.is_none_or(|it| it == job.attempt)) {
            job.stop.cancel();
        }
        Ok(())
    }

    async fn collect(&self, spec: &JobSpec) -> Result<Outcome, LostJob> {
        let job = self.remove(spec);
        let (end, exhausted) = match job.and_then(|job| job.end.borrow().clone()) {
            Some(JobEnd::Import(outcome)) => return Ok(outcome),
            Some(JobEnd::Process(end, exhausted)) => (end, exhausted),
            None => ("is unknown".into(), false),
        };
        let missing = async { format!("the job left no result: its process {end}") };
        let collected = collect_result(&self.dir(spec.id), spec.attempt, missing).await;
        collected.map_err(|mut lost| {
            lost.outcome.findings.extend(exhausted.then(exhaustion::of_exit));
            lost
        })
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(self.lock().keys().copied().collect())
    }
}

/// Writes the result of a sealed attempt into its folder, where the next service finds it if this
/// one is killed before the commit. A failure is logged: the outcome is about to be committed.
async fn keep_result(dir: PathBuf, attempt: u32, outcome: Outcome, stopped: bool) {
    if outcome.artifacts.is_empty() {
        return;
    }
    let result = JobResult::new(attempt, outcome, stopped);
    let write = move || job_spec::write(&dir, layout::RESULT, &result);
    let written = runtime::blocking(write).await.map_err(io::Error::other);
    if let Err(error) = written.and_then(|written| written) {
        tracing::warn!(%error, "cannot write the run's result to its folder");
    }
}
