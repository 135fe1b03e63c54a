//! `POST /gates`: whether runs regressed against a baseline.

mod decision;

use std::collections::BTreeMap;

use axum::{Extension, Json, body::Body, extract::State, http::HeaderMap};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    baselines::check_name,
    runs::{self, example},
};
use crate::{
    analyze::series::gate::{GateVerdict, MAX_RUNS},
    domain::{headline::FigureName, ids::RunId, json_numbers::integer},
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{BodyErrors, GateNotFound, GuardedErrors, InvalidBody, InvalidRequest},
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::{check_length, check_range},
        },
        state::App,
    },
    report::gate::GateReport,
};

/// Runs of one build against a baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitGate {
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$", example = "main")]
    pub baseline: String,
    /// The runs of the candidate.
    #[schema(min_items = 1, max_items = 5)]
    pub runs: Vec<RunId>,
    /// Thresholds in percent by figure; `slower` stands for every time.
    #[serde(default = "default_thresholds")]
    #[schema(example = json!({ "slower": 3, "energy": 10 }))]
    pub fail_on: BTreeMap<String, f64>,
    /// Runs of the candidate after which an open gate is inconclusive.
    #[serde(default = "default_runs", deserialize_with = "integer")]
    #[schema(default = 5, minimum = 1, maximum = 5)]
    pub max_runs: u32,
    /// Accepts a regression, for this reason.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    pub accept: Option<String>,
}

fn default_thresholds() -> BTreeMap<String, f64> {
    [("slower".to_owned(), 3.0)].into()
}

fn default_runs() -> u32 {
    MAX_RUNS as u32
}

/// Compare runs with a baseline, and decide whether they regressed
///
/// The noise is the standard deviation between runs of one build in their series. At most 1 % of
/// gates of equal builds fail, over all figures. `inconclusive` is not a pass; `more_runs` is true
/// if another run of the candidate may decide.
#[utoipa::path(post, path = "/gates", tag = "runs", operation_id = "submit_gate",
    request_body(content = SubmitGate,
        example = json!({ "baseline": "main", "runs": [example::id()] })),
    responses(
        (status = 200, description = "The decision", body = GateReport,
            example = json!(GateReport::example(example::id(), example::id()))),
        GuardedErrors, InvalidBody, GateNotFound, BodyErrors, InvalidRequest))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<GateReport>, ApiError> {
    let body = read_json(&headers, body, MAX_BODY).await?;
    let gate: SubmitGate = parse_object(&body)?;
    check_name(&gate.baseline)?;
    check_range("runs", gate.runs.len(), 1..=MAX_RUNS)?;
    check_range("max_runs", gate.max_runs, 1..=MAX_RUNS as u32)?;
    if let Some(reason) = &gate.accept {
        check_length("accept", reason, 1..=500)?;
    }
    let thresholds = thresholds(&gate.fail_on)?;
    let mut candidate = Vec::new();
    for id in &gate.runs {
        if candidate.iter().any(|run: &crate::store::StoredRun| run.id == *id) {
            let message = format!("runs: {id} is given more than once");
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        candidate.push(runs::find(&app, *id).await?);
    }
    let mut report = decision::decide(&app, &gate, &thresholds, &candidate).await?;
    if let Some(reason) = gate.accept.filter(|_| report.verdict == GateVerdict::Regression) {
        let by = caller.name.as_deref();
        for run in &gate.runs {
            app.store.accept_regression(*run, (&gate.baseline, &reason), by).await?;
        }
        report.accepted = Some(reason);
    }
    Ok(Json(report))
}

/// The threshold of each gated figure.
fn thresholds(fail_on: &BTreeMap<String, f64>) -> Result<BTreeMap<FigureName, f64>, ApiError> {
    check_range("fail_on", fail_on.len(), 1..=FigureName::ALL.len() + 1)?;
    let mut thresholds = BTreeMap::new();
    if let Some(slower) = fail_on.get("slower") {
        thresholds.extend(FigureName::TIMES.iter().map(|time| (*time, *slower)));
    }
    for (name, threshold) in fail_on {
        if !(0.01..=1000.0).contains(threshold) {
            let message = format!("fail_on.{name:.40}: {threshold} is not between 0.01 and 1000");
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        if name != "slower" {
            let figure = name.parse().map_err(|error| {
                let message = format!("fail_on: {error}, slower");
                ApiError::new(ErrorCode::InvalidRequest, message)
            })?;
            thresholds.insert(figure, *threshold);
        }
    }
    Ok(thresholds)
}
