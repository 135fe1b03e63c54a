//! `POST /runs`: checks the request, queues the run durably, then answers.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{RunLinks, example, submissions::SubmitRun, submit_command, submit_model};
use crate::{
    domain::{ids::RunId, state::RunState, subject::RunSpec},
    http::{
        api::metrics::free_bytes,
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody, InvalidInputs,
                QueueLimit, SubjectNotFound, SubmissionConflict,
            },
        },
        extract::{
            body::{parse_object, read_json},
            idempotency,
        },
        state::App,
    },
    store::{NewRun, StoredRun, Submitted},
};

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedRun {
    pub run_id: RunId,
    pub state: RunState,
    /// 1 is next; `null` once the run has left the queue.
    pub queue_position: Option<u64>,
    pub links: RunLinks,
}

impl From<StoredRun> for SubmittedRun {
    fn from(run: StoredRun) -> Self {
        let StoredRun { id, state, queue_position, .. } = run;
        Self { run_id: id, state, queue_position, links: RunLinks::of(id) }
    }
}

/// Queue a run
///
/// The run is on disk when the answer arrives. With `Idempotency-Key`, a repeated submission of the
/// same body returns the same run.
#[utoipa::path(post, path = "/runs", tag = "runs", operation_id = "submit_run",
    params(("Idempotency-Key" = Option<String>, Header, pattern = "^[!-~]{1,255}$",
        description = "1 to 255 visible ASCII characters that identify this submission")),
    request_body(content = SubmitRun, examples(
        ("shortest" = (summary = "Defaults", value = json!({ "model": "deepseek-ocr-tiny" }))),
        ("settings" = (summary = "A mode with changed settings of its passes", value = json!({
            "model": "deepseek-ocr",
            "profiling": {
                "nsys": { "cuda_graph_trace": "graph" },
                "ncu": { "top_n": 3, "sections": ["SpeedOfLight", "LaunchStats"] },
            },
        }))),
        ("aligned" = (
            summary = "A part of a model, aligned with the same part inside the whole model; the \
                       mock differs on purpose",
            value = json!({
                "model": "deepseek-ocr-tiny", "target": "decoder.layers.3.self_attn",
                "align_with": "e2e",
                "mock": { "dtype": "f32", "decode_graph": false, "prompt_tokens": 128 },
            }))),
        ("command" = (summary = "A command that this host allows", value = json!({
            "target": {
                "command": "tiny-generate", "params": { "tokens": 8, "prompt": "Hello" },
            },
            "mode": "light", "repeats": 2, "warmup": 0,
        }))),
        ("everything" = (summary = "Every setting", value = json!(example::full_submission()))))),
    responses(
        (status = 202, description = "The run is queued", body = SubmittedRun,
            headers(("Location" = String, description = "Path of the run")),
            example = json!(example::submitted())),
        GuardedErrors, InvalidBody, SubjectNotFound, BodyErrors, SubmissionConflict, InvalidInputs,
        QueueLimit, InsufficientStorage))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let key = idempotency::key(&headers)?;
    let body = read_json(&headers, body).await?;
    Ok(accepted(queue(&app, caller, &body, key).await?))
}

/// The response to an accepted submission.
pub(crate) fn accepted(run: StoredRun) -> impl IntoResponse {
    let answer = SubmittedRun::from(run);
    let location = AppendHeaders([(header::LOCATION, answer.links.run.clone())]);
    (StatusCode::ACCEPTED, location, Json(answer))
}

/// Checks a request and queues its run. A repeated key and body return the run of the first time.
pub(crate) async fn queue(
    app: &App,
    caller: Caller,
    body: &[u8],
    key: Option<String>,
) -> Result<StoredRun, ApiError> {
    let spec = check(app, body).await?;
    check_free_space(app)?;
    let new = NewRun {
        id: None,
        spec,
        idempotency: idempotency::of_body(key, body),
        owner: app.access.owner(&caller),
    };
    let run = accepted_run(app.store.submit(new).await?, &caller)?;
    app.queued.notify_waiters();
    Ok(run)
}

/// Returns the run that was submitted, or the error of a refused submission.
pub(crate) fn accepted_run(submitted: Submitted, caller: &Caller) -> Result<StoredRun, ApiError> {
    let name = caller.name.as_deref().unwrap_or_default();
    match submitted {
        Submitted::New(run) | Submitted::Same(run) => Ok(*run),
        Submitted::KeyReused => Err(ApiError::of(ErrorCode::IdempotencyKeyReused)),
        Submitted::TooManyQueued(runs) => {
            let message = format!(
                "queue limit reached: {name:?} already has {runs} queued runs; \
                 cancel some or retry later"
            );
            Err(ApiError::new(ErrorCode::TooManyQueued, message).retry_after(60))
        }
        Submitted::DiskFull(bytes) => {
            let message =
                format!("disk quota exceeded: {name:?} stores {bytes} bytes; delete some runs");
            Err(ApiError::new(ErrorCode::DiskQuota, message))
        }
    }
}

/// Refuses a run that would fail for lack of disk space.
fn check_free_space(app: &App) -> Result<(), ApiError> {
    let required = app.config.limits.free_bytes;
    match free_bytes(&app.runs) {
        Some(free) if free < required => {
            let message = format!(
                "low disk space: {free} bytes free, limits.free_bytes requires {required}; \
                 delete some runs"
            );
            Err(ApiError::new(ErrorCode::DiskFull, message).retry_after(60))
        }
        _ => Ok(()),
    }
}

/// Checks a submission of either form and fills in the defaults.
async fn check(app: &App, body: &[u8]) -> Result<RunSpec, ApiError> {
    if is_command(body) {
        submit_command::check(app, parse_object(body)?)
    } else {
        submit_model::check(app, parse_object(body)?).await
    }
}

/// Returns true if a body names a command, whose fields differ from those of a model.
fn is_command(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct KindPeek {
        target: Option<serde_json::Value>,
    }
    serde_json::from_slice::<KindPeek>(body)
        .is_ok_and(|peek| peek.target.is_some_and(|target| target.is_object()))
}
