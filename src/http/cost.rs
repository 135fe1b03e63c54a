//! `GET /models/{name}/cost`: what a model needs for given inputs, without running it.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    App,
    error::{ApiError, ErrorCode},
    forms::{self, Format},
    models::find_model,
    request::Params,
    submissions::defaults,
    submit::refuse_inputs,
};
use crate::{
    artifact::inputs,
    report::cost::{Asked, DEPTH, InputsProblem, ModelCost, model_cost},
    run::Dtype,
};

const MAX_NAME: usize = 200;
const MAX_DEPTH: u8 = 16;
/// Above the context of any model.
const MAX_TOKENS: u64 = 1 << 24;

/// What the cost is asked for.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CostQuery {
    /// Manifest of inputs, relative to the service's inputs folder; the bundled one when neither it nor `prompt_tokens` is given.
    #[param(min_length = 1, max_length = 200)]
    inputs: Option<String>,
    /// Prompt positions, those of images included; by default those of the inputs.
    #[param(minimum = 1, maximum = 16777216)]
    prompt_tokens: Option<u64>,
    /// Tokens made after prefill.
    #[serde(default = "new_tokens")]
    #[param(default = 64, minimum = 0, maximum = 16777216)]
    new_tokens: u64,
    /// Number format; the model's own when absent.
    #[param(inline)]
    dtype: Option<Dtype>,
    /// Parts of a path that the table by module tells apart.
    #[serde(default = "depth")]
    #[param(default = 2, minimum = 1, maximum = 16)]
    depth: u8,
    /// `json`, `md` or `csv`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(json|md|csv)$")]
    format: Option<Format>,
}

fn new_tokens() -> u64 {
    defaults::max_new_tokens().into()
}

fn depth() -> u8 {
    DEPTH as u8
}

/// Tell what a model needs for given inputs: parameters, FLOPs, bytes moved, activations, keys and values
///
/// Counted from the architecture alone, per operator and stage; the paths are those of the operators in a report.
#[utoipa::path(get, path = "/models/{name}/cost", tag = "models", operation_id = "get_cost",
    params(("name" = String, Path, description = "Name of a configured model", min_length = 1), CostQuery),
    responses((status = 200, description = "The cost, as JSON, Markdown or CSV by `format` or `Accept`",
        content((ModelCost = "application/json"), (String = "text/markdown"), (String = "text/csv")))))]
pub async fn cost(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
    Params(query): Params<CostQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|rejection| ApiError::new(ErrorCode::InvalidParameter, rejection.body_text()))?;
    let format = forms::wanted(query.format, &headers, &[Format::Json, Format::Md, Format::Csv])?;
    let model = find_model(&app, &name)?;
    if query.prompt_tokens.is_some_and(|tokens| !(1..=MAX_TOKENS).contains(&tokens)) || query.new_tokens > MAX_TOKENS {
        let message = format!("prompt_tokens are 1 to {MAX_TOKENS}, and new_tokens at most as many");
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    if !(1..=MAX_DEPTH).contains(&query.depth) {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            format!("invalid depth {}; expected 1 to {MAX_DEPTH}", query.depth),
        ));
    }
    let manifest = match (query.inputs, query.prompt_tokens) {
        (Some(manifest), _) if (1..=MAX_NAME).contains(&manifest.chars().count()) => Some(manifest),
        (Some(_), _) => return Err(ApiError::new(ErrorCode::InvalidParameter, "inputs: 1 to 200 characters are taken")),
        (None, Some(_)) => None,
        (None, None) => Some(defaults::inputs_manifest(model.vision.is_some())),
    };
    let inputs = match &manifest {
        Some(name) => {
            let (root, asked) = (app.inputs.clone(), name.clone());
            let read = tokio::task::spawn_blocking(move || inputs::read(&root, &asked)).await;
            let read = read.map_err(|error| ApiError::internal(&error))?;
            Some(read.map_err(|error| refuse_inputs(name, &error))?)
        }
        None => None,
    };
    let sizes: Vec<(u32, u32)> = inputs.iter().flat_map(|it| &it.images).map(|it| (it.width, it.height)).collect();
    let asked = Asked {
        model,
        inputs: manifest.as_deref(),
        prompt: inputs.as_ref().map(|it| it.prompt.as_str()),
        images: &sizes,
        prompt_tokens: query.prompt_tokens,
        new_tokens: query.new_tokens,
        dtype: query.dtype,
        depth: query.depth.into(),
    };
    let answer = model_cost(&asked).map_err(|problem| refuse(&problem))?;
    let text = match format {
        Format::Md => answer.markdown(),
        Format::Csv => answer.csv(),
        Format::Json | Format::Html => answer.json(),
    };
    Ok(forms::answer(format, text))
}

fn refuse(problem: &InputsProblem) -> ApiError {
    ApiError::new(ErrorCode::InputsUnfit, problem.to_string())
}
