//! Removal of stored inputs: unused ones every hour, and files of interrupted uploads at start.

use std::{io, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::inputs::storage::InputStorage,
    runtime::{
        self,
        work::{SlicedWork, is_stopped},
    },
    store::{DeletedInputs, Store, StoreError},
};

/// Time between two removals.
const PERIOD: Duration = Duration::from_secs(3600);

/// Starts the task that removes inputs which nothing used for `days`; 0: none. It ends with `stop`.
pub fn start(store: Store, storage: InputStorage, days: u32, stop: CancellationToken) {
    if days == 0 {
        return;
    }
    tokio::spawn(async move {
        loop {
            if let Err(error) = remove_unused(&store, &storage, days).await {
                tracing::error!(error = llmprof_core::chain(&error), "cannot remove unused inputs");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(PERIOD) => {}
            }
        }
    });
}

/// Removes inputs that were neither uploaded nor submitted for `days`; returns their number.
pub async fn remove_unused(
    store: &Store,
    storage: &InputStorage,
    days: u32,
) -> Result<usize, StoreError> {
    let mut removed = 0;
    for id in store.unused_inputs(days).await? {
        let _lock = storage.lock().await;
        // A run may have been submitted meanwhile.
        let DeletedInputs::Deleted(contents) = store.delete_unused_inputs(id, days).await? else {
            continue;
        };
        let storage = storage.clone();
        let files = runtime::blocking(move || storage.remove(id, &contents)).await;
        match files.map_err(io::Error::other).and_then(|removed| removed) {
            Ok(()) => tracing::info!(%id, "removed unused inputs"),
            Err(error) => tracing::warn!(%id, %error, "cannot remove the files of inputs yet"),
        }
        removed += 1;
    }
    Ok(removed)
}

/// Removes files that the database does not list: of interrupted uploads and deletions.
pub async fn recover(
    store: &Store,
    storage: &InputStorage,
    work: &SlicedWork,
) -> Result<(), StoreError> {
    // Files of an upload precede their row, and it holds the lock until then.
    let _lock = storage.lock().await;
    let (ids, contents) = store.input_files().await?;
    let storage = storage.clone();
    let sweep = move |work: &SlicedWork| storage.sweep(&ids, &contents, work);
    match runtime::stoppable(work, sweep).await {
        Ok(0) => {}
        Ok(files) => tracing::info!(files, "removed files of interrupted uploads of inputs"),
        Err(error) if is_stopped(&error) => {}
        Err(error) => tracing::warn!(%error, "cannot remove files of interrupted uploads"),
    }
    Ok(())
}
