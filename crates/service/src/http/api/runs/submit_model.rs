//! A submission of a model or of a part of one: checked against the model, its inputs, the devices
//! and the passes.

use llmprof_core::domain::{
    model::{ModelSpec, parts::has_decode_steps},
    part::{MockChange, PartPath},
    profiling::Profiling,
    run_config::ResolvedConfig,
    settings::Settings,
    subject::{ModelSubject, PartSubject, RunSpec, Subject, Workload},
};

use super::{
    checks::{check_dtype, check_passes, check_resolved_dtype, check_window, largest_memory},
    submissions::SubmitModel,
    submit::CheckedRun,
    submit_inputs::{self, RunInputs},
};
use crate::http::{
    api::{inputs::pending::PendingInputs, models::find_model},
    error::{ApiError, ErrorCode},
    extract::bounds::check_length,
    state::App,
};

const MAX_NAME: usize = 200;
/// Traced repeats by default if times are compared.
const TRACED_REPEATS: u32 = 5;

/// The error of fields that are valid alone but not together.
fn contradictory(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::RequestContradictory, message)
}

/// Checks a submission of a model and fills in the defaults. `uploaded`: inputs of a form.
pub(super) async fn check(
    app: &App,
    run: SubmitModel,
    uploaded: Option<PendingInputs>,
) -> Result<CheckedRun, ApiError> {
    check_length("model", &run.model, 1..=MAX_NAME)?;
    if let Some(PartPath(path)) = &run.target {
        check_length("target", path, 1..=MAX_NAME)?;
    }
    let (mut passes, common) = check_passes(app, &run.passes())?;
    check_window(&passes, &common)?;
    check_dtype(app, &run.device, run.dtype)?;
    let model = find_model(app, &run.model)?;
    check_resolved(model, run.resolved.as_deref())?;
    check_resolved_dtype(app, &run, model)?;
    let reads_images = model.vision.is_some();
    let inputs = submit_inputs::resolve(app, &run, reads_images, uploaded).await?;
    let RunInputs { manifest, samples, images, seed: of_inputs, pending } = inputs;
    if !reads_images && images > 0 {
        let message =
            format!("{manifest} contains images, but the model {} reads text only", run.model);
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    if samples > 1 && run.target.is_some() {
        let message = format!("{manifest} has {samples} samples; a part is profiled with one");
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    check_batch(app, &run, model, samples)?;
    if let Some(profiling) = &mut passes.profiling {
        check_part(app, &run, model, images, profiling)?;
        set_traced_repeats(&run, profiling);
    }
    let SubmitModel { model, max_new_tokens, batch, seed, dtype, dry_run, .. } = run;
    let seed = seed.or(of_inputs).unwrap_or_default();
    let workload =
        Workload { model, inputs_manifest: manifest, max_new_tokens, batch, seed, dtype };
    let subject = match run.target {
        None => Subject::Model(ModelSubject { workload, passes }),
        Some(part) => Subject::Part(PartSubject {
            workload,
            part,
            align_with: run.align_with,
            mock: run.mock,
            passes,
        }),
    };
    Ok(CheckedRun { spec: RunSpec { subject, common }, inputs: pending, dry_run })
}

/// Refuses a model with other values than an earlier run resolved.
fn check_resolved(model: &ModelSpec, resolved: Option<&ResolvedConfig>) -> Result<(), ApiError> {
    match resolved.and_then(|it| it.model_difference(model)) {
        None => Ok(()),
        Some(difference) => Err(contradictory(format!(
            "the model {} of this service has other values than `resolved`: {difference}; omit \
             `resolved` to run the model of this service",
            model.name
        ))),
    }
}

/// Refuses a batch that the inputs do not fill, that a part cannot run, or that no device has the
/// memory for.
fn check_batch(
    app: &App,
    run: &SubmitModel,
    model: &ModelSpec,
    samples: usize,
) -> Result<(), ApiError> {
    if run.batch == 1 {
        return Ok(());
    }
    if run.target.is_some() {
        return Err(contradictory(format!(
            "a part of a model runs one sequence, not a batch of {}; omit batch or target",
            run.batch
        )));
    }
    if samples > run.batch as usize {
        let message = format!(
            "the inputs have {samples} samples, more than a batch of {}; send a batch of {samples} \
             or more, or of 1, which measures each sample alone",
            run.batch
        );
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    let Some(largest) = largest_memory(app, &run.device) else { return Ok(()) };
    // The prompts are longer than the one token that counts here.
    let dtype = run.dtype.unwrap_or(model.dtype);
    let needed = model.minimum_bytes(dtype, run.batch, 1, run.max_new_tokens);
    match memory_refusal(run.batch, needed, largest) {
        None => Ok(()),
        Some(message) => Err(ApiError::new(ErrorCode::InputsUnfit, message)),
    }
}

/// The reason why a batch that needs so many bytes does not fit the largest device.
fn memory_refusal(batch: u32, needed: u128, largest: u64) -> Option<String> {
    let gib = |bytes: u128| bytes as f64 / f64::from(1 << 30);
    let message = || {
        format!(
            "a batch of {batch} needs at least {:.1} GiB of memory, and the largest device has \
             {:.1} GiB",
            gib(needed),
            gib(largest.into())
        )
    };
    (needed > u128::from(largest)).then(message)
}

/// Checks the part and its alignment against the model, the inputs and the passes.
fn check_part(
    app: &App,
    run: &SubmitModel,
    model: &ModelSpec,
    images: usize,
    profiling: &Profiling,
) -> Result<(), ApiError> {
    let Some(PartPath(path)) = &run.target else {
        return match (run.align_with, run.mock) {
            (None, None) => Ok(()),
            (Some(_), _) => Err(contradictory("align_with requires target")),
            (None, Some(_)) => Err(contradictory("mock requires target and align_with")),
        };
    };
    model
        .check_part(path)
        .map_err(|error| ApiError::new(ErrorCode::PartNotFound, format!("target: {error}")))?;
    if path.starts_with("vision") && images == 0 {
        let message = format!("{path} reads images, but the inputs contain none");
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    if run.align_with.is_some() && !profiling.nsys.enabled {
        return Err(contradictory(format!(
            "align_with requires a timeline; enable profiling.nsys.enabled, which is off in mode \
             {}",
            run.mode
        )));
    }
    match run.mock {
        Some(_) if run.align_with.is_none() => Err(contradictory("mock requires align_with")),
        Some(mock) => check_mock(app, run, model, mock),
        None => Ok(()),
    }
}

/// Checks the changes of a mock against the model and the devices.
fn check_mock(
    app: &App,
    run: &SubmitModel,
    model: &ModelSpec,
    mock: MockChange,
) -> Result<(), ApiError> {
    check_dtype(app, &run.device, mock.dtype)?;
    let (Some(tokens), Some(PartPath(path))) = (mock.prompt_tokens, &run.target) else {
        return Ok(());
    };
    if !has_decode_steps(path) {
        return Err(contradictory("mock.prompt_tokens requires a part of a decoder"));
    }
    let max = (model.decoder.max_positions as u64).saturating_sub(run.max_new_tokens.into());
    if u64::from(tokens) > max {
        let message = format!(
            "mock.prompt_tokens: {tokens} is too long; {} reads at most {max} in addition to the \
             generated tokens",
            model.name
        );
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    Ok(())
}

/// Traces an aligned run repeatedly, unless the request sets the number of repeats.
fn set_traced_repeats(run: &SubmitModel, profiling: &mut Profiling) {
    let sets_repeats =
        |change: &Settings| change.get("nsys").is_some_and(|nsys| nsys.get("repeats").is_some());
    if run.align_with.is_some() && !run.profiling.as_ref().is_some_and(sets_repeats) {
        profiling.nsys.repeats = profiling.nsys.repeats.max(TRACED_REPEATS);
    }
}

#[cfg(test)]
mod tests {
    use llmprof_core::domain::dtype::Dtype;

    use super::*;

    #[test]
    fn a_batch_beyond_the_memory_is_refused_with_the_required_size() {
        let (_, text) = llmprof_core::domain::model::PRESETS
            .iter()
            .find(|(name, _)| *name == "deepseek-ocr")
            .unwrap();
        let model: ModelSpec = toml::from_str(text).unwrap();
        let needed = |batch| model.minimum_bytes(Dtype::Bf16, batch, 1, 64);
        // Keys and values of 65 positions, of 61,440 bytes each, and a row of logits.
        assert_eq!(needed(65) - needed(1), 64 * (65 * 61_440 + 129_280 * 2));
        let of = |batch| memory_refusal(batch, needed(batch), 8 << 30);
        assert_eq!(of(256), None);
        let refused = of(1024).unwrap();
        assert!(refused.starts_with("a batch of 1024 needs at least 10."), "{refused}");
        assert!(refused.ends_with("the largest device has 8.0 GiB"), "{refused}");
    }
}
