//! One run: where it stands, what it says, and what it left.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use serde::Serialize;

use super::{Page, PageError};
use crate::{
    artifact::{
        journal::{self, JournalEvent},
        layout,
    },
    http::{
        App,
        access::Caller,
        alignments::{self, AlignmentView},
        diff::file,
        error::ApiError,
        queue,
        request::RunPath,
        retention::{self, Fate},
        runs::{self, RunSummary, RunView},
    },
    report::{
        self, Tile,
        data::{self, TableHead},
    },
    run::{ArtifactRecord, RunId, Step, SubjectKind},
    store::{AlignmentFilter, Filter, Role},
};

/// Bytes of the journal's end that are looked through for lines to show.
const TAIL: u64 = 1 << 18;
/// Lines of the log that are shown.
const LINES: usize = 200;
/// Other runs that are offered for a comparison.
const OFFERED: u32 = 20;
/// Alignments that are shown.
const ALIGNMENTS: u32 = 10;

/// What the page shows.
#[derive(Serialize)]
struct Shown {
    run: RunView,
    ended: bool,
    /// Whether who looks may cancel and delete it.
    acts: bool,
    /// When it is expected to start, or why that is not known; while it waits.
    expected_start: Option<String>,
    unknown_because: Option<String>,
    now: Option<Progress>,
    log: Vec<Line>,
    tiles: Vec<Tile>,
    tables: Vec<TableHead>,
    artifacts: Vec<ArtifactRecord>,
    bytes: u64,
    has: Has,
    others: Vec<RunSummary>,
    /// What will become of its files; once it has ended.
    fate: Option<Fate>,
    /// The newest alignments that it is a side of.
    alignments: Vec<AlignmentView>,
    /// Whether the form of a submission can ask the same again.
    again: bool,
}

/// Which of its files a page points at.
#[derive(Serialize)]
struct Has {
    report: bool,
    timeline: bool,
    power: bool,
    /// What an alignment reads.
    export: bool,
}

/// How far a step is.
#[derive(Serialize)]
struct Progress {
    step: Step,
    phase: String,
    done: u64,
    total: u64,
}

#[derive(Serialize)]
struct Line {
    step: Step,
    line: String,
}

/// `GET /ui/runs/{run_id}`
pub async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    path: Result<RunPath, ApiError>,
) -> Result<Page, PageError> {
    let RunPath(id) = path?;
    let run = RunView::from(runs::find(&app, id).await?);
    let (now, log) = said(&app, id).await;
    let artifacts = app.store.artifacts(id).await?;
    let left = |path: &str| artifacts.iter().any(|it| it.path == path);
    let mine = run.owner.is_some() && run.owner == caller.name && caller.role >= Role::Submitter;
    let place = match run.queue_position {
        Some(_) => queue::queue(State(app.clone())).await?.0.waiting.into_iter().find(|it| it.run_id == id),
        None => None,
    };
    let filter = Filter { name: Some(run.name.clone()), ..Filter::default() };
    let mut others = runs::page(&app, &filter, None, OFFERED).await?.runs;
    others.retain(|other| other.run_id != id && other.state.is_final());
    let shown = Shown {
        ended: run.state.is_final(),
        acts: caller.role == Role::Admin || mine,
        expected_start: place.as_ref().and_then(|it| it.expected_start.clone()),
        unknown_because: place.and_then(|it| it.unknown_because),
        now: now.filter(|_| !run.state.is_final()),
        log,
        tiles: read(&app, id, layout::REPORT_JSON, report::stored_tiles).await?,
        tables: read(&app, id, layout::TABLES, data::heads).await?.into_iter().filter(|table| table.total > 0).collect(),
        bytes: artifacts.iter().map(|it| it.bytes).sum(),
        has: Has {
            report: left(layout::REPORT_HTML),
            timeline: left(layout::TIMELINE),
            power: left(layout::POWER_SVG),
            export: left(layout::NSYS_EXPORT),
        },
        artifacts,
        others,
        fate: match run.state.is_final() {
            true => Some(retention::fate(&app, id).await?),
            false => None,
        },
        alignments: alignments::page(&app, AlignmentFilter { state: None, run: Some(id) }, None, ALIGNMENTS).await?.alignments,
        again: run.spec.kind() == SubjectKind::Model,
        run,
    };
    Ok(Page::of(Some(&caller), "run.html", shown)?)
}

/// What `parse` reads in a file of the run; nothing where the run left none. A file that cannot be read is told in the log: the page
/// has more to show than that.
async fn read<T: Send + 'static>(
    app: &App,
    id: RunId,
    name: &'static str,
    parse: fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
) -> Result<Vec<T>, ApiError> {
    let Some(bytes) = file(app, id, name).await? else { return Ok(Vec::new()) };
    let read = tokio::task::spawn_blocking(move || parse(&bytes)).await.map_err(|error| ApiError::internal(&error))?;
    Ok(read.unwrap_or_else(|error| {
        tracing::warn!(run = %id, name, %error, "a run's file cannot be shown");
        Vec::new()
    }))
}

/// How far the run is, and the last lines of its log.
async fn said(app: &App, id: RunId) -> (Option<Progress>, Vec<Line>) {
    let dir = app.runs.join(id.to_string());
    let events = match tokio::task::spawn_blocking(move || journal::tail(&dir, TAIL)).await.map_err(std::io::Error::other) {
        Ok(Ok(events)) => events,
        Ok(Err(error)) | Err(error) => {
            tracing::warn!(run = %id, %error, "cannot read a run's journal");
            return (None, Vec::new());
        }
    };
    let (mut now, mut log) = (None, Vec::new());
    for event in events {
        match event {
            JournalEvent::Progress { step, phase, done, total } => now = Some(Progress { step, phase, done, total }),
            JournalEvent::Step { .. } | JournalEvent::Attempt { .. } => now = None,
            JournalEvent::Log { step, line } => log.push(Line { step, line }),
            JournalEvent::Finding { .. } => {}
        }
    }
    log.drain(..log.len().saturating_sub(LINES));
    (now, log)
}

/// `POST /ui/runs/{run_id}/cancel`
pub async fn cancel(
    state: State<App>,
    caller: Extension<Caller>,
    path: Result<RunPath, ApiError>,
) -> Result<Redirect, PageError> {
    let RunPath(id) = path?;
    _ = runs::cancel(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}")))
}

/// `POST /ui/runs/{run_id}/delete`
pub async fn delete(
    state: State<App>,
    caller: Extension<Caller>,
    path: Result<RunPath, ApiError>,
) -> Result<Redirect, PageError> {
    runs::delete(state, caller, path?).await?;
    Ok(Redirect::to("/"))
}

/// `POST /ui/runs/{run_id}/pin`
pub async fn pin(state: State<App>, caller: Extension<Caller>, path: Result<RunPath, ApiError>) -> Result<Redirect, PageError> {
    let RunPath(id) = path?;
    _ = retention::pin(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}#kept")))
}

/// `POST /ui/runs/{run_id}/unpin`
pub async fn unpin(state: State<App>, caller: Extension<Caller>, path: Result<RunPath, ApiError>) -> Result<Redirect, PageError> {
    let RunPath(id) = path?;
    _ = retention::unpin(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}#kept")))
}

/// Leads to the run's page whoever comes back to the address of one of its buttons.
pub async fn back(path: Result<RunPath, ApiError>) -> Result<Response, PageError> {
    let RunPath(id) = path?;
    Ok(Redirect::to(&format!("/ui/runs/{id}")).into_response())
}
