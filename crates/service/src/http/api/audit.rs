//! `GET /audit`: the audit log, for admins.

use axum::{Json, extract::State};
use llmprof_core::domain::json_numbers::Within;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::{RunLinks, example};
use crate::{
    http::{
        error::{
            ApiError,
            responses::{GuardedErrors, InvalidParameter},
        },
        extract::params::Params,
        state::App,
    },
    runtime,
    store::audit::AuditEntry,
};

/// The newest entries of the audit log, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    pub entries: Vec<AuditEntry>,
}

impl AuditList {
    fn example() -> Self {
        let entry = AuditEntry {
            at: "2026-11-20T09:00:00.000Z".into(),
            who: Some("ann".into()),
            address: Some("192.0.2.7".into()),
            action: "POST /runs/{run_id}/cancel".into(),
            target: RunLinks::of(example::id()).cancel,
            status: Some(202),
            request_id: Some("019a9f3e-7b2a-7d31-8f64-0d6f1b2c3e4a".into()),
        };
        Self { entries: vec![entry] }
    }
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Number of entries.
    #[serde(default, deserialize_with = "Within::<1, 1000>::optional_parameter")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
}

/// List changes and refused requests with caller, time and address, newest first; for admins
#[utoipa::path(get, path = "/audit", tag = "service", operation_id = "list_audit",
    params(AuditQuery),
    responses(
        (status = 200, description = "The newest entries", body = AuditList,
            example = json!(AuditList::example())),
        GuardedErrors, InvalidParameter))]
pub async fn audit(
    State(app): State<App>,
    Params(query): Params<AuditQuery>,
) -> Result<Json<AuditList>, ApiError> {
    let limit = query.limit.unwrap_or(100);
    let read = move || app.access.audit_entries(limit as usize);
    let entries = runtime::blocking(read)
        .await
        .map_err(|error| ApiError::internal(&error))?
        .map_err(|error| ApiError::internal(&error))?;
    Ok(Json(AuditList { entries }))
}
