//! Alignments as clients see them: queued, one, a list, their reports, files and events, deleted.
//!
//! A handler reads no capture: what can be known without is checked here, the rest is the task's that computes.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response, sse::KeepAlive},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::{
    App,
    access::{self, Caller},
    artifacts::{ArtifactList, send},
    error::{ApiError, ErrorCode},
    events::{self, Followed, StreamedEvent},
    forms::choose,
    removal,
    request::{self, AlignmentPath, Params},
    runs,
    submit::{idempotency_key, parse, read_body, within},
};
use crate::{
    analyze::align::{
        Alignment,
        settings::{Question, SettingsError},
    },
    artifact::layout,
    run::{
        AlignmentId, RunId,
        alignment::{AlignmentSpec, AlignmentState, CheckSummary, Verdict},
    },
    store::{AlignmentFilter, Delete, Idempotency, StoredAlignment, SubmittedAlignment},
};

const MAX_LIMIT: u32 = 200;
const MAX_LIST: usize = 32;
const MAX_WAIVERS: usize = 100;
const MAX_TEXT: usize = 500;
const MAX_FORWARDS: u32 = 1_000_000;
/// Ends of the reports' names by form, the one for browsers first.
const FORMS: &[(&str, &str, &str)] = &[("text", "html", "html"), ("text", "markdown", "md"), ("application", "json", "json")];

/// Where the parts of an alignment are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlignmentLinks {
    #[serde(rename = "self")]
    pub alignment: String,
    pub events: String,
    pub artifacts: String,
    pub report: String,
    pub mock: String,
    pub e2e: String,
}

impl AlignmentLinks {
    pub fn of(id: AlignmentId, spec: &AlignmentSpec) -> Self {
        let to = |part: &str| format!("/alignments/{id}{part}");
        Self {
            alignment: to(""),
            events: to("/events"),
            artifacts: to("/artifacts"),
            report: to("/report"),
            mock: format!("/runs/{}", spec.mock),
            e2e: format!("/runs/{}", spec.e2e),
        }
    }
}

/// An alignment with its checks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlignmentView {
    pub alignment_id: AlignmentId,
    pub state: AlignmentState,
    /// `pass`, `fail` or `inconclusive`; `null` before the end.
    pub verdict: Option<Verdict>,
    /// Name of the token that submitted it; `null` where none was asked for.
    pub owner: Option<String>,
    pub spec: AlignmentSpec,
    /// In the order of the report, which holds the evidence of each.
    pub checks: Vec<CheckSummary>,
    /// Times that it was begun.
    pub attempts: u32,
    /// RFC 3339, UTC, as all times.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Why it failed.
    pub message: Option<String>,
    pub links: AlignmentLinks,
}

impl From<StoredAlignment> for AlignmentView {
    fn from(it: StoredAlignment) -> Self {
        let links = AlignmentLinks::of(it.id, &it.spec);
        Self {
            alignment_id: it.id,
            state: it.state,
            verdict: it.verdict,
            owner: it.owner,
            spec: it.spec,
            checks: it.checks,
            attempts: it.attempts,
            queued_at: it.queued_at,
            started_at: it.started_at,
            ended_at: it.ended_at,
            message: it.message,
            links,
        }
    }
}

/// A page of alignments, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AlignmentList {
    pub alignments: Vec<AlignmentView>,
    /// The `cursor` of the next page; `null` on the last.
    pub next_cursor: Option<String>,
}

/// Which alignments to list.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// Only alignments in this state.
    #[param(inline)]
    state: Option<AlignmentState>,
    /// Only alignments of this run, on either side.
    #[param(format = "uuid")]
    run: Option<String>,
    /// `next_cursor` of the page before.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Alignments on a page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// Align a mock layer with the whole model: does it launch the same kernels?
///
/// Over two runs that have ended and hold a timeline. The alignment is queued durably and computed from their captures; a verdict of
/// `fail` or `inconclusive` is a result, told with the checks that led to it and what to do. With `Idempotency-Key`, a repeated submission of
/// the same body gives the same alignment.
#[utoipa::path(post, path = "/alignments", tag = "alignments", operation_id = "submit_alignment", request_body = AlignmentSpec,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters: names this submission", pattern = "^[!-~]{1,255}$")),
    responses((status = 202, description = "The alignment is queued", body = AlignmentView,
        headers(("Location" = String, description = "Where the alignment is")))))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let key = idempotency_key(&headers)?;
    let body = read_body(&headers, body).await?;
    let stored = queue(&app, caller, &body, key).await?;
    let at = format!("/alignments/{}", stored.id);
    Ok((StatusCode::ACCEPTED, AppendHeaders([(header::LOCATION, at)]), Json(AlignmentView::from(stored))))
}

/// Checks what `body` asks, and queues it for `caller`; a key that came before with the same body gives the alignment that it gave then.
pub(super) async fn queue(app: &App, caller: Caller, body: &[u8], key: Option<String>) -> Result<StoredAlignment, ApiError> {
    let spec: AlignmentSpec = parse(body)?;
    check(&spec)?;
    for id in [spec.mock, spec.e2e] {
        let run = runs::find(app, id).await?;
        if !run.state.is_final() {
            return Err(ApiError::new(
                ErrorCode::RunNotFinished,
                format!("run {id} has not ended; follow it at /runs/{id}/events"),
            ));
        }
        if app.store.artifact(id, layout::NSYS_EXPORT).await?.is_none() {
            let message = format!("run {id} left no timeline ({}): align runs whose nsys step succeeded", layout::NSYS_EXPORT);
            return Err(ApiError::new(ErrorCode::CaptureUnavailable, message));
        }
    }
    if let Some(id) = spec.previous
        && !find(app, id).await?.state.eq(&AlignmentState::Succeeded)
    {
        return Err(ApiError::new(ErrorCode::ReportUnavailable, format!("the alignment {id} has no report to compare with")));
    }
    let owner = app.access.owner(&caller);
    let name = caller.name.unwrap_or_default();
    let idempotency = key.map(|key| Idempotency { key, body_sha256: Sha256::digest(body).into() });
    let stored = match app.store.submit_alignment(spec, owner, idempotency).await? {
        SubmittedAlignment::New(stored) | SubmittedAlignment::Same(stored) => stored,
        SubmittedAlignment::KeyReused => {
            return Err(ApiError::new(ErrorCode::IdempotencyKeyReused, ErrorCode::IdempotencyKeyReused.example()));
        }
        SubmittedAlignment::TooManyQueued(count) => {
            let message = format!("{count} alignments of {name:?} wait already: wait for their end");
            return Err(ApiError::new(ErrorCode::TooManyQueued, message).retry_after(10));
        }
        SubmittedAlignment::DiskFull(bytes) => {
            let message = format!("what is {name:?}'s takes {bytes} bytes, which is their share: delete some");
            return Err(ApiError::new(ErrorCode::DiskQuota, message));
        }
    };
    app.queued.notify_waiters();
    Ok(*stored)
}

/// Checks what a schema can and cannot say.
fn check(spec: &AlignmentSpec) -> Result<(), ApiError> {
    let texts = [("range", &spec.range), ("operator", &spec.operator), ("stage", &spec.stage)];
    for (name, text) in texts.iter().filter_map(|(name, text)| text.as_ref().map(|text| (name, text))) {
        within(&format!("length of {name}"), text.chars().count(), 1..=MAX_TEXT)?;
    }
    for (name, list) in [("kernels", &spec.kernels), ("within", &spec.within), ("without", &spec.without)] {
        within(name, list.len(), 0..=MAX_LIST)?;
        for text in list {
            within(&format!("length of one of {name}"), text.chars().count(), 1..=MAX_TEXT)?;
        }
    }
    within("waivers", spec.waivers.len(), 0..=MAX_WAIVERS)?;
    for waiver in &spec.waivers {
        for text in [&waiver.pattern, &waiver.reason, &waiver.impact] {
            within("length of a waiver's text", text.chars().count(), 1..=MAX_TEXT)?;
        }
    }
    if let Some(forwards) = spec.forwards {
        within("forwards", forwards, 1..=MAX_FORWARDS)?;
    }
    // The day matters only to which waivers apply.
    let asked = Question::of(spec, String::new());
    asked.map(|_| ()).map_err(|error| {
        let code =
            if matches!(error, SettingsError::Several) { ErrorCode::RequestContradictory } else { ErrorCode::InvalidRequest };
        ApiError::new(code, error.to_string())
    })
}

/// List alignments, newest first
#[utoipa::path(get, path = "/alignments", tag = "alignments", operation_id = "list_alignments", params(ListQuery),
    responses((status = 200, description = "A page of alignments", body = AlignmentList)))]
pub async fn list(State(app): State<App>, Params(query): Params<ListQuery>) -> Result<Json<AlignmentList>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::new(ErrorCode::InvalidParameter, format!("limit: {limit} is not between 1 and {MAX_LIMIT}")));
    }
    let run = query.run.as_deref().map(request::parse::<RunId>).transpose()?;
    Ok(Json(page(&app, AlignmentFilter { state: query.state, run }, query.cursor.as_deref(), limit).await?))
}

/// Up to `limit` alignments that match, from behind `cursor`.
pub(super) async fn page(
    app: &App,
    filter: AlignmentFilter,
    cursor: Option<&str>,
    limit: u32,
) -> Result<AlignmentList, ApiError> {
    let before = cursor.map(request::parse::<AlignmentId>).transpose()?;
    let mut found = app.store.alignments(filter, before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|it| it.id.to_string());
    Ok(AlignmentList { alignments: found.into_iter().map(AlignmentView::from).collect(), next_cursor })
}

/// One alignment: what was asked, where it stands, its verdict and checks
#[utoipa::path(get, path = "/alignments/{alignment_id}", tag = "alignments", operation_id = "get_alignment",
    params(("alignment_id" = AlignmentId, Path)), responses((status = 200, description = "The alignment", body = AlignmentView)))]
pub async fn show(State(app): State<App>, AlignmentPath(id): AlignmentPath) -> Result<Json<AlignmentView>, ApiError> {
    Ok(Json(find(&app, id).await?.into()))
}

/// Read the report of an alignment: every check with its evidence
#[utoipa::path(get, path = "/alignments/{alignment_id}/report", tag = "alignments", operation_id = "get_alignment_report",
    params(("alignment_id" = AlignmentId, Path)),
    responses((status = 200, description = "The report, as HTML, Markdown or JSON by `Accept`",
        content((String = "text/html"), (String = "text/markdown"), (Alignment = "application/json")))))]
pub async fn report(State(app): State<App>, AlignmentPath(id): AlignmentPath, headers: HeaderMap) -> Result<Response, ApiError> {
    let found = find(&app, id).await?;
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let Some(form) = choose(accept, FORMS) else {
        return Err(ApiError::new(ErrorCode::NotAcceptable, ErrorCode::NotAcceptable.example()));
    };
    if !found.state.is_final() {
        let message = format!("the alignment has not ended; follow it at /alignments/{id}/events");
        return Err(ApiError::new(ErrorCode::AlignmentNotFinished, message));
    }
    let file = format!("{}.{form}", layout::ALIGNMENT);
    let listed = app.store.alignment_artifacts(id).await?;
    let Some(artifact) = listed.iter().find(|it| it.path == file) else {
        let message = format!("the alignment ended {} without a report: {}", found.state, found.message.unwrap_or_default());
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    let mut response = send(&app.alignments.join(id.to_string()), artifact, &headers).await?;
    response.headers_mut().insert(header::VARY, header::HeaderValue::from_static("accept"));
    Ok(response)
}

/// List the files of an alignment; none before it ends
#[utoipa::path(get, path = "/alignments/{alignment_id}/artifacts", tag = "alignments", operation_id = "list_alignment_artifacts",
    params(("alignment_id" = AlignmentId, Path)),
    responses((status = 200, description = "Every file with its size and hash", body = ArtifactList)))]
pub async fn artifacts(State(app): State<App>, AlignmentPath(id): AlignmentPath) -> Result<Json<ArtifactList>, ApiError> {
    find(&app, id).await?;
    Ok(Json(ArtifactList { artifacts: app.store.alignment_artifacts(id).await? }))
}

/// Download one file of an alignment, whole or a range of it
///
/// As a file of a run: ETag, `If-None-Match` and `Range`.
#[utoipa::path(get, path = "/alignments/{alignment_id}/artifacts/{name}", tag = "alignments", operation_id = "get_alignment_artifact",
    params(("alignment_id" = AlignmentId, Path), ("name" = String, Path, description = "As listed", min_length = 1),
        ("If-None-Match" = Option<String>, Header, description = "An ETag that the client has")),
    responses((status = 200, description = "The file, in its own media type", content(("*/*")),
                  headers(("ETag" = String, description = "SHA-256 of the file, in quotes"))),
              (status = 206, description = "The range", content(("*/*"))),
              (status = 304, description = "The client has it")))]
pub async fn download(
    State(app): State<App>,
    request::AlignmentFile(id, name): request::AlignmentFile,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    find(&app, id).await?;
    let listed = app.store.alignment_artifacts(id).await?;
    let missing = || ApiError::new(ErrorCode::ArtifactNotFound, format!("the alignment left no {name}"));
    let artifact = listed.iter().find(|it| it.path == name).ok_or_else(missing)?;
    send(&app.alignments.join(id.to_string()), artifact, &headers).await
}

/// Follow an alignment: its steps, until it ends
///
/// Server-sent events as of a run: `state`, `attempt`, `step`, and `end` at last. `Last-Event-ID` resumes after the event of that id.
#[utoipa::path(get, path = "/alignments/{alignment_id}/events", tag = "alignments", operation_id = "follow_alignment",
    params(("alignment_id" = AlignmentId, Path), ("Last-Event-ID" = Option<u64>, Header, description = "Id of the last event that came", maximum = 9007199254740991i64)),
    responses((status = 200, description = "The events, one after another", body = StreamedEvent, content_type = "text/event-stream")))]
pub async fn events(
    State(app): State<App>,
    AlignmentPath(id): AlignmentPath,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    find(&app, id).await?;
    Ok(events::stream(app, Followed::Alignment(id), &headers)?.keep_alive(KeepAlive::default()))
}

/// Delete an alignment that does not run, with all its files
#[utoipa::path(delete, path = "/alignments/{alignment_id}", tag = "alignments", operation_id = "delete_alignment",
    params(("alignment_id" = AlignmentId, Path)), responses((status = 204, description = "The alignment is gone")))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    AlignmentPath(id): AlignmentPath,
) -> Result<StatusCode, ApiError> {
    let found = find(&app, id).await?;
    access::owned(&caller, "alignment", found.owner)?;
    let active = || ApiError::new(ErrorCode::AlignmentActive, ErrorCode::AlignmentActive.example());
    if found.state == AlignmentState::Running {
        return Err(active());
    }
    match removal::forget(app.alignments.clone(), id, app.store.delete_alignment(id)).await? {
        Delete::Deleted => Ok(StatusCode::NO_CONTENT),
        Delete::Active => Err(active()),
        Delete::NotFound => Err(unknown(id)),
    }
}

/// The alignment, or a 404.
pub(super) async fn find(app: &App, id: AlignmentId) -> Result<StoredAlignment, ApiError> {
    app.store.alignment(id).await?.ok_or_else(|| unknown(id))
}

fn unknown(id: AlignmentId) -> ApiError {
    ApiError::new(ErrorCode::AlignmentNotFound, format!("there is no alignment {id}"))
}
