//! Who carries runs out: this process, or a cluster's scheduler. The worker that holds a run's lease speaks to either by one trait.
//!
//! An executor knows no database. It is told what to do, and says where that stands.

pub mod local;
pub mod slurm;

use std::{io, time::Duration};

use crate::{
    collect::slurm::SlurmError,
    run::{RunId, Scheduled},
    store::Outcome,
    trace::device::Device,
    worker::order::Order,
};

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot write the run's order")]
    Order { source: io::Error },
    #[error("cannot read what the run's job left")]
    Result { source: io::Error },
    #[error("the scheduler does not do it")]
    Slurm { source: SlurmError },
}

impl ExecutorError {
    /// Says whether asking again is useless.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Slurm { source: SlurmError::Refused { .. } })
    }
}

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Under way; the scheduler's word on it, where there is a scheduler.
    Goes(Option<Scheduled>),
    /// Ended, or lost: it is to be collected.
    Ended,
}

/// A job that broke off before its end: the run may be begun again.
#[derive(Debug, Clone, PartialEq)]
pub struct Lost {
    pub why: String,
    /// What it left.
    pub outcome: Outcome,
}

/// Carries runs out.
pub trait Executor: std::fmt::Debug + Send + Sync + 'static {
    /// Whether jobs go on when this service ends, and are found again by the next.
    const OUTLIVES: bool;

    /// Begins a run, unless its job is there already.
    fn submit(&self, order: &Order, device: &Device) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// Where a submitted run stands, after waiting a little for that to change.
    fn poll(&self, order: &Order) -> impl Future<Output = Result<Status, ExecutorError>> + Send;

    /// Tells a run's job to end. It is still to be polled and collected.
    fn cancel(&self, id: RunId) -> impl Future<Output = Result<(), ExecutorError>> + Send;

    /// How a job that has ended did so.
    fn collect(&self, order: &Order) -> impl Future<Output = Result<Outcome, Lost>> + Send;

    /// Runs of which a job is there, whoever began it.
    fn jobs(&self) -> impl Future<Output = Result<Vec<RunId>, ExecutorError>> + Send;
}

/// How long to wait before asking again an executor that did not answer.
pub const RETRY: Duration = Duration::from_secs(2);
