//! `GET /audit`: who did what, for admins.

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    App,
    error::{ApiError, ErrorCode},
    request::Params,
};
use crate::store::audit::AuditEntry;

const MAX_LIMIT: u32 = 1000;

/// The newest lines of the audit log, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    pub entries: Vec<AuditEntry>,
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Lines to show.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// Who did what, when and from where, newest first; for admins
#[utoipa::path(get, path = "/audit", tag = "service", operation_id = "list_audit", params(AuditQuery),
    responses((status = 200, description = "What was done and what was refused", body = AuditList)))]
pub async fn audit(State(app): State<App>, Params(query): Params<AuditQuery>) -> Result<Json<AuditList>, ApiError> {
    let limit = query.limit.unwrap_or(100);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ApiError::new(ErrorCode::InvalidParameter, format!("limit: {limit} is not between 1 and {MAX_LIMIT}")));
    }
    let entries = tokio::task::spawn_blocking(move || app.access.newest(limit as usize)).await;
    let entries = entries.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))?;
    Ok(Json(AuditList { entries }))
}
