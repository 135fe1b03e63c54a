//! `GET /queue`: who waits in which order, and when each is expected to start.
//!
//! A start is expected from what past runs of the same model and mode took; where none did, it is not known, and the answer says so.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{App, error::ApiError};
use crate::{
    run::{Mode, RunId, SubjectKind},
    store::{History, Waiting},
    trace::device::Device,
};

/// Waiting runs that are shown.
const SHOWN: u32 = 200;

/// What runs and what waits, first first: at most 200 that wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    pub running: Vec<RunId>,
    pub waiting: Vec<QueuedRun>,
}

/// A run that waits.
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
    /// Name of the token that submitted it; `null` where none was asked for.
    pub owner: Option<String>,
    /// As submitted; a run gains one point for every ten minutes that it waits.
    pub priority: i32,
    pub queued_at: String,
    /// RFC 3339, UTC, from what past runs took; `null` where that is not known.
    pub expected_start: Option<String>,
    /// Why no start can be expected.
    pub unknown_because: Option<String>,
}

/// The queue: who waits in which order, and when each is expected to start
#[utoipa::path(get, path = "/queue", tag = "runs", operation_id = "get_queue",
    responses((status = 200, description = "What runs and what waits", body = Queue)))]
pub async fn queue(State(app): State<App>) -> Result<Json<Queue>, ApiError> {
    let runs = app.store.queue(SHOWN).await?;
    let kind = |it: &Waiting| Some((it.run.spec.name().to_owned(), it.run.spec.mode()?));
    let mut kinds: Vec<(String, Mode)> = runs.iter().filter_map(kind).collect();
    kinds.sort();
    kinds.dedup();
    let history = app.store.history(&kinds).await?;
    let now = jiff::Timestamp::now().as_millisecond();
    Ok(Json(expect(&runs, &app.devices, &history, now)))
}

/// Gives each waiting run, in order, to the device that is free first of those that serve it. `now`: milliseconds since 1970.
fn expect(runs: &[Waiting], devices: &[Device], history: &[History], now: i64) -> Queue {
    let takes = |it: &Waiting| {
        let spec = &it.run.spec;
        let same = |past: &&History| past.name == spec.name() && spec.mode().is_some_and(|mode| past.mode == mode.as_str());
        history.iter().find(same).map(|past| past.median_ms)
    };
    let (running, waiting): (Vec<&Waiting>, Vec<&Waiting>) = runs.iter().partition(|it| it.worker.is_some());
    // When each device is free: at once, or after the run that it is busy with, if that can be known.
    let mut free: Vec<(&Device, Result<i64, &str>)> = devices
        .iter()
        .map(|device| {
            let has = |it: &&&Waiting| {
                it.worker.as_deref().is_some_and(|worker| device.has_worker(worker)) || it.devices.contains(&device.name)
            };
            let busy = running.iter().find(has);
            let end = |it: &&&Waiting| it.started_ms.zip(takes(it)).map(|(start, takes)| (start.min(now) + takes).max(now));
            (device, busy.map_or(Ok(now), |it| end(&it).ok_or(it.run.spec.name())))
        })
        .collect();
    let expected = waiting.iter().zip(1..).map(|(it, position)| {
        let spec = &it.run.spec;
        let serving =
            || free.iter().enumerate().filter(|(_, (device, _))| spec.device().is_some_and(|asked| device.serves(asked)));
        let mut known: Vec<(i64, usize)> = serving().filter_map(|(at, (_, free))| free.ok().map(|free| (free, at))).collect();
        known.sort_unstable();
        known.truncate(spec.gpus() as usize);
        // A run of several devices begins when the last of them is free.
        let first = known.last().filter(|_| known.len() == spec.gpus() as usize).map(|(free, _)| *free);
        let unknown = match (first, serving().find_map(|(_, (_, free))| free.err())) {
            (Some(_), _) => None,
            (None, Some(model)) => Some(format!("no estimate: no run like the one ahead ({model}) has finished on this host")),
            (None, None) => Some("too few workers serve its device; the service may be paused".to_owned()),
        };
        let next = takes(it).ok_or(spec.name());
        if let Some(start) = first {
            known.iter().for_each(|(_, at)| free[*at].1 = next.map(|takes| start + takes));
        }
        QueuedRun {
            run_id: it.run.id,
            position,
            kind: spec.kind(),
            name: spec.name().to_owned(),
            mode: spec.mode(),
            device: spec.device().map(str::to_owned),
            owner: it.run.owner.clone(),
            priority: spec.common.priority,
            queued_at: it.run.queued_at.clone(),
            expected_start: first.and_then(|start| jiff::Timestamp::from_millisecond(start).ok()).map(|at| format!("{at:.3}")),
            unknown_because: unknown,
        }
    });
    let waiting = expected.collect();
    Queue { running: running.iter().map(|it| it.run.id).collect(), waiting }
}
