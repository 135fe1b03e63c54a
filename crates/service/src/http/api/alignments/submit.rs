//! `POST /alignments`: checks the request, queues the alignment durably, then answers.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
};
use llmprof_analyze::align::settings::{Question, SettingsError};
use llmprof_core::{
    domain::{
        alignment::{AlignmentSpec, AlignmentState},
        ids::RunId,
        subject::{RunSpec, Subject},
    },
    layout,
};

use super::{AlignmentView, example, find};
use crate::{
    http::{
        api::runs::find_ended,
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                AlignmentConflict, BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody,
                InvalidRequest, QueueLimit, SideNotFound,
            },
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::{check_length, check_range},
            idempotency,
        },
        state::App,
    },
    store::{StoredAlignment, SubmittedAlignment},
};

const MAX_LIST: usize = 32;
const MAX_WAIVERS: usize = 100;
const MAX_TEXT: usize = 500;

/// Align a mock layer with the whole model: does it launch the same kernels?
///
/// Compares two runs that have ended and have a timeline. The alignment is queued durably and
/// computed from their captures; a verdict of `fail` or `inconclusive` is a result, reported with
/// its checks and advice. With `Idempotency-Key`, a repeated submission of the same body returns
/// the same alignment.
#[utoipa::path(post, path = "/alignments", tag = "alignments", operation_id = "submit_alignment",
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,255}$",
        description = "1 to 255 visible ASCII characters that identify this submission")),
    request_body(content = AlignmentSpec, examples(
        ("shortest" = (
            summary = "Search the whole model for the mock's sequence of kernels",
            value = json!(example::shortest()))),
        ("operator" = (
            summary = "Attention of every layer, in decode", value = json!(example::spec()))),
        ("everything" = (
            summary = "Every setting, with one of the ways to select the operation",
            value = json!(example::full_spec()))))),
    responses(
        (status = 202, description = "The alignment is queued", body = AlignmentView,
            headers(("Location" = String, description = "Path of the alignment")),
            example = json!(example::queued())),
        GuardedErrors, InvalidBody, SideNotFound, BodyErrors, AlignmentConflict, InvalidRequest,
        QueueLimit, InsufficientStorage))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let key = idempotency::key(&headers)?;
    let body = read_json(&headers, body, MAX_BODY).await?;
    let stored = queue(&app, caller, &body, key).await?;
    let location = AppendHeaders([(header::LOCATION, format!("/alignments/{}", stored.id))]);
    Ok((StatusCode::ACCEPTED, location, Json(AlignmentView::from(stored))))
}

/// Checks a request and queues its alignment. A repeated key and body return the alignment of the
/// first time.
pub(crate) async fn queue(
    app: &App,
    caller: Caller,
    body: &[u8],
    key: Option<String>,
) -> Result<StoredAlignment, ApiError> {
    let spec: AlignmentSpec = parse_object(body)?;
    check(&spec)?;
    check_runs(app, &spec).await?;
    let owner = app.access.owner(&caller);
    let name = caller.name.unwrap_or_default();
    let idempotency = idempotency::of_body(key, body);
    let stored = match app.store.submit_alignment(spec, owner, idempotency).await? {
        SubmittedAlignment::New(stored) | SubmittedAlignment::Same(stored) => stored,
        SubmittedAlignment::KeyReused => {
            return Err(ApiError::of(ErrorCode::IdempotencyKeyReused));
        }
        SubmittedAlignment::TooManyQueued(count) => {
            let message = format!(
                "queue limit reached: {name:?} already has {count} queued alignments; retry later"
            );
            return Err(ApiError::new(ErrorCode::TooManyQueued, message).retry_after(10));
        }
        SubmittedAlignment::DiskFull(bytes) => {
            let message = format!(
                "disk quota exceeded: {name:?} stores {bytes} bytes; delete some runs or alignments"
            );
            return Err(ApiError::new(ErrorCode::DiskQuota, message));
        }
    };
    app.queued.notify_waiters();
    Ok(*stored)
}

/// Checks that both runs have a timeline, and that the previous alignment has a report.
async fn check_runs(app: &App, spec: &AlignmentSpec) -> Result<(), ApiError> {
    for id in [spec.mock, spec.e2e] {
        let run = find_ended(app, id).await?;
        if id == spec.mock && has_whole_model(&run.spec) {
            let message = format!(
                "run {id} is not a mock: its timeline shows the whole model, and it already has an \
                 alignment; submit the part without align_with"
            );
            return Err(ApiError::new(ErrorCode::CaptureUnavailable, message));
        }
        if !has_timeline(app, id).await? {
            let message = format!(
                "run {id} has no timeline ({}); align runs whose nsys step succeeded",
                layout::timelines().join(", ")
            );
            return Err(ApiError::new(ErrorCode::CaptureUnavailable, message));
        }
    }
    if let Some(id) = spec.previous
        && find(app, id).await?.state != AlignmentState::Succeeded
    {
        let message = format!("alignment {id} has no report to compare with");
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    }
    Ok(())
}

/// True for a part that was aligned in its own run, next to the whole model.
fn has_whole_model(spec: &RunSpec) -> bool {
    matches!(&spec.subject, Subject::Part(part) if part.align_with.is_some())
}

/// Returns true if a run has a timeline, of nsys or imported traces.
pub(in crate::http) async fn has_timeline(app: &App, id: RunId) -> Result<bool, ApiError> {
    for path in layout::timelines() {
        if app.store.artifact(id, &path).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks the bounds of the schema, and the fields together.
fn check(spec: &AlignmentSpec) -> Result<(), ApiError> {
    for (name, text) in
        [("range", &spec.range), ("operator", &spec.operator), ("stage", &spec.stage)]
    {
        if let Some(text) = text {
            check_length(name, text, 1..=MAX_TEXT)?;
        }
    }
    for (name, list) in [
        ("kernels", &spec.kernels),
        ("include_ranges", &spec.include_ranges),
        ("exclude_ranges", &spec.exclude_ranges),
    ] {
        check_range(name, list.len(), 0..=MAX_LIST)?;
        for text in list {
            check_length(&format!("an item of {name}"), text, 1..=MAX_TEXT)?;
        }
    }
    check_range("waivers", spec.waivers.len(), 0..=MAX_WAIVERS)?;
    for waiver in &spec.waivers {
        for text in [&waiver.pattern, &waiver.reason, &waiver.impact] {
            check_length("a waiver's text", text, 1..=MAX_TEXT)?;
        }
    }
    // Only the expiry of waivers depends on the day.
    Question::of(spec, String::new()).map(|_| ()).map_err(|error| {
        let code = match error {
            SettingsError::Several => ErrorCode::RequestContradictory,
            _ => ErrorCode::InvalidRequest,
        };
        ApiError::new(code, error.to_string())
    })
}
