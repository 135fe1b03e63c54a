//! Checks that the submissions of models, commands and captures share.

use std::collections::BTreeSet;

use llmprof_core::domain::{
    device::{Device, is_device, is_model},
    dtype::Dtype,
    ids::InputsId,
    mode::Mode,
    model::ModelSpec,
    profiling::NsysSettings,
    subject::{Common, Passes},
};

use super::submissions::{Label, PassesRequest, SubmitModel};
use crate::{
    artifact::inputs::InputsError,
    http::{
        error::{ApiError, ErrorCode},
        extract::bounds::{check_range, check_text},
        state::App,
    },
};

/// Maximum labels of a run, and of a filter.
pub(super) const MAX_LABELS: usize = 16;
const MAX_LABEL: usize = 64;

/// Checks the settings that both forms of a submission have.
pub(super) fn check_passes(
    app: &App,
    request: &PassesRequest,
) -> Result<(Passes, Common), ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidRequest, message);
    check_labels(&request.labels)?;
    check_device(app, &request.device)?;
    let preset = app.presets.get(&request.mode).ok_or_else(|| unknown_mode(app, &request.mode))?;
    if let Some(resolved) = &request.resolved {
        let checked = resolved.check_mode(&request.mode, &request.profiling);
        checked.map_err(|why| ApiError::new(ErrorCode::RequestContradictory, why))?;
    }
    let profiling = preset
        .profiling
        .with_changes(request.profiling.clone())
        .map_err(|error| invalid(format!("profiling: {error}")))?;
    check_sampling(app, &profiling.nsys)?;
    let passes = Passes {
        mode: request.mode.clone(),
        repeats: request.repeats,
        warmup: request.warmup,
        device: request.device.clone(),
        profiling: Some(profiling),
    };
    let common = Common {
        labels: deduplicated(request.labels.clone()),
        priority: request.priority,
        timeout_s: request.timeout_s,
        revision: check_revision(request.revision.as_deref())?,
    };
    Ok((passes, common))
}

/// Refuses a recording that would start after the end of each pass, once its window is known.
pub(super) fn check_window(passes: &Passes, common: &Common) -> Result<(), ApiError> {
    let late = passes.profiling.as_ref().and_then(|it| it.late_recording(common.timeout_s));
    late.map_or(Ok(()), |refusal| Err(ApiError::new(ErrorCode::InvalidRequest, refusal)))
}

/// Refuses system-wide sampling if the operator forbids it, whether a request or a preset sets it.
pub(crate) fn check_sampling(app: &App, settings: &NsysSettings) -> Result<(), ApiError> {
    let is_forbidden = !app.config.tools.system_wide_sampling;
    match settings.system_wide_refusal().filter(|_| is_forbidden) {
        Some(refusal) => Err(ApiError::new(ErrorCode::SamplingForbidden, refusal)),
        None => Ok(()),
    }
}

/// Checks a revision against the bounds of its schema.
pub(crate) fn check_revision(revision: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(revision) = revision else { return Ok(None) };
    check_text("revision", revision, 1..=MAX_LABEL)?;
    Ok(Some(revision.to_owned()))
}

fn unknown_mode(app: &App, mode: &Mode) -> ApiError {
    let known: Vec<&str> = app.presets.keys().map(Mode::as_str).collect();
    let message = format!("no mode {mode}; expected one of {}", known.join(", "));
    ApiError::new(ErrorCode::ModeNotFound, message)
}

/// The labels in order, without duplicates.
pub(crate) fn deduplicated(labels: Vec<Label>) -> Vec<String> {
    labels.into_iter().collect::<BTreeSet<_>>().into_iter().map(|Label(label)| label).collect()
}

/// Checks labels against the bounds of their schema.
pub(crate) fn check_labels(labels: &[Label]) -> Result<(), ApiError> {
    check_range("labels", labels.len(), 0..=MAX_LABELS)?;
    labels.iter().try_for_each(|Label(label)| check_label("a label", label))
}

/// Checks a label of a run against the bounds of its schema. Filters list labels separated by
/// commas and spaces, so a label with a comma, or with a space at an end, would never be found.
pub(crate) fn check_label(name: &str, label: &str) -> Result<(), ApiError> {
    check_text(name, label, 1..=MAX_LABEL)?;
    let message = if label.contains(',') {
        format!(
            "{name} {label:?} contains a comma, which separates labels in a filter; send two \
             labels, or write another character"
        )
    } else if label.trim() != label {
        format!(
            "{name} {label:?} starts or ends with a space, which a filter leaves out; send it \
             without the space"
        )
    } else {
        return Ok(());
    };
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

/// Refuses an invalid device, and one without a worker.
pub(crate) fn check_device(app: &App, device: &str) -> Result<(), ApiError> {
    if !is_device(device) && !is_model(device) {
        let message = format!(
            "invalid device {device:?}; expected auto, cpu, cuda:INDEX, a UUID or a GPU model"
        );
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    if !app.accepts.is_empty() && !app.accepts.iter().any(|it| it == device) {
        let message = format!(
            "the cluster does not offer the device {device}; available: {}",
            app.accepts.join(", ")
        );
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    if serving(app, device).next().is_none() && !app.devices.is_empty() {
        let names: Vec<&str> = app.devices.iter().map(|device| device.name.as_str()).collect();
        let message = format!("no worker for the device {device}; available: {}", names.join(", "));
        return Err(ApiError::new(ErrorCode::DeviceNotFound, message));
    }
    Ok(())
}

/// Devices of this service that match a requested device.
fn serving<'a>(app: &'a App, device: &'a str) -> impl Iterator<Item = &'a Device> {
    app.devices.iter().filter(move |it| it.matches(device))
}

/// Bytes of the largest memory among the devices that match, if each device's memory is known.
pub(super) fn largest_memory(app: &App, device: &str) -> Option<u64> {
    let sizes: Option<Vec<u64>> = serving(app, device).map(|it| it.memory_bytes).collect();
    sizes?.into_iter().max()
}

/// Refuses bf16 if only the CPU matches the requested device.
pub(super) fn check_dtype(app: &App, device: &str, dtype: Option<Dtype>) -> Result<(), ApiError> {
    let mut devices = serving(app, device).peekable();
    let only_cpu = devices.peek().is_some() && devices.all(Device::is_cpu);
    if dtype == Some(Dtype::Bf16) && only_cpu {
        return Err(ApiError::of(ErrorCode::DtypeUnavailable));
    }
    Ok(())
}

/// Refuses a model that no device of this service runs in the dtype of an earlier run, unless the
/// request states its own.
pub(super) fn check_resolved_dtype(
    app: &App,
    run: &SubmitModel,
    model: &ModelSpec,
) -> Result<(), ApiError> {
    let stated = run.resolved.as_ref().and_then(|it| it.dtype).filter(|_| run.dtype.is_none());
    let Some(stated) = stated else { return Ok(()) };
    let mut dtypes = serving(app, &run.device).map(|it| model.default_dtype(it.is_cpu()));
    let Some(first) = dtypes.next() else { return Ok(()) };
    if first == stated || dtypes.any(|dtype| dtype == stated) {
        return Ok(());
    }
    let message = format!(
        "{} runs in {first} here, not in {stated} (resolved.dtype); omit resolved.dtype to run in \
         {first}, or set `dtype`",
        model.name
    );
    Err(ApiError::new(ErrorCode::RequestContradictory, message))
}

/// Remedy for inputs that an earlier run read: the run keeps them, and its `config.yaml` only names
/// them.
const OF_A_RUN: &str = "to repeat a run whose config.yaml names them, send its file inputs.yaml: \
                        `llmprof submit config.yaml --inputs ./inputs.yaml`";

/// The error of inputs that this service does not have.
pub(super) fn unknown_inputs(name: &str) -> ApiError {
    let message = if InputsId::of_name(name).is_some() {
        format!(
            "there are no stored inputs {name}; GET /inputs lists them, POST /inputs stores them \
             again; {OF_A_RUN}"
        )
    } else {
        let here = if name.starts_with(['/', '.']) { "" } else { "./" };
        format!(
            "{}; GET /inputs lists its manifests. Upload one of your machine with `llmprof submit \
             --inputs {here}{name}`, or with POST /inputs; {OF_A_RUN}",
            InputsError::NotFound(name.into())
        )
    };
    ApiError::new(ErrorCode::InputsNotFound, message)
}

/// The error of inputs, without host paths other than the requested `name`.
pub(crate) fn input_error(name: &str, error: &InputsError) -> ApiError {
    match error {
        InputsError::NotFound(_) => unknown_inputs(name),
        // The same answer as for a missing file: files outside the folder stay unknown.
        InputsError::Outside(outside) if outside == name => unknown_inputs(name),
        InputsError::Outside(_)
        | InputsError::NotAManifest { .. }
        | InputsError::BadPrompt { .. }
        | InputsError::BadImage { .. } => {
            ApiError::new(ErrorCode::InputsInvalid, error.to_string())
        }
        InputsError::Read { .. } => ApiError::internal(error),
    }
}
