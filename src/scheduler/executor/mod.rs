//! Executors of runs: this process, or a cluster's scheduler. The worker that holds a run's lease
//! uses either through one trait.
//!
//! An executor knows no database.

pub mod local;
pub mod slurm;

use std::{io, time::Duration};

use crate::{
    collect::tools::slurm::SlurmError,
    domain::{device::Device, ids::RunId, outcome::Outcome, state::Scheduled},
    job::job_spec::JobSpec,
};

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot write the job spec")]
    Spec { source: io::Error },
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
    /// The artifacts it left.
    pub outcome: Outcome,
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

    /// Requests that a run's job ends. It is still to be polled and collected.
    fn cancel(&self, id: RunId) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Returns the outcome of a job that has ended.
    fn collect(&self, spec: &JobSpec) -> impl Future<Output = Result<Outcome, LostJob>> + Send;

    /// Lists the runs that have a job, of any service.
    fn jobs(&self) -> impl Future<Output = Result<Vec<RunId>, ExecutorError>> + Send;
}

/// Delay before another call of an executor that did not answer.
pub const RETRY: Duration = Duration::from_secs(2);
