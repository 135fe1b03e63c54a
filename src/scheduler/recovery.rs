//! Recovers the runs of workers that are gone: ends their processes and requeues them.

use super::Context;
use crate::{collect::end_orphans, config::ExecutorKind, store::StoreError};

/// Requeues runs whose lease has expired (`all`: every running one), after ending the processes of
/// their workers.
pub async fn recover(cx: &Context, all: bool) -> Result<(), StoreError> {
    if cx.config.executor.kind == ExecutorKind::Slurm {
        // The cluster's jobs continue: the worker that claims such a run finds its job by name.
        for id in cx.store.requeue_running(all).await? {
            tracing::info!(run = %id, "run requeued; its job continues");
        }
        // Imports remain: they run in this process.
    }
    let abandoned = cx.store.abandoned(all).await?;
    if abandoned.is_empty() {
        return Ok(());
    }
    for id in abandoned {
        // A panic there does not prevent the requeue.
        tokio::task::spawn_blocking(move || end_orphans(id)).await.ok();
    }
    for id in cx.store.recover(all).await? {
        tracing::warn!(run = %id, "worker lost: run requeued, or failed after its last attempt");
    }
    Ok(())
}
