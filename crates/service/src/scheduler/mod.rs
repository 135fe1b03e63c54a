//! Claims and executes runs, imports and alignments: one worker per device renews its lease while
//! it works, and releases its run when the service stops.
//!
//! Knows nothing of HTTP. `job` executes a run, `pool` claims it, and `run_lifecycle` leads it from
//! claim to end.

pub mod alignments;
pub mod executor;
mod gpu_group;
mod import_job;
pub mod imports;
pub mod inspection;
mod job_resolution;
pub mod limited_child;
mod pool;
mod recovery;
mod regressions;
mod run_lifecycle;
pub mod series;
mod sessions;
mod sweeps;

use std::{path::PathBuf, sync::Arc, time::Duration};

use llmprof_core::domain::{
    command::Commands, device_peaks::Devices, ids::FolderId, profiling::Presets,
};
use tokio::sync::Notify;

use crate::{
    artifact::{free_space, inputs::InputFolders},
    collect::Collector,
    config::{Config, Models},
    measuring::{Measuring, QuietWait},
    runtime,
    store::Store,
};
use limited_child::LimitedChildren;
pub use pool::Pool;
pub use recovery::recover;

/// State shared by all workers.
#[derive(Debug, Clone)]
pub struct Context {
    pub store: Store,
    /// Identity of the data folder.
    pub folder: FolderId,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Folder of the alignments' folders.
    pub alignments: PathBuf,
    /// Folder of the folders of active sessions.
    pub sessions: PathBuf,
    /// Folders of the inputs' manifests.
    pub inputs: Arc<InputFolders>,
    pub models: Arc<Models>,
    /// Commands that runs may name as their target.
    pub targets: Arc<Commands>,
    /// Profiling settings of each mode.
    pub presets: Arc<Presets>,
    pub devices: Arc<Devices>,
    pub config: Arc<Config>,
    pub collector: Arc<Collector>,
    /// Runs of this host that measure.
    pub measuring: Measuring,
    /// Notified when a run or an alignment is queued.
    pub queued: Arc<Notify>,
    /// Notified when a running run is to be cancelled.
    pub cancelled: Arc<Notify>,
}

impl Context {
    /// Longest time for which background work waits for passes that measure.
    pub fn max_wait(&self) -> Duration {
        Duration::from_secs(self.config.worker.background_wait_s.into())
    }

    /// Processes that read uploaded captures.
    pub fn limited_children(&self) -> LimitedChildren {
        LimitedChildren::of_service(&self.config.limits, &self.measuring, self.max_wait())
    }

    /// A wait of background work for passes that measure.
    fn quiet_wait(&self) -> QuietWait {
        QuietWait::new(&self.measuring, self.max_wait())
    }

    /// Returns false if the disk of the runs has no space for the start of a run. Runs stay queued
    /// then, and `GET /queue` has the reason. A simulation does not check the disk.
    fn has_space(&self) -> bool {
        runtime::is_simulated()
            || free_space::for_start(&self.runs, self.config.limits.free_bytes).is_ok()
    }

    /// Time that a worker holds a run without renewing its lease.
    fn lease(&self) -> Duration {
        Duration::from_secs(self.config.worker.lease_s.into())
    }
}
