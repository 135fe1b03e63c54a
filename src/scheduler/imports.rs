//! Inspects uploaded captures, and executes queued imports. Needs no device.
//!
//! An import is a run: claimed by a lease, executed by the job, recovered after a restart.

use std::{fs, io, path::Path, pin::pin, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, executor::local::LocalExecutor};
use crate::{
    artifact::{import_staging::Inspection, layout},
    collect::Collector,
    domain::{
        device::Device,
        ids::RunId,
        import::{CaptureKind, Import},
    },
    parse,
    pipeline::rules_of,
    scheduler::run_lifecycle::run_to_end,
    store::StoreError,
};

/// Name of the workers of imports, in place of a device's.
const WORKER: &str = "import";
/// Workers of imports; each may hold millions of rows in memory.
pub const WORKERS: usize = 2;
/// Longest time between two claims of an idle worker; a queued import wakes it earlier.
const IDLE: Duration = Duration::from_secs(5);
/// Inspections that may be queued.
const MAX_INSPECTIONS: usize = 16;

/// Starts the task that inspects uploaded files, one after another; it ends with the last sender.
pub fn inspector(collector: Arc<Collector>) -> mpsc::Sender<Inspection> {
    let (sender, mut inspections) = mpsc::channel::<Inspection>(MAX_INSPECTIONS);
    tokio::spawn(async move {
        while let Some(Inspection { path, kind, rules, answer }) = inspections.recv().await {
            let has_nsys = collector.nsys.is_some();
            let inspected =
                tokio::task::spawn_blocking(move || inspect(&path, kind, &rules, has_nsys)).await;
            // The client may be gone.
            let _ = answer.send(inspected.unwrap_or_else(|_| Err("it cannot be read".into())));
        }
    });
    sender
}

fn inspect(path: &Path, kind: CaptureKind, rules: &Import, has_nsys: bool) -> Result<(), String> {
    let rules = rules_of(&rules.stages, &rules.include_ranges, &rules.exclude_ranges);
    let read = match kind {
        CaptureKind::Timeline => {
            match parse::nsys::check(path).and_then(|()| parse::nsys::check_rules(path, &rules)) {
                Ok(Err(unknown)) => return Err(unknown.to_string()),
                read => read.map(|_| ()),
            }
        }
        CaptureKind::Counters => parse::ncu::read_file(path).map(|_| ()),
        CaptureKind::Report if has_nsys => Ok(()),
        CaptureKind::Report => {
            return Err(
                "a report of nsys, and this host has no nsys to read it; upload the output of \
                 `nsys export --type sqlite`"
                    .into(),
            );
        }
    };
    // The client sees its own name of the file, no path of this host.
    read.map_err(|error| {
        crate::chain(&error)
            .replace(&format!("{}: ", path.display()), "")
            .replace(&path.display().to_string(), "it")
    })
}

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
        match cx.store.claim_import(&worker, cx.lease()).await {
            Ok(Some(run)) => {
                run_to_end(&run, (&device, &[]), &cx, &*executor, None, &stop).await;
                continue;
            }
            Ok(None) => {}
            Err(error) => tracing::error!(error = %crate::chain(&error), "cannot claim an import"),
        }
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(IDLE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Removes the folders of imports that were not committed, because the service ended after their
/// last byte.
pub async fn recover(cx: &Context) -> Result<(), StoreError> {
    for id in uploads(&cx.runs).unwrap_or_default() {
        if cx.store.run(id).await?.is_none() {
            match fs::remove_dir_all(cx.runs.join(id.to_string())) {
                Ok(()) => tracing::info!(run = %id, "removed an uncommitted upload"),
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
