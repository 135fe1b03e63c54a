//! `GET /queue`: queued runs in order, each with its expected start.
//!
//! Starts are estimated from the median duration of past runs of the same model and mode.

use std::fmt::Display;

use axum::{Json, extract::State};
use llmprof_core::domain::{
    device::Device,
    ids::RunId,
    mode::Mode,
    subject::{RunSpec, SubjectKind},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::runs::example;
use crate::{
    http::{
        error::{ApiError, responses::GuardedErrors},
        state::App,
    },
    store::{History, RunKind, StoredSession, Waiting},
};

/// Maximum number of listed runs.
const MAX_LISTED: u32 = 200;

/// Running runs and queued ones in order, at most 200 of the latter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    pub running: Vec<RunId>,
    pub waiting: Vec<QueuedRun>,
}

/// A queued run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueuedRun {
    pub run_id: RunId,
    /// 1 is next.
    pub position: u64,
    pub kind: SubjectKind,
    /// Name of the model or of the command.
    pub name: String,
    pub mode: Option<Mode>,
    /// As requested.
    pub device: Option<String>,
    /// Name of the token that submitted it; `null` if none was required.
    pub owner: Option<String>,
    /// As submitted; a queued run gains one point every ten minutes.
    pub priority: i32,
    pub queued_at: String,
    /// RFC 3339, UTC, estimated from past runs; `null` if unknown.
    pub expected_start: Option<String>,
    /// Reason for a missing estimate.
    pub unknown_because: Option<String>,
}

impl Queue {
    /// The same while no queued run starts for this reason.
    fn held_by(mut self, reason: &impl Display) -> Self {
        for run in &mut self.waiting {
            run.expected_start = None;
            run.unknown_because = Some(format!("no estimate: {reason}"));
        }
        self
    }

    fn example() -> Self {
        let reason =
            "no estimate: no run like the one ahead (deepseek-ocr) has finished on this host";
        let run = QueuedRun {
            run_id: example::id(),
            position: 1,
            kind: SubjectKind::Model,
            name: "deepseek-ocr-tiny".into(),
            mode: Some(Mode::DEEP),
            device: Some("auto".into()),
            owner: Some("ann".into()),
            priority: 0,
            queued_at: "2026-11-20T09:00:00.000Z".into(),
            expected_start: None,
            unknown_because: Some(reason.into()),
        };
        Self { running: vec![], waiting: vec![run] }
    }
}

/// List the running and the queued runs, in order, with their expected starts
#[utoipa::path(get, path = "/queue", tag = "runs", operation_id = "get_queue",
    responses(
        (status = 200, description = "Running and queued runs", body = Queue,
            example = json!(Queue::example())),
        GuardedErrors))]
pub async fn queue(State(app): State<App>) -> Result<Json<Queue>, ApiError> {
    let runs = app.store.queue(MAX_LISTED).await?;
    let mut kinds: Vec<RunKind> = runs.iter().filter_map(|it| RunKind::of(&it.run.spec)).collect();
    kinds.sort();
    kinds.dedup();
    let history = app.store.history(&kinds).await?;
    let now = jiff::Timestamp::now().as_millisecond();
    let sessions = app.store.sessions(MAX_LISTED).await?;
    let queue = estimate(&runs, (&app.devices, &sessions), &history, now);
    Ok(Json(match app.start_space() {
        Ok(()) => queue,
        Err(low) => queue.held_by(&low),
    }))
}

/// A device and the time at which it is free, in milliseconds since 1970; or the reason why that is
/// unknown.
struct DeviceSchedule<'a> {
    device: &'a Device,
    free_at: Result<i64, String>,
}

/// Assigns the queued runs, in order, to the matching devices that are free first. `now`:
/// milliseconds since 1970.
fn estimate(
    runs: &[Waiting],
    (devices, sessions): (&[Device], &[StoredSession]),
    history: &[History],
    now: i64,
) -> Queue {
    let (running, queued): (Vec<&Waiting>, Vec<&Waiting>) =
        runs.iter().partition(|it| it.worker.is_some());
    let mut schedules: Vec<DeviceSchedule> =
        devices.iter().map(|device| schedule(device, (&running, sessions), history, now)).collect();
    let waiting = queued
        .into_iter()
        .zip(1..)
        .map(|(it, position)| {
            let start = assign(&it.run.spec, &mut schedules, history);
            queued_run(it, position, start)
        })
        .collect();
    Queue { running: running.iter().map(|it| it.run.id).collect(), waiting }
}

/// The median duration of past runs like `spec`.
fn duration_ms(spec: &RunSpec, history: &[History]) -> Option<i64> {
    let kind = RunKind::of(spec)?;
    history.iter().find(|past| past.kind == kind).map(|past| past.median_ms)
}

/// The schedule of a device: free now, or at the expected end of its run.
fn schedule<'a>(
    device: &'a Device,
    (running, sessions): (&[&Waiting], &[StoredSession]),
    history: &[History],
    now: i64,
) -> DeviceSchedule<'a> {
    let runs_here = |it: &&&Waiting| {
        it.worker.as_deref().is_some_and(|worker| device.has_worker(worker))
            || it.devices.contains(&device.name)
    };
    let end = |it: &Waiting| {
        let (start, duration) = it.started_ms.zip(duration_ms(&it.run.spec, history))?;
        Some((start.min(now) + duration).max(now))
    };
    let holds = |it: &&StoredSession| !it.state.is_final() && it.devices.contains(&device.name);
    let free_at = match (sessions.iter().find(holds), running.iter().find(runs_here)) {
        (Some(it), _) => Err(format!(
            "no estimate: the session {} holds {} until {} at the latest, or until it is ended",
            it.id, device.name, it.expires_at
        )),
        (None, None) => Ok(now),
        (None, Some(it)) => end(it).ok_or_else(|| no_history(&it.run.spec.title())),
    };
    DeviceSchedule { device, free_at }
}

fn no_history(name: &str) -> String {
    format!("no estimate: no run like the one ahead ({name}) has finished on this host")
}

/// Assigns a run to devices and returns its start, or the reason why it is unknown.
fn assign(
    spec: &RunSpec,
    schedules: &mut [DeviceSchedule<'_>],
    history: &[History],
) -> Result<i64, String> {
    if let Some(session) = spec.session() {
        return Err(format!("no estimate: it waits for its session {session}"));
    }
    let gpus = spec.gpus() as usize;
    let matching = || {
        schedules
            .iter()
            .enumerate()
            .filter(|(_, it)| spec.device().is_some_and(|device| it.device.matches(device)))
    };
    let mut free: Vec<(i64, usize)> =
        matching().filter_map(|(at, it)| Some((*it.free_at.as_ref().ok()?, at))).collect();
    free.sort_unstable();
    free.truncate(gpus);
    // A run on several devices starts when the last of them is free.
    let start = free.last().filter(|_| free.len() == gpus).map(|(free, _)| *free);
    let unknown = matching().find_map(|(_, it)| it.free_at.clone().err());
    match (start, unknown) {
        (Some(start), _) => {
            let end = duration_ms(spec, history).map(|ms| start + ms);
            for (_, at) in &free {
                schedules[*at].free_at = end.ok_or_else(|| no_history(&spec.title()));
            }
            Ok(start)
        }
        (None, Some(why)) => Err(why),
        (None, None) => {
            Err("too few workers match the requested device; the service may be paused".to_owned())
        }
    }
}

fn queued_run(it: &Waiting, position: u64, start: Result<i64, String>) -> QueuedRun {
    let spec = &it.run.spec;
    let rfc3339 = |ms: i64| jiff::Timestamp::from_millisecond(ms).ok().map(|at| format!("{at:.3}"));
    QueuedRun {
        run_id: it.run.id,
        position,
        kind: spec.kind(),
        name: spec.title(),
        mode: spec.mode().cloned(),
        device: spec.device().map(str::to_owned),
        owner: it.run.owner.clone(),
        priority: spec.common.priority,
        queued_at: it.run.queued_at.clone(),
        expected_start: start.as_ref().ok().and_then(|start| rfc3339(*start)),
        unknown_because: start.err(),
    }
}
