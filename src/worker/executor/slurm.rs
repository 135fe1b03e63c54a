//! Carries runs out as jobs of Slurm. The scheduler places, isolates and ends them; the run's folder is all that both sides share.
//!
//! A job bears its run's id as its name, and the queue is asked before anything is submitted that may have been submitted before: an
//! answer that was lost, or a service that died, makes no second job. A result counts when it is of the attempt that was ordered.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Mutex as StdMutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

use super::{Executor, ExecutorError, Lost, Status};
use crate::{
    artifact::{layout, manifest},
    collect::slurm::{self, JobSpec, QueuedJob},
    config::Slurm as Settings,
    run::{RunId, Scheduled},
    store::Outcome,
    trace::device::{CPU, Device},
    worker::{
        job,
        order::{self, Order, OrderedSubject},
    },
};

/// How often a job of a run's attempt is released that Slurm could not start: it waits after each, two minutes as a rule.
const RELEASES: u32 = 3;

/// Jobs of a Slurm cluster.
#[derive(Debug)]
pub struct Slurm {
    settings: Settings,
    runs: PathBuf,
    program: PathBuf,
    look: Mutex<Option<Look>>,
    known: StdMutex<HashMap<RunId, Known>>,
}

/// The queue as it was, shared by all who ask.
#[derive(Debug, Clone)]
struct Look {
    at: Instant,
    jobs: Vec<QueuedJob>,
}

/// What is remembered of a run under way.
#[derive(Debug, Clone)]
struct Known {
    /// When it was last submitted or released: older looks say nothing of it.
    submitted: Instant,
    /// Its last job that was seen, for the question how that ended.
    job: Option<String>,
    /// Since when the queue does not show it.
    gone: Option<Instant>,
    /// How often it was released.
    releases: u32,
    /// Why it could not be started, when it was given up.
    given_up: Option<String>,
}

impl Slurm {
    /// Carries runs out in the folders under `runs`, by the `program` that `llmprof execute` is.
    pub fn new(settings: Settings, runs: PathBuf, program: PathBuf) -> Self {
        Self { settings, runs, program, look: Mutex::default(), known: StdMutex::default() }
    }

    /// What a run may ask for as its device.
    pub fn accepts(settings: &Settings) -> Vec<String> {
        ["auto", CPU].into_iter().map(str::to_owned).chain(settings.types.iter().cloned()).collect()
    }

    fn dir(&self, id: RunId) -> PathBuf {
        self.runs.join(id.to_string())
    }

    fn period(&self) -> Duration {
        Duration::from_secs(self.settings.poll_s.max(1).into())
    }

    /// The queue as it was after `since`: one look serves all who ask at about the same time.
    async fn queue(&self, since: Instant) -> Result<Vec<QueuedJob>, ExecutorError> {
        let mut look = self.look.lock().await;
        let fresh = look.as_ref().filter(|look| look.at > since && look.at.elapsed() < self.period());
        if let Some(look) = fresh {
            return Ok(look.jobs.clone());
        }
        let at = Instant::now();
        let jobs = slurm::queued(None).await.map_err(|source| ExecutorError::Slurm { source })?;
        *look = Some(Look { at, jobs: jobs.clone() });
        Ok(jobs)
    }

    fn remember<T>(&self, id: RunId, change: impl FnOnce(&mut Known) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Known { submitted: Instant::now(), job: None, gone: None, releases: 0, given_up: None };
        change(known.entry(id).or_insert_with(new))
    }

    /// Has a job that Slurm could not start, and so holds, wait for its turn again; `false`: it was given up, and is gone.
    ///
    /// A node refuses a job whose number it knows already, as after a controller that lost its state, or whose prolog fails.
    async fn release(&self, id: RunId, job: &QueuedJob) -> Result<bool, ExecutorError> {
        let reason = job.reason.clone().unwrap_or_default();
        let releases = self.remember(id, |known| {
            known.releases += 1;
            known.releases
        });
        if releases <= RELEASES && !job.is_given_up() {
            match slurm::release(&job.job).await {
                Ok(()) => {
                    tracing::warn!(job = job.job, reason, "Slurm could not start the run's job: it was released");
                    self.remember(id, |known| known.submitted = Instant::now());
                    return Ok(true);
                }
                Err(error) => tracing::warn!(job = job.job, error = %crate::chain(&error), "cannot release the run's job"),
            }
        }
        self.cancel(id).await?;
        self.remember(id, |known| known.given_up = Some(reason));
        Ok(false)
    }

    /// `first`: nobody has tried to submit this run.
    async fn begin(&self, order: &Order, dir: &Path, first: bool) -> Result<(), ExecutorError> {
        let refused = |source| ExecutorError::Slurm { source };
        let apart = self.settings.analyze_apart;
        let asked = order.spec.device();
        let collects = JobSpec {
            run: order.id,
            dir,
            program: &self.program,
            gpus: order.gpus,
            kind: self.settings.types.iter().map(String::as_str).find(|kind| asked == Some(kind)),
            limit: order.limit(),
            part: apart.then_some("--gather"),
            after: None,
        };
        let there = if first { Vec::new() } else { slurm::queued(Some(order.id)).await.map_err(refused)? };
        let live = |apart| there.iter().find(|job| job.apart == apart && job.state != "COMPLETING");
        let job = match (live(false), live(true)) {
            // The one that collects has ended; the other one is what is waited for.
            (None, Some(_)) => return Ok(()),
            (Some(found), second) => {
                tracing::info!(job = found.job, "the run's job is there already");
                if second.is_some() || !apart {
                    return Ok(());
                }
                found.job.clone()
            }
            (None, None) => slurm::submit(&collects, &self.settings, layout::SCHEDULER_LOG).await.map_err(refused)?,
        };
        self.remember(order.id, |known| known.job = Some(job.clone()));
        if apart {
            let second = JobSpec { gpus: 0, kind: None, part: Some("--conclude"), after: Some(&job), ..collects };
            slurm::submit(&second, &self.settings, layout::SCHEDULER_LOG).await.map_err(refused)?;
        }
        Ok(())
    }
}

/// What a run's jobs in the queue say of it as a whole; `None`: none is there.
fn stands(jobs: &[QueuedJob], run: RunId) -> Option<Scheduled> {
    let of_run = || jobs.iter().filter(|job| job.run == run && job.state != "COMPLETING");
    let told = of_run().find(|job| !job.apart).or_else(|| of_run().next())?;
    Some(Scheduled { job: told.job.clone(), state: told.state.clone(), reason: told.reason.clone() })
}

/// Why a job left no result, as far as that is known.
async fn left_nothing(id: RunId, known: Option<Known>) -> String {
    let Some(Known { job, given_up, .. }) = known else { return "the job left no result".into() };
    if let Some(reason) = given_up {
        return format!("Slurm could not start the job: {reason}");
    }
    let state = match job {
        Some(job) => slurm::last_state(id, &job).await,
        None => None,
    };
    format!("the job left no result{}", state.map(|state| format!(": it ended as {state}")).unwrap_or_default())
}

impl Executor for Slurm {
    const OUTLIVES: bool = true;

    async fn submit(&self, order: &Order, _: &Device) -> Result<(), ExecutorError> {
        let dir = self.dir(order.id);
        if order::result(&dir, order.attempt).is_ok_and(|result| result.is_some()) {
            return Ok(()); // ended while nobody looked
        }
        let gpus = match &order.subject {
            _ if order.spec.device() == Some(CPU) => 0,
            OrderedSubject::Command { plan, .. } => plan.gpus,
            OrderedSubject::Model { .. } => self.settings.gpus,
            OrderedSubject::Import => 0,
        };
        let order = Order { gpus, ..order.clone() };
        // The order is kept before anything is submitted: without one nothing was.
        let first = order.attempt == 1 && !dir.join(layout::JOB).exists();
        let written = std::fs::create_dir_all(&dir).and_then(|()| order::write(&dir, layout::JOB, &order));
        written.map_err(|source| ExecutorError::Order { source })?;
        self.begin(&order, &dir, first).await?;
        self.remember(order.id, |known| (known.submitted, known.gone) = (Instant::now(), None));
        Ok(())
    }

    async fn poll(&self, order: &Order) -> Result<Status, ExecutorError> {
        let (id, dir) = (order.id, self.dir(order.id));
        let result = order::result(&dir, order.attempt).map_err(|source| ExecutorError::Result { source })?;
        if result.is_some_and(|result| !result.interrupted) {
            return Ok(Status::Ended);
        }
        sleep(self.period()).await;
        let submitted = self.remember(id, |known| known.submitted);
        let jobs = self.queue(submitted).await?;
        let held = jobs.iter().find(|job| job.run == id && job.is_held());
        if let Some(job) = held
            && !self.release(id, job).await?
        {
            return Ok(Status::Ended);
        }
        let lost_after = Duration::from_secs(self.settings.lost_s.into());
        Ok(match stands(&jobs, id) {
            Some(scheduled) => {
                self.remember(id, |known| (known.job, known.gone) = (Some(scheduled.job.clone()), None));
                Status::Goes(Some(scheduled))
            }
            None => {
                let gone = self.remember(id, |known| *known.gone.get_or_insert_with(Instant::now));
                if gone.elapsed() >= lost_after { Status::Ended } else { Status::Goes(None) }
            }
        })
    }

    async fn cancel(&self, id: RunId) -> Result<(), ExecutorError> {
        let refused = |source| ExecutorError::Slurm { source };
        let jobs: Vec<String> = slurm::queued(Some(id)).await.map_err(refused)?.into_iter().map(|job| job.job).collect();
        slurm::cancel(&jobs).await.map_err(refused)
    }

    async fn collect(&self, order: &Order) -> Result<Outcome, Lost> {
        let dir = self.dir(order.id);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&order.id);
        let result = order::result(&dir, order.attempt);
        let (why, outcome) = match result {
            Ok(Some(result)) if !result.interrupted => return Ok(result.outcome),
            Ok(Some(result)) => ("the job was told to end before its end".to_owned(), result.outcome),
            Ok(None) => {
                let why = left_nothing(order.id, known).await;
                (why.clone(), job::lost(why))
            }
            Err(error) => (format!("the job's result cannot be read: {error}"), job::lost(error.to_string())),
        };
        // The job had no time to seal its folder.
        let sealed = tokio::task::spawn_blocking(move || manifest::seal(&dir)).await;
        let artifacts = sealed.ok().and_then(Result::ok).unwrap_or_default();
        Err(Lost { why, outcome: Outcome { artifacts, ..outcome } })
    }

    async fn jobs(&self) -> Result<Vec<RunId>, ExecutorError> {
        Ok(self.queue(Instant::now() - self.period()).await?.into_iter().map(|job| job.run).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stands_where_the_job_that_collects_stands_and_then_the_other() {
        let run = RunId::now();
        let job = |job: &str, apart, state: &str, reason: Option<&str>| QueuedJob {
            run,
            apart,
            job: job.into(),
            state: state.into(),
            reason: reason.map(str::to_owned),
        };
        let mut jobs = vec![job("2", true, "PENDING", Some("Dependency")), job("1", false, "PENDING", Some("Resources"))];
        assert_eq!(stands(&jobs, run).unwrap().reason.as_deref(), Some("Resources"));
        jobs[1].state = "COMPLETING".into();
        assert_eq!(stands(&jobs, run).unwrap().job, "2");
        jobs.remove(0);
        assert_eq!(stands(&jobs, run), None);
        assert_eq!(stands(&jobs, RunId::now()), None);
    }
}
