//! Carries runs, imports and alignments: a worker per device claims, works, renews, and gives back what it holds when the service stops.
//!
//! Knows nothing of HTTP. What a run does is told in `job`; who does it in `pool`, and until when in `carry`.

pub mod align;
mod carry;
pub mod doctor;
pub mod execute;
pub mod executor;
mod gang;
pub mod import;
mod job;
pub mod offline;
mod order;
pub mod pair;
mod part;
mod pool;
mod recovery;
pub mod retention;
mod steps;
pub mod webhooks;

use std::{path::PathBuf, sync::Arc, time::Duration};

pub use job::Host;
pub use pool::Pool;
pub use recovery::recover;
use tokio::sync::Notify;

use crate::{
    analyze::device::Devices,
    collect::Collector,
    config::{Config, Models},
    profiling::Presets,
    run::command::Commands,
    store::Store,
};

/// What every worker shares.
#[derive(Debug, Clone)]
pub struct Context {
    pub store: Store,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Folder of the alignments' folders.
    pub alignments: PathBuf,
    /// Folder that manifests are read from.
    pub inputs: PathBuf,
    pub models: Arc<Models>,
    /// Commands that runs may name as their target.
    pub targets: Arc<Commands>,
    /// What each mode means.
    pub presets: Arc<Presets>,
    pub devices: Arc<Devices>,
    pub config: Arc<Config>,
    pub collector: Arc<Collector>,
    /// Told when a run or an alignment was queued.
    pub queued: Arc<Notify>,
    /// Told when a running run is to be cancelled.
    pub cancelled: Arc<Notify>,
}

impl Context {
    /// How long a worker holds a run without renewing.
    fn lease(&self) -> Duration {
        Duration::from_secs(self.config.worker.lease_s.into())
    }
}
