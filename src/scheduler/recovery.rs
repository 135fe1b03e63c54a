//! Recovers the runs of workers that are gone: ends their processes and requeues them.

use std::io;

use super::Context;
use crate::{
    artifact::manifest, collect::end_orphans, config::ExecutorKind, domain::ids::RunId,
    store::StoreError,
};

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
        keep_evidence(cx, id).await?;
    }
    Ok(())
}

/// Seals the folder of a run that failed after its last attempt: its files are the evidence.
async fn keep_evidence(cx: &Context, id: RunId) -> Result<(), StoreError> {
    let dir = cx.runs.join(id.to_string());
    if !cx.store.run(id).await?.is_some_and(|run| run.state.is_final()) || !dir.exists() {
        return Ok(());
    }
    let sealed = tokio::task::spawn_blocking(move || manifest::seal(&dir)).await;
    match sealed.map_err(io::Error::other).and_then(|sealed| sealed) {
        Ok(artifacts) => cx.store.set_artifacts(id, &artifacts).await,
        Err(error) => {
            tracing::warn!(run = %id, %error, "cannot seal the folder of a failed run");
            Ok(())
        }
    }
}
