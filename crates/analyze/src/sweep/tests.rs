//! Rows, the Pareto front, and bounds of operators over an axis.

use llmprof_core::domain::{
    headline::Headline,
    sweep::{SweepOperator, SweepStage},
};

use super::*;

fn point(position: u32, batch: i64, figures: SweepFigures) -> SweepPoint {
    let axes = [("batch".to_owned(), ParamValue::Int(batch))].into();
    SweepPoint { position, axes, run: None, gap: None, figures: Some(figures) }
}

fn timed(position: u32, tpot: f64, tokens_per_s: f64) -> SweepPoint {
    let headline =
        Headline { tpot: Some(tpot), tokens_per_s: Some(tokens_per_s), ..Headline::default() };
    point(position, position.into(), SweepFigures { headline, ..SweepFigures::default() })
}

#[test]
fn a_point_is_on_the_front_unless_another_is_faster_in_both() {
    let gap = SweepPoint { figures: None, gap: Some("refused".into()), ..timed(5, 0.1, 1e9) };
    let points =
        [timed(0, 2.0, 100.0), timed(1, 1.0, 50.0), timed(2, 3.0, 90.0), timed(3, 1.0, 40.0), gap];
    let results = results(&points);
    assert_eq!(results.front, [1, 0]);
    let on_front: Vec<bool> = results.rows.iter().map(|row| row.on_front).collect();
    assert_eq!(on_front, [true, true, false, false, false]);
    assert_eq!(results.rows[4].gap.as_deref(), Some("refused"));
    assert_eq!((results.rows[4].tpot_ms, results.ridge), (None, None));
}

#[test]
fn a_floor_is_known_only_if_that_of_each_stage_is() {
    let stage = |stage: &str, floor_ms| SweepStage { stage: stage.into(), ms: 4.0, floor_ms };
    let with = |floor_ms| {
        let stages = vec![stage("prefill", Some(1.0)), stage("decode_all", floor_ms)];
        let figures = SweepFigures { stages, ..SweepFigures::default() };
        results(&[point(0, 1, figures)]).rows.remove(0)
    };
    let known = with(Some(3.0));
    assert_eq!((known.floor_ms, known.times_floor), (Some(4.0), Some(2.0)));
    assert_eq!((with(None).floor_ms, with(None).times_floor), (None, None));
    assert_eq!(known.stages["decode_all"], 4.0);
}

/// An operator of a weight of 100 bytes: FLOPs grow with the batch, bytes hardly do.
fn linear(position: u32, batch: i64, ms: Option<f64>, ridge: Option<f64>) -> SweepPoint {
    let operator = SweepOperator {
        path: "mlp".into(),
        stage: "decode_all".into(),
        flops: 100.0 * batch as f64,
        bytes: 100.0 + batch as f64,
        ms,
    };
    let ridge =
        ridge.map(|flops_per_byte| SweepRidge { flops_per_byte, source: "datasheet".into() });
    point(position, batch, SweepFigures { operators: vec![operator], ridge, ..Default::default() })
}

fn bound(points: &[SweepPoint]) -> OperatorBound {
    let mut bounds = results(points).operators;
    assert_eq!(bounds.len(), 1, "{bounds:?}");
    bounds.remove(0)
}

fn turns(until: f64, from: f64) -> BoundRange {
    BoundRange { change: BoundChange::Turns, memory_until: Some(until), compute_from: Some(from) }
}

#[test]
fn an_operator_turns_where_its_intensity_reaches_the_ridge_and_its_time_begins_to_grow() {
    let times = [(1, 1.0), (4, 1.02), (16, 1.1), (64, 4.0), (256, 16.0)];
    let points: Vec<SweepPoint> = times
        .iter()
        .enumerate()
        .map(|(at, (batch, ms))| linear(at as u32, *batch, Some(*ms), Some(12.0)))
        .collect();
    let bound = bound(&points);
    assert_eq!((bound.axis.as_str(), bound.operator.as_str()), ("batch", "mlp"));
    assert_eq!(bound.predicted, turns(4.0, 16.0));
    assert_eq!(bound.measured, turns(16.0, 16.0));
}

#[test]
fn without_peaks_or_times_the_bound_is_unknown() {
    let points = [linear(0, 1, None, None), linear(1, 64, Some(0.0), None)];
    let bound = bound(&points);
    assert_eq!(
        (bound.predicted.change, bound.measured.change),
        (BoundChange::Unknown, BoundChange::Unknown)
    );
    // FLOPs and bytes that grow alike decide nothing, nor does a single point.
    let alike = |position, batch: i64| {
        let mut point = linear(position, batch, Some(batch as f64), Some(1e9));
        if let Some(operator) = point.figures.as_mut().and_then(|it| it.operators.first_mut()) {
            operator.bytes = operator.flops;
        }
        point
    };
    let both = [alike(0, 1), alike(1, 8)];
    let results = results(&both);
    assert_eq!(results.operators[0].measured.change, BoundChange::Unknown);
    assert_eq!(results.operators[0].predicted.change, BoundChange::Memory);
    assert_eq!(super::results(&[alike(0, 1)]).operators, []);
}

#[test]
fn an_axis_with_a_text_has_no_bounds() {
    let mut points = [linear(0, 1, Some(1.0), None), linear(1, 2, Some(1.0), None)];
    points[1].axes.insert("batch".into(), ParamValue::Text("many".into()));
    assert_eq!(results(&points).operators, []);
}
