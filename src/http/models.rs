//! `GET /models`: what can be profiled.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
};
use crate::{
    config::{RefusedModel, nearest, why_refused},
    model::ModelSpec,
};

/// The configured models, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    pub models: Vec<ModelSpec>,
    /// Those of the models folder that cannot be used, with the reason.
    #[serde(default)]
    pub refused: Vec<RefusedModel>,
}

/// List the models that a run may name, with their dimensions
#[utoipa::path(get, path = "/models", tag = "models", operation_id = "list_models",
    responses((status = 200, description = "The models", body = ModelList)))]
pub async fn models(State(app): State<App>) -> Json<ModelList> {
    // Where weights lie on this host is nobody's business.
    let models = app.models.values().map(|model| ModelSpec { weights: None, ..model.clone() }).collect();
    Json(ModelList { models, refused: app.refused_models.to_vec() })
}

/// The model that a request names.
pub fn find_model<'a>(app: &'a App, name: &str) -> Result<&'a ModelSpec, ApiError> {
    app.models.get(name).ok_or_else(|| {
        if let Some(reason) = why_refused(&app.refused_models, name) {
            return ApiError::new(ErrorCode::ModelNotFound, format!("model {name} cannot be used: {reason}"));
        }
        let names = app.models.keys().map(String::as_str);
        let hint = match nearest(name, names.clone()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", names.collect::<Vec<_>>().join(", ")),
        };
        ApiError::new(ErrorCode::ModelNotFound, format!("there is no model {name}; {hint}"))
    })
}
