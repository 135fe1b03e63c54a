//! Alignments: views, lists, events and deletion.
//!
//! Handlers read no capture; a task computes the alignment.

mod example;
pub mod files;
pub mod submit;

use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, sse::KeepAlive},
};
use llmprof_core::domain::{
    alignment::{self, AlignmentSpec, AlignmentState, CheckSummary, Verdict},
    ids::{AlignmentId, RunId},
    json_numbers::Within,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    deletion,
    events::{self, Followed, StreamedEvent},
};
use crate::{
    http::{
        auth::access::{Caller, check_owner},
        error::{
            ApiError, ErrorCode,
            responses::{
                AlignmentActive, AlignmentNotFound, GuardedErrors, InsufficientStorage,
                InvalidParameter,
            },
        },
        extract::params::{AlignmentPath, Params, parse_id},
        state::App,
    },
    measuring::WAITING,
    store::{AlignmentFilter, DeleteOutcome, Removal, StoredAlignment},
};

/// Paths of an alignment's parts, and of its runs.
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
    /// The verdict in a sentence, with the observation that decides it and its remedy.
    pub answer: Option<String>,
    /// Name of the token that submitted it; `null` if none was required.
    pub owner: Option<String>,
    pub spec: AlignmentSpec,
    /// In the order of the report, which has the evidence.
    pub checks: Vec<CheckSummary>,
    /// Number of times that it was started.
    pub attempts: u32,
    /// RFC 3339, UTC, as all times.
    pub queued_at: String,
    pub started_at: Option<String>,
    pub ended_at: Option<String>,
    /// Reason of a failure.
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
            answer: it.verdict.map(|verdict| alignment::answer(verdict, &it.checks)),
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

/// Filter and page of a list of alignments.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AlignmentListQuery {
    /// Only alignments in this state.
    #[param(inline)]
    state: Option<AlignmentState>,
    /// Only alignments of this run, on either side.
    #[param(format = "uuid")]
    run: Option<String>,
    /// `next_cursor` of the previous page.
    #[param(format = "uuid")]
    cursor: Option<String>,
    /// Alignments per page.
    #[serde(default, deserialize_with = "Within::<1, 200>::optional_parameter")]
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
}

/// List alignments, newest first
#[utoipa::path(get, path = "/alignments", tag = "alignments", operation_id = "list_alignments",
    params(AlignmentListQuery),
    responses(
        (status = 200, description = "A page of alignments", body = AlignmentList,
            example = json!(example::list())),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<AlignmentListQuery>,
) -> Result<Json<AlignmentList>, ApiError> {
    let limit = query.limit.unwrap_or(50);
    let run = query.run.as_deref().map(parse_id::<RunId>).transpose()?;
    let filter = AlignmentFilter { state: query.state, run };
    Ok(Json(page(&app, filter, query.cursor.as_deref(), limit).await?))
}

/// Returns up to `limit` matching alignments, starting after `cursor`.
pub(crate) async fn page(
    app: &App,
    filter: AlignmentFilter,
    cursor: Option<&str>,
    limit: u32,
) -> Result<AlignmentList, ApiError> {
    let before = cursor.map(parse_id::<AlignmentId>).transpose()?;
    let mut found = app.store.alignments(filter, before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let next_cursor = found.last().filter(|_| more).map(|it| it.id.to_string());
    let alignments = found.into_iter().map(AlignmentView::from).collect();
    Ok(AlignmentList { alignments, next_cursor })
}

/// Show an alignment: its request, state, verdict and checks
#[utoipa::path(get, path = "/alignments/{alignment_id}", tag = "alignments",
    operation_id = "get_alignment",
    params(("alignment_id" = AlignmentId, Path)),
    responses(
        (status = 200, description = "The alignment", body = AlignmentView,
            example = json!(example::ended())),
        GuardedErrors, InvalidParameter, AlignmentNotFound))]
pub async fn show(
    State(app): State<App>,
    AlignmentPath(id): AlignmentPath,
) -> Result<Json<AlignmentView>, ApiError> {
    Ok(Json(find(&app, id).await?.into()))
}

/// Follow an alignment: its steps, until it ends
///
/// Server-sent events like a run's: `state`, `attempt`, `step`, and finally `end`. `Last-Event-ID`
/// resumes after the event of that id.
#[utoipa::path(get, path = "/alignments/{alignment_id}/events", tag = "alignments",
    operation_id = "follow_alignment",
    params(
        ("alignment_id" = AlignmentId, Path),
        ("Last-Event-ID" = Option<u64>, Header, description = "Id of the last received event",
            maximum = 9007199254740991i64)),
    responses(
        (status = 200, description = "The events in order", body = StreamedEvent,
            content_type = "text/event-stream", example = json!(example::EVENT)),
        GuardedErrors, InvalidParameter, AlignmentNotFound))]
pub async fn events(
    State(app): State<App>,
    AlignmentPath(id): AlignmentPath,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    find(&app, id).await?;
    Ok(events::stream(app, Followed::Alignment(id), &headers)?.keep_alive(KeepAlive::default()))
}

/// Delete an alignment that is not running, with all its files
#[utoipa::path(delete, path = "/alignments/{alignment_id}", tag = "alignments",
    operation_id = "delete_alignment",
    params(("alignment_id" = AlignmentId, Path)),
    responses(
        (status = 204, description = "The alignment is deleted"),
        GuardedErrors, InvalidParameter, AlignmentNotFound, AlignmentActive,
        InsufficientStorage))]
pub async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    AlignmentPath(id): AlignmentPath,
) -> Result<StatusCode, ApiError> {
    let found = find(&app, id).await?;
    check_owner(&caller, "alignment", found.owner)?;
    if found.state == AlignmentState::Running {
        return Err(ApiError::of(ErrorCode::AlignmentActive));
    }
    let folder = (app.alignments.clone(), id, Removal::Alignment(id));
    match deletion::delete(&app.store, folder, app.store.delete_alignment(id)).await? {
        DeleteOutcome::Deleted => Ok(StatusCode::NO_CONTENT),
        DeleteOutcome::Active => Err(ApiError::of(ErrorCode::AlignmentActive)),
        DeleteOutcome::NotFound => Err(not_found(id)),
    }
}

/// Returns the alignment, or a 404.
pub(crate) async fn find(app: &App, id: AlignmentId) -> Result<StoredAlignment, ApiError> {
    let mut alignment = app.store.alignment(id).await?.ok_or_else(|| not_found(id))?;
    if alignment.state == AlignmentState::Queued && app.measuring.is_active() {
        alignment.message = Some(WAITING.into());
    }
    Ok(alignment)
}

fn not_found(id: AlignmentId) -> ApiError {
    ApiError::new(ErrorCode::AlignmentNotFound, format!("no alignment {id}"))
}
