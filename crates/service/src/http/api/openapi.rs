//! The contract, as JSON and as YAML.

use axum::{Extension, http::header, response::IntoResponse};

use crate::http::error::responses::OpenErrors;

/// Text of the contract in both formats, which the router provides. It is written at the first
/// request: a service starts sooner without it.
#[derive(Debug, Clone, Copy)]
pub struct ContractText {
    pub json: fn() -> &'static str,
    pub yaml: fn() -> &'static str,
}

/// Download the contract as JSON
#[utoipa::path(get, path = "/openapi.json", tag = "service", operation_id = "openapi_json",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object,
            content_type = "application/json", example = json!({
                "openapi": "3.1.0", "info": { "title": "llmprof", "version": "0.1.0" }, "paths": {}
            })),
        OpenErrors))]
pub async fn openapi_json(Extension(contract): Extension<ContractText>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], (contract.json)())
}

/// Download the contract as YAML
#[utoipa::path(get, path = "/openapi.yaml", tag = "service", operation_id = "openapi_yaml",
    responses(
        (status = 200, description = "OpenAPI 3.1", body = Object,
            content_type = "application/yaml", example = json!({
                "openapi": "3.1.0", "info": { "title": "llmprof", "version": "0.1.0" }, "paths": {}
            })),
        OpenErrors))]
pub async fn openapi_yaml(Extension(contract): Extension<ContractText>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/yaml")], (contract.yaml)())
}
