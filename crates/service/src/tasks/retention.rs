//! Packs the raw files of old runs, and removes runs beyond the limits on count, age and bytes.
//!
//! It waits for measurements: nothing is packed or removed while a pass runs, and packing pauses
//! between two chunks when one starts; each file and each removal waits for a bounded time. A kill
//! at any point leaves every file readable, and the next round continues.

use std::{
    collections::HashSet,
    fmt::Display,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use llmprof_core::domain::{
    ids::{AlignmentId, RunId},
    run_files::ArtifactRecord,
};
use tokio::{runtime::Handle, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::{
        folder,
        packed::{self, PackOutcome},
    },
    config::RetentionSettings,
    measuring::{Measuring, QuietWait},
    runtime::{
        self,
        work::{SlicedWork, is_stopped},
    },
    store::{DeleteOutcome, Removal, Store, StoreError},
};

#[derive(Debug, thiserror::Error)]
enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot pack files of run {id}")]
    Files { id: RunId, source: io::Error },
}

/// Retention of the runs of one service.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub store: Store,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    /// Folder of the alignments' folders.
    pub alignments: PathBuf,
    /// Folder of the file that is being packed, on the same disk.
    pub packing: PathBuf,
    pub settings: RetentionSettings,
    /// Passes for which it waits.
    pub measuring: Measuring,
    /// Longest wait of a file or a removal.
    pub max_wait: Duration,
}

impl Keeper {
    /// Starts the task that packs and removes runs every `interval_s` seconds; it ends with `stop`.
    pub fn start(self, stop: CancellationToken) {
        let every = Duration::from_secs(self.settings.interval_s.max(1).into());
        tokio::spawn(runtime::task(async move {
            loop {
                if let Err(error) = self.round(&stop).await {
                    let error = llmprof_core::chain(&error);
                    tracing::error!(error, "cannot pack or remove old runs");
                }
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = sleep(every) => {}
                }
            }
        }));
    }

    async fn round(&self, stop: &CancellationToken) -> Result<(), RetentionError> {
        for due in self.store.plan(&self.settings).await?.pack {
            if !self.pack(due.run.id, stop).await? {
                return Ok(());
            }
        }
        self.remove_due(stop).await?;
        self.finish_removals(stop).await
    }

    /// Removes runs beyond the limits, one at a time. Packing frees space and pins may be set at
    /// any time, so each removal is planned immediately before it.
    async fn remove_due(&self, stop: &CancellationToken) -> Result<(), RetentionError> {
        let mut tried = HashSet::new();
        while self.wait_for_quiet(stop).await {
            let plan = self.store.plan(&self.settings).await?;
            let next = plan.remove.into_iter().find(|due| due.at_ms.is_none());
            let Some(due) = next.filter(|due| tried.insert(due.run.id)) else { break };
            let id = due.run.id;
            if self.store.delete_unpinned(id).await? == DeleteOutcome::Deleted {
                let bytes = due.run.bytes;
                tracing::info!(run = %id, why = due.why, bytes, "removed an old run");
                self.finish_removals(stop).await?;
            }
        }
        Ok(())
    }

    /// Removes the folders of deleted runs and alignments.
    async fn finish_removals(&self, stop: &CancellationToken) -> Result<(), RetentionError> {
        let work = SlicedWork::new(stop);
        Ok(finish_removals(&self.store, &self.runs, &self.alignments, &work).await?)
    }

    /// Packs the raw files of one run; returns false when the service stops.
    async fn pack(&self, id: RunId, stop: &CancellationToken) -> Result<bool, RetentionError> {
        let failed = |source| RetentionError::Files { id, source };
        let dir = folder::of(&self.runs, id);
        let artifacts = self.store.artifacts(id).await?;
        let taken = |path: &str| artifacts.iter().any(|it| it.path == path);
        let raw =
            artifacts.iter().filter(|it| packed::is_raw(it) && !taken(&format!("{}.zst", it.path)));
        for artifact in raw.cloned().collect::<Vec<_>>() {
            if !self.wait_for_quiet(stop).await {
                return Ok(false);
            }
            let (path, bytes) = (artifact.path.clone(), artifact.bytes);
            match self.pack_one(dir.clone(), artifact, stop).await {
                Ok(PackOutcome::Packed(stored)) => {
                    self.store.set_stored(id, &path, Some(stored)).await?;
                    tracing::debug!(run = %id, path, bytes, stored, "packed");
                }
                Ok(PackOutcome::Incompressible) => {}
                Ok(PackOutcome::Changed) => {
                    tracing::error!(run = %id, path, "a file has changed; run llmprof check");
                }
                Err(error) if is_stopped(&error) => return Ok(false),
                // The run was deleted meanwhile, or the file is lost, which a check reports.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(run = %id, path, "cannot pack a missing file");
                }
                Err(error) => return Err(failed(error)),
            }
        }
        self.store.set_packed(id).await?;
        Ok(true)
    }

    /// Packs one file on a blocking thread, which waits while a pass runs.
    async fn pack_one(
        &self,
        dir: PathBuf,
        artifact: ArtifactRecord,
        stop: &CancellationToken,
    ) -> io::Result<PackOutcome> {
        let (mut wait, stops, handle) = (self.quiet_wait(), stop.clone(), Handle::current());
        let quiet = move |_| handle.block_on(wait.wait(&stops));
        let (work, packing) = (SlicedWork::new(stop).with_gate(quiet), self.packing.clone());
        runtime::stoppable(&work, move |work| packed::pack(&dir, &artifact, &packing, work)).await
    }

    /// Waits until no pass runs here; returns false when the service stops.
    async fn wait_for_quiet(&self, stop: &CancellationToken) -> bool {
        self.quiet_wait().wait(stop).await
    }

    pub(super) fn quiet_wait(&self) -> QuietWait {
        QuietWait::new(&self.measuring, self.max_wait)
    }
}

/// Removes the folders of deleted runs and alignments; those that cannot be removed stay listed.
pub async fn finish_removals(
    store: &Store,
    runs: &Path,
    alignments: &Path,
    work: &SlicedWork,
) -> Result<(), StoreError> {
    for removal in store.removals().await? {
        let (parent, id) = match removal {
            Removal::Run(RunId(id)) => (runs.to_owned(), id),
            Removal::Alignment(AlignmentId(id)) => (alignments.to_owned(), id),
        };
        match runtime::stoppable(work, move |work| folder::remove(&parent, id, work)).await {
            Err(error) if is_stopped(&error) => return Ok(()),
            Ok(()) => store.removed(removal).await?,
            Err(error) => tracing::warn!(?removal, %error, "cannot remove a folder yet"),
        }
    }
    Ok(())
}

/// Finishes deletions that the end of an earlier service interrupted. Version 0.1 set the folder
/// aside before it deleted the row: a run that is still in the database gets its folder back.
pub async fn recover(
    store: &Store,
    runs: &Path,
    alignments: &Path,
    work: &SlicedWork,
) -> Result<(), StoreError> {
    finish_removals(store, runs, alignments, work).await?;
    for id in folder::all_aside::<RunId>(runs).unwrap_or_default() {
        restore_or_remove(runs, id, store.owner(id).await?.is_some(), work).await;
    }
    for id in folder::all_aside::<AlignmentId>(alignments).unwrap_or_default() {
        restore_or_remove(alignments, id, store.alignment(id).await?.is_some(), work).await;
    }
    Ok(())
}

async fn restore_or_remove(
    parent: &Path,
    id: impl Display + Copy + Send + 'static,
    known: bool,
    work: &SlicedWork,
) {
    let parent = parent.to_owned();
    let end = move |work: &SlicedWork| match known {
        true => folder::bring_back(&parent, id),
        false => folder::remove_aside(&parent, id, work),
    };
    match runtime::stoppable(work, end).await {
        Err(error) if !is_stopped(&error) => {
            tracing::error!(%id, %error, "cannot restore or remove a folder");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
