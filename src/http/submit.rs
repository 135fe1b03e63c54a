//! `POST /runs`: checked whole, queued durably, then answered.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use axum::{
    Extension, Json,
    body::{Body, to_bytes},
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::{
    App,
    access::Caller,
    error::{ApiError, ErrorCode},
    metrics::free_bytes,
    runs::Links,
    submissions::{PassesRequest, SubmitRun},
    submit_model, targets,
};
use crate::{
    artifact::inputs::InputsError,
    run::{Common, Dtype, RunId, RunSpec, RunState, subject::Passes},
    store::{Idempotency, NewRun, Run, Submitted},
    trace::device::{Device, is_device, is_model},
};

const MAX_BODY: usize = 1 << 20;
pub(super) const BODY_TIME: Duration = Duration::from_secs(10);
const MAX_LABELS: usize = 16;
const MAX_LABEL: usize = 64;

/// A word to find runs by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", example = "nightly")]
pub struct Label(pub String);

/// The answer to a submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmittedRun {
    pub run_id: RunId,
    pub state: RunState,
    /// 1 is next; `null` once the run has left the queue.
    pub queue_position: Option<u64>,
    pub links: Links,
}

/// Queue a run
///
/// When the answer arrives, the run is on disk. With `Idempotency-Key`, a repeated submission of the same body gives the same run.
#[utoipa::path(
    post, path = "/runs", tag = "runs", operation_id = "submit_run",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters: names this submission", pattern = "^[!-~]{1,255}$")),
    request_body = SubmitRun,
    responses((status = 202, description = "The run is queued", body = SubmittedRun,
        headers(("Location" = String, description = "Where the run is"))))
)]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<impl IntoResponse, ApiError> {
    let key = idempotency_key(&headers)?;
    let body = read_body(&headers, body).await?;
    let Run { id: run_id, state, queue_position, .. } = queue(&app, caller, &body, key).await?;
    let answer = SubmittedRun { run_id, state, queue_position, links: Links::of(run_id) };
    Ok((StatusCode::ACCEPTED, AppendHeaders([(header::LOCATION, format!("/runs/{run_id}"))]), Json(answer)))
}

/// Checks a request whole and queues its run; a key that came before with the same body gives the run that it gave then.
pub(super) async fn queue(app: &App, caller: Caller, body: &[u8], key: Option<String>) -> Result<Run, ApiError> {
    let spec = check(app, body).await?;
    has_room(app)?;
    let idempotency = key.map(|key| Idempotency { key, body_sha256: Sha256::digest(body).into() });
    let owner = app.access.owner(&caller);
    let name = caller.name.unwrap_or_default();
    let run = refused(app.store.submit(NewRun { id: None, spec, idempotency, owner }).await?, &name)?;
    app.queued.notify_waiters();
    Ok(*run)
}

/// The run that was submitted, or why it was refused to `name`.
pub(super) fn refused(submitted: Submitted, name: &str) -> Result<Box<Run>, ApiError> {
    match submitted {
        Submitted::New(run) | Submitted::Same(run) => Ok(run),
        Submitted::KeyReused => Err(ApiError::new(ErrorCode::IdempotencyKeyReused, ErrorCode::IdempotencyKeyReused.example())),
        Submitted::TooManyQueued(runs) => {
            let message = format!("{runs} runs of {name:?} wait already: cancel some, or wait for their end");
            Err(ApiError::new(ErrorCode::TooManyQueued, message).retry_after(60))
        }
        Submitted::DiskFull(bytes) => {
            let message = format!("the runs of {name:?} take {bytes} bytes, which is their share: delete some");
            Err(ApiError::new(ErrorCode::DiskQuota, message))
        }
    }
}

/// Refuses a run that the disk has no room for: one that is carried out anyway could only fail.
fn has_room(app: &App) -> Result<(), ApiError> {
    let least = app.config.limits.free_bytes;
    match free_bytes(&app.runs) {
        Some(free) if free < least => {
            let message =
                format!("the disk of the runs has {free} bytes free, and {least} (limits.free_bytes) have to be: delete runs");
            Err(ApiError::new(ErrorCode::DiskFull, message).retry_after(60))
        }
        _ => Ok(()),
    }
}

pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let good = |key: &&str| (1..=255).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    let key = value.to_str().ok().filter(good).map(|key| Some(key.to_owned()));
    key.ok_or_else(|| ApiError::new(ErrorCode::InvalidParameter, "Idempotency-Key: 1 to 255 visible ASCII characters are taken"))
}

pub(super) async fn read_body(headers: &HeaderMap, body: Body) -> Result<axum::body::Bytes, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" {
        return Err(ApiError::new(ErrorCode::UnsupportedMediaType, ErrorCode::UnsupportedMediaType.example()));
    }
    let too_large = || ApiError::new(ErrorCode::BodyTooLarge, format!("the body is larger than {MAX_BODY} bytes"));
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_TIME, to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(too_large()),
        Err(_) => {
            Err(ApiError::new(ErrorCode::BodyTimeout, format!("the body did not arrive within {} seconds", BODY_TIME.as_secs())))
        }
    }
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let malformed = |error: &serde_json::Error| ApiError::new(ErrorCode::MalformedBody, format!("the body is not JSON: {error}"));
    let mut reader = serde_json::Deserializer::from_slice(body);
    // The path tells which field was wrong, where serde_json alone tells a column.
    let asked = serde_path_to_error::deserialize(&mut reader).map_err(|error| match error.inner().classify() {
        serde_json::error::Category::Data => ApiError::new(ErrorCode::InvalidRequest, error.to_string()),
        _ => malformed(error.inner()),
    })?;
    reader.end().map_err(|error| malformed(&error))?;
    // A derived reader takes a list of a struct's fields, too; the contract does not.
    if body.trim_ascii_start().starts_with(b"{") {
        Ok(asked)
    } else {
        Err(ApiError::new(ErrorCode::InvalidRequest, "the body is no JSON object"))
    }
}

/// Checks a request of either form, and fills in what was left open.
async fn check(app: &App, body: &[u8]) -> Result<RunSpec, ApiError> {
    if is_command(body) { targets::check(app, parse(body)?) } else { submit_model::check(app, parse(body)?).await }
}

/// Whether a body names a command: then every field is checked as those of a command.
fn is_command(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Peek {
        target: Option<serde_json::Value>,
    }
    serde_json::from_slice::<Peek>(body).is_ok_and(|peek| peek.target.is_some_and(|target| target.is_object()))
}

/// The settings that submissions of both forms have, checked as far as their subject does not matter.
pub(super) fn common(app: &App, it: &PassesRequest) -> Result<(Passes, Common), ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    within("repeats", it.repeats, 1..=100)?;
    within("warmup", it.warmup, 0..=100)?;
    within("timeout_s", it.timeout_s, 1..=1800)?;
    within("priority", it.priority, -100..=100)?;
    check_labels(&it.labels)?;
    check_device(app, &it.device)?;
    let preset = app.presets.get(&it.mode).ok_or_else(|| invalid(format!("mode {} is not configured", it.mode)))?;
    let profiling = preset.changed(it.profiling.clone()).map_err(|error| invalid(format!("profiling: {error}")))?;
    let passes =
        Passes { mode: it.mode, repeats: it.repeats, warmup: it.warmup, device: it.device.clone(), profiling: Some(profiling) };
    let common = Common { labels: each_once(it.labels.clone()), priority: it.priority, timeout_s: it.timeout_s };
    Ok((passes, common))
}

/// Each label once, in order.
pub(super) fn each_once(labels: Vec<Label>) -> Vec<String> {
    labels.into_iter().collect::<BTreeSet<_>>().into_iter().map(|Label(label)| label).collect()
}

/// Checks what a schema says of labels.
pub(super) fn check_labels(labels: &[Label]) -> Result<(), ApiError> {
    within("labels", labels.len(), 0..=MAX_LABELS)?;
    for Label(label) in labels {
        within("length of a label", label.chars().count(), 1..=MAX_LABEL)?;
        if label.chars().any(char::is_control) {
            return Err(ApiError::new(ErrorCode::InvalidRequest, format!("label {label:?} holds a control character")));
        }
    }
    Ok(())
}

pub(super) fn within<T: PartialOrd + std::fmt::Display>(name: &str, value: T, range: RangeInclusive<T>) -> Result<(), ApiError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{name}: {value} is not between {} and {}", range.start(), range.end());
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

/// Refuses a device that is not one, or that no worker has.
fn check_device(app: &App, device: &str) -> Result<(), ApiError> {
    if !is_device(device) && !is_model(device) {
        let message = format!("invalid device {device:?}; expected auto, cpu, cuda:INDEX, a UUID or a GPU model");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    if !app.accepts.is_empty() && !app.accepts.iter().any(|it| it == device) {
        let message = format!("the cluster has no device {device}; there is {}", app.accepts.join(", "));
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    if serving(app, device).next().is_none() && !app.devices.is_empty() {
        let names: Vec<&str> = app.devices.iter().map(|device| device.name.as_str()).collect();
        let message = format!("no worker has the device {device}; there is {}", names.join(", "));
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    Ok(())
}

/// Devices of this service that may take a run.
fn serving<'a>(app: &'a App, device: &'a str) -> impl Iterator<Item = &'a Device> {
    app.devices.iter().filter(move |it| it.serves(device))
}

/// Refuses bf16 where only the CPU may take the run.
pub(super) fn check_dtype(app: &App, device: &str, dtype: Option<Dtype>) -> Result<(), ApiError> {
    let mut may = serving(app, device).peekable();
    if dtype == Some(Dtype::Bf16) && may.peek().is_some() && may.all(Device::is_cpu) {
        return Err(ApiError::new(ErrorCode::DtypeUnavailable, ErrorCode::DtypeUnavailable.example()));
    }
    Ok(())
}

/// Of the host a client learns only what it named itself.
pub(super) fn refuse_inputs(name: &str, error: &InputsError) -> ApiError {
    match error {
        InputsError::NotFound(_) => ApiError::new(ErrorCode::InputsNotFound, error.to_string()),
        // Whether there is something outside the folder is nobody's business.
        InputsError::Outside(outside) if outside == name => {
            ApiError::new(ErrorCode::InputsNotFound, format!("there is no {name} in the inputs folder"))
        }
        InputsError::Outside(_) | InputsError::NotAManifest { .. } | InputsError::BadImage { .. } => {
            ApiError::new(ErrorCode::InputsInvalid, error.to_string())
        }
        InputsError::Read { .. } => ApiError::internal(error),
    }
}
