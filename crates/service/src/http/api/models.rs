//! `GET /models`: the configured models.

use axum::{Json, extract::State};
use llmprof_core::domain::{model::ModelSpec, settings::nearest};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    config::{self, RefusedModel, rejection},
    http::{
        error::{ApiError, ErrorCode, responses::GuardedErrors},
        state::App,
    },
};

/// The configured models, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    pub models: Vec<ModelSpec>,
    /// Models of the models folder that cannot be used, with the reason.
    #[serde(default)]
    pub refused: Vec<RefusedModel>,
}

impl ModelList {
    fn example() -> Self {
        let model = config::models(None).unwrap_or_default().models.remove("llama-tiny");
        Self { models: model.into_iter().collect(), refused: vec![] }
    }
}

/// List the models that a run may name, with their dimensions
#[utoipa::path(get, path = "/models", tag = "models", operation_id = "list_models",
    responses(
        (status = 200, description = "The models", body = ModelList,
            example = json!(ModelList::example())),
        GuardedErrors))]
pub async fn models(State(app): State<App>) -> Json<ModelList> {
    // The path of the weights is private to the host.
    let models =
        app.models.values().map(|model| ModelSpec { weights: None, ..model.clone() }).collect();
    Json(ModelList { models, refused: app.refused_models.to_vec() })
}

/// Returns the model of this name, or a 404.
pub(crate) fn find_model<'a>(app: &'a App, name: &str) -> Result<&'a ModelSpec, ApiError> {
    app.models.get(name).ok_or_else(|| {
        if let Some(reason) = rejection(&app.refused_models, name) {
            let message = format!("model {name} cannot be used: {reason}");
            return ApiError::new(ErrorCode::ModelNotFound, message);
        }
        let names = app.models.keys().map(String::as_str);
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("available: {}", names.collect::<Vec<_>>().join(", ")),
        };
        ApiError::new(ErrorCode::ModelNotFound, format!("no model {name}; {hint}"))
    })
}
