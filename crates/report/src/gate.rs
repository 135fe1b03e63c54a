//! The result of a gate, its summary, and the message about a regression.
//!
//! Pure. Its forms for terminals and CI are in `gate/forms.rs`.

mod forms;
#[cfg(test)]
mod tests;

use llmprof_analyze::series::{
    gate::GateVerdict, gate_decision::DecidedFigure, gate_thresholds::FigureRequest,
};
use llmprof_core::domain::{
    headline::{FigureName, FigureStatistic},
    ids::RunId,
    webhook_event::{EventMessage, WebhookEvent},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::format::{decimals, known};

/// The result of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GateReport {
    pub verdict: GateVerdict,
    /// Name of the baseline.
    pub baseline: String,
    /// Its runs, of one build.
    pub baseline_runs: Vec<RunId>,
    /// Runs of the candidate.
    pub runs: Vec<RunId>,
    pub series: Option<String>,
    /// Each requested figure, but the dropped ones.
    pub figures: Vec<GateFigure>,
    /// Times of `slower` that neither side has.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub dropped: Vec<DroppedFigure>,
    /// Reasons why the gate as a whole is inconclusive.
    pub reasons: Vec<String>,
    /// Another run of the candidate may decide.
    pub more_runs: bool,
    /// Reason for which a regression was accepted.
    pub accepted: Option<String>,
}

/// One figure of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GateFigure {
    pub figure: FigureName,
    pub verdict: GateVerdict,
    pub threshold_pct: f64,
    #[serde(default = "named")]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub requested: FigureRequest,
    /// Statistic of a time or rate over the repeats of each run; `mixed` gets no verdict. `null`
    /// for other figures, and in gates of earlier versions.
    #[serde(default)]
    pub statistic: Option<FigureStatistic>,
    /// Means of both sides, in the unit of the figure.
    pub baseline: Option<f64>,
    pub candidate: Option<f64>,
    /// Change to the worse, and its upper bound; negative for an improvement.
    pub worse_pct: Option<f64>,
    pub bound_pct: Option<f64>,
    /// Standard deviation between runs of one build.
    pub noise_pct: Option<f64>,
    /// Smallest change that is found with probability 0.95 with these runs.
    pub detectable_pct: Option<f64>,
    pub reason: String,
}

/// Gates of earlier versions do not record it.
fn named() -> FigureRequest {
    FigureRequest::Named
}

impl From<DecidedFigure> for GateFigure {
    fn from(it: DecidedFigure) -> Self {
        let DecidedFigure { threshold, baseline, candidate, statistic, decision } = it;
        Self {
            figure: threshold.figure,
            verdict: decision.verdict,
            threshold_pct: threshold.pct,
            requested: threshold.request,
            statistic,
            baseline,
            candidate,
            worse_pct: decision.worse_pct,
            bound_pct: decision.bound_pct,
            noise_pct: decision.noise_pct,
            detectable_pct: decision.detectable_pct,
            reason: decision.reason,
        }
    }
}

impl GateFigure {
    /// The title, with the statistic of its runs.
    fn title(&self) -> String {
        let is_measured = self.baseline.is_some() || self.candidate.is_some();
        // A service of an earlier version does not state it.
        let unstated = || self.figure.statistic(None).filter(|_| is_measured);
        self.figure.title_by(self.statistic.or_else(unstated))
    }

    fn sentence(&self) -> String {
        let (title, unit) = (self.title(), self.figure.unit());
        if self.baseline.is_none() && self.candidate.is_none() {
            return format!("{title}: {}", self.reason);
        }
        let value = |it: Option<f64>| known(it, |it| decimals(it, 3));
        let (baseline, candidate) = (value(self.baseline), value(self.candidate));
        format!("{title}: {} ({baseline} -> {candidate} {unit})", self.reason)
    }
}

/// Marks a dropped figure if the others have a verdict.
const DROPPED: &str = "dropped";

/// A time of `slower` that was not measured on either side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DroppedFigure {
    pub figure: FigureName,
    pub reason: String,
}

impl From<FigureName> for DroppedFigure {
    fn from(figure: FigureName) -> Self {
        let reason = "not measured on either side; dropped, because `slower` stands for the times \
                      that were measured";
        Self { figure, reason: reason.into() }
    }
}

impl DroppedFigure {
    fn sentence(&self) -> String {
        format!("{}: {}", self.figure.title(), self.reason)
    }
}

impl GateReport {
    /// True if a caller accepted the regression.
    pub fn is_accepted(&self) -> bool {
        self.verdict == GateVerdict::Regression && self.accepted.is_some()
    }

    /// Number of figures with this verdict.
    fn count(&self, verdict: GateVerdict) -> usize {
        self.figures.iter().filter(|it| it.verdict == verdict).count()
    }

    /// The verdict in one line.
    pub fn summary(&self) -> String {
        let accepted = if self.is_accepted() { ", accepted" } else { "" };
        let dropped = match self.dropped.len() {
            0 => String::new(),
            dropped => format!(", {dropped} {DROPPED}"),
        };
        format!(
            "gate {}{accepted}: {} passed, {} regressed, {} inconclusive{dropped} against {} \
             ({} and {} runs)",
            self.verdict,
            self.count(GateVerdict::Passed),
            self.count(GateVerdict::Regression),
            self.count(GateVerdict::Inconclusive),
            self.baseline,
            self.baseline_runs.len(),
            self.runs.len(),
        )
    }

    /// The message about a regression that is not accepted.
    pub fn failure(&self) -> Option<EventMessage> {
        if self.verdict != GateVerdict::Regression || self.is_accepted() {
            return None;
        }
        let (run, baseline) = (*self.runs.last()?, self.baseline_runs.first());
        let worse = || self.figures.iter().filter(|it| it.verdict == GateVerdict::Regression);
        let sentences: Vec<String> = worse().map(GateFigure::sentence).collect();
        let figures: Vec<Value> = worse()
            .map(|it| {
                json!({
                    "figure": it.figure, "worse_pct": it.worse_pct,
                    "threshold_pct": it.threshold_pct,
                })
            })
            .collect();
        let link = match baseline {
            Some(baseline) => format!("/runs/{baseline}/diff/{run}"),
            None => format!("/runs/{run}"),
        };
        let body = json!({
            "run_id": run, "baseline": self.baseline, "runs": self.runs,
            "baseline_runs": self.baseline_runs, "series": self.series, "figures": figures,
            "message": sentences.join("; "), "link": link,
        });
        let body = body.as_object()?.clone();
        Some(EventMessage { event: WebhookEvent::GateFailed, run, body })
    }

    /// An example for the contract.
    pub fn example(run: RunId, baseline: RunId) -> Self {
        let figure = GateFigure {
            figure: FigureName::Tpot,
            verdict: GateVerdict::Regression,
            threshold_pct: 3.0,
            requested: FigureRequest::Slower,
            statistic: Some(FigureStatistic::Median),
            baseline: Some(0.67),
            candidate: Some(0.704),
            worse_pct: Some(5.07),
            bound_pct: Some(7.7),
            noise_pct: Some(0.9),
            detectable_pct: Some(6.2),
            reason: "worse by 5.07 %, beyond noise".into(),
        };
        Self {
            verdict: GateVerdict::Regression,
            baseline: "main".into(),
            baseline_runs: vec![baseline],
            runs: vec![run],
            series: Some("5e884898da28047151d0e56f8dc62927".into()),
            figures: vec![figure],
            dropped: vec![FigureName::Ttft.into()],
            reasons: vec![],
            more_runs: false,
            accepted: None,
        }
    }
}
