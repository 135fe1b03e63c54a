//! `GET /runs/{run_id}/events`: past and new events of a run, or of an alignment.
//!
//! Ids of events are line numbers of the journal, so a client that reconnects resumes where it
//! stopped. States come from the store and have no id; the last event is `end`.

use std::{convert::Infallible, path::PathBuf, time::Duration};

use axum::{
    body::Bytes,
    extract::State,
    http::HeaderMap,
    response::{
        IntoResponse, Sse,
        sse::{Event, KeepAlive},
    },
};
use llmprof_core::domain::{
    alignment::AlignmentState,
    ids::{AlignmentId, RunId},
    json_numbers::{MAX_EXACT, Within},
    state::{RunState, Step},
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

use super::runs::find;
use crate::{
    artifact::journal::{self, JournalEvent, Position},
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{GuardedErrors, InvalidParameter, RunNotFound},
        },
        extract::params::RunPath,
        state::App,
    },
    runtime::{self, work::SlicedWork},
    store::StoreError,
};

/// Interval between reads of an active run.
const PERIOD: Duration = Duration::from_millis(200);
/// Events per read.
const BATCH: usize = 500;

/// An event of a stream: an entry of the run's journal, or the run's state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum RunEvent {
    Journal(JournalEvent),
    State(StateEvent),
}

/// State of the run; without an id, because it is not in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StateEvent {
    /// The run is queued or running. The first event of an active run, sent again on changes.
    State { state: RunState, queue_position: Option<u64> },
    /// The run has ended; the last event.
    End { state: RunState, message: Option<String> },
    /// The token has expired or was revoked; the last event of the stream, not of the run.
    Refused { message: String },
}

impl RunEvent {
    /// The event's type in the stream, equal to `event` in its data.
    const fn name(&self) -> &'static str {
        match self {
            Self::Journal(JournalEvent::Attempt { .. }) => "attempt",
            Self::Journal(JournalEvent::Step { .. }) => "step",
            Self::Journal(JournalEvent::Progress { .. }) => "progress",
            Self::Journal(JournalEvent::Log { .. }) => "log",
            Self::Journal(JournalEvent::Finding { .. }) => "finding",
            Self::State(StateEvent::State { .. }) => "state",
            Self::State(StateEvent::End { .. }) => "end",
            Self::State(StateEvent::Refused { .. }) => "refused",
        }
    }
}

/// One event of the stream.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the contract's view of what axum writes")]
pub struct StreamedEvent {
    /// `state`, `attempt`, `step`, `progress`, `log`, `finding`, `end` or `refused`.
    event: String,
    /// Resumes after this event; only entries of the journal have one.
    id: Option<String>,
    /// JSON.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// The text of the last event of a caller that is no longer admitted.
pub(crate) fn refused(error: &ApiError) -> Bytes {
    let event = RunEvent::State(StateEvent::Refused { message: error.message().to_owned() });
    format!("event: {}\ndata: {}\n\n", event.name(), serde_json::json!(event)).into()
}

/// The text of a progress event.
fn example() -> String {
    let event = JournalEvent::Progress {
        step: Step::Baseline,
        phase: "measure".into(),
        done: 1,
        total: 3,
        sample: None,
    };
    format!("event: progress\nid: 7\ndata: {}\n\n", serde_json::json!(event))
}

/// Follow a run: steps, progress, findings and log lines, until it ends
///
/// Server-sent events: `state`, `attempt`, `step`, `progress`, `log`, `finding`, and finally `end`.
/// `Last-Event-ID` resumes after the event of that id. The data of each event is JSON and repeats
/// its type in `event`. An `attempt` starts the steps and findings again; a step that finished in
/// an earlier attempt, and is not repeated, follows once, with its earlier times. Ids keep growing.
/// A stream whose token expires or is revoked ends within ten seconds, with `refused`.
#[utoipa::path(get, path = "/runs/{run_id}/events", tag = "runs", operation_id = "follow_run",
    params(
        ("run_id" = RunId, Path),
        ("Last-Event-ID" = Option<u64>, Header, description = "Id of the last received event",
            maximum = 9007199254740991i64)),
    responses(
        (status = 200, description = "The events in order", body = StreamedEvent,
            content_type = "text/event-stream", example = json!(example())),
        GuardedErrors, InvalidParameter, RunNotFound))]
pub async fn events(
    State(app): State<App>,
    RunPath(id): RunPath,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    find(&app, id).await?;
    Ok(stream(app, Followed::Run(id), &headers)?.keep_alive(KeepAlive::default()))
}

/// The subject of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Followed {
    Run(RunId),
    Alignment(AlignmentId),
}

/// Current status of the subject.
struct FollowedStatus {
    state: RunState,
    queue_position: Option<u64>,
    started: bool,
    message: Option<String>,
}

impl Followed {
    fn folder(self, app: &App) -> PathBuf {
        match self {
            Self::Run(id) => app.runs.join(id.to_string()),
            Self::Alignment(id) => app.alignments.join(id.to_string()),
        }
    }

    /// Returns the status; `None` after deletion.
    async fn status(self, app: &App) -> Result<Option<FollowedStatus>, StoreError> {
        Ok(match self {
            Self::Run(id) => app.store.run(id).await?.map(|run| FollowedStatus {
                state: run.state,
                queue_position: run.queue_position,
                started: run.state != RunState::Queued || run.attempts > 0,
                message: run.message,
            }),
            Self::Alignment(id) => app.store.alignment(id).await?.map(|it| FollowedStatus {
                state: match it.state {
                    AlignmentState::Queued => RunState::Queued,
                    AlignmentState::Running => RunState::Running,
                    AlignmentState::Succeeded => RunState::Succeeded,
                    AlignmentState::Failed => RunState::Failed,
                },
                queue_position: None,
                started: it.attempts > 0,
                message: it.message,
            }),
        })
    }
}

/// Streams the events of `followed` after the event in `Last-Event-ID`.
pub(crate) fn stream(
    app: App,
    followed: Followed,
    headers: &HeaderMap,
) -> Result<Sse<ReceiverStream<Result<Event, Infallible>>>, ApiError> {
    let after = last_event_id(headers)?;
    let (sender, receiver) = mpsc::channel(64);
    tokio::spawn(async move {
        // Ends with the subject, the client or the service.
        tokio::select! {
            () = follow(&app, followed, after, &sender) => {}
            () = app.closing.cancelled() => {}
            () = sender.closed() => {}
        }
    });
    Ok(Sse::new(ReceiverStream::new(receiver)))
}

fn last_event_id(headers: &HeaderMap) -> Result<u64, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(0) };
    let text = value.to_str().unwrap_or_default().trim();
    Within::<0, MAX_EXACT>::named("Last-Event-ID", text)
        .map_err(|message| ApiError::new(ErrorCode::InvalidParameter, message))
}

type Sender = mpsc::Sender<Result<Event, Infallible>>;

/// Sends events until the subject has ended and all of them were sent.
async fn follow(app: &App, followed: Followed, after: u64, sender: &Sender) {
    let folder = followed.folder(app);
    let mut position = None;
    let mut sent = None;
    let mut tick = tokio::time::interval(PERIOD);
    loop {
        tick.tick().await;
        // The state before the journal, which is complete once the state is final.
        let status = match followed.status(app).await {
            Ok(Some(status)) => status,
            Ok(None) => return,
            Err(error) => {
                let error = llmprof_core::chain(&error);
                return tracing::error!(?followed, %error, "cannot read a followed state");
            }
        };
        let FollowedStatus { state, queue_position, started, message } = status;
        if sent != Some((state, queue_position)) && !state.is_final() {
            sent = Some((state, queue_position));
            let event = RunEvent::State(StateEvent::State { state, queue_position });
            if !send(&event, None, sender).await {
                return;
            }
        }
        if started {
            match send_journal(folder.clone(), &mut position, after, sender).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(?followed, %error, "cannot read a journal"),
            }
        }
        if state.is_final() {
            let event = RunEvent::State(StateEvent::End { state, message });
            send(&event, None, sender).await;
            return;
        }
    }
}

/// Sends new entries of the journal; returns false once the client has left.
async fn send_journal(
    folder: PathBuf,
    position: &mut Option<Position>,
    after: u64,
    sender: &Sender,
) -> std::io::Result<bool> {
    loop {
        let (folder, from) = (folder.clone(), *position);
        let read = move |work: &SlicedWork| {
            let mut position = match from {
                Some(position) => position,
                None => journal::seek(&folder, after, work)?,
            };
            let events = journal::read_from(&folder, &mut position, BATCH)?;
            Ok((position, events))
        };
        let work = SlicedWork::default();
        let (next, events) = tokio::select! {
            biased;
            () = sender.closed() => return Ok(false),
            read = runtime::stoppable(&work, read) => read?,
        };
        *position = Some(next);
        let is_last = events.len() < BATCH;
        for (line, event) in events {
            if !send(&RunEvent::Journal(event), Some(line), sender).await {
                return Ok(false);
            }
        }
        if is_last {
            return Ok(true);
        }
    }
}

/// Sends one event; returns false once the client has left.
async fn send(event: &RunEvent, id: Option<u64>, sender: &Sender) -> bool {
    let data = match serde_json::to_string(event) {
        Ok(data) => data,
        Err(error) => {
            tracing::error!(%error, "cannot serialize an event");
            return true;
        }
    };
    let mut framed = Event::default().event(event.name()).data(data);
    if let Some(id) = id {
        framed = framed.id(id.to_string());
    }
    sender.send(Ok(framed)).await.is_ok()
}
