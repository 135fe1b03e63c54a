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
    models::find_model,
    runs::Links,
    target, targets,
};
use crate::{
    artifact::inputs::{self, InputsError},
    profiling::{Change, Profiling},
    run::{
        Dtype, Mode, RunId, RunSpec, RunState,
        import::NO_DEVICE,
        target::{AlignWith, MockChange, Target},
        whole::{MAX_EXACT, maybe_object, whole},
    },
    store::{Idempotency, NewRun, Run, Submitted},
    trace::device::{Device, is_device, is_model},
};

const MAX_BODY: usize = 1 << 20;
pub(super) const BODY_TIME: Duration = Duration::from_secs(10);
const MAX_LABELS: usize = 16;
const MAX_LABEL: usize = 64;
const MAX_NAME: usize = 200;

/// A run to be queued. Only `model` is required, and not even that where `target` names it or is a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRun {
    /// Name of a configured model (`GET /models`).
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, example = "deepseek-ocr-tiny")]
    pub model: Option<String>,
    /// Profile only this part of the model: `decoder.layers.3.self_attn`, or `MODEL:decoder.layers.3.self_attn` without `model`. The parts of a
    /// decoder are its layers and their `self_attn` and `mlp`; of a vision side `vision.sam`, `vision.clip`, and their blocks and layers.
    /// Or profile a command that this host allows in place of a model (`GET /targets`): `{"command": "NAME", "params": {}}`; then `model`,
    /// `inputs_manifest`, `dtype`, `align_with` and `mock` are left out, and each repeat is a process of its own, or a client's.
    #[serde(default)]
    pub target: Option<Target>,
    /// `e2e`: profile the whole model, and beside it the part alone (the mock) and taken out of its layer (extracted), with the same inputs;
    /// the run ends in reports on whether the mock launches what the model launches there. Needs `target` and a mode with a timeline.
    #[serde(default)]
    pub align_with: Option<AlignWith>,
    /// Make the mock differ on purpose: is it still what the model runs? Needs `align_with`.
    #[serde(default, deserialize_with = "maybe_object")]
    pub mock: Option<MockChange>,
    /// Manifest of inputs, relative to the service's inputs folder. When absent, the bundled page, `inputs.yaml`; for a model that
    /// reads text only, the bundled text, `inputs-text.yaml`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 200, example = "inputs.yaml")]
    pub inputs_manifest: Option<String>,
    /// How much to collect.
    #[serde(default = "defaults::mode")]
    #[schema(default = "deep")]
    pub mode: Mode,
    /// Measured repetitions of the plain run.
    #[serde(default = "defaults::repeats", deserialize_with = "whole")]
    #[schema(default = 3, minimum = 1, maximum = 100)]
    pub repeats: u32,
    /// Unmeasured repetitions before them.
    #[serde(default = "defaults::warmup", deserialize_with = "whole")]
    #[schema(default = 2, minimum = 0, maximum = 100)]
    pub warmup: u32,
    /// Tokens to generate after prefill.
    #[serde(default = "defaults::max_new_tokens", deserialize_with = "whole")]
    #[schema(default = 64, minimum = 1, maximum = 4096)]
    pub max_new_tokens: u32,
    /// Seed of synthetic weights.
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0, minimum = 0, maximum = 9007199254740991i64)]
    pub seed: u64,
    /// Number format; the model's default for the device when absent.
    #[serde(default)]
    pub dtype: Option<Dtype>,
    /// `auto`, `cpu`, `cuda:INDEX` in the order of nvidia-smi, the UUID of a GPU or of an instance of one, or the model of either
    /// (`GET /devices`).
    #[serde(default = "defaults::device")]
    #[schema(
        default = "auto",
        pattern = "^(auto|cpu|cuda:(0|[1-9][0-9]?)|(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z][a-z0-9._-]{1,63})$"
    )]
    pub device: String,
    /// Limit on the whole run, in seconds.
    #[serde(default = "defaults::timeout_s", deserialize_with = "whole")]
    #[schema(default = 1800, minimum = 1, maximum = 1800)]
    pub timeout_s: u32,
    /// Free words to find the run by: up to 16, each up to 64 characters, none of them a control character.
    #[serde(default)]
    #[schema(max_items = 16, inline)]
    pub labels: Vec<Label>,
    /// Higher runs first. A run that waits gains one point in ten minutes.
    #[serde(default, deserialize_with = "whole")]
    #[schema(default = 0, minimum = -100, maximum = 100)]
    pub priority: i32,
    /// Single settings of the passes that go over the mode's (`GET /profiling`).
    #[serde(default, deserialize_with = "maybe_object")]
    #[schema(value_type = Option<Profiling>)]
    pub profiling: Option<Change>,
}

/// A word to find runs by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(min_length = 1, max_length = 64, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$", example = "nightly")]
pub struct Label(pub String);

pub(super) mod defaults {
    use crate::run::Mode;

    pub fn inputs_manifest(reads_images: bool) -> String {
        if reads_images { "inputs.yaml" } else { "inputs-text.yaml" }.into()
    }
    pub fn mode() -> Mode {
        Mode::Deep
    }
    pub fn repeats() -> u32 {
        3
    }
    pub fn warmup() -> u32 {
        2
    }
    pub fn max_new_tokens() -> u32 {
        64
    }
    pub fn device() -> String {
        "auto".into()
    }
    pub fn timeout_s() -> u32 {
        1800
    }
}

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
    let spec = check(app, parse(body)?).await?;
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

/// Checks all that a schema can and cannot say, and fills in what was left open.
async fn check(app: &App, run: SubmitRun) -> Result<RunSpec, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    within("repeats", run.repeats, 1..=100)?;
    within("warmup", run.warmup, 0..=100)?;
    within("max_new_tokens", run.max_new_tokens, 1..=4096)?;
    within("seed", run.seed, 0..=MAX_EXACT)?;
    within("timeout_s", run.timeout_s, 1..=1800)?;
    within("priority", run.priority, -100..=100)?;
    check_labels(&run.labels)?;
    if let Some(Target::Command(call)) = run.target.clone() {
        return targets::check(app, run, &call);
    }
    let (name, part) = target::model_and_part(&run)?;
    within("length of model", name.chars().count(), 1..=MAX_NAME)?;
    if let Some(manifest) = &run.inputs_manifest {
        within("length of inputs_manifest", manifest.chars().count(), 1..=MAX_NAME)?;
    }
    check_device(app, &run)?;
    let model = find_model(app, &name)?;
    let reads_images = model.vision.is_some();
    let inputs_manifest = run.inputs_manifest.clone().unwrap_or_else(|| defaults::inputs_manifest(reads_images));
    let (root, manifest) = (app.inputs.clone(), inputs_manifest.clone());
    let inputs = tokio::task::spawn_blocking(move || inputs::read(&root, &manifest)).await;
    let inputs = inputs.map_err(|error| ApiError::internal(&error))?.map_err(|error| refuse_inputs(&inputs_manifest, &error))?;
    if !reads_images && !inputs.images.is_empty() {
        let message = format!("{inputs_manifest} names images, and the model {name} reads text only");
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    let preset = app.presets.get(&run.mode).ok_or_else(|| invalid(format!("mode {} is not configured", run.mode)))?;
    let profiling =
        preset.changed(run.profiling.clone().unwrap_or_default()).map_err(|error| invalid(format!("profiling: {error}")))?;
    target::check(app, &run, model, part.as_ref(), inputs.images.len(), &profiling)?;
    let profiling = target::traced_more(&run, profiling);
    Ok(RunSpec {
        model: name,
        inputs_manifest,
        mode: run.mode,
        repeats: run.repeats,
        warmup: run.warmup,
        max_new_tokens: run.max_new_tokens,
        seed: run.seed,
        dtype: run.dtype,
        device: run.device,
        timeout_s: run.timeout_s,
        labels: each_once(run.labels),
        priority: run.priority,
        profiling: Some(profiling),
        target: part,
        align_with: run.align_with,
        mock: run.mock,
        import: None,
    })
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

/// A device that exists, and a number format that it multiplies.
pub(super) fn check_device(app: &App, run: &SubmitRun) -> Result<(), ApiError> {
    if run.device == NO_DEVICE {
        return Err(ApiError::new(ErrorCode::InvalidRequest, "device: none is what imports have, and a run needs one"));
    }
    if !is_device(&run.device) && !is_model(&run.device) {
        let message = format!("device: {:?} is none of auto, cpu, cuda:INDEX, no UUID and no model of a GPU", run.device);
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    if !app.accepts.is_empty() && !app.accepts.contains(&run.device) {
        let message = format!("the cluster has no device {}; there is {}", run.device, app.accepts.join(", "));
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    let may: Vec<&Device> = app.devices.iter().filter(|device| device.serves(&run.device)).collect();
    if may.is_empty() && !app.devices.is_empty() {
        let names: Vec<&str> = app.devices.iter().map(|device| device.name.as_str()).collect();
        let message = format!("no worker has the device {}; there is {}", run.device, names.join(", "));
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    if run.dtype == Some(Dtype::Bf16) && !may.is_empty() && may.iter().all(|device| device.is_cpu()) {
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
