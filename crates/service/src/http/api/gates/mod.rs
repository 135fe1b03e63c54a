//! Gates: decides whether runs regressed against a baseline, and lists decisions.

mod decision;
pub mod list;

use axum::{Extension, Json, body::Body, extract::State, http::HeaderMap};
use llmprof_analyze::series::{
    gate::{GateVerdict, MAX_RUNS},
    gate_thresholds::RequestedFigures,
};
use llmprof_core::domain::{headline::FigureName, ids::RunId, json_numbers::Within};
use llmprof_report::gate::GateReport;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    baselines::check_name,
    runs::{self, example},
};
use crate::{
    http::{
        auth::access::Caller,
        error::{
            ApiError, ErrorCode,
            responses::{
                BodyErrors, GateNotFound, GuardedErrors, InsufficientStorage, InvalidBody,
                InvalidRequest, RequestConflict,
            },
        },
        extract::{
            body::{MAX_BODY, parse_object, read_json},
            bounds::{check_length, check_range},
        },
        state::App,
    },
    store::NewGate,
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
    #[serde(default)]
    pub fail_on: GateThresholds,
    /// Runs of the candidate after which an open gate is inconclusive.
    #[serde(default = "default_runs", deserialize_with = "Within::<1, 5>::integer")]
    #[schema(default = 5, minimum = 1, maximum = 5)]
    pub max_runs: u32,
    /// Accepts a regression, for this reason.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    pub accept: Option<String>,
}

/// Thresholds in percent by figure; without any, 3 for every time.
///
/// A named figure that was not measured is inconclusive.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({ "slower": 3, "energy": 10 }))]
pub struct GateThresholds {
    /// For every time that was measured on a side and has no threshold of its own.
    #[schema(minimum = 0.01, maximum = 1000)]
    pub slower: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub ttft: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub tpot: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub wall: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub tokens_per_s: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub gpu_busy: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub mfu: Option<f64>,
    #[schema(minimum = 0.01, maximum = 1000)]
    pub energy: Option<f64>,
}

impl GateThresholds {
    fn of(&self, figure: FigureName) -> Option<f64> {
        match figure {
            FigureName::Ttft => self.ttft,
            FigureName::Tpot => self.tpot,
            FigureName::Wall => self.wall,
            FigureName::TokensPerS => self.tokens_per_s,
            FigureName::GpuBusy => self.gpu_busy,
            FigureName::Mfu => self.mfu,
            FigureName::Energy => self.energy,
        }
    }
}

fn default_runs() -> u32 {
    MAX_RUNS as u32
}

/// Compare runs with a baseline, and decide whether they regressed
///
/// The noise is the standard deviation between runs of one build in their series. At most 1 % of
/// gates of equal builds fail, over all figures. `inconclusive` is not a pass; a named figure that
/// was not measured is inconclusive. `dropped` has the times of `slower` that neither side has.
/// `more_runs` is true if another run of the candidate may decide.
#[utoipa::path(post, path = "/gates", tag = "runs", operation_id = "submit_gate",
    request_body(content = SubmitGate,
        example = json!({ "baseline": "main", "runs": [example::id()] })),
    responses(
        (status = 200, description = "The decision", body = GateReport,
            example = json!(GateReport::example(example::id(), example::id()))),
        GuardedErrors, InvalidBody, GateNotFound, RequestConflict, BodyErrors, InvalidRequest,
        InsufficientStorage))]
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<GateReport>, ApiError> {
    let body = read_json(&headers, body, MAX_BODY).await?;
    decide(&app, &caller, &body).await.map(Json)
}

/// Decides the gate of this body, and stores the decision.
pub(crate) async fn decide(
    app: &App,
    caller: &Caller,
    body: &[u8],
) -> Result<GateReport, ApiError> {
    let gate: SubmitGate = parse_object(body)?;
    check_name(&gate.baseline)?;
    check_range("runs", gate.runs.len(), 1..=MAX_RUNS)?;
    if let Some(reason) = &gate.accept {
        check_length("accept", reason, 1..=500)?;
    }
    let requested = requested(&gate.fail_on)?;
    let mut candidate = Vec::new();
    for id in &gate.runs {
        if candidate.iter().any(|run: &crate::store::StoredRun| run.id == *id) {
            let message = format!("runs: {id} is given more than once");
            return Err(ApiError::new(ErrorCode::RequestContradictory, message));
        }
        candidate.push(runs::find(app, *id).await?);
    }
    let mut report = decision::decide(app, &gate, &requested, &candidate).await?;
    report.accepted = gate.accept.filter(|_| report.verdict == GateVerdict::Regression);
    let text = serde_json::to_string(&report).map_err(|error| ApiError::internal(&error))?;
    let decided = NewGate {
        baseline: &report.baseline,
        accepted: report.accepted.as_deref(),
        report: &text,
        by: caller.name.as_deref(),
    };
    app.store.add_gate(decided, report.failure().as_ref()).await?;
    Ok(report)
}

/// The requested figures with their thresholds.
fn requested(fail_on: &GateThresholds) -> Result<RequestedFigures, ApiError> {
    RequestedFigures::of(fail_on.slower, |figure| fail_on.of(figure))
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, format!("fail_on: {error}")))
}
