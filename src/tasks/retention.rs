//! Packs the raw files of old runs, and removes runs beyond the limits on count, age and bytes.
//!
//! It waits for measurements: nothing is packed or removed while a pass runs, and packing pauses
//! between two chunks when one starts; each file and each removal waits for a bounded time. A kill
//! at any point leaves every file readable, and the next round continues.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{runtime::Handle, task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::{
        folder,
        packed::{self, PackOutcome},
    },
    config::RetentionSettings,
    domain::{ids::RunId, run_files::ArtifactRecord},
    measuring::{Measuring, QuietWait},
    store::{DeleteOutcome, Store, StoreError},
};

#[derive(Debug, thiserror::Error)]
enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot pack or remove files of run {id}")]
    Files { id: RunId, source: io::Error },
}

/// Retention of the runs of one service.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub store: Store,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
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
        tokio::spawn(async move {
            loop {
                if let Err(error) = self.round(&stop).await {
                    let error = crate::chain(&error);
                    tracing::error!(error, "cannot pack or remove old runs");
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = sleep(every) => {}
                }
            }
        });
    }

    async fn round(&self, stop: &CancellationToken) -> Result<(), RetentionError> {
        for due in self.store.plan(&self.settings).await?.pack {
            if !self.pack(due.run.id, stop).await? {
                return Ok(());
            }
        }
        // Packing freed space, so removals are planned after it.
        for due in self
            .store
            .plan(&self.settings)
            .await?
            .remove
            .into_iter()
            .filter(|due| due.at_ms.is_none())
        {
            if !self.wait_for_quiet(stop).await {
                return Ok(());
            }
            let id = due.run.id;
            delete(&self.store, &self.runs, id).await?;
            tracing::info!(run = %id, why = due.why, bytes = due.run.bytes, "removed an old run");
        }
        Ok(())
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
                Ok(PackOutcome::Stopped) => return Ok(false),
                Ok(PackOutcome::Changed) => {
                    tracing::error!(run = %id, path, "a file has changed; run llmprof check");
                }
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
        let (mut wait, stop, runtime) = (self.quiet_wait(), stop.clone(), Handle::current());
        let mut go_on = move |_| runtime.block_on(wait.wait(&stop));
        spawn_blocking(move || packed::pack(&dir, &artifact, &mut go_on))
            .await
            .map_err(io::Error::other)?
    }

    /// Waits until no pass runs here; returns false when the service stops.
    async fn wait_for_quiet(&self, stop: &CancellationToken) -> bool {
        self.quiet_wait().wait(stop).await
    }

    fn quiet_wait(&self) -> QuietWait {
        QuietWait::new(&self.measuring, self.max_wait)
    }
}

/// Finishes deletions that the end of an earlier service interrupted; a run that is still in the
/// database gets its folder back.
pub async fn recover(store: &Store, runs: &Path) -> Result<(), StoreError> {
    for id in folder::all_aside::<RunId>(runs).unwrap_or_default() {
        let known = store.owner(id).await?.is_some();
        let ended =
            if known { folder::bring_back(runs, id) } else { folder::remove_aside(runs, id) };
        if let Err(error) = ended {
            tracing::error!(run = %id, %error, "cannot restore or remove its folder");
        }
    }
    Ok(())
}

/// Deletes an ended run with its folder.
async fn delete(store: &Store, runs: &Path, id: RunId) -> Result<(), RetentionError> {
    let failed = |source| RetentionError::Files { id, source };
    folder::set_aside(runs, id).map_err(failed)?;
    if store.delete(id).await? == DeleteOutcome::Active {
        return folder::bring_back(runs, id).map_err(failed);
    }
    let runs = runs.to_owned();
    let removed = spawn_blocking(move || folder::remove_aside(&runs, id)).await;
    removed.map_err(io::Error::other).and_then(|result| result).map_err(failed)
}

#[cfg(test)]
mod tests;
