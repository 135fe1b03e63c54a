//! `GET /runs/{id}/events`: what happens to a run or an alignment, as it happens, and what happened before.
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
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
    request::RunPath,
    runs::find,
};
use crate::{
    artifact::journal::{self, JournalEvent, Position},
    run::{AlignmentId, RunId, RunState, alignment::AlignmentState},
    store::StoreError,
};

/// How often a run that goes on is looked at.
const PERIOD: Duration = Duration::from_millis(200);
/// Events read at once.
const BATCH: usize = 500;
/// Largest integer that every JSON reader keeps exact.
const MAX_ID: u64 = (1 << 53) - 1;

/// What a stream of events tells: the journal of the run, and where the run stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RunEvent {
    Journal(JournalEvent),
    State(StateEvent),
}

/// Where the run stands; without an id, because it is not in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StateEvent {
    /// The run waits or runs. First in every stream of a run that goes on, and again when it changes.
    State { state: RunState, queue_position: Option<u64> },
    /// The run has ended, and everything was sent: the last event.
    End { state: RunState, message: Option<String> },
}

impl RunEvent {
    /// The event's type in the stream, the same as in its data.
    const fn name(&self) -> &'static str {
        match self {
            Self::Journal(JournalEvent::Attempt { .. }) => "attempt",
            Self::Journal(JournalEvent::Step { .. }) => "step",
            Self::Journal(JournalEvent::Progress { .. }) => "progress",
            Self::Journal(JournalEvent::Log { .. }) => "log",
            Self::Journal(JournalEvent::Finding { .. }) => "finding",
            Self::State(StateEvent::State { .. }) => "state",
            Self::State(StateEvent::End { .. }) => "end",
        }
    }
}

/// One event as the stream carries it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the contract's view of what axum writes")]
pub struct StreamedEvent {
    /// `state`, `attempt`, `step`, `progress`, `log`, `finding` or `end`.
    event: String,
    /// To resume after this event; only what the journal holds has one.
    id: Option<String>,
    /// JSON.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// Follow a run: steps, progress, findings and log lines, until it ends
///
/// Server-sent events: `state`, `attempt`, `step`, `progress`, `log`, `finding`, and `end` at last. `Last-Event-ID` resumes after the
/// event of that id. The data of each event is JSON and names it again in `event`.
#[utoipa::path(get, path = "/runs/{run_id}/events", tag = "runs", operation_id = "follow_run",
    params(("run_id" = RunId, Path), ("Last-Event-ID" = Option<u64>, Header, description = "Id of the last event that came", maximum = 9007199254740991i64)),
    responses((status = 200, description = "The events, one after another", body = StreamedEvent, content_type = "text/event-stream")))]
pub async fn events(State(app): State<App>, RunPath(id): RunPath, headers: HeaderMap) -> Result<impl IntoResponse, ApiError> {
    find(&app, id).await?;
    Ok(stream(app, Followed::Run(id), &headers)?.keep_alive(KeepAlive::default()))
}

/// What is followed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Followed {
    Run(RunId),
    Alignment(AlignmentId),
}

/// Where what is followed stands.
struct Stand {
    state: RunState,
    queue_position: Option<u64>,
    begun: bool,
    message: Option<String>,
}

impl Followed {
    fn dir(self, app: &App) -> PathBuf {
        match self {
            Self::Run(id) => app.runs.join(id.to_string()),
            Self::Alignment(id) => app.alignments.join(id.to_string()),
        }
    }

    /// `None`: it was deleted.
    async fn stands(self, app: &App) -> Result<Option<Stand>, StoreError> {
        Ok(match self {
            Self::Run(id) => app.store.run(id).await?.map(|run| Stand {
                state: run.state,
                queue_position: run.queue_position,
                begun: run.state != RunState::Queued || run.attempts > 0,
                message: run.message,
            }),
            Self::Alignment(id) => app.store.alignment(id).await?.map(|it| Stand {
                state: match it.state {
                    AlignmentState::Queued => RunState::Queued,
                    AlignmentState::Running => RunState::Running,
                    AlignmentState::Succeeded => RunState::Succeeded,
                    AlignmentState::Failed => RunState::Failed,
                },
                queue_position: None,
                begun: it.attempts > 0,
                message: it.message,
            }),
        })
    }
}

/// The stream of what happens to `what`, from behind the event that the client names.
pub(super) fn stream(
    app: App,
    what: Followed,
    headers: &HeaderMap,
) -> Result<Sse<ReceiverStream<Result<Event, Infallible>>>, ApiError> {
    let after = match headers.get("last-event-id") {
        None => 0,
        Some(value) => {
            let id = value.to_str().ok().and_then(|text| text.trim().parse().ok()).filter(|id| *id <= MAX_ID);
            id.ok_or_else(|| ApiError::new(ErrorCode::InvalidParameter, "Last-Event-ID: the id of an event is a whole number"))?
        }
    };
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        // Either side may go first: a client that left, or a service that stops.
        tokio::select! {
            () = follow(&app, what, after, &sender) => {}
            () = app.closing.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)))
}

type Sender = mpsc::Sender<Result<Event, Infallible>>;

/// Sends what happens until the run has ended and all of it was sent.
async fn follow(app: &App, what: Followed, after: u64, to: &Sender) {
    let dir = what.dir(app);
    let mut position = None;
    let mut shown = None;
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        tick.tick().await;
        // The state first: what the journal holds after the run has ended is all there is.
        let now = match what.stands(app).await {
            Ok(Some(now)) => now,
            Ok(None) => return,
            Err(error) => return tracing::error!(error = %crate::chain(&error), "cannot follow what runs"),
        };
        let state = (now.state, now.queue_position);
        if shown != Some(state) && !now.state.is_final() {
            shown = Some(state);
            let event = RunEvent::State(StateEvent::State { state: now.state, queue_position: now.queue_position });
            if !send(&event, None, to).await {
                return;
            }
        }
        if now.begun {
            match send_journal(dir.clone(), &mut position, after, to).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(?what, %error, "cannot read a journal"),
            }
        }
        if now.state.is_final() {
            send(&RunEvent::State(StateEvent::End { state: now.state, message: now.message }), None, to).await;
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
            if !send(&RunEvent::Journal(event), Some(line), to).await {
                return Ok(false);
            }
        }
        if whole {
            return Ok(true);
        }
    }
}

/// Sends one event; `false` when nobody listens any more.
async fn send(event: &RunEvent, id: Option<u64>, to: &Sender) -> bool {
    let data = match serde_json::to_string(event) {
        Ok(data) => data,
        Err(error) => {
            tracing::error!(%error, "an event does not serialise");
            return true;
        }
    };
    let mut framed = Event::default().event(event.name()).data(data);
    if let Some(id) = id {
        framed = framed.id(id.to_string());
    }
    to.send(Ok(framed)).await.is_ok()
}
