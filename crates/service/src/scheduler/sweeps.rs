//! Sweeps: queues their points a few at a time, and keeps the figures of the runs that ended.
//!
//! Each step is one transaction of the store. It executes nothing: workers claim points as they do
//! other runs.

use std::{io, path::Path, pin::pin, sync::Arc, time::Duration};

use llmprof_core::{
    domain::{device::Device, state::RunState, sweep::SweepFigures},
    layout,
};
use llmprof_report::sweep::figures;
use tokio_util::sync::CancellationToken;

use super::{Context, series::sealed_report};
use crate::{
    collect::host,
    config::ExecutorKind,
    runtime,
    store::{EndedPoint, Owner, Quota, ReuseRule, StoreError},
};

/// Longest time between two looks while a sweep is running, and while none is; a request for a
/// sweep wakes the task earlier.
const BUSY: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(5);
/// Points whose figures are read in one go.
const BATCH: u32 = 50;

/// Advances all sweeps until stopped.
pub async fn work(cx: Context, devices: Arc<[Device]>, stop: CancellationToken) {
    let rule = reuse_rule(&cx, &devices);
    while !stop.is_cancelled() {
        // Listening first: a sweep that starts during the work still wakes the task.
        let mut woken = pin!(cx.queued.notified());
        woken.as_mut().enable();
        let is_active = advance(&cx, &rule, &stop).await.unwrap_or_else(|error| {
            tracing::error!(error = %llmprof_core::chain(&error), "cannot advance sweeps");
            false
        });
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = woken => {}
            () = tokio::time::sleep(if is_active { BUSY } else { IDLE }) => {}
        }
    }
}

/// Reads the figures of ended points, then queues others; true while a sweep is running.
async fn advance(
    cx: &Context,
    rule: &ReuseRule,
    stop: &CancellationToken,
) -> Result<bool, StoreError> {
    let mut is_active = settle(cx, stop).await?;
    let mut queued = 0;
    for sweep in cx.store.running_sweeps().await? {
        is_active = true;
        queued += cx.store.advance_sweep(sweep, rule, |name| owner(cx, name)).await?;
        // Points that were measured before.
        settle(cx, stop).await?;
    }
    if queued > 0 {
        cx.queued.notify_waiters();
    }
    Ok(is_active)
}

/// Stores the figures of points whose run has ended, or the reason why it has none; true if there
/// were some.
async fn settle(cx: &Context, stop: &CancellationToken) -> Result<bool, StoreError> {
    let mut found = false;
    loop {
        let points = cx.store.ended_points(BATCH).await?;
        if points.is_empty() || stop.is_cancelled() {
            return Ok(found);
        }
        found = true;
        for point in &points {
            let figures = read_figures(cx, point).await;
            let figures = figures.as_ref().map_err(String::as_str);
            cx.store.settle_point(point, figures).await?;
        }
    }
}

/// The figures of an ended run; the error is the reason of a gap.
async fn read_figures(cx: &Context, point: &EndedPoint) -> Result<SweepFigures, String> {
    match point.state {
        None => return Err("its run was deleted".into()),
        Some(RunState::Cancelled) => return Err("its run was cancelled".into()),
        Some(RunState::Succeeded | RunState::Partial) => {}
        Some(_) => {
            let why = point.message.as_deref().unwrap_or("see its logs");
            return Err(format!("its run failed: {why}"));
        }
    }
    let folder = cx.runs.join(point.run.to_string());
    let read = runtime::blocking(move || read_report(&folder)).await;
    let unreadable =
        |error: &dyn std::fmt::Display| format!("the report of its run cannot be read: {error}");
    read.map_err(|error| unreadable(&error))?.map_err(|error| unreadable(&error))
}

fn read_report(folder: &Path) -> io::Result<SweepFigures> {
    sealed_report(&folder.join(layout::REPORT_JSON)).map(|report| figures(&report))
}

fn owner(cx: &Context, name: &str) -> Owner {
    let access = &cx.config.access;
    let quota = Quota {
        queued_runs: access.queued_runs_per_owner,
        disk_bytes: access.disk_bytes_per_owner,
    };
    Owner { name: name.to_owned(), quota }
}

/// The runs that this service would measure alike.
fn reuse_rule(cx: &Context, devices: &[Device]) -> ReuseRule {
    let here = host::describe();
    let commit = here.git_commit.as_deref().map(|it| format!(", {it}")).unwrap_or_default();
    let build = format!("{}{commit}", here.llmprof);
    if cx.config.executor.kind == ExecutorKind::Slurm {
        return ReuseRule { build, host: None, devices: None };
    }
    let cpu = here.cpu.zip(here.cpus).map(|(cpu, cpus)| format!("cpu: {cpu}, {cpus} usable"));
    let product = |it: &Device| if it.is_cpu() { cpu.clone() } else { it.product.clone() };
    let names = |it: &Device| {
        let names = it.names().into_iter().map(str::to_owned).chain(it.model());
        names.chain(["auto".to_owned()]).collect::<Vec<_>>()
    };
    let devices = devices.iter().flat_map(|device| {
        let product = product(device);
        names(device).into_iter().filter_map(move |name| Some((name, product.clone()?)))
    });
    ReuseRule { build, host: here.hostname, devices: Some(devices.collect()) }
}
