//! `POST /runs`: checks the request, queues the run durably, then answers.

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse, Response},
};
use llmprof_core::domain::{ids::RunId, state::RunState, subject::RunSpec};
use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    RunLinks,
    checks::unknown_inputs,
    dry_run::{self, DryRun},
    example,
    submissions::SubmitRun,
    submit_command, submit_model, submit_session,
};
use crate::{
    artifact::free_space,
    http::{
        api::inputs::{self, pending::PendingInputs},
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GuardedErrors, InsufficientStorage, InvalidBody, InvalidInputs,
                SubjectNotFound, SubmissionConflict, Unavailable, UploadLimit,
            },
        },
        extract::{
            body::{MAX_BODY, content_length, parse_object, read_json},
            idempotency,
        },
        state::App,
    },
    store::{IdempotencyKey, NewRun, StoredRun, Submitted},
};

/// Bytes of a body with images: 8 MiB as base64, and the rest.
const MAX_INLINE_BODY: usize = 12 << 20;

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedRun {
    pub run_id: RunId,
    pub state: RunState,
    /// 1 is next; `null` once the run has left the queue.
    pub queue_position: Option<u64>,
    pub links: RunLinks,
    /// Reason of a late answer to an upload, whose files are checked before; absent without a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "the check of the files took 14 s: it waits while a pass measures, up to \
                        20 s")]
    pub waited: Option<String>,
}

impl From<StoredRun> for SubmittedRun {
    fn from(run: StoredRun) -> Self {
        let StoredRun { id, state, queue_position, .. } = run;
        Self { run_id: id, state, queue_position, links: RunLinks::of(id), waited: None }
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
                "ncu": { "max_launches": 30, "sections": ["SpeedOfLight", "LaunchStats"] },
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
        ("inline" = (summary = "A prompt of its own", value = json!({
            "model": "deepseek-ocr-tiny", "inputs": { "prompt": "Describe a GPU.", "images": [] },
        }))),
        ("everything" = (summary = "Every setting", value = json!(example::full_submission()))))),
    responses(
        (status = 202, description = "The run is queued", body = SubmittedRun,
            headers(("Location" = String, description = "Path of the run")),
            example = json!(example::submitted())),
        (status = 200, description = "The submission was only checked (`dry_run`)", body = DryRun,
            example = json!(DryRun::example())),
        GuardedErrors, InvalidBody, SubjectNotFound, BodyErrors, SubmissionConflict, InvalidInputs,
        UploadLimit, Unavailable, InsufficientStorage))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let key = idempotency::key(&headers)?;
    // A large body takes the place of an upload.
    let is_large = content_length(&headers).is_some_and(|length| length > MAX_BODY as u64);
    let _slot = if is_large { Some(app.access.upload_slot(&caller)?) } else { None };
    let max = if is_large { MAX_INLINE_BODY } else { MAX_BODY };
    let body = read_json(&headers, body, max).await?;
    let checked = check(&app, &caller, &body, None).await?;
    if checked.dry_run {
        check_free_space(&app)?;
        return Ok(dry_run::answer(&app, checked.spec).await?.into_response());
    }
    let idempotency = idempotency::of_body(key, &body);
    let run = queue_checked(&app, caller, checked, idempotency).await?;
    Ok(accepted(run, None).into_response())
}

/// A checked submission.
#[derive(Debug)]
pub(crate) struct CheckedRun {
    pub spec: RunSpec,
    /// Inputs to be stored before the run is queued.
    pub inputs: Option<PendingInputs>,
    pub dry_run: bool,
}

/// The response to an accepted submission.
pub(crate) fn accepted(run: StoredRun, waited: Option<String>) -> impl IntoResponse {
    let answer = SubmittedRun { waited, ..run.into() };
    let location = AppendHeaders([(header::LOCATION, answer.links.run.clone())]);
    (StatusCode::ACCEPTED, location, Json(answer))
}

/// Checks a form's request and queues its run. A repeated key and body return the run of the first
/// time. `uploaded`: inputs of the form.
pub(crate) async fn queue(
    app: &App,
    caller: Caller,
    body: &[u8],
    key: Option<String>,
    uploaded: Option<PendingInputs>,
) -> Result<StoredRun, ApiError> {
    let checked = check(app, &caller, body, uploaded).await?;
    queue_checked(app, caller, checked, idempotency::of_body(key, body)).await
}

/// Stores the inputs of a checked run, and queues it.
async fn queue_checked(
    app: &App,
    caller: Caller,
    checked: CheckedRun,
    idempotency: Option<IdempotencyKey>,
) -> Result<StoredRun, ApiError> {
    check_free_space(app)?;
    // A task of its own: inputs are stored together with their run even if the client leaves now.
    let queued = tokio::spawn({
        let (app, caller) = (app.clone(), caller.clone());
        async move { store_and_submit(&app, &caller, checked, idempotency).await }
    });
    let submitted = queued.await.map_err(|error| ApiError::internal(&error))??;
    let run = accepted_run(submitted, &caller)?;
    app.queued.notify_waiters();
    Ok(run)
}

/// Stores inputs and submits the run; inputs of a refused run are removed.
async fn store_and_submit(
    app: &App,
    caller: &Caller,
    checked: CheckedRun,
    idempotency: Option<IdempotencyKey>,
) -> Result<Submitted, ApiError> {
    let CheckedRun { mut spec, inputs: pending, .. } = checked;
    let mut added = None;
    if let Some(pending) = pending {
        let stored = pending.store(app, caller.name.clone()).await?;
        spec.set_inputs(stored.id.to_string());
        added = stored.is_new.then_some(stored.id);
    }
    let new = NewRun { id: None, spec, idempotency, owner: app.access.owner(caller) };
    let submitted = app.store.submit(new).await;
    if let (Some(id), false) = (added, matches!(submitted, Ok(Submitted::New(_)))) {
        inputs::remove(app, id).await?;
    }
    Ok(submitted?)
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
        Submitted::NoInputs(id) => Err(unknown_inputs(&id.to_string())),
        Submitted::SessionEnded(id) => Err(submit_session::ended(id, "has ended")),
    }
}

/// Refuses a run that would fail for lack of disk space.
pub(crate) fn check_free_space(app: &App) -> Result<(), ApiError> {
    free_space::for_submission(&app.runs, app.config.limits.free_bytes)
        .map_err(|low| ApiError::new(ErrorCode::DiskFull, low.to_string()).retry_after(60))
}

/// Checks a submission of either form and fills in the defaults.
pub(crate) async fn check(
    app: &App,
    caller: &Caller,
    body: &[u8],
    uploaded: Option<PendingInputs>,
) -> Result<CheckedRun, ApiError> {
    if names_command(body)? {
        submit_command::check(app, caller, parse_object(body)?).await
    } else {
        submit_model::check(app, parse_object(body)?, uploaded).await
    }
}

/// Returns true if a body names a command in place of a model: the two have other fields. Refuses a
/// body that names neither, or both.
fn names_command(body: &[u8]) -> Result<bool, ApiError> {
    #[derive(Deserialize)]
    struct NamedSubject {
        model: Option<IgnoredAny>,
        target: Option<Value>,
    }
    let NamedSubject { model, target } = parse_object(body)?;
    let is_command = target.as_ref().is_some_and(Value::is_object);
    let refused = match (model.is_some(), is_command) {
        (true, false) | (false, true) => return Ok(is_command),
        (false, false) if target.is_some() => {
            "missing field `model`: a `target` that is a text is a part of a model, as in \
             {\"model\": \"deepseek-ocr-tiny\", \"target\": \"decoder.layers.1.mlp\"}"
        }
        (false, false) => {
            "missing field `model` (see GET /models) or `target` (a command, see GET /targets), \
             as in {\"model\": \"deepseek-ocr-tiny\"} or \
             {\"target\": {\"command\": \"tiny-generate\"}}"
        }
        (true, true) => {
            "`model` and a command as `target` exclude each other: omit one, or name a part of \
             the model, as in \
             {\"model\": \"deepseek-ocr-tiny\", \"target\": \"decoder.layers.1.mlp\"}"
        }
    };
    Err(ApiError::new(ErrorCode::InvalidRequest, refused))
}
