//! The decision of a gate: collects both sides and the noise from the series.

use llmprof_analyze::series::{
    gate::{GateVerdict, MAX_RUNS},
    gate_decision::{FigureSides, decide_gate},
    gate_thresholds::RequestedFigures,
};
use llmprof_core::domain::{
    headline::{FigureName, FigureStatistic, SeriesIdentity},
    state::RunState,
};
use llmprof_report::gate::{DroppedFigure, GateFigure, GateReport};

use super::SubmitGate;
use crate::{
    http::{
        api::series::{RECENT, noise},
        error::{ApiError, ErrorCode},
        state::App,
    },
    store::{StoredBaseline, StoredChange, StoredPoint, StoredRun},
};

/// The points of both sides, and of the earlier runs of their series.
struct GateSides {
    candidate: Vec<StoredPoint>,
    /// Runs of the baseline's build.
    baseline: Vec<StoredPoint>,
    /// Earlier runs, without the candidate's.
    earlier: Vec<StoredPoint>,
    changes: Vec<StoredChange>,
}

impl GateSides {
    /// The values of a figure on both sides.
    fn of(&self, figure: FigureName) -> FigureSides {
        let of_baseline = statistic(&self.baseline, figure);
        let mut around = self.around_baseline(figure);
        around.retain(|it| it.statistic(figure) == of_baseline);
        FigureSides::new(values(&self.baseline, figure), values(&self.candidate, figure))
            .in_series(noise(&self.earlier, &self.changes, figure), values(&around, figure))
            .of_statistics([of_baseline, statistic(&self.candidate, figure)])
    }

    /// The earlier runs between the change points of a figure around the baseline.
    fn around_baseline(&self, figure: FigureName) -> Vec<StoredPoint> {
        let Some(baseline) = self.baseline.first().map(|it| it.run) else { return vec![] };
        let starts = || self.changes.iter().filter(|it| it.figure == figure).map(|it| it.run);
        let from = starts().filter(|run| *run <= baseline).max();
        let to = starts().filter(|run| *run > baseline).min();
        let is_around = |run| from.is_none_or(|from| run >= from) && to.is_none_or(|to| run < to);
        self.earlier.iter().filter(|it| is_around(it.run)).cloned().collect()
    }
}

/// The value of a figure in each point.
fn values(points: &[StoredPoint], figure: FigureName) -> impl Iterator<Item = Option<f64>> {
    points.iter().map(move |it| it.headline.get(figure))
}

/// The statistic of a figure in the points that have it.
fn statistic(points: &[StoredPoint], figure: FigureName) -> Option<FigureStatistic> {
    FigureStatistic::of_all(points.iter().filter_map(|it| it.statistic(figure)))
}

/// Decides a gate; whatever prevents a decision is a reason of an inconclusive one.
pub(super) async fn decide(
    app: &App,
    gate: &SubmitGate,
    requested: &RequestedFigures,
    candidate: &[StoredRun],
) -> Result<GateReport, ApiError> {
    let mut report = GateReport {
        verdict: GateVerdict::Inconclusive,
        baseline: gate.baseline.clone(),
        baseline_runs: vec![],
        runs: gate.runs.clone(),
        series: None,
        figures: vec![],
        dropped: vec![],
        reasons: vec![],
        more_runs: false,
        accepted: None,
    };
    let baseline = setting(app, &gate.baseline).await?;
    match sides(app, gate, &baseline, candidate).await? {
        Err(reason) => report.reasons.push(reason),
        Ok(sides) => {
            report.series = sides.candidate[0].series.clone();
            report.baseline_runs = sides.baseline.iter().map(|it| it.run).collect();
            add_figures(&mut report, gate, requested, &sides);
        }
    }
    Ok(report)
}

/// The setting of a baseline that counts.
async fn setting(app: &App, name: &str) -> Result<StoredBaseline, ApiError> {
    let found = app.store.baselines(Some(name), 1).await?.pop();
    found.filter(|it| it.run.is_some() || it.label.is_some()).ok_or_else(|| {
        let message = format!("no baseline {name}; set it by POST /baselines");
        ApiError::new(ErrorCode::BaselineNotFound, message)
    })
}

/// Both sides, or the reason why they cannot be compared.
async fn sides(
    app: &App,
    gate: &SubmitGate,
    baseline: &StoredBaseline,
    runs: &[StoredRun],
) -> Result<Result<GateSides, String>, ApiError> {
    for run in runs {
        match run.state {
            RunState::Succeeded | RunState::Partial => {}
            state if state.is_final() => return Ok(Err(format!("run {} ended {state}", run.id))),
            state => return Ok(Err(format!("run {} has not ended: it is {state}", run.id))),
        }
    }
    let points = app.store.points_of(&gate.runs, false).await?;
    let candidate: Vec<StoredPoint> = points.into_iter().map(|(_, point)| point).collect();
    let Some(series) = candidate.first().and_then(|point| point.series.clone()) else {
        return Ok(Err("the candidate has no headline figures".into()));
    };
    if candidate.len() < runs.len()
        || candidate.iter().any(|it| it.series.as_ref() != Some(&series))
    {
        return Ok(Err("the runs of the candidate are of different series".into()));
    }
    let target = match (&baseline.run, &baseline.label) {
        (Some(run), _) => Some(*run),
        (None, Some(label)) => app.store.newest_labelled(&series, label, &gate.runs).await?,
        (None, None) => None,
    };
    let Some(target) = target else {
        let label = baseline.label.as_deref().unwrap_or_default();
        return Ok(Err(format!("no succeeded run of this series has the label {label:?}")));
    };
    let Some((_, target)) = app.store.points_of(&[target], false).await?.pop() else {
        return Ok(Err(format!(
            "run {target} of the baseline was deleted or has no headline figures"
        )));
    };
    if target.series.as_ref() != Some(&series) {
        return Ok(Err(difference(app, target.series.as_deref(), &series).await?));
    }
    let changes = app.store.change_points(&series).await?;
    let mut earlier = app.store.points(&series, None, RECENT).await?;
    earlier.retain(|it| !gate.runs.contains(&it.run));
    let build = target.build_key(&changes);
    // Without a revision, later runs may be of another build, such as the candidate of a gate.
    let is_of_target = |it: &&StoredPoint| match target.revision {
        Some(_) => it.run != target.run,
        None => it.run < target.run,
    };
    let others = earlier.iter().filter(is_of_target).filter(|it| it.build_key(&changes) == build);
    let others: Vec<StoredPoint> = others.take(MAX_RUNS - 1).cloned().collect();
    let is_candidate = gate.runs.contains(&target.run);
    let baseline: Vec<StoredPoint> =
        [target].into_iter().filter(|_| !is_candidate).chain(others).collect();
    if baseline.is_empty() {
        return Ok(Err("the baseline has no run other than the candidate's".into()));
    }
    Ok(Ok(GateSides { candidate, baseline, earlier, changes }))
}

/// The facts in which two series differ.
async fn difference(app: &App, a: Option<&str>, b: &str) -> Result<String, ApiError> {
    let identity = async |id: &str| -> Result<SeriesIdentity, ApiError> {
        Ok(app.store.series(id).await?.map(|it| it.identity).unwrap_or_default())
    };
    let (a, b) = (identity(a.unwrap_or_default()).await?, identity(b).await?);
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing: Vec<&str> =
        names.into_iter().filter(|name| a.get(*name) != b.get(*name)).map(String::as_str).collect();
    Ok(format!("not comparable with the baseline: different {}", differing.join(", ")))
}

fn add_figures(
    report: &mut GateReport,
    gate: &SubmitGate,
    requested: &RequestedFigures,
    sides: &GateSides,
) {
    let decided = decide_gate(requested, gate.max_runs as usize, |name| sides.of(name));
    report.verdict = decided.verdict;
    report.more_runs = decided.more_runs;
    report.figures = decided.figures.into_iter().map(GateFigure::from).collect();
    report.dropped = decided.dropped.into_iter().map(DroppedFigure::from).collect();
}
