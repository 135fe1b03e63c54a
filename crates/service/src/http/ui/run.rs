//! Page of one run: state, progress, results, files.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use llmprof_analyze::parse::aliases;
use llmprof_core::{
    domain::{ids::RunId, run_files::ArtifactRecord, state::Step, subject::Subject},
    layout,
};
use llmprof_report::{
    Tile,
    answer::Answer,
    explorer::{self, ExplorerChart},
    tables::stored::{self, TableHead},
};
use serde::Serialize;

use super::{
    forms::Button,
    lighter::{self, LighterForm},
    page::HtmlPage,
    run_inputs::{self, RunInputs},
};
use crate::{
    artifact::journal::{self, JournalEvent},
    http::{
        api::{
            alignments::{self, AlignmentView},
            diff::read_file,
            queue::{self, QueuedRun},
            retention::{self, RetentionFate},
            runs::{self, RunSummary, RunView, list},
        },
        auth::access::Caller,
        error::ApiError,
        extract::params::RunPath,
        state::App,
    },
    runtime,
    store::{AlignmentFilter, Filter},
};

/// Bytes read from the end of the journal.
const JOURNAL_TAIL: u64 = 1 << 18;
const MAX_LOG_LINES: usize = 200;
/// Maximum number of runs offered for a comparison.
const MAX_OFFERED: u32 = 20;
const MAX_ALIGNMENTS: u32 = 10;

#[derive(Serialize)]
struct RunPageView {
    run: RunView,
    ended: bool,
    /// True if the caller may cancel, pin and delete the run.
    may_change: bool,
    /// Expected start of a queued run, or the reason why it is unknown.
    expected_start: Option<String>,
    unknown_because: Option<String>,
    progress: Option<StepProgress>,
    log: Vec<LogLine>,
    tiles: Vec<Tile>,
    /// Start of an imported capture, if it states one; one at most.
    captured: Vec<String>,
    /// The first part of the report; one at most.
    answers: Vec<Answer>,
    /// Charts that can be zoomed and searched.
    explorer: Vec<ExplorerChart>,
    tables: Vec<TableHead>,
    /// `None` for commands and imports.
    inputs: Option<RunInputs>,
    artifacts: Vec<ArtifactRecord>,
    bytes: u64,
    has: FilePresence,
    /// Other ended runs of the same name.
    others: Vec<RunSummary>,
    /// Planned packing and removal; `None` until the run has ended.
    fate: Option<RetentionFate>,
    /// The newest alignments of this run.
    alignments: Vec<AlignmentView>,
    /// Page with the form that can submit the same run again.
    again: Option<String>,
    lighter: Vec<LighterForm>,
}

/// Files that the page links to.
#[derive(Serialize)]
struct FilePresence {
    report: bool,
    timeline: bool,
    power: bool,
    /// The timeline, which alignments read.
    export: bool,
}

impl FilePresence {
    fn of(artifacts: &[ArtifactRecord]) -> Self {
        let has = |path: &str| artifacts.iter().any(|it| it.path == path);
        Self {
            report: has(layout::REPORT_HTML),
            timeline: has(layout::TIMELINE),
            power: has(layout::POWER_SVG),
            export: layout::timelines().iter().any(|path| has(path)),
        }
    }
}

/// Progress of a running step.
#[derive(Serialize)]
struct StepProgress {
    step: Step,
    phase: String,
    done: u64,
    total: u64,
}

#[derive(Serialize)]
struct LogLine {
    step: Step,
    line: String,
}

/// `GET /ui/runs/{run_id}`
pub async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    RunPath(id): RunPath,
) -> Result<HtmlPage, ApiError> {
    let stored = runs::find(&app, id).await?;
    let expected = runs::expected::expected(&app, &stored).await?;
    let run = RunView { expected, ..RunView::of(&app, stored).await? };
    let ended = run.state.is_final();
    let (progress, log) = read_journal(&app, id).await;
    let artifacts = app.store.artifacts(id).await?;
    let queued = queued_run(&app, &run).await?;
    let mut tables =
        read_list(&app, id, layout::TABLES, |bytes| stored::heads(bytes, aliases::column)).await?;
    tables.retain(|table| table.total > 0);
    let alignment_filter = AlignmentFilter { state: None, run: Some(id) };
    let view = RunPageView {
        ended,
        may_change: caller.may_change(run.owner.as_deref()),
        expected_start: queued.as_ref().and_then(|it| it.expected_start.clone()),
        unknown_because: queued.and_then(|it| it.unknown_because),
        progress: progress.filter(|_| !ended),
        log,
        tiles: read_list(&app, id, layout::REPORT_JSON, llmprof_report::stored_tiles).await?,
        captured: read_list(&app, id, layout::REPORT_JSON, llmprof_report::stored_capture_time)
            .await?,
        answers: read_list(&app, id, layout::REPORT_JSON, llmprof_report::stored_answer).await?,
        explorer: read_list(&app, id, layout::REPORT_JSON, explorer::stored_charts).await?,
        tables,
        inputs: run_inputs::of(&app, &run, &artifacts).await?,
        bytes: artifacts.iter().map(|it| it.bytes).sum(),
        has: FilePresence::of(&artifacts),
        artifacts,
        others: other_runs(&app, &run).await?,
        fate: if ended { Some(retention::fate(&app, id).await?) } else { None },
        alignments: alignments::page(&app, alignment_filter, None, MAX_ALIGNMENTS)
            .await?
            .alignments,
        again: form_of(&run.spec.subject),
        lighter: lighter::forms(&run.findings),
        run,
    };
    HtmlPage::render(Some(&caller), "run.html", view)
}

/// The page whose form has every setting of the subject.
fn form_of(subject: &Subject) -> Option<String> {
    match subject {
        Subject::Model(_) => Some("/".into()),
        Subject::Part(part) => part.mock.is_none().then(|| "/".into()),
        Subject::Command(it) => Some(format!("/ui/commands/{}", it.call.command)),
        Subject::Import(_) => None,
    }
}

/// The run's entry in the queue.
async fn queued_run(app: &App, run: &RunView) -> Result<Option<QueuedRun>, ApiError> {
    if run.queue_position.is_none() {
        return Ok(None);
    }
    let queue = queue::queue(State(app.clone())).await?.0;
    Ok(queue.waiting.into_iter().find(|it| it.run_id == run.run_id))
}

/// Recent ended runs of the same name.
async fn other_runs(app: &App, run: &RunView) -> Result<Vec<RunSummary>, ApiError> {
    let filter = Filter { name: Some(run.name.clone()), ..Filter::default() };
    let mut others = list::page(app, &filter, None, MAX_OFFERED).await?.runs;
    others.retain(|other| other.run_id != run.run_id && other.state.is_final());
    Ok(others)
}

/// Parses a file of the run; empty without the file. An unreadable file is logged, since the rest
/// of the page is still useful.
async fn read_list<T: Send + 'static>(
    app: &App,
    id: RunId,
    name: &'static str,
    parse: fn(&[u8]) -> Result<Vec<T>, serde_json::Error>,
) -> Result<Vec<T>, ApiError> {
    let Some(bytes) = read_file(app, id, name).await? else { return Ok(Vec::new()) };
    let parsed = runtime::blocking(move || parse(&bytes))
        .await
        .map_err(|error| ApiError::internal(&error))?;
    Ok(parsed.unwrap_or_else(|error| {
        tracing::warn!(run = %id, name, %error, "cannot parse a run's file");
        Vec::new()
    }))
}

/// The progress of the run, and the last lines of its log.
async fn read_journal(app: &App, id: RunId) -> (Option<StepProgress>, Vec<LogLine>) {
    let folder = app.runs.join(id.to_string());
    let events = match runtime::blocking(move || journal::tail(&folder, JOURNAL_TAIL))
        .await
        .map_err(std::io::Error::other)
    {
        Ok(Ok(events)) => events,
        Ok(Err(error)) | Err(error) => {
            tracing::warn!(run = %id, %error, "cannot read a run's journal");
            return (None, Vec::new());
        }
    };
    let (mut progress, mut log) = (None, Vec::new());
    for event in events {
        match event {
            JournalEvent::Progress { step, phase, done, total, .. } => {
                progress = Some(StepProgress { step, phase, done, total })
            }
            JournalEvent::Step { .. } | JournalEvent::Attempt { .. } => progress = None,
            JournalEvent::Log { step, line } => log.push(LogLine { step, line }),
            JournalEvent::Finding { .. } => {}
        }
    }
    log.drain(..log.len().saturating_sub(MAX_LOG_LINES));
    (progress, log)
}

/// `POST /ui/runs/{run_id}/cancel`
pub async fn cancel(
    state: State<App>,
    caller: Extension<Caller>,
    RunPath(id): RunPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    _ = runs::cancel::cancel(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}")))
}

/// `POST /ui/runs/{run_id}/delete`
pub async fn delete(
    state: State<App>,
    caller: Extension<Caller>,
    path: RunPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    runs::delete::delete(state, caller, path).await?;
    Ok(Redirect::to("/"))
}

/// `POST /ui/runs/{run_id}/pin`
pub async fn pin(
    state: State<App>,
    caller: Extension<Caller>,
    RunPath(id): RunPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    _ = retention::pin(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}#kept")))
}

/// `POST /ui/runs/{run_id}/unpin`
pub async fn unpin(
    state: State<App>,
    caller: Extension<Caller>,
    RunPath(id): RunPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    _ = retention::unpin(state, caller, RunPath(id)).await?;
    Ok(Redirect::to(&format!("/ui/runs/{id}#kept")))
}

/// `GET` of a button's address: redirects to the run's page.
pub async fn back(RunPath(id): RunPath) -> Response {
    Redirect::to(&format!("/ui/runs/{id}")).into_response()
}
