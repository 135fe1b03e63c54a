//! `GET /gates`: decisions of gates, among them accepted regressions.

use axum::{Json, extract::State};
use llmprof_core::domain::json_numbers::Within;
use llmprof_report::gate::GateReport;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    http::{
        api::baselines::check_name,
        error::{
            ApiError, ErrorCode,
            responses::{GuardedErrors, InvalidParameter},
        },
        extract::params::Params,
        state::App,
    },
    store::{GateFilter, StoredGate},
};

/// A decision of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecidedGate {
    pub at: String,
    /// Name of the caller's token.
    pub by: Option<String>,
    pub gate: GateReport,
}

/// Decisions, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GateList {
    pub gates: Vec<DecidedGate>,
}

impl DecidedGate {
    fn of(it: StoredGate) -> Result<Self, ApiError> {
        let StoredGate { report, at, by } = it;
        let gate = serde_json::from_str(&report).map_err(|error| ApiError::internal(&error))?;
        Ok(Self { at, by, gate })
    }
}

/// Filter of a list of gates.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GateQuery {
    /// Only gates against this baseline.
    #[param(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    pub baseline: Option<String>,
    /// Only accepted regressions, or only the others.
    pub accepted: Option<bool>,
    #[serde(default, deserialize_with = "Within::<1, 200>::optional_parameter")]
    #[param(minimum = 1, maximum = 200, default = 50)]
    pub limit: Option<u32>,
}

/// List decisions of gates, newest first
///
/// Accepted regressions are kept with reason, caller and runs; of the others, the newest 200 of
/// each baseline.
#[utoipa::path(get, path = "/gates", tag = "runs", operation_id = "list_gates",
    params(GateQuery),
    responses(
        (status = 200, description = "The decisions", body = GateList,
            example = json!(GateList { gates: vec![] })),
        GuardedErrors, InvalidParameter))]
pub async fn list(
    State(app): State<App>,
    Params(query): Params<GateQuery>,
) -> Result<Json<GateList>, ApiError> {
    Ok(Json(GateList { gates: page(&app, &query).await? }))
}

pub(crate) async fn page(app: &App, query: &GateQuery) -> Result<Vec<DecidedGate>, ApiError> {
    if let Some(name) = &query.baseline {
        check_name(name)
            .map_err(|error| ApiError::new(ErrorCode::InvalidParameter, error.message()))?;
    }
    let limit = query.limit.unwrap_or(50);
    let filter = GateFilter { baseline: query.baseline.as_deref(), accepted: query.accepted };
    app.store.gates(filter, limit).await?.into_iter().map(DecidedGate::of).collect()
}
