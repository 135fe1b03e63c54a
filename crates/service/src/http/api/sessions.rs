//! Sessions: servers that are started once, on which several runs record windows.
//!
//! A handler stores a request; the worker of the device acts on it.

use std::collections::BTreeMap;

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use llmprof_core::domain::{
    command::{CommandCall, ParamValue},
    ids::{RunId, SessionId},
    json_numbers::Within,
    mode::Mode,
    session::{SessionSpec, SessionState},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::runs::{
    check_device, check_gpu_count, check_sampling, find_command, submit::check_free_space,
};
use crate::{
    config::ExecutorKind,
    http::{
        auth::access::{Caller, check_owner},
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody, InvalidParameter,
                InvalidRequest, QueueLimit, SessionNotFound, SubjectNotFound, SubmissionConflict,
            },
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::{check_range, check_text},
            params::SessionPath,
        },
        state::App,
    },
    store::{NewSession, SessionEndRequest, StartedSession, StoredSession},
};

/// Sessions in a list.
const MAX_LISTED: u32 = 200;
const MAX_LABEL: usize = 64;
/// Least lifetime, seconds.
const MIN_LIFETIME_S: u32 = 10;

/// A session to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSession {
    /// Name of a server with a load (`GET /targets`).
    #[schema(min_length = 1, max_length = 64, pattern = "^[a-z0-9][a-z0-9._-]{0,63}$")]
    pub command: String,
    #[serde(default)]
    pub params: BTreeMap<String, ParamValue>,
    #[serde(default, deserialize_with = "Within::<1, 16>::optional")]
    #[schema(minimum = 1, maximum = 16)]
    pub gpus: Option<u32>,
    #[serde(default = "device")]
    #[schema(
        default = "auto",
        pattern = "^(auto|cpu|cuda:(0|[1-9][0-9]?)\
                   |(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\
                   |[a-z][a-z0-9._-]{1,63})$"
    )]
    pub device: String,
    /// Counts from the start of the server.
    #[serde(default, deserialize_with = "Within::<10, 28_800>::optional")]
    #[schema(minimum = 10, maximum = 28_800)]
    pub lifetime_s: Option<u32>,
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub label: Option<String>,
    /// Fixes the traced APIs and the granularity of CUDA graphs.
    #[serde(default = "mode")]
    #[schema(default = "deep")]
    pub mode: Mode,
}

fn device() -> String {
    "auto".into()
}

fn mode() -> Mode {
    Mode::DEEP
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    pub session_id: SessionId,
    pub state: SessionState,
    pub owner: Option<String>,
    pub command: String,
    pub params: BTreeMap<String, ParamValue>,
    pub label: Option<String>,
    /// As requested.
    pub device: String,
    pub devices: Vec<String>,
    pub lifetime_s: u32,
    pub created_at: String,
    /// Start of its server.
    pub started_at: Option<String>,
    pub ready_at: Option<String>,
    pub ended_at: Option<String>,
    pub expires_at: String,
    /// Submitted runs.
    pub runs: u64,
    #[schema(value_type = Option<uuid::Uuid>)]
    pub running: Option<RunId>,
    /// Why it ended.
    pub message: Option<String>,
    /// Last lines of its server once it has ended.
    pub log: Option<String>,
}

impl From<StoredSession> for SessionView {
    fn from(it: StoredSession) -> Self {
        Self {
            session_id: it.id,
            state: it.state,
            owner: it.owner,
            command: it.spec.call.command,
            params: it.spec.call.params,
            label: it.spec.label,
            device: it.spec.device,
            devices: it.devices,
            lifetime_s: it.spec.lifetime_s,
            created_at: it.created_at,
            started_at: it.started_at,
            ready_at: it.ready_at,
            ended_at: it.ended_at,
            expires_at: it.expires_at,
            runs: it.runs,
            running: it.running,
            message: it.message,
            log: it.log,
        }
    }
}

/// An example without the fields that may be `null`.
fn example() -> serde_json::Value {
    json!({
        "session_id": "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45", "state": "starting",
        "command": "vllm-serve", "params": {}, "device": "auto", "devices": [],
        "lifetime_s": 3600, "created_at": "2026-11-20T09:00:00.000Z",
        "expires_at": "2026-11-20T10:00:00.000Z", "runs": 0,
    })
}

/// Sessions, active ones first, then newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    pub sessions: Vec<SessionView>,
}

/// Start a server that stays and holds its device, so that runs record windows of it
#[utoipa::path(post, path = "/sessions", tag = "runs", operation_id = "start_session",
    request_body(content = StartSession, example = json!({ "command": "vllm-serve" })),
    responses(
        (status = 202, description = "It starts", body = SessionView,
            example = json!(example())),
        GuardedErrors, InvalidBody, SubjectNotFound, BodyErrors, SubmissionConflict, InvalidRequest,
        QueueLimit, InsufficientStorage))]
pub async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<SessionView>), ApiError> {
    let body = read_json(&headers, body, MAX_BODY).await?;
    Ok((StatusCode::ACCEPTED, Json(start_session(&app, &caller, &body).await?)))
}

/// Checks the body and stores the session to start.
pub(crate) async fn start_session(
    app: &App,
    caller: &Caller,
    body: &[u8],
) -> Result<SessionView, ApiError> {
    let spec = check(app, parse_object(body)?)?;
    check_free_space(app)?;
    let per_owner = app.config.sessions.per_owner;
    let new = NewSession { id: None, spec, owner: caller.name.clone(), per_owner };
    match app.store.start_session(&new).await? {
        StartedSession::New(session) => {
            app.queued.notify_waiters();
            Ok((*session).into())
        }
        StartedSession::TooMany(active) => {
            let owner =
                caller.name.as_ref().map_or_else(|| "the service".into(), |it| format!("{it:?}"));
            let message = format!(
                "session limit reached: {owner} already has {active} sessions \
                 (sessions.per_owner); end one"
            );
            Err(ApiError::new(ErrorCode::TooManySessions, message).retry_after(60))
        }
    }
}

/// Checks a request and fills in the defaults.
fn check(app: &App, start: StartSession) -> Result<SessionSpec, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    if app.config.executor.kind == ExecutorKind::Slurm {
        let message = "no sessions on a cluster: its scheduler ends a job with its run; submit \
                       runs of the command, each of which starts the server";
        return Err(invalid(message.into()));
    }
    let settings = &app.config.sessions;
    let lifetime_s = start.lifetime_s.unwrap_or(settings.lifetime_s.min(settings.max_lifetime_s));
    check_range("lifetime_s", lifetime_s, MIN_LIFETIME_S..=settings.max_lifetime_s)?;
    if let Some(label) = &start.label {
        check_text("label", label, 1..=MAX_LABEL)?;
    }
    let StartSession { command, params, gpus, device, label, mode, .. } = start;
    let call = CommandCall { command, params, gpus, session: None };
    call.check_form().map_err(invalid)?;
    check_device(app, &device)?;
    let command = find_command(app, &call.command)?;
    if let Some(why) = command.session_refusal() {
        let message = format!("command {}: {why}", call.command);
        return Err(ApiError::new(ErrorCode::RequestContradictory, message));
    }
    let plan = command
        .plan(&call, &app.models)
        .map_err(|error| ApiError::new(ErrorCode::ParamsUnfit, error.to_string()))?;
    check_gpu_count(app, &device, plan.gpus)?;
    let preset = app.presets.get(&mode).ok_or_else(|| {
        ApiError::new(ErrorCode::ModeNotFound, format!("no mode {mode}; see GET /profiling"))
    })?;
    check_sampling(app, &preset.profiling.nsys)?;
    let gpus = Some(plan.gpus).filter(|gpus| *gpus > 0);
    let call = CommandCall { params: plan.params, gpus, ..call };
    Ok(SessionSpec { call, device, lifetime_s, label, nsys: preset.profiling.nsys.clone() })
}

/// List sessions, active ones first
#[utoipa::path(get, path = "/sessions", tag = "runs", operation_id = "list_sessions",
    responses(
        (status = 200, description = "At most 200 sessions", body = SessionList,
            example = json!({ "sessions": [] })),
        GuardedErrors))]
pub async fn list(State(app): State<App>) -> Result<Json<SessionList>, ApiError> {
    page(&app).await.map(Json)
}

/// The list, for pages.
pub(crate) async fn page(app: &App) -> Result<SessionList, ApiError> {
    let sessions = app.store.sessions(MAX_LISTED).await?;
    Ok(SessionList { sessions: sessions.into_iter().map(SessionView::from).collect() })
}

/// Show a session
#[utoipa::path(get, path = "/sessions/{session_id}", tag = "runs", operation_id = "show_session",
    params(("session_id" = SessionId, Path)),
    responses(
        (status = 200, description = "The session", body = SessionView,
            example = json!(example())),
        GuardedErrors, InvalidParameter, SessionNotFound))]
pub async fn show(
    State(app): State<App>,
    SessionPath(id): SessionPath,
) -> Result<Json<SessionView>, ApiError> {
    Ok(Json(find(&app, id).await?.into()))
}

/// End a session: its server is stopped after the run that uses it, and its queued runs fail
#[utoipa::path(delete, path = "/sessions/{session_id}", tag = "runs", operation_id = "end_session",
    params(("session_id" = SessionId, Path)),
    responses(
        (status = 204, description = "It ends, or has ended"),
        GuardedErrors, InvalidParameter, SessionNotFound, InsufficientStorage))]
pub async fn end(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SessionPath(id): SessionPath,
) -> Result<StatusCode, ApiError> {
    request_end(&app, &caller, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Requests the end of a session of the caller.
pub(crate) async fn request_end(app: &App, caller: &Caller, id: SessionId) -> Result<(), ApiError> {
    let session = find(app, id).await?;
    check_owner(caller, "session", session.owner)?;
    match app.store.request_session_end(id).await? {
        SessionEndRequest::Requested => {
            app.cancelled.notify_waiters();
            Ok(())
        }
        SessionEndRequest::Ended | SessionEndRequest::AlreadyEnded => Ok(()),
        SessionEndRequest::NotFound => Err(not_found(id)),
    }
}

/// Returns the session, or a 404.
pub(crate) async fn find(app: &App, id: SessionId) -> Result<StoredSession, ApiError> {
    app.store.session(id).await?.ok_or_else(|| not_found(id))
}

fn not_found(id: SessionId) -> ApiError {
    ApiError::new(ErrorCode::SessionNotFound, format!("no session {id}; see GET /sessions"))
}
