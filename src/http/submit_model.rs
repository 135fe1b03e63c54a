//! A submission of a model or of a part of one: checked against the model, its inputs, the devices and the passes.

use super::{
    App,
    error::{ApiError, ErrorCode},
    models::find_model,
    submissions::{SubmitModel, defaults},
    submit::{self, check_dtype, refuse_inputs, within},
};
use crate::{
    artifact::inputs,
    model::{ModelSpec, parts::has_steps},
    profiling::{Change, Profiling},
    run::{
        RunSpec, Subject,
        part::PartPath,
        subject::{ModelSubject, PartSubject, Workload},
        whole::MAX_EXACT,
    },
};

const MAX_NAME: usize = 200;
/// Positions that any prompt may have.
const MAX_PROMPT: u32 = 1 << 20;
/// Instances that a comparison of times wants of every side, where the request names no other number.
const TRACED_REPEATS: u32 = 5;

/// Each field is valid by itself, and they do not fit together.
fn contradictory(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::RequestContradictory, message)
}

/// Checks what a schema can and cannot express, and fills in what was left open.
pub(super) async fn check(app: &App, run: SubmitModel) -> Result<RunSpec, ApiError> {
    within("max_new_tokens", run.max_new_tokens, 1..=4096)?;
    within("seed", run.seed, 0..=MAX_EXACT)?;
    within("length of model", run.model.chars().count(), 1..=MAX_NAME)?;
    if let Some(manifest) = &run.inputs_manifest {
        within("length of inputs_manifest", manifest.chars().count(), 1..=MAX_NAME)?;
    }
    if let Some(PartPath(path)) = &run.target {
        within("length of target", path.chars().count(), 1..=200)?;
    }
    let (mut passes, common) = submit::common(app, &run.passes())?;
    check_dtype(app, &run.device, run.dtype)?;
    let model = find_model(app, &run.model)?;
    let reads_images = model.vision.is_some();
    let manifest = run.inputs_manifest.clone().unwrap_or_else(|| defaults::inputs_manifest(reads_images));
    let (root, name) = (app.inputs.clone(), manifest.clone());
    let inputs = tokio::task::spawn_blocking(move || inputs::read(&root, &name)).await;
    let inputs = inputs.map_err(|error| ApiError::internal(&error))?.map_err(|error| refuse_inputs(&manifest, &error))?;
    if !reads_images && !inputs.images.is_empty() {
        let message = format!("{manifest} names images, and the model {} reads text only", run.model);
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    if let Some(profiling) = &mut passes.profiling {
        check_part(app, &run, model, inputs.images.len(), profiling)?;
        trace_more(&run, profiling);
    }
    let SubmitModel { model, max_new_tokens, seed, dtype, .. } = run;
    let workload = Workload { model, inputs_manifest: manifest, max_new_tokens, seed, dtype };
    let subject = match run.target {
        None => Subject::Model(ModelSubject { workload, passes }),
        Some(part) => Subject::Part(PartSubject { workload, part, align_with: run.align_with, mock: run.mock, passes }),
    };
    Ok(RunSpec { subject, common })
}

/// Checks the part against its model and inputs, and what is asked of it against the devices and passes of the run.
fn check_part(app: &App, run: &SubmitModel, model: &ModelSpec, images: usize, profiling: &Profiling) -> Result<(), ApiError> {
    let Some(PartPath(path)) = &run.target else {
        return match (run.align_with, run.mock) {
            (None, None) => Ok(()),
            (Some(_), _) => Err(contradictory("align_with: name the part by target")),
            (None, Some(_)) => Err(contradictory("mock: name the part by target, and what it is aligned with by align_with")),
        };
    };
    model.check_part(path).map_err(|error| ApiError::new(ErrorCode::PartNotFound, format!("target: {error}")))?;
    if path.starts_with("vision") && images == 0 {
        return Err(ApiError::new(ErrorCode::InputsUnfit, format!("{path} reads images, and the inputs hold none")));
    }
    if run.align_with.is_some() && !profiling.nsys.enabled {
        let message = format!("align_with: timelines are compared, and profiling.nsys.enabled is off in mode {}", run.mode);
        return Err(contradictory(message));
    }
    let Some(mock) = run.mock else { return Ok(()) };
    if run.align_with.is_none() {
        return Err(contradictory("mock: it is for a run that aligns: set align_with"));
    }
    check_dtype(app, &run.device, mock.dtype)?;
    if let Some(tokens) = mock.prompt_tokens {
        if !has_steps(path) {
            return Err(contradictory("mock.prompt_tokens: only a part of a decoder reads a prompt"));
        }
        let most = (model.decoder.max_positions as u64).saturating_sub(run.max_new_tokens.into());
        within("mock.prompt_tokens", tokens, 1..=MAX_PROMPT)?;
        if u64::from(tokens) > most {
            let message = format!("mock.prompt_tokens: {} reads at most {most} beside the tokens that are generated", model.name);
            return Err(ApiError::new(ErrorCode::InputsUnfit, message));
        }
    }
    Ok(())
}

/// A stage of a run that aligns is traced more than once, unless the request sets how often.
fn trace_more(run: &SubmitModel, profiling: &mut Profiling) {
    let says = |change: &Change| change.get("nsys").is_some_and(|nsys| nsys.get("repeats").is_some());
    if run.align_with.is_some() && !run.profiling.as_ref().is_some_and(says) {
        profiling.nsys.repeats = profiling.nsys.repeats.max(TRACED_REPEATS);
    }
}
