//! What of a model a submission is about: a part of it, what that is aligned with, and whether all of that can be.

use super::{
    App,
    error::{ApiError, ErrorCode},
    submit::{SubmitRun, within},
};
use crate::{
    model::{ModelSpec, parts::has_steps},
    profiling::{Change, Profiling},
    run::{
        Dtype,
        target::{PartPath, Target},
    },
};

/// Positions that any prompt may have.
const MAX_PROMPT: u32 = 1 << 20;
/// Instances that a comparison of times wants of every side, where the request names no other number.
const TRACED_REPEATS: u32 = 5;

/// Each field is well by itself, and they do not fit together.
pub(super) fn contradictory(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::RequestContradictory, message)
}

/// The model that a submission names, by itself or before its target, and the part that is its target.
pub(super) fn model_and_part(run: &SubmitRun) -> Result<(String, Option<Target>), ApiError> {
    let Some(target) = &run.target else {
        let model = run.model.clone().ok_or_else(|| {
            let message = "model: missing, and no target names one";
            ApiError::new(ErrorCode::InvalidRequest, message)
        })?;
        return Ok((model, None));
    };
    let Some(target) = target.part() else { return Err(contradictory("target: a command is no part of a model")) };
    within("length of target", target.chars().count(), 1..=200)?;
    let (named, path) = target.rsplit_once(':').map_or((None, target), |(model, path)| (Some(model), path));
    let model = match (run.model.as_deref(), named) {
        (Some(model), Some(named)) if model != named => {
            return Err(contradictory(format!("target: it is of the model {named:?}, and the run is of {model:?}")));
        }
        (Some(model), _) | (None, Some(model)) => model.to_owned(),
        (None, None) => return Err(contradictory(format!("target: write MODEL:{path}, or name the model"))),
    };
    Ok((model, Some(Target::Part(PartPath(path.to_owned())))))
}

/// Checks the part against its model and inputs, and what is asked of it against the devices and passes of the run.
pub(super) fn check(
    app: &App,
    run: &SubmitRun,
    model: &ModelSpec,
    part: Option<&Target>,
    images: usize,
    profiling: &Profiling,
) -> Result<(), ApiError> {
    let Some(path) = part.and_then(Target::part) else {
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
    let mut devices = app.devices.iter().filter(|device| device.serves(&run.device)).peekable();
    if mock.dtype == Some(Dtype::Bf16) && devices.peek().is_some() && devices.all(|device| device.is_cpu()) {
        return Err(ApiError::new(ErrorCode::DtypeUnavailable, ErrorCode::DtypeUnavailable.example()));
    }
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

/// The settings of the passes of a run that aligns: a stage is traced more than once, unless the request says how often.
pub(super) fn traced_more(run: &SubmitRun, profiling: Profiling) -> Profiling {
    let says = |change: &Change| change.get("nsys").is_some_and(|nsys| nsys.get("repeats").is_some());
    if run.align_with.is_none() || run.profiling.as_ref().is_some_and(says) {
        return profiling;
    }
    let mut profiling = profiling;
    profiling.nsys.repeats = profiling.nsys.repeats.max(TRACED_REPEATS);
    profiling
}
