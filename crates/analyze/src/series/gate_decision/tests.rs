//! Tests of the decision of a gate over all requests, and over all sets of measured figures.

use super::*;
use crate::series::{gate::MAX_RUNS, gate_thresholds::InvalidThreshold};

/// The sides on which a figure was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeasuredOn {
    Neither,
    Baseline,
    Candidate,
    Both,
}

use MeasuredOn::{Baseline, Both, Candidate, Neither};

impl MeasuredOn {
    fn sides(self) -> FigureSides {
        let runs = |is_measured: bool| vec![is_measured.then_some(10.0); 3];
        let noise = Noise { log_std: 0.001, freedom: 30.0 };
        let (baseline, candidate) = match self {
            Neither => (false, false),
            Baseline => (true, false),
            Candidate => (false, true),
            Both => (true, true),
        };
        FigureSides::new(runs(baseline), runs(candidate)).in_series(Some(noise), runs(baseline))
    }
}

/// The items whose bit is set.
fn subset<T: Copy>(of: &[T], bits: usize) -> Vec<T> {
    of.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, it)| *it).collect()
}

/// Checks the report of a request against the figures that were measured.
fn check(named: &[FigureName], slower: bool, measured: &dyn Fn(FigureName) -> MeasuredOn) {
    let requested =
        RequestedFigures::of(slower.then_some(3.0), |it| named.contains(&it).then_some(5.0));
    let decided = decide_gate(&requested.unwrap(), MAX_RUNS, |figure| measured(figure).sides());
    let case = || format!("{named:?}, slower {slower}: {decided:?}");
    // A request without a threshold is one for `slower`.
    let has_group = slower || named.is_empty();
    let times = FigureName::TIMES.iter().filter(|it| has_group && !named.contains(it));
    let members: Vec<FigureName> = times.copied().collect();

    let mut expected = [named, &members].concat();
    let figures = decided.figures.iter().map(|it| it.threshold.figure);
    let mut reported: Vec<FigureName> = figures.chain(decided.dropped.iter().copied()).collect();
    expected.sort();
    reported.sort();
    assert_eq!(reported, expected, "each requested figure once: {}", case());

    for it in &decided.figures {
        let is_named = named.contains(&it.threshold.figure);
        assert_eq!(it.threshold.request == FigureRequest::Named, is_named, "{}", case());
        assert_eq!(it.threshold.pct, if is_named { 5.0 } else { 3.0 }, "{}", case());
        let is_decided = measured(it.threshold.figure) == Both;
        assert_eq!(it.decision.verdict == GateVerdict::Passed, is_decided, "{}", case());
        let is_missing = it.decision.reason.starts_with("not measured");
        assert_eq!(is_missing, !is_decided, "{}", case());
    }
    let is_droppable = |it: &FigureName| members.contains(it) && measured(*it) == Neither;
    assert!(decided.dropped.iter().all(is_droppable), "{}", case());

    let of_group: Vec<MeasuredOn> =
        members.iter().map(|it| measured(*it)).filter(|it| *it != Neither).collect();
    let passes = named.iter().all(|it| measured(*it) == Both)
        && (members.is_empty() || !of_group.is_empty())
        && of_group.iter().all(|it| *it == Both);
    assert_eq!(decided.verdict == GateVerdict::Passed, passes, "{}", case());
    assert!(passes || decided.verdict == GateVerdict::Inconclusive, "{}", case());
}

#[test]
fn a_gate_never_passes_without_a_requested_figure_and_reports_each_once() {
    let all = FigureName::ALL;
    for named in (0..1 << all.len()).map(|bits| subset(all, bits)) {
        for measured in (0..1 << all.len()).map(|bits| subset(all, bits)) {
            let on = |it: FigureName| if measured.contains(&it) { Both } else { Neither };
            check(&named, false, &on);
            check(&named, true, &on);
        }
    }
}

#[test]
fn a_figure_that_one_side_lacks_is_inconclusive_however_it_was_requested() {
    let figures = [FigureName::Ttft, FigureName::Tpot, FigureName::Wall, FigureName::Energy];
    let states = [Neither, Baseline, Candidate, Both];
    for named in (0..1 << figures.len()).map(|bits| subset(&figures, bits)) {
        for case in 0..states.len().pow(4) {
            let on = |it: FigureName| {
                let at = figures.iter().position(|figure| *figure == it);
                at.map_or(Neither, |at| states[case / states.len().pow(at as u32) % states.len()])
            };
            check(&named, false, &on);
            check(&named, true, &on);
        }
    }
}

fn decide_tpot(
    baseline: impl IntoIterator<Item = Option<f64>>,
    candidate: impl IntoIterator<Item = Option<f64>>,
) -> FigureDecision {
    let sides = FigureSides::new(baseline, candidate)
        .in_series(Some(Noise { log_std: 0.001, freedom: 30.0 }), []);
    let requested =
        RequestedFigures::of(None, |it| (it == FigureName::Tpot).then_some(3.0)).unwrap();
    let decided = decide_gate(&requested, MAX_RUNS, |_| sides.clone());
    assert_eq!((decided.figures.len(), decided.dropped.len()), (1, 0));
    decided.figures[0].decision.clone()
}

#[test]
fn a_candidate_of_which_only_some_runs_have_the_figure_is_inconclusive() {
    let decided = decide_tpot([Some(10.0); 2], [Some(10.0), None]);
    assert_eq!((decided.verdict, decided.more_runs), (GateVerdict::Inconclusive, false));
    assert_eq!(decided.reason, "measured in 1 of 2 runs of the candidate");
    let of_baseline = decide_tpot([Some(10.0), None], [Some(10.0); 2]);
    assert_eq!(of_baseline.verdict, GateVerdict::Passed, "the baseline has a value");
}

#[test]
fn a_figure_has_a_verdict_only_if_both_sides_have_one_known_statistic() {
    use FigureStatistic::{Mean, Median};
    let all = || [None].into_iter().chain(FigureStatistic::ALL.iter().copied().map(Some));
    for baseline in all() {
        for candidate in all() {
            let sides = Both.sides().of_statistics([baseline, candidate]);
            let requested =
                RequestedFigures::of(None, |it| (it == FigureName::Tpot).then_some(3.0)).unwrap();
            let decided = decide_gate(&requested, MAX_RUNS, |_| sides.clone());
            let is_decided = match (baseline, candidate) {
                (Some(a), Some(b)) => a == b && [Mean, Median].contains(&a),
                _ => true,
            };
            let it = &decided.figures[0];
            let verdict = if is_decided { GateVerdict::Passed } else { GateVerdict::Inconclusive };
            assert_eq!(it.decision.verdict, verdict, "{baseline:?} {candidate:?}: {it:?}");
            let has_reason = it.decision.reason.starts_with("not comparable: the baseline has ");
            assert_eq!(has_reason, !is_decided, "{it:?}");
        }
    }
}

#[test]
fn a_value_that_is_not_a_positive_number_is_not_measured() {
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let baseline = decide_tpot([Some(value)], [Some(10.0)]);
        assert_eq!(baseline.verdict, GateVerdict::Inconclusive, "{value}");
        assert_eq!(baseline.reason, "not measured in the baseline", "{value}");
        let candidate = decide_tpot([Some(10.0)], [Some(value)]);
        assert_eq!(candidate.reason, "not measured in the candidate", "{value}");
    }
}

#[test]
fn a_threshold_out_of_range_is_refused_even_if_no_figure_uses_it() {
    for invalid in [0.0, -3.0, 0.009, 1000.1, f64::NAN, f64::INFINITY] {
        let named = RequestedFigures::of(None, |it| (it == FigureName::Mfu).then_some(invalid));
        let group = RequestedFigures::of(Some(invalid), |_| Some(3.0));
        for refused in [named, group] {
            let InvalidThreshold(found) = refused.unwrap_err();
            assert!(found == invalid || found.is_nan() && invalid.is_nan(), "{invalid}");
        }
    }
    assert!(RequestedFigures::of(Some(0.01), |_| Some(1000.0)).is_ok());
}
