//! Executors of runs: this host, or a cluster's scheduler. Both execute `llmprof execute`. The
//! worker that holds a run's lease uses either through one trait.
//!
//! An executor knows no database.

pub mod local;
pub mod slurm;

use std::{io, path::Path, time::Duration};

use llmprof_core::domain::{device::Device, ids::RunId, outcome::Outcome, state::Scheduled};

use crate::{
    collect::tools::slurm::SlurmError,
    job::{
        self,
        job_spec::{self, JobSpec},
    },
};

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot write the job spec")]
    Spec { source: io::Error },
    #[error("cannot start the job's process")]
    Start { source: io::Error },
    #[error("cannot read the job's result")]
    Result { source: io::Error },
    #[error("the scheduler's command failed")]
    Slurm { source: SlurmError },
}

impl ExecutorError {
    /// Returns true if a retry is useless.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Slurm { source: SlurmError::Refused { .. } })
    }
}

/// Status of a submitted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStatus {
    /// Queued or running; with the scheduler's state, if there is a scheduler.
    Active(Option<Scheduled>),
    /// Ended or lost: ready to be collected.
    Ended,
}

/// A job that ended without a result of its own: the run may start again.
#[derive(Debug, Clone, PartialEq)]
pub struct LostJob {
    pub reason: String,
    /// Its findings, and the artifacts if it sealed its folder.
    pub outcome: Outcome,
}

/// The outcome that a job left in its folder. Without one it is lost, for the reason `missing`; the
/// folder is then sealed when the run ends.
async fn collect_result(
    dir: &Path,
    attempt: u32,
    missing: impl Future<Output = String>,
) -> Result<Outcome, LostJob> {
    let (reason, outcome) = match job_spec::result(dir, attempt) {
        Ok(Some(result)) if !result.interrupted => return Ok(result.outcome),
        Ok(Some(result)) => ("the job was stopped from outside".to_owned(), result.outcome),
        Ok(None) => {
            let reason = missing.await;
            (reason.clone(), job::failed(reason))
        }
        Err(error) => {
            (format!("cannot read the job's result: {error}"), job::failed(error.to_string()))
        }
    };
    Err(LostJob { reason, outcome })
}

/// Executes jobs.
pub trait Executor: std::fmt::Debug + Send + Sync + 'static {
    /// True if jobs continue when this service ends, and are found again by the next.
    const JOBS_OUTLIVE_SERVICE: bool;

    /// Starts a job, unless it exists already.
    fn submit(
        &self,
        spec: &JobSpec,
        device: &Device,
    ) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Returns the status of a submitted job, after waiting shortly for a change.
    fn poll(&self, spec: &JobSpec)
    -> impl Future<Output = Result<JobStatus, ExecutorError>> + Send;

    /// Requests that a run's job ends, of this attempt only if it is given. It is still to be
    /// polled and collected.
    fn cancel(
        &self,
        id: RunId,
        attempt: Option<u32>,
    ) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Returns the outcome of a job that has ended.
    fn collect(&self, spec: &JobSpec) -> impl Future<Output = Result<Outcome, LostJob>> + Send;

    /// Lists the runs that have a job, of any service.
    fn jobs(&self) -> impl Future<Output = Result<Vec<RunId>, ExecutorError>> + Send;
}

/// Delay before another call of an executor that did not answer.
pub const RETRY: Duration = Duration::from_secs(2);
