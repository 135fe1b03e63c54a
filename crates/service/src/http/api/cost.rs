//! `GET /models/{name}/cost`: parameters, FLOPs and bytes of a model, without running it.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use llmprof_core::domain::{dtype::Dtype, json_numbers::Within, model::ModelSpec};
use llmprof_report::cost::{CostRequest, DEPTH, ModelCost, model_cost};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::IntoParams;

use super::{
    models::find_model,
    runs::{input_error, submissions::defaults},
};
use crate::{
    artifact::inputs::Inputs,
    config,
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InputsUnfit, InvalidInputs, InvalidParameter, ModelNotFound,
                NotAcceptable,
            },
        },
        extract::{
            content_negotiation::{self, TableFormat},
            params::{Params, bad_path},
        },
        state::App,
    },
    runtime,
};

const MAX_NAME: usize = 200;

/// Inputs of the cost.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CostQuery {
    /// Manifest of inputs, relative to the service's inputs folder, or the id of stored inputs; by
    /// default the bundled one, unless `prompt_tokens` is set. The first sample counts.
    #[param(min_length = 1, max_length = 200)]
    inputs: Option<String>,
    /// Prompt positions, images' positions included [default: as many as the inputs have].
    #[serde(default, deserialize_with = "Within::<1, 16_777_216>::optional_parameter")]
    #[param(minimum = 1, maximum = 16777216)]
    prompt_tokens: Option<u64>,
    /// Tokens generated after prefill.
    #[serde(default = "new_tokens", deserialize_with = "Within::<0, 16_777_216>::parameter")]
    #[param(default = 64, minimum = 0, maximum = 16777216)]
    new_tokens: u64,
    /// Sequences of these inputs, computed at the same time.
    #[serde(default = "defaults::batch", deserialize_with = "Within::<1, 1024>::parameter")]
    #[param(default = 1, minimum = 1, maximum = 1024)]
    batch: u32,
    /// Dtype; the model's default when absent.
    #[param(inline)]
    dtype: Option<Dtype>,
    /// Path components by which modules are grouped.
    #[serde(default = "depth", deserialize_with = "Within::<1, 16>::parameter")]
    #[param(default = 2, minimum = 1, maximum = 16)]
    depth: u8,
    /// True for rows of each layer, with its number in place of `*`.
    #[serde(default)]
    #[param(default = false)]
    per_layer: bool,
    /// `json`, `md` or `csv`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(json|md|csv)$")]
    format: Option<TableFormat>,
}

fn new_tokens() -> u64 {
    defaults::max_new_tokens().into()
}

fn depth() -> u8 {
    DEPTH as u8
}

/// The cost of a bundled model, each list cut to its first record.
fn example() -> Value {
    let models = config::models(None).unwrap_or_default().models;
    let Some(model) = models.get("deepseek-ocr-tiny") else { return Value::Null };
    let request = CostRequest {
        model,
        inputs: None,
        samples: 0,
        prompt: None,
        images: &[],
        prompt_tokens: Some(64),
        new_tokens: 16,
        batch: 1,
        dtype: None,
        depth: DEPTH,
        per_layer: false,
    };
    let mut cost = json!(model_cost(&request).ok());
    cut_lists(&mut cost);
    cost
}

fn cut_lists(value: &mut Value) {
    match value {
        Value::Array(list) => {
            list.truncate(1);
            list.iter_mut().for_each(cut_lists);
        }
        Value::Object(fields) => fields.values_mut().for_each(cut_lists),
        _ => {}
    }
}

/// Compute the cost of a model: parameters, FLOPs, bytes moved, activations, KV cache
///
/// Computed from the architecture, per operator and stage; the paths are the same as of operators
/// in a report.
#[utoipa::path(get, path = "/models/{name}/cost", tag = "models", operation_id = "get_cost",
    params(
        ("name" = String, Path, description = "Name of a configured model", min_length = 1),
        CostQuery),
    responses(
        (status = 200, description = "The cost, as JSON, Markdown or CSV by `format` or `Accept`",
            content(
                (ModelCost = "application/json", example = json!(example())),
                (String = "text/markdown",
                    example = json!("# Cost of deepseek-ocr-tiny\n\n...")),
                (String = "text/csv", example =
                    json!("path,op,parameters,...\ndecoder.embed_tokens,embedding,1048576\n")))),
        GuardedErrors, InvalidParameter, ModelNotFound, NotAcceptable, InputsUnfit,
        InvalidInputs))]
pub async fn cost(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
    Params(query): Params<CostQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(bad_path)?;
    let offered = [TableFormat::Json, TableFormat::Md, TableFormat::Csv];
    let format = content_negotiation::requested_format(query.format, &headers, &offered)?;
    let model = find_model(&app, &name)?;
    let manifest = manifest(&query, model)?;
    let inputs = match &manifest {
        Some(name) => Some(read_inputs(&app, name).await?),
        None => None,
    };
    let sample = inputs.as_ref().and_then(|it| it.samples.first());
    let sizes: Vec<(u32, u32)> =
        sample.iter().flat_map(|it| &it.images).map(|it| (it.width, it.height)).collect();
    let request = CostRequest {
        model,
        inputs: manifest.as_deref(),
        samples: inputs.as_ref().map_or(0, |it| it.samples.len()),
        prompt: sample.map(|it| it.prompt.as_str()),
        images: &sizes,
        prompt_tokens: query.prompt_tokens,
        new_tokens: query.new_tokens,
        batch: query.batch.into(),
        dtype: query.dtype,
        depth: query.depth.into(),
        per_layer: query.per_layer,
    };
    let cost = model_cost(&request)
        .map_err(|problem| ApiError::new(ErrorCode::InputsUnfit, problem.to_string()))?;
    let text = match format {
        TableFormat::Md => cost.markdown(),
        TableFormat::Csv => cost.csv(),
        TableFormat::Json | TableFormat::Html => cost.json(),
    };
    Ok(content_negotiation::respond(format, text))
}

/// The manifest to read; `None` if only the number of prompt tokens is given.
fn manifest(query: &CostQuery, model: &ModelSpec) -> Result<Option<String>, ApiError> {
    match (&query.inputs, query.prompt_tokens) {
        (Some(name), _) if (1..=MAX_NAME).contains(&name.chars().count()) => Ok(Some(name.clone())),
        (Some(_), _) => {
            let message = format!("invalid inputs; expected 1 to {MAX_NAME} characters");
            Err(ApiError::new(ErrorCode::InvalidParameter, message))
        }
        (None, Some(_)) => Ok(None),
        (None, None) => Ok(Some(defaults::inputs_manifest(model.vision.is_some()))),
    }
}

async fn read_inputs(app: &App, name: &str) -> Result<Inputs, ApiError> {
    let (folders, manifest) = (app.inputs.clone(), name.to_owned());
    let read = runtime::blocking(move || folders.read(&manifest)).await;
    read.map_err(|error| ApiError::internal(&error))?.map_err(|error| input_error(name, &error))
}
