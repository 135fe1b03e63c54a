//! Liveness, readiness and version of the service.

use axum::{Json, extract::State};
use llmprof_core::layout::FORMAT_VERSION;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::{
    error::{
        ApiError, ErrorCode,
        responses::{GuardedErrors, OpenErrors, Unready},
    },
    state::App,
};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`; any other state is an error.
    #[schema(example = "ok")]
    pub status: String,
}

impl Health {
    fn ok() -> Self {
        Self { status: "ok".into() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    #[schema(example = "0.1.0")]
    pub version: String,
    /// Commit of the build; `null` if it was not built from a checkout.
    pub git_commit: Option<String>,
    /// Version of the layout of a run's folder.
    pub format_version: u32,
}

impl VersionInfo {
    fn example() -> Self {
        Self {
            version: "0.1.0".into(),
            git_commit: Some("3f2c1d0b9a87".into()),
            format_version: FORMAT_VERSION,
        }
    }
}

/// Check that the process is alive
#[utoipa::path(get, path = "/healthz", tag = "service", operation_id = "healthz",
    responses(
        (status = 200, description = "The process is alive", body = Health,
            example = json!(Health::ok())),
        OpenErrors))]
pub async fn healthz() -> Json<Health> {
    Json(Health::ok())
}

/// Check that the service executes runs: it has recovered from its last end, its data folder is in
/// place, its database is readable, and no run waits for resources of the host
#[utoipa::path(get, path = "/readyz", tag = "service", operation_id = "readyz",
    responses(
        (status = 200, description = "The service is ready", body = Health,
            example = json!(Health::ok())),
        OpenErrors, Unready))]
pub async fn readyz(State(app): State<App>) -> Result<Json<Health>, ApiError> {
    let unready = |error: &dyn std::error::Error| {
        tracing::error!(error = %llmprof_core::chain(error), "not ready");
        ApiError::of(ErrorCode::Unavailable)
    };
    if let Some(work) = app.recovery.borrow().as_ref() {
        let (done, total) = work.progress();
        let (done, total) = (done as f64 / 1e9, total as f64 / 1e9);
        let message = format!(
            "recovering the runs of the last service ({done:.1} of {total:.1} GB hashed); queued \
             runs start after it"
        );
        return Err(ApiError::new(ErrorCode::Unavailable, message).retry_after(5));
    }
    app.folder.verify().map_err(|error| unready(&error))?;
    app.store.ready().await.map_err(|error| unready(&error))?;
    if let Err(low) = app.start_space() {
        return Err(ApiError::new(ErrorCode::Unavailable, low.to_string()).retry_after(60));
    }
    match app.store.exhaustion().await.map_err(|error| unready(&error))? {
        None => Ok(Json(Health::ok())),
        Some(reason) => Err(ApiError::new(ErrorCode::Unavailable, reason)),
    }
}

/// Show the version of the service
#[utoipa::path(get, path = "/version", tag = "service", operation_id = "version",
    responses(
        (status = 200, description = "The version", body = VersionInfo,
            example = json!(VersionInfo::example())),
        GuardedErrors))]
pub async fn version() -> Json<VersionInfo> {
    Json(VersionInfo {
        version: env!("CARGO_PKG_VERSION").into(),
        git_commit: crate::build::commit(),
        format_version: FORMAT_VERSION,
    })
}
