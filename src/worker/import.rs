//! Imports: looks at files when they come, and turns those that wait into reports. Needs no device, and waits for none.
//!
//! An import is a run like any other: claimed by a lease, carried by the job, taken up again after a restart.

use std::{fs, io, path::Path, pin::pin, sync::Arc, time::Duration};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, carry::carry, executor::local::Local, job::Host, offline::rules_of};
use crate::{
    artifact::{intake::Inspection, layout},
    collect::Collector,
    parse,
    run::{
        RunId,
        import::{CaptureKind, Import},
    },
    store::StoreError,
    trace::device::Device,
};

/// Name of the workers of imports, in place of a device's.
const WORKER: &str = "import";
/// Imports that are carried out at a time: each may hold millions of rows in memory.
pub const AT_ONCE: usize = 2;
/// How long an idle task waits before it looks again by itself; it is woken when an import arrives.
const IDLE: Duration = Duration::from_secs(5);
/// Looks that may wait.
const WAITING: usize = 16;

/// Starts the task that says which files can be read, one after another; it ends with the last sender.
pub fn inspector(collector: Arc<Collector>) -> mpsc::Sender<Inspection> {
    let (sender, mut asked) = mpsc::channel::<Inspection>(WAITING);
    tokio::spawn(async move {
        while let Some(Inspection { path, kind, rules, answer }) = asked.recv().await {
            let has_nsys = collector.nsys.is_some();
            let looked = tokio::task::spawn_blocking(move || inspect(&path, kind, &rules, has_nsys)).await;
            let _ = answer.send(looked.unwrap_or_else(|_| Err("it cannot be read".into()))); // nobody waits any more
        }
    });
    sender
}

fn inspect(path: &Path, kind: CaptureKind, rules: &Import, has_nsys: bool) -> Result<(), String> {
    let rules = rules_of(&rules.stages, &rules.within, &rules.without);
    let read = match kind {
        CaptureKind::Timeline => match parse::nsys::check(path).and_then(|()| parse::nsys::check_rules(path, &rules)) {
            Ok(Err(unknown)) => return Err(unknown.to_string()),
            read => read.map(|_| ()),
        },
        CaptureKind::Counters => parse::ncu::read_file(path).map(|_| ()),
        CaptureKind::Report if has_nsys => Ok(()),
        CaptureKind::Report => {
            return Err(
                "a report of nsys, and this host has no nsys to read it: send what `nsys export --type sqlite` makes".into()
            );
        }
    };
    // The sender learns its own name of the file, and no path of this host.
    read.map_err(|error| {
        crate::chain(&error).replace(&format!("{}: ", path.display()), "").replace(&path.display().to_string(), "it")
    })
}

/// Carries imports out until told to stop.
pub(super) async fn work(cx: Context, stop: CancellationToken) {
    let device = Device::unknown(WORKER);
    let worker = device.worker(&format!("{}:{}", std::process::id(), uuid::Uuid::now_v7()));
    let executor = Local::new(Host { collector: Arc::clone(&cx.collector), devices: Arc::clone(&cx.devices) }, cx.runs.clone());
    while !stop.is_cancelled() {
        // Listening before looking: an import queued in between still wakes us.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        match cx.store.claim_import(&worker, cx.lease()).await {
            Ok(Some(run)) => {
                carry(&run, (&device, &[]), &cx, &executor, None, &stop).await;
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

/// Removes the folders of imports that were never answered: the service ended between their last byte and their commit.
pub async fn recover(cx: &Context) -> Result<(), StoreError> {
    for id in imported(&cx.runs).unwrap_or_default() {
        if cx.store.run(id).await?.is_none() {
            match fs::remove_dir_all(cx.runs.join(id.to_string())) {
                Ok(()) => tracing::info!(run = %id, "what was left of an import is removed"),
                Err(error) => tracing::warn!(run = %id, %error, "what was left of an import stays behind"),
            }
        }
    }
    Ok(())
}

/// Runs whose folders hold nothing yet but an import.
fn imported(runs: &Path) -> io::Result<Vec<RunId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let begun = entry.path().join(layout::SPEC).exists() || !entry.path().join(layout::IMPORT).exists();
        found.extend(entry.file_name().to_str().and_then(|name| name.parse::<RunId>().ok()).filter(|_| !begun));
    }
    Ok(found)
}
