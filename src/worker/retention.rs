//! Keeps old runs small and few: packs their raw files, removes those beyond count, age or disk budget.
//!
//! It yields to measuring: nothing is packed or removed while a pass runs, and packing stops between two chunks when one begins. A
//! kill at any point leaves each file readable, and the next round goes on from there.

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
        packed::{self, Packed},
    },
    config::Retention,
    run::{ArtifactRecord, RunId},
    store::{Delete, Store, StoreError},
};

/// How often it is looked whether measuring is over.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
enum RetentionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot pack or remove files of run {id}")]
    Files { id: RunId, source: io::Error },
}

/// What is kept where, and under which settings.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub store: Store,
    /// Folder of the runs' folders.
    pub runs: PathBuf,
    pub settings: Retention,
    /// Passes run on this host, and are not to be disturbed.
    pub yields: bool,
}

impl Keeper {
    /// Starts the task that looks every `every_s` seconds what is due; it ends with `stop`.
    pub fn start(self, stop: CancellationToken) {
        let every = Duration::from_secs(self.settings.every_s.max(1).into());
        tokio::spawn(async move {
            loop {
                if let Err(error) = self.round(&stop).await {
                    tracing::error!(error = %crate::chain(&error), "old runs could not be packed or removed");
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
        // Packing made room: what goes is decided after it.
        for due in self.store.plan(&self.settings).await?.remove.into_iter().filter(|due| due.at_ms.is_none()) {
            if !self.quiet(stop).await {
                return Ok(());
            }
            let id = due.run.id;
            forget(&self.store, &self.runs, id).await?;
            tracing::info!(run = %id, why = due.why, bytes = due.run.bytes, "an old run is removed");
        }
        Ok(())
    }

    /// Packs the raw files of one run; `false`: the service stops.
    async fn pack(&self, id: RunId, stop: &CancellationToken) -> Result<bool, RetentionError> {
        let failed = |source| RetentionError::Files { id, source };
        let dir = folder::of(&self.runs, id);
        let artifacts = self.store.artifacts(id).await?;
        let taken = |path: &str| artifacts.iter().any(|it| it.path == path);
        let raw = artifacts.iter().filter(|it| packed::is_raw(it) && !taken(&format!("{}.zst", it.path)));
        for artifact in raw.cloned().collect::<Vec<_>>() {
            if !self.quiet(stop).await {
                return Ok(false);
            }
            let (path, bytes) = (artifact.path.clone(), artifact.bytes);
            match self.pack_one(dir.clone(), artifact, stop).await {
                Ok(Packed::Packed(stored)) => {
                    self.store.set_stored(id, &path, Some(stored)).await?;
                    tracing::debug!(run = %id, path, bytes, stored, "packed");
                }
                Ok(Packed::Incompressible) => {}
                Ok(Packed::Stopped) => return Ok(false),
                Ok(Packed::Changed) => {
                    tracing::error!(run = %id, path, "a file is not what was sealed, and stays as it is: see llmprof check");
                }
                // The run was deleted meanwhile, or the file is lost, which a check tells.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(run = %id, path, "a file to be packed is gone");
                }
                Err(error) => return Err(failed(error)),
            }
        }
        self.store.set_packed(id).await?;
        Ok(true)
    }

    /// Packs one file on a thread that may block, and that waits while a pass runs.
    async fn pack_one(&self, dir: PathBuf, artifact: ArtifactRecord, stop: &CancellationToken) -> io::Result<Packed> {
        let (keeper, stop, runtime) = (self.clone(), stop.clone(), Handle::current());
        let work = move || packed::pack(&dir, &artifact, &mut |_| runtime.block_on(keeper.quiet(&stop)));
        spawn_blocking(work).await.map_err(io::Error::other)?
    }

    /// Waits until no pass runs here; `false`: the service stops.
    async fn quiet(&self, stop: &CancellationToken) -> bool {
        while !stop.is_cancelled() {
            match if self.yields { self.store.measuring().await } else { Ok(false) } {
                Ok(false) => return true,
                Ok(true) => {}
                Err(error) => tracing::warn!(error = %crate::chain(&error), "cannot tell whether a pass runs"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(PAUSE) => {}
            }
        }
        false
    }
}

/// Ends what an earlier service was forgetting when it ended: a run that is still known gets its folder back.
pub async fn recover(store: &Store, runs: &Path) -> Result<(), StoreError> {
    for id in folder::all_aside::<RunId>(runs).unwrap_or_default() {
        let known = store.owner(id).await?.is_some();
        let ended = if known { folder::bring_back(runs, id) } else { folder::remove_aside(runs, id) };
        if let Err(error) = ended {
            tracing::error!(run = %id, %error, "a folder that was set aside stays so");
        }
    }
    Ok(())
}

/// Removes a run that has ended, with its folder.
async fn forget(store: &Store, runs: &Path, id: RunId) -> Result<(), RetentionError> {
    let failed = |source| RetentionError::Files { id, source };
    folder::set_aside(runs, id).map_err(failed)?;
    if store.delete(id).await? == Delete::Active {
        return folder::bring_back(runs, id).map_err(failed);
    }
    let runs = runs.to_owned();
    let removed = spawn_blocking(move || folder::remove_aside(&runs, id)).await;
    removed.map_err(io::Error::other).and_then(|result| result).map_err(failed)
}

#[cfg(test)]
mod tests;
