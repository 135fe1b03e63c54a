//! Decision of a gate over all requested figures: each is decided, inconclusive or dropped.
//!
//! The only place that drops a figure. [`super::gate`] decides a single figure.

#[cfg(test)]
mod tests;

use llmprof_core::domain::headline::{FigureName, FigureStatistic};

use super::{
    gate::{FigureDecision, GateDesign, GateVerdict, GatedFigure, overall},
    gate_thresholds::{FigureRequest, FigureThreshold, RequestedFigures},
    noise::Noise,
};
use crate::stats::Spread;

/// The values of a figure on both sides of a gate, one per run.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureSides {
    baseline: Vec<f64>,
    candidate: Vec<f64>,
    /// Runs of the candidate, with and without the figure.
    candidate_runs: usize,
    /// Between runs of one build, without the candidate's.
    noise: Option<Noise>,
    /// Mean of the runs between the change points around the baseline, without the candidate's.
    level: Option<f64>,
    /// Of the baseline and of the candidate; `None` of a figure without one.
    statistics: [Option<FigureStatistic>; 2],
}

impl FigureSides {
    /// A value that is not a positive number counts as not measured.
    pub fn new(
        baseline: impl IntoIterator<Item = Option<f64>>,
        candidate: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        let candidate: Vec<Option<f64>> = candidate.into_iter().collect();
        Self {
            baseline: measured(baseline),
            candidate_runs: candidate.len(),
            candidate: measured(candidate),
            noise: None,
            level: None,
            statistics: [None; 2],
        }
    }

    /// With the noise of the series, and the runs around the baseline.
    pub fn in_series(
        self,
        noise: Option<Noise>,
        around_baseline: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        Self { noise, level: mean(&measured(around_baseline)), ..self }
    }

    /// With the statistics of the baseline and of the candidate.
    pub fn of_statistics(self, statistics: [Option<FigureStatistic>; 2]) -> Self {
        Self { statistics, ..self }
    }

    /// The reason why the sides are not of one known statistic; `None` if they are.
    fn unlike_statistics(&self) -> Option<String> {
        let [Some(baseline), Some(candidate)] = self.statistics else { return None };
        let words = |it| match it {
            FigureStatistic::Median => "medians",
            FigureStatistic::Mean => "means",
            FigureStatistic::Unknown => "an unknown statistic",
            FigureStatistic::Mixed => "medians and means",
        };
        let is_known = matches!(baseline, FigureStatistic::Median | FigureStatistic::Mean);
        (baseline != candidate || !is_known).then(|| {
            format!(
                "not comparable: the baseline has {}, the candidate {}; runs of earlier versions \
                 have means, so run the baseline again",
                words(baseline),
                words(candidate)
            )
        })
    }

    /// True if a run of either side has the figure.
    fn is_measured(&self) -> bool {
        !self.baseline.is_empty() || !self.candidate.is_empty()
    }

    fn decide(&self, threshold: &FigureThreshold, design: &GateDesign) -> FigureDecision {
        let (known, runs) = (self.candidate.len(), self.candidate_runs);
        // The other runs of the candidate are incomplete captures.
        if 0 < known && known < runs {
            let reason = format!("measured in {known} of {runs} runs of the candidate");
            return FigureDecision::inconclusive(reason, false);
        }
        if let Some(reason) = self.unlike_statistics() {
            return FigureDecision::inconclusive(reason, false);
        }
        design.decide(&GatedFigure {
            name: threshold.figure,
            threshold_pct: threshold.pct,
            baseline: &self.baseline,
            candidate: &self.candidate,
            noise: self.noise,
            level: self.level,
        })
    }
}

fn measured(values: impl IntoIterator<Item = Option<f64>>) -> Vec<f64> {
    values.into_iter().flatten().filter(|it| it.is_finite() && *it > 0.0).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    Spread::of(values.iter().copied()).map(|it| it.mean)
}

/// The decision on a requested figure, and the means of both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidedFigure {
    pub threshold: FigureThreshold,
    pub baseline: Option<f64>,
    pub candidate: Option<f64>,
    pub statistic: Option<FigureStatistic>,
    pub decision: FigureDecision,
}

/// The decision of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateDecision {
    pub verdict: GateVerdict,
    pub figures: Vec<DecidedFigure>,
    /// Members of the group `slower` that neither side has.
    pub dropped: Vec<FigureName>,
    /// Another run of the candidate may decide.
    pub more_runs: bool,
}

/// Decides each requested figure.
///
/// A member of the group that neither side has is dropped, unless no member was measured: then
/// all are inconclusive.
pub fn decide_gate(
    requested: &RequestedFigures,
    max_runs: usize,
    sides: impl Fn(FigureName) -> FigureSides,
) -> GateDecision {
    let all: Vec<(FigureThreshold, FigureSides)> =
        requested.iter().map(|it| (*it, sides(it.figure))).collect();
    let is_member = |it: &FigureThreshold| it.request == FigureRequest::Slower;
    let has_group = all.iter().any(|(it, sides)| is_member(it) && sides.is_measured());
    let (gated, dropped): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|(it, sides)| !is_member(it) || !has_group || sides.is_measured());
    let design = GateDesign { figures: gated.len(), max_runs };
    let decided = gated.iter().map(|(threshold, sides)| DecidedFigure {
        threshold: *threshold,
        baseline: mean(&sides.baseline),
        candidate: mean(&sides.candidate),
        statistic: FigureStatistic::of_all(sides.statistics.into_iter().flatten()),
        decision: sides.decide(threshold, &design),
    });
    let figures: Vec<DecidedFigure> = decided.collect();
    let verdict = overall(figures.iter().map(|it| it.decision.verdict));
    let more_runs = figures.iter().any(|it| it.decision.more_runs);
    GateDecision {
        verdict,
        more_runs: more_runs && verdict == GateVerdict::Inconclusive,
        figures,
        dropped: dropped.into_iter().map(|(it, _)| it.figure).collect(),
    }
}
