//! Executes runs as Slurm jobs. The scheduler places, isolates and ends them; both sides share only
//! the run's folder.
//!
//! A job's name is its run's id, and a resubmission first looks for it in the queue: a lost answer
//! or a killed service makes no second job. A result counts for the attempt that was submitted.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Mutex as StdMutex, PoisonError},
    time::Duration,
};

use llmprof_core::{
    domain::{
        device::{CPU, Device},
        ids::RunId,
        outcome::Outcome,
        state::Scheduled,
    },
    layout,
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{Executor, ExecutorError, JobStatus, LostJob, collect_result};
use crate::{
    collect::{
        host::exhaustion,
        tools::slurm::{self, QueuedJob, SbatchSpec, SlurmError},
    },
    config::SlurmSettings,
    job::job_spec::{self, JobSpec, JobSubject},
};

/// Releases of a job that Slurm could not start and holds. Slurm delays each, usually by two
/// minutes.
const MAX_RELEASES: u32 = 3;

/// Executes runs as jobs of a Slurm cluster.
#[derive(Debug)]
pub struct SlurmExecutor {
    settings: SlurmSettings,
    runs: PathBuf,
    program: PathBuf,
    snapshot: Mutex<Option<QueueSnapshot>>,
    tracked: StdMutex<HashMap<RunId, TrackedRun>>,
}

/// The queue at one time, shared by concurrent polls.
#[derive(Debug, Clone)]
struct QueueSnapshot {
    at: Instant,
    jobs: Vec<QueuedJob>,
}

/// State of a run under way.
#[derive(Debug, Clone)]
struct TrackedRun {
    /// Time of the last submission or release: older snapshots do not show its effect.
    submitted: Instant,
    /// Its last job in the queue, whose end state can be queried.
    job: Option<String>,
    /// The jobs that this service submitted.
    jobs: Vec<String>,
    /// Time since which the queue does not list it.
    gone: Option<Instant>,
    releases: u32,
    /// Reason why Slurm could not start it, once it was given up.
    given_up: Option<String>,
}

impl SlurmExecutor {
    /// Executes runs in the folders under `runs`, by `program execute`.
    pub fn new(settings: SlurmSettings, runs: PathBuf, program: PathBuf) -> Self {
        let (snapshot, tracked) = (Mutex::default(), StdMutex::default());
        Self { settings, runs, program, snapshot, tracked }
    }

    /// Devices that a run may request.
    pub fn accepts(settings: &SlurmSettings) -> Vec<String> {
        ["auto", CPU].into_iter().map(str::to_owned).chain(settings.types.iter().cloned()).collect()
    }

    fn dir(&self, id: RunId) -> PathBuf {
        self.runs.join(id.to_string())
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.settings.poll_s.max(1).into())
    }

    /// Returns the queue at a time after `since`. Concurrent polls share one query.
    async fn queue(&self, since: Instant) -> Result<Vec<QueuedJob>, ExecutorError> {
        let mut snapshot = self.snapshot.lock().await;
        let is_fresh = |it: &&QueueSnapshot| it.at > since && it.at.elapsed() < self.period();
        if let Some(fresh) = snapshot.as_ref().filter(is_fresh) {
            return Ok(fresh.jobs.clone());
        }
        let at = Instant::now();
        let jobs = slurm::queued(None).await.map_err(slurm_error)?;
        *snapshot = Some(QueueSnapshot { at, jobs: jobs.clone() });
        Ok(jobs)
    }

    fn track<T>(&self, id: RunId, change: impl FnOnce(&mut TrackedRun) -> T) -> T {
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || TrackedRun {
            submitted: Instant::now(),
            job: None,
            jobs: Vec::new(),
            gone: None,
            releases: 0,
            given_up: None,
        };
        change(tracked.entry(id).or_insert_with(new))
    }

    /// Releases a job that Slurm could not start and holds; returns false if it was cancelled
    /// instead.
    ///
    /// A node refuses a job whose number it knows, as after a controller lost its state, or if its
    /// prolog fails.
    async fn release_held(&self, id: RunId, job: &QueuedJob) -> Result<bool, ExecutorError> {
        let reason = job.reason.clone().unwrap_or_default();
        let releases = self.track(id, |run| {
            run.releases += 1;
            run.releases
        });
        if releases <= MAX_RELEASES && !job.is_given_up() {
            let job = &job.job;
            match slurm::release(job).await {
                Ok(()) => {
                    tracing::warn!(job, reason, "Slurm could not start the job; released it");
                    self.track(id, |run| run.submitted = Instant::now());
                    return Ok(true);
                }
                Err(error) => {
                    let error = llmprof_core::chain(&error);
                    tracing::warn!(job, %error, "cannot release the job");
                }
            }
        }
        self.cancel(id, None).await?;
        self.track(id, |run| run.given_up = Some(reason));
        Ok(false)
    }

    /// Submits the jobs of a run that are not in the queue. `is_first`: none was submitted before.
    async fn submit_jobs(
        &self,
        spec: &JobSpec,
        dir: &Path,
        is_first: bool,
    ) -> Result<(), ExecutorError> {
        let is_split = self.settings.separate_analysis_job;
        let requested = spec.spec.device();
        let types = self.settings.types.iter().map(String::as_str);
        let collecting = SbatchSpec {
            run: spec.id,
            dir,
            program: &self.program,
            gpus: spec.gpus,
            kind: types.clone().find(|kind| requested == Some(kind)),
            limit: spec.time_limit(),
            part: is_split.then_some("--gather"),
            after: None,
        };
        let queued = if is_first {
            Vec::new()
        } else {
            slurm::queued(Some(spec.id)).await.map_err(slurm_error)?
        };
        let live =
            |apart| queued.iter().find(|job| job.apart == apart && job.state != "COMPLETING");
        let job = match (live(false), live(true)) {
            // The collecting job has ended, and the analyzing one is waited for.
            (None, Some(_)) => return Ok(()),
            (Some(found), analyzing) => {
                tracing::info!(job = found.job, "the run's job is in the queue already");
                if analyzing.is_some() || !is_split {
                    return Ok(());
                }
                found.job.clone()
            }
            // It ended since the result was looked for: a job writes its result before it ends.
            (None, None) if !is_first && has_result(dir, spec.attempt) => return Ok(()),
            (None, None) => self.sbatch(&collecting).await?,
        };
        self.track(spec.id, |run| run.job = Some(job.clone()));
        if is_split {
            let (part, after) = (Some("--conclude"), Some(job.as_str()));
            self.sbatch(&SbatchSpec { gpus: 0, kind: None, part, after, ..collecting }).await?;
        }
        Ok(())
    }

    async fn sbatch(&self, job: &SbatchSpec<'_>) -> Result<String, ExecutorError> {
        let submitted = slurm::submit(job, &self.settings, layout::SCHEDULER_LOG).await;
        let number = submitted.map_err(slurm_error)?;
        self.track(job.run, |run| run.jobs.push(number.clone()));
        Ok(number)
    }
}

/// True if the attempt has a result, and was not interrupted.
fn has_result(dir: &Path, attempt: u32) -> bool {
    matches!(job_spec::result(dir, attempt), Ok(Some(result)) if !result.interrupted)
}

fn slurm_error(source: SlurmError) -> ExecutorError {
    ExecutorError::Slurm { source }
}

/// The scheduler's state of a run: of its collecting job, then of its analyzing job; `None` if
/// neither is queued.
fn scheduled(jobs: &[QueuedJob], run: RunId) -> Option<Scheduled> {
    let of_run = || jobs.iter().filter(|job| job.run == run && job.state != "COMPLETING");
    let job = of_run().find(|job| !job.apart).or_else(|| of_run().next())?;
    let QueuedJob { job, state, reason, .. } = job.clone();
    Some(Scheduled { job, state, reason })
}

/// The reason why a job left no result, as far as Slurm reports it.
async fn missing_result(id: RunId, tracked: Option<TrackedRun>) -> String {
    let Some(TrackedRun { job, given_up, .. }) = tracked else {
        return "the job left no result".into();
    };
    if let Some(reason) = given_up {
        return format!("Slurm could not start the job: {reason}");
    }
    let state = match job {
        Some(job) => slurm::last_state(id, &job).await,
        None => None,
    };
    format!(
        "the job left no result{}",
        state.map(|last| format!(": it ended as {}", last.state)).unwrap_or_default()
    )
}

fn forget_result(dir: &Path) {
    match std::fs::remove_file(dir.join(layout::RESULT)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, "cannot remove the result of a requeued run");
        }
        _ => {}
    }
}

/// Returns true if a job could not write its files because the node lacked resources.
async fn is_exhausted(id: RunId, tracked: Option<TrackedRun>) -> bool {
    let Some(TrackedRun { job, mut jobs, .. }) = tracked else { return false };
    jobs.extend(job);
    for job in &jobs {
        let last = slurm::last_state(id, job).await;
        if last.is_some_and(|last| last.exit_code == Some(exhaustion::EXIT)) {
            return true;
        }
    }
    false
}

impl Executor for SlurmExecutor {
    const JOBS_OUTLIVE_SERVICE: bool = true;

    async fn submit(&self, spec: &JobSpec, _: &Device) -> Result<(), ExecutorError> {
        let dir = self.dir(spec.id);
        match job_spec::result(&dir, spec.attempt) {
            Ok(Some(result)) if !result.interrupted => return Ok(()), // ended while no service ran
            // Its attempt is repeated: it was interrupted, or the host lacked resources.
            Ok(Some(_)) => std::fs::remove_file(dir.join(layout::RESULT))
                .map_err(|source| ExecutorError::Spec { source })?,
            _ => {}
        }
        let gpus = match &spec.subject {
            _ if spec.spec.device() == Some(CPU) => 0,
            JobSubject::Command { plan, .. } => plan.gpus,
            JobSubject::Model { .. } => self.settings.gpus,
            JobSubject::Import => 0,
        };
        let spec = JobSpec { gpus, ..spec.clone() };
        // The spec is written before any submission: without it, none was made.
        let is_first = spec.attempt == 1 && !dir.join(layout::JOB).exists();
        let written =
            std::fs::create_dir_all(&dir).and_then(|()| job_spec::write(&dir, layout::JOB, &spec));
        written.map_err(|source| ExecutorError::Spec { source })?;
        self.submit_jobs(&spec, &dir, is_first).await?;
        self.track(spec.id, |run| (run.submitted, run.gone) = (Instant::now(), None));
        Ok(())
    }

    async fn poll(&self, spec: &JobSpec) -> Result<JobStatus, ExecutorError> {
        let (id, dir) = (spec.id, self.dir(spec.id));
        let result = job_spec::result(&dir, spec.attempt)
            .map_err(|source| ExecutorError::Result { source })?;
        if result.is_some_and(|result| !result.interrupted) {
            return Ok(JobStatus::Ended);
        }
        sleep(self.period()).await;
        let submitted = self.track(id, |run| run.submitted);
        let jobs = self.queue(submitted).await?;
        let held = jobs.iter().find(|job| job.run == id && job.is_held());
        if let Some(job) = held
            && !self.release_held(id, job).await?
        {
            return Ok(JobStatus::Ended);
        }
        if let Some(scheduled) = scheduled(&jobs, id) {
            self.track(id, |run| (run.job, run.gone) = (Some(scheduled.job.clone()), None));
            return Ok(JobStatus::Active(Some(scheduled)));
        }
        let gone = self.track(id, |run| *run.gone.get_or_insert_with(Instant::now));
        let is_lost = gone.elapsed() >= Duration::from_secs(self.settings.lost_after_s.into());
        Ok(if is_lost { JobStatus::Ended } else { JobStatus::Active(None) })
    }

    /// Jobs have the name of their run: another attempt would continue them.
    async fn cancel(&self, id: RunId, _: Option<u32>) -> Result<(), ExecutorError> {
        let queued = slurm::queued(Some(id)).await.map_err(slurm_error)?;
        let jobs: Vec<String> = queued.into_iter().map(|job| job.job).collect();
        slurm::cancel(&jobs).await.map_err(slurm_error)
    }

    async fn collect(&self, spec: &JobSpec) -> Result<Outcome, LostJob> {
        let dir = self.dir(spec.id);
        let tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner).remove(&spec.id);
        let missing = missing_result(spec.id, tracked.clone());
        let mut collected = collect_result(&dir, spec.attempt, missing).await;
        if let Err(lost) = &mut collected {
            let known = exhaustion::of_outcome(&lost.outcome).is_some();
            if !known && is_exhausted(spec.id, tracked).await {
                lost.outcome.findings.push(exhaustion::of_exit());
            }
            if exhaustion::of_outcome(&lost.outcome).is_some() {
                // The next attempt has the same number, and this would be its result.
                forget_result(&dir);
            }
        }
        collected
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        let jobs = self.queue(Instant::now() - self.period()).await?;
        Ok(jobs.into_iter().map(|job| job.run).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_state_of_its_collecting_job_and_then_of_the_analyzing_one() {
        let run = RunId::now();
        let job = |job: &str, apart, state: &str, reason: Option<&str>| QueuedJob {
            run,
            apart,
            job: job.into(),
            state: state.into(),
            reason: reason.map(str::to_owned),
        };
        let mut jobs = vec![
            job("2", true, "PENDING", Some("Dependency")),
            job("1", false, "PENDING", Some("Resources")),
        ];
        assert_eq!(scheduled(&jobs, run).unwrap().reason.as_deref(), Some("Resources"));
        jobs[1].state = "COMPLETING".into();
        assert_eq!(scheduled(&jobs, run).unwrap().job, "2");
        jobs.remove(0);
        assert_eq!(scheduled(&jobs, run), None);
        assert_eq!(scheduled(&jobs, RunId::now()), None);
    }
}
