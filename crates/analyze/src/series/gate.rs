//! Decision of a gate: whether a build regressed against a baseline by more than a threshold.
//!
//! Each gated figure is tested by Student's t with the noise between runs of one build. All tests
//! of all figures, after each added run, together fail with a probability of at most [`ALPHA`]
//! if nothing changed: their levels add up to it (Bonferroni). Derivation: specs/series.md.

use llmprof_core::domain::{headline::FigureName, named_values::named_values};

use super::noise::Noise;
use crate::compare::student::quantile;

/// Probability that a gate of equal builds fails, over all figures and looks.
pub const ALPHA: f64 = 0.01;
/// Probability that a figure passes which is worse by its threshold, over all looks.
pub const BETA: f64 = 0.05;
/// Part of [`ALPHA`] for the last look; the earlier ones share the rest.
const LAST_LOOK: f64 = 0.995;
/// Runs of a side at most.
pub const MAX_RUNS: usize = 5;

named_values! {
    /// Verdict of a gate, or of one figure of it.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    GateVerdict {
        Passed = "passed",
        Regression = "regression",
        Inconclusive = "inconclusive",
    }
}

/// The runs of a gate and its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateDesign {
    /// Gated figures.
    pub figures: usize,
    /// Runs of the candidate at which the gate ends.
    pub max_runs: usize,
}

/// A gated figure: values of both sides, the noise, and the threshold.
#[derive(Debug, Clone, Copy)]
pub struct GatedFigure<'a> {
    pub name: FigureName,
    pub threshold_pct: f64,
    pub baseline: &'a [f64],
    pub candidate: &'a [f64],
    /// Between runs of one build, the candidate's excluded.
    pub noise: Option<Noise>,
    /// Mean of the runs between the change points around the baseline, the candidate's excluded.
    pub level: Option<f64>,
}

/// The decision on one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct FigureDecision {
    pub verdict: GateVerdict,
    /// Change to the worse, percent; negative for an improvement.
    pub worse_pct: Option<f64>,
    /// Standard deviation between runs of one build, percent.
    pub noise_pct: Option<f64>,
    /// Upper bound of the change to the worse, percent.
    pub bound_pct: Option<f64>,
    /// Smallest change to the worse that is found with probability 0.95 with the runs at hand.
    pub detectable_pct: Option<f64>,
    pub reason: String,
    /// Another run of the candidate may decide.
    pub more_runs: bool,
}

impl FigureDecision {
    pub(super) fn inconclusive(reason: String, more_runs: bool) -> Self {
        Self {
            verdict: GateVerdict::Inconclusive,
            worse_pct: None,
            noise_pct: None,
            bound_pct: None,
            detectable_pct: None,
            reason,
            more_runs,
        }
    }
}

/// A change to the worse and its standard error, relative to the baseline.
struct Worse {
    change: f64,
    std_error: f64,
    freedom: f64,
}

impl GateDesign {
    /// Level of one figure's test after `runs` of the candidate.
    fn level(&self, runs: usize) -> f64 {
        let figure = ALPHA / self.figures.max(1) as f64;
        if runs >= self.max_runs {
            return if self.max_runs > 1 { figure * LAST_LOOK } else { figure };
        }
        figure * (1.0 - LAST_LOOK) / (self.max_runs - 1) as f64
    }

    /// Decides one figure.
    pub fn decide(&self, it: &GatedFigure) -> FigureDecision {
        let may_repeat = it.candidate.len() < self.max_runs;
        if it.candidate.is_empty() || it.baseline.is_empty() {
            let reason = match (it.baseline.is_empty(), it.candidate.is_empty()) {
                (true, true) => "not measured on either side",
                (true, false) => "not measured in the baseline",
                (false, _) => "not measured in the candidate",
            };
            return FigureDecision::inconclusive(reason.into(), false);
        }
        // A single value without earlier runs has no deviation at all.
        let own = Noise::within([it.candidate]);
        let Some(noise) = own.map(|own| own.and(it.noise)).or(it.noise) else {
            let reason = "the noise is unknown: no two runs of one build".to_owned();
            return FigureDecision::inconclusive(reason, may_repeat);
        };
        self.judge(it, &worse(it, &noise), &noise)
    }

    fn judge(&self, it: &GatedFigure, worse: &Worse, noise: &Noise) -> FigureDecision {
        let runs = it.candidate.len();
        let is_last = runs >= self.max_runs;
        let threshold = it.threshold_pct / 100.0;
        let critical = quantile(1.0 - self.level(runs), worse.freedom) * worse.std_error;
        let beta = BETA / self.max_runs.max(1) as f64;
        let bound = worse.change + quantile(1.0 - beta, worse.freedom) * worse.std_error;
        let is_significant = worse.change > critical && worse.change > 0.0;
        let pct = |relative: f64| 100.0 * relative;
        let (limit, change) = (it.threshold_pct, pct(worse.change));
        let (verdict, reason) = if bound < threshold {
            let reason = format!("{}; worse by {limit} % is excluded", change_words(change));
            (GateVerdict::Passed, reason)
        } else if is_significant && (is_last || worse.change >= threshold) {
            (GateVerdict::Regression, format!("{}, beyond noise", change_words(change)))
        } else {
            let bound = pct(bound);
            let are = if runs == 1 { "1 run".to_owned() } else { format!("{runs} runs") };
            let reason = format!(
                "{}; worse by {limit} % cannot be excluded with {are}: up to {bound:.2} % at a \
                 noise of {:.2} %",
                change_words(change),
                noise.pct()
            );
            (GateVerdict::Inconclusive, reason)
        };
        let detectable = critical + quantile(0.95, worse.freedom) * worse.std_error;
        FigureDecision {
            more_runs: verdict == GateVerdict::Inconclusive && !is_last,
            verdict,
            worse_pct: Some(change),
            noise_pct: Some(noise.pct()),
            bound_pct: Some(pct(bound)),
            detectable_pct: Some(pct(detectable)),
            reason,
        }
    }
}

/// A change to the worse in words, which is one to the better if it is negative.
pub fn change_words(worse_pct: f64) -> String {
    let amount = format!("{:.2}", worse_pct.abs());
    match (amount.as_str(), worse_pct < 0.0) {
        ("0.00", _) => "unchanged".into(),
        (amount, true) => format!("better by {amount} %"),
        (amount, false) => format!("worse by {amount} %"),
    }
}

/// The change of the mean cost from the baseline to the candidate: of the figure, or of its
/// reciprocal if higher is better, as the time for a rate.
///
/// The deviation in the unit of the cost is the noise at the level of the series. The baseline's
/// own few runs would be low if a change is found by chance, and the candidate's high if it is
/// worse.
fn worse(it: &GatedFigure, noise: &Noise) -> Worse {
    let cost = |value: f64| if it.name.lower_is_better() { value } else { value.recip() };
    let mean =
        |values: &[f64]| values.iter().map(|it| cost(*it)).sum::<f64>() / values.len() as f64;
    let (before, after) = (mean(it.baseline), mean(it.candidate));
    let level = it.level.map_or((before + after) / 2.0, cost);
    let runs = 1.0 / it.candidate.len() as f64 + 1.0 / it.baseline.len() as f64;
    Worse {
        change: after / before - 1.0,
        std_error: noise.log_std * level / before * runs.sqrt(),
        freedom: noise.freedom,
    }
}

/// The verdict over all figures: a regression of one decides; a pass needs all.
pub fn overall(verdicts: impl IntoIterator<Item = GateVerdict>) -> GateVerdict {
    let mut worst = None;
    for verdict in verdicts {
        worst = worst.max(Some(match verdict {
            GateVerdict::Passed => (0, verdict),
            GateVerdict::Inconclusive => (1, verdict),
            GateVerdict::Regression => (2, verdict),
        }));
    }
    worst.map_or(GateVerdict::Inconclusive, |(_, verdict)| verdict)
}
