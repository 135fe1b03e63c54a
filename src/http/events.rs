//! `GET /runs/{id}/events`: what happens to a run, as it happens, and what happened before.
//!
//! The journal's line numbers are the events' ids, so a client that comes back goes on where it was. States come from the store and
//! have no id; the last event is `end`.

use std::{convert::Infallible, path::PathBuf, time::Duration};

use axum::{
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Sse,
        sse::{Event, KeepAlive},
    },
};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    App,
    error::{ApiError, ErrorCode},
    request::RunPath,
    runs::find,
};
use crate::{
    artifact::journal::{self, JournalEvent, Position},
    run::{RunId, RunState},
};

/// How often a run that goes on is looked at.
const PERIOD: Duration = Duration::from_millis(200);
/// Events read at once.
const BATCH: usize = 500;

/// Follow a run: steps, progress, findings and log lines, until it ends
///
/// Server-sent events: `state`, `attempt`, `step`, `progress`, `log`, `finding`, and `end` at last. `Last-Event-ID` resumes after the
/// event of that id. The data of each event is JSON and names it again in `event`.
#[utoipa::path(get, path = "/runs/{run_id}/events", tag = "runs", operation_id = "follow_run",
    params(("run_id" = RunId, Path), ("Last-Event-ID" = Option<u64>, Header, description = "Id of the last event that came", maximum = 9007199254740991i64)),
    responses((status = 200, description = "The events, one after another", body = JournalEvent, content_type = "text/event-stream")))]
pub async fn events(State(app): State<App>, RunPath(id): RunPath, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    find(&app, id).await?;
    let after = match headers.get("last-event-id") {
        None => 0,
        Some(value) => value
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| ApiError::new(ErrorCode::InvalidParameter, "Last-Event-ID: the id of an event is a number"))?,
    };
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        // Either side may go first: a client that left, or a service that stops.
        tokio::select! {
            () = follow(&app, id, after, &sender) => {}
            () = app.closing.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)).keep_alive(KeepAlive::default()))
}

type Sender = mpsc::Sender<Result<Event, Infallible>>;

/// Sends what happens until the run has ended and all of it was sent.
async fn follow(app: &App, id: RunId, after: u64, to: &Sender) {
    let dir = app.runs.join(id.to_string());
    let mut position = None;
    let mut shown = None;
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        tick.tick().await;
        // The state first: what the journal holds after the run has ended is all there is.
        let run = match app.store.run(id).await {
            Ok(Some(run)) => run,
            Ok(None) => return,
            Err(error) => return tracing::error!(error = %crate::chain(&error), "cannot follow a run"),
        };
        let state = (run.state, run.queue_position);
        if shown != Some(state) && !run.state.is_final() {
            shown = Some(state);
            let data = json!({ "event": "state", "state": run.state, "queue_position": run.queue_position });
            if to.send(Ok(Event::default().event("state").data(data.to_string()))).await.is_err() {
                return;
            }
        }
        if run.state != RunState::Queued || run.attempts > 0 {
            match send_journal(dir.clone(), &mut position, after, to).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(run = %id, %error, "cannot read a run's journal"),
            }
        }
        if run.state.is_final() {
            let data = json!({ "event": "end", "state": run.state, "message": run.message });
            to.send(Ok(Event::default().event("end").data(data.to_string()))).await.ok();
            return;
        }
    }
}

/// Sends what is new in the journal; `false` when nobody listens any more.
async fn send_journal(dir: PathBuf, at: &mut Option<Position>, after: u64, to: &Sender) -> std::io::Result<bool> {
    loop {
        let (dir, from) = (dir.clone(), *at);
        let read = tokio::task::spawn_blocking(move || {
            let mut position = match from {
                Some(position) => position,
                None => journal::seek(&dir, after)?,
            };
            let events = journal::read_from(&dir, &mut position, BATCH)?;
            Ok::<_, std::io::Error>((position, events))
        });
        let (position, events) = read.await.map_err(std::io::Error::other)??;
        *at = Some(position);
        let whole = events.len() < BATCH;
        for (line, event) in events {
            let name = name(&event);
            let data = serde_json::to_string(&event)?;
            if to.send(Ok(Event::default().event(name).id(line.to_string()).data(data))).await.is_err() {
                return Ok(false);
            }
        }
        if whole {
            return Ok(true);
        }
    }
}

fn name(event: &JournalEvent) -> &'static str {
    match event {
        JournalEvent::Attempt { .. } => "attempt",
        JournalEvent::Step { .. } => "step",
        JournalEvent::Progress { .. } => "progress",
        JournalEvent::Log { .. } => "log",
        JournalEvent::Finding { .. } => "finding",
    }
}
