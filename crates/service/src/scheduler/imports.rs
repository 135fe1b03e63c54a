//! Executes queued imports. Needs no device.
//!
//! An import is a run: claimed by a lease, executed by a job in a child process, recovered after a
//! restart.

use std::{fs, io, path::Path, pin::pin, sync::Arc, time::Duration};

use llmprof_core::{
    domain::{device::Device, ids::RunId},
    layout,
};
use tokio_util::sync::CancellationToken;

use super::{Context, executor::local::LocalExecutor};
use crate::{artifact::folder, scheduler::run_lifecycle::run_to_end, store::StoreError};

/// Name of the workers of imports, in place of a device's.
const WORKER: &str = "import";
/// Workers of imports; each may hold millions of rows in memory.
pub const WORKERS: usize = 2;
/// Longest time between two claims of an idle worker; a queued import wakes it earlier.
const IDLE: Duration = Duration::from_secs(5);

/// Executes imports until stopped.
pub(crate) async fn work(cx: Context, executor: Arc<LocalExecutor>, stop: CancellationToken) {
    let device = Device::unknown(WORKER);
    let worker = device.worker(&format!("{}:{}", std::process::id(), uuid::Uuid::now_v7()));
    while !stop.is_cancelled() {
        // Listening first: an import queued during the claim still wakes the worker.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        if !cx.quiet_wait().wait(&stop).await {
            break;
        }
        let claimed = match cx.has_space() {
            true => cx.store.claim_import(&worker, cx.lease()).await,
            false => Ok(None),
        };
        match claimed {
            Ok(Some(run)) => {
                run_to_end(&run, (&device, &[], None), &cx, &*executor, None, &stop).await;
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(error = %llmprof_core::chain(&error), "cannot lease an import")
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
        }
    }
}

/// Sets aside the folders of imports that were not committed, because the service ended after their
/// last byte. Called before a request can add one; the recovery removes the folders.
pub async fn recover(cx: &Context) -> Result<(), StoreError> {
    for id in uploads(&cx.runs).unwrap_or_default() {
        if cx.store.run(id).await?.is_none() {
            match folder::set_aside(&cx.runs, id) {
                Ok(()) => tracing::info!(run = %id, "removing an uncommitted upload"),
                Err(error) => {
                    tracing::warn!(run = %id, %error, "cannot remove an uncommitted upload")
                }
            }
        }
    }
    Ok(())
}

/// Runs whose folders contain nothing but an upload.
fn uploads(runs: &Path) -> io::Result<Vec<RunId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let started =
            entry.path().join(layout::SPEC).exists() || !entry.path().join(layout::IMPORT).exists();
        found.extend(
            entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<RunId>().ok())
                .filter(|_| !started),
        );
    }
    Ok(found)
}
