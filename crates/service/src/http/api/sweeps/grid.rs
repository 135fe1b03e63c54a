//! Points of a sweep as submissions: the base with the values of the axes in its fields.

use llmprof_analyze::cost::{self, InputsProblem};
use llmprof_core::domain::{
    command::{ParamValue, is_param},
    json_numbers::Within,
    mode::Mode,
    plain_words::plain_words,
    settings::nearest,
    subject::{RunSpec, Workload},
    sweep::{AxesError, MODEL_AXES, NEW_TOKENS, PARAM_PREFIX, PROMPT_TOKENS, PointAxes},
};
use serde_json::{Map, Value, json};

use super::{prompts::StoredPrompts, submit::SubmitSweep};
use crate::{
    http::{
        api::{
            models::find_model,
            runs::{input_error, submissions::defaults, submit},
        },
        auth::access::Caller,
        error::{ApiError, ErrorCode},
        state::App,
    },
    runtime,
};

pub(super) fn contradictory(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::RequestContradictory, message)
}

/// True if the base names a command.
fn is_command(base: &Map<String, Value>) -> bool {
    base.get("target").is_some_and(Value::is_object)
}

/// The error of axes that are refused.
pub(super) fn axes_error(error: AxesError) -> ApiError {
    let code = match error {
        AxesError::Malformed(_) => ErrorCode::InvalidRequest,
        AxesError::Unfit(_) => ErrorCode::RequestContradictory,
    };
    ApiError::new(code, error.to_string())
}

/// Refuses a base that the contract of submissions does not allow. Values that would be refused are
/// accepted, since axes may replace them.
pub(super) async fn check_form(
    app: &App,
    caller: &Caller,
    base: &Map<String, Value>,
) -> Result<(), ApiError> {
    let text = Value::from(base.clone()).to_string();
    match submit::check(app, caller, text.as_bytes(), None).await {
        Err(error) if error.code() == ErrorCode::InvalidRequest => {
            let message = format!("base: {}", error.message());
            Err(ApiError::new(ErrorCode::InvalidRequest, message))
        }
        _ => Ok(()),
    }
}

/// Refuses axes that the subject does not have.
pub(super) fn check_axes(request: &SubmitSweep) -> Result<(), ApiError> {
    let of_command = is_command(&request.base);
    for name in request.axes.keys() {
        // Axes of the contract, and of this subject.
        let (is_axis, is_known) = match name.strip_prefix(PARAM_PREFIX) {
            Some(param) => (is_param(param), of_command),
            None => (MODEL_AXES.iter().any(|(axis, _)| axis == name), !of_command),
        };
        if is_axis && is_known {
            continue;
        }
        let axes = MODEL_AXES.iter().map(|(axis, _)| *axis);
        let expected = match (of_command, nearest(name, axes.clone())) {
            (true, _) => "the axes of a command are params.NAME".to_owned(),
            (false, Some(near)) => format!("did you mean {near}?"),
            (false, None) => format!("expected {}", axes.collect::<Vec<_>>().join(", ")),
        };
        let message = format!("axes: no axis {name:?}; {expected}");
        let code = match is_axis {
            true => ErrorCode::RequestContradictory,
            false => ErrorCode::InvalidRequest,
        };
        return Err(ApiError::new(code, message));
    }
    let base = &request.base;
    let names_inputs = ["inputs", "inputs_manifest"].iter().any(|it| base.contains_key(*it));
    if request.axes.contains_key(PROMPT_TOKENS) && names_inputs {
        let message = "axes.prompt_tokens generates prompts, and base has inputs; send one of them";
        return Err(contradictory(message));
    }
    Ok(())
}

/// Refuses a base of another mode, and one that is only to be checked.
pub(super) fn check_base(base: &Map<String, Value>) -> Result<(), ApiError> {
    let params = base.get("target").and_then(|target| target.get("params"));
    if params.is_some_and(|params| !params.is_object()) {
        let message = "base.target.params: expected an object";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    let modes = [Mode::BASIC, Mode::LIGHT];
    let mode = base.get("mode").and_then(Value::as_str);
    if let Some(mode) = mode.filter(|mode| modes.iter().all(|it| it.as_str() != *mode)) {
        let message = format!("base.mode: a sweep has mode basic or light, not {mode}");
        return Err(contradictory(message));
    }
    if base.get("dry_run").is_some_and(|it| *it == json!(true)) {
        return Err(contradictory("base.dry_run: a sweep is not only checked"));
    }
    Ok(())
}

/// Checks a point as a submission, and against the context of its model.
pub(super) async fn check_point(
    app: &App,
    caller: &Caller,
    request: &SubmitSweep,
    axes: &PointAxes,
    prompts: &mut StoredPrompts,
) -> Result<RunSpec, ApiError> {
    let mut body = with_axes(&request.base, axes);
    if let Some(tokens) = axes.get(PROMPT_TOKENS) {
        let tokens = prompt_tokens(tokens)?;
        check_prompt(app, &body, tokens)?;
        let id = prompts.of_length(app, caller, tokens).await?;
        body.insert("inputs".into(), json!(id));
    }
    let checked =
        submit::check(app, caller, Value::from(body).to_string().as_bytes(), None).await?;
    if let Some(workload) = checked.spec.workload() {
        check_context(app, workload).await?;
    }
    Ok(checked.spec)
}

/// The base with the values of the axes, except the tokens of the prompt.
fn with_axes(base: &Map<String, Value>, axes: &PointAxes) -> Map<String, Value> {
    let mut body = base.clone();
    for (name, value) in axes.iter().filter(|(name, _)| *name != PROMPT_TOKENS) {
        if let Some(param) = name.strip_prefix(PARAM_PREFIX) {
            body["target"]["params"][param] = json!(value);
        } else if let Some((_, field)) = MODEL_AXES.iter().find(|(axis, _)| axis == name) {
            body.insert((*field).to_owned(), json!(value));
        }
    }
    body
}

fn prompt_tokens(value: &ParamValue) -> Result<u64, ApiError> {
    Within::<2, 65_536>::integer(json!(value)).map_err(|error| {
        let message = plain_words(&format!("prompt_tokens: {error}"));
        ApiError::new(ErrorCode::InvalidRequest, message)
    })
}

/// Checks the length of a generated prompt before it is stored.
fn check_prompt(app: &App, body: &Map<String, Value>, tokens: u64) -> Result<(), ApiError> {
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default();
    let model = find_model(app, model)?;
    if model.weights.is_some() {
        let message = format!(
            "prompt_tokens: the tokenizer of {} determines the length of a text; store inputs by \
             POST /inputs and sweep each",
            model.name
        );
        return Err(ApiError::new(ErrorCode::InputsUnfit, message));
    }
    let (_, field) = MODEL_AXES.iter().find(|(axis, _)| *axis == NEW_TOKENS).unwrap_or(&("", ""));
    let default = u64::from(defaults::max_new_tokens());
    let new_tokens = body.get(*field).map_or(Some(default), Value::as_u64).unwrap_or(0);
    cost::needs(model, None, &[], Some(tokens), new_tokens).map(drop).map_err(unfit)
}

fn unfit(problem: InputsProblem) -> ApiError {
    ApiError::new(ErrorCode::InputsUnfit, problem.to_string())
}

/// Checks every sample against the context of the model, if no tokenizer determines its length.
async fn check_context(app: &App, workload: &Workload) -> Result<(), ApiError> {
    let (folders, name) = (app.inputs.clone(), workload.inputs_manifest.clone());
    let read = runtime::blocking(move || folders.read(&name)).await;
    let inputs = read
        .map_err(|error| ApiError::internal(&error))?
        .map_err(|error| input_error(&workload.inputs_manifest, &error))?;
    let model = find_model(app, &workload.model)?;
    for sample in &inputs.samples {
        let sizes: Vec<(u32, u32)> = sample.images.iter().map(|it| (it.width, it.height)).collect();
        let needed =
            cost::needs(model, Some(&sample.prompt), &sizes, None, workload.max_new_tokens.into());
        match needed {
            Ok(_) | Err(InputsProblem::Tokenizer) => {}
            Err(problem) => return Err(unfit(problem)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_a_point_are_fields_of_its_submission() {
        let base = json!({ "model": "a", "repeats": 2 });
        let axes: PointAxes = [
            ("new_tokens".to_owned(), ParamValue::Int(8)),
            ("model".to_owned(), ParamValue::Text("b".into())),
            ("prompt_tokens".to_owned(), ParamValue::Int(64)),
        ]
        .into();
        let body = with_axes(base.as_object().unwrap(), &axes);
        assert_eq!(Value::from(body), json!({ "model": "b", "repeats": 2, "max_new_tokens": 8 }));
        let base = json!({ "target": { "command": "c", "params": { "n": 1, "m": 2 } } });
        let axes: PointAxes = [("params.n".to_owned(), ParamValue::Int(8))].into();
        let body = with_axes(base.as_object().unwrap(), &axes);
        assert_eq!(body["target"]["params"], json!({ "n": 8, "m": 2 }));
    }
}
