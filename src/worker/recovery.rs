//! After a worker is gone: its processes are ended, its runs wait again.

use super::Context;
use crate::{collect::sweep, config::ExecutorKind, store::StoreError};

/// Queues again the runs whose lease is over (`all`: every running one), after ending the processes they left.
pub async fn recover(cx: &Context, all: bool) -> Result<(), StoreError> {
    if cx.config.executor.kind == ExecutorKind::Slurm {
        // Their jobs go on: whoever claims such a run finds its job by name.
        for id in cx.store.give_back(all).await? {
            tracing::info!(run = %id, "the run's job is looked for again");
        }
        // What is left is carried out here: imports.
    }
    let abandoned = cx.store.abandoned(all).await?;
    if abandoned.is_empty() {
        return Ok(());
    }
    for id in abandoned {
        // A sweep that panics has ended what it could; the run goes on all the same.
        tokio::task::spawn_blocking(move || sweep(id)).await.ok();
    }
    for id in cx.store.recover(all).await? {
        tracing::warn!(run = %id, "the run's worker is gone: the run waits again, or is given up");
    }
    Ok(())
}
