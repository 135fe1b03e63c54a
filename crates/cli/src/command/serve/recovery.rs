//! Recovery of the state that an earlier service left, in the background of the one that serves.
//!
//! Workers start after it: until then no device is claimed. Its work grows with the size of files,
//! and the stop of the service ends it within a slice; the next start continues.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use llmprof_service::{
    artifact::{folder, inputs::storage::InputStorage, temporary},
    config,
    runtime::{
        self,
        work::{SlicedWork, ignore_stop},
    },
    scheduler, tasks,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::folders::ServiceFolders;

/// Time after a failure until recovery is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The part of the recovery that must precede the first request, which could race with it: a few
/// statements, and the renaming of uploads without a run.
pub(super) async fn prepare(cx: &scheduler::Context) -> Result<()> {
    scheduler::imports::recover(cx).await?;
    cx.store.recover_alignments().await?;
    Ok(())
}

/// The rest of the recovery.
pub(super) struct Recovery {
    cx: scheduler::Context,
    inputs: InputStorage,
    leftovers: PathBuf,
    work: SlicedWork,
    pub stop: CancellationToken,
    /// Its work; `None` once it has ended.
    pub progress: watch::Sender<Option<SlicedWork>>,
}

impl Recovery {
    pub fn new(
        cx: &scheduler::Context,
        folders: &ServiceFolders,
        closing: &CancellationToken,
    ) -> Self {
        let work = SlicedWork::new(closing).named("recovering the runs of the last service");
        Self {
            cx: cx.clone(),
            inputs: folders.input_storage.clone(),
            leftovers: folders.leftovers.clone(),
            progress: watch::Sender::new(Some(work.clone())),
            work,
            stop: closing.clone(),
        }
    }

    /// Recovers, again after a failure, until it succeeds; returns false if the service stops.
    pub async fn run(self) -> bool {
        loop {
            match self.recover().await {
                Ok(()) if self.stop.is_cancelled() => return false,
                Ok(()) => {
                    self.progress.send_replace(None);
                    return true;
                }
                Err(error) => tracing::error!(
                    error = format!("{error:#}"),
                    "cannot recover the runs of the last service; trying again"
                ),
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// Recovers runs, sessions, deletions and inputs of an earlier service, and removes the
    /// temporary files that killed processes left.
    async fn recover(&self) -> Result<()> {
        let (cx, work) = (&self.cx, &self.work);
        scheduler::recover(cx, true, work).await?;
        // After the processes of abandoned runs and sessions have ended.
        let temporary = config::environment::temp_dir();
        let swept = runtime::stoppable(work, move |work| temporary::sweep(&temporary, work)).await;
        if let Err(error) = swept.or_else(ignore_stop) {
            tracing::warn!(%error, "cannot remove left-over temporary files");
        }
        let leftovers = self.leftovers.clone();
        let removed =
            runtime::stoppable(work, move |work| folder::remove_tree(&leftovers, work)).await;
        if let Err(error) = removed.or_else(ignore_stop) {
            tracing::warn!(%error, "cannot remove the folders that an earlier service left");
        }
        tasks::retention::recover(&cx.store, &cx.runs, &cx.alignments, work).await?;
        tasks::inputs::recover(&cx.store, &self.inputs, work).await?;
        Ok(())
    }
}
