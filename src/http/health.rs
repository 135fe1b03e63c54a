//! Whether the service lives, is ready, and which it is.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    App,
    error::{ApiError, ErrorCode},
};
use crate::artifact::layout::FORMAT_VERSION;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`: anything else is an error.
    #[schema(example = "ok")]
    pub status: String,
}

impl Health {
    pub fn ok() -> Json<Self> {
        Json(Self { status: "ok".into() })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    #[schema(example = "0.1.0")]
    pub version: String,
    /// Commit that the program was built from; `null` when it was not built from a checkout.
    pub git_commit: Option<String>,
    /// Version of the layout of a run's folder.
    pub format_version: u32,
}

/// The process lives
#[utoipa::path(get, path = "/healthz", tag = "service", operation_id = "healthz",
    responses((status = 200, description = "It lives", body = Health)))]
pub async fn healthz() -> Json<Health> {
    Health::ok()
}

/// The service can take runs: its database answers
#[utoipa::path(get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses((status = 200, description = "It is ready", body = Health)))]
pub async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    match app.store.ready().await {
        Ok(()) => Ok(Health::ok()),
        Err(error) => {
            tracing::error!(error = %crate::chain(&error), "not ready");
            Err(ApiError::new(ErrorCode::Unavailable, ErrorCode::Unavailable.example()))
        }
    }
}

/// Which version serves
#[utoipa::path(get, path = "/version", tag = "service", operation_id = "version",
    responses((status = 200, description = "The version", body = Version)))]
pub async fn version() -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION").into(),
        git_commit: option_env!("LLMPROF_GIT_COMMIT").map(str::to_owned),
        format_version: FORMAT_VERSION,
    })
}
