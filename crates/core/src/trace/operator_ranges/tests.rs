//! Operators of events on a clock that differs, drifts and is read late.

use proptest::prelude::*;

use super::*;

/// Difference of the clocks at the start.
const OFFSET: i64 = 60_891_540_900;

fn range(domain: &str, name: &str, start_ns: i64, end_ns: i64) -> Range {
    Range::new((domain, name), (start_ns, Some(end_ns)), (7, true))
}

fn stage(name: &str, start_ns: i64, end_ns: i64) -> Event {
    Event::Range(StageRange {
        name: name.into(),
        start_ns,
        end_ns,
        device_ns: None,
        warmup: false,
        repeat: 0,
        step: None,
    })
}

fn operator(path: &str, start_ns: i64, end_ns: i64, captured: bool) -> Event {
    Event::Op(OperatorCall {
        path: path.into(),
        op: "matmul".into(),
        start_ns,
        end_ns,
        thread: 0,
        captured,
        warmup: false,
        repeat: 0,
        stage: "prefill".into(),
        shapes: Vec::new(),
        dtype: "bf16".into(),
        flops: 0,
        bytes: 0,
    })
}

/// The times of operators in a trace.
fn operators(trace: &Timeline) -> Vec<(&str, i64, i64)> {
    let operators = trace.ranges.iter().filter(|it| it.domain == OPERATOR_DOMAIN);
    operators.map(|it| (it.name.as_str(), it.start_ns, it.end_ns.unwrap_or_default())).collect()
}

/// A capture of `prefill` from 1,000 to 9,000, and of what is in `more`.
fn prefill(more: Vec<Range>) -> Timeline {
    let mut ranges = vec![range(STAGE_DOMAIN, "prefill", 1_000, 9_000)];
    ranges.extend(more);
    Timeline { ranges, ..Timeline::default() }
}

fn events() -> [Event; 3] {
    [
        operator("inner", OFFSET + 3_000, OFFSET + 4_000, false),
        operator("outer", OFFSET + 2_000, OFFSET + 5_000, false),
        stage("prefill", OFFSET + 1_000, OFFSET + 8_990),
    ]
}

#[test]
fn operators_of_events_are_ranges_on_the_clock_of_the_capture() {
    let mut trace = prefill(vec![]);
    add(&mut trace, &events());
    assert_eq!(operators(&trace), [("outer", 2_000, 5_000), ("inner", 3_000, 4_000)]);
    assert!(trace.ranges.iter().all(|it| it.global_tid == 7 && it.push_pop));
    assert!(trace.findings.is_empty());
}

#[test]
fn operators_that_are_ranges_are_kept_as_they_are() {
    let mut trace = prefill(vec![range(OPERATOR_DOMAIN, "inner", 3_100, 4_100)]);
    add(&mut trace, &events());
    assert_eq!(operators(&trace), [("inner", 3_100, 4_100)]);
}

#[test]
fn operators_of_a_captured_graph_stay_and_its_replays_add_none() {
    let captured =
        [range(STAGE_DOMAIN, CAPTURE_RANGE, 100, 900), range(OPERATOR_DOMAIN, "step", 200, 800)];
    let mut trace = prefill(captured.to_vec());
    let mut all = events().to_vec();
    all.push(operator("step", OFFSET + 9_500, OFFSET + 9_500, true));
    add(&mut trace, &all);
    let names: Vec<&str> = operators(&trace).into_iter().map(|it| it.0).collect();
    assert_eq!(names, ["step", "outer", "inner"]);
}

#[test]
fn events_of_another_run_are_refused_with_a_finding() {
    let mut without = prefill(vec![range(STAGE_DOMAIN, "prefill", 10_000, 11_000)]);
    add(&mut without, &events());
    let mut longer = prefill(vec![]);
    let [inner, outer, _] = events();
    add(&mut longer, &[inner, outer, stage("prefill", OFFSET + 1_000, OFFSET + 11_000)]);
    for trace in [without, longer] {
        assert_eq!(operators(&trace), []);
        let codes: Vec<&str> = trace.findings.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(codes, ["operators_not_joined"]);
    }
}

proptest! {
    /// Starts of stages are read late by chance, by up to a millisecond, and the clocks drift.
    #[test]
    fn a_drift_is_followed_and_late_starts_are_left_out(
        late in prop::collection::vec(prop_oneof![4 => 0i64..60, 1 => 0i64..1_000_000], 30..80),
        drift_ppm in -200i64..200,
    ) {
        let own = |at: i64| at + OFFSET + at * drift_ppm / 1_000_000;
        let (mut ranges, mut all, mut expected) = (vec![], vec![], vec![]);
        for (at, late) in late.iter().enumerate() {
            let start = at as i64 * 2_000_000;
            let end = start + 1_500_000;
            ranges.push(range(STAGE_DOMAIN, "prefill", start, end));
            let middle = (start + 1_200_000, start + 1_210_000);
            all.push(operator("matmul", own(middle.0), own(middle.1), false));
            all.push(stage("prefill", own(start) + late, own(end) - 20));
            expected.push(middle);
        }
        let mut trace = Timeline { ranges, ..Timeline::default() };
        add(&mut trace, &all);
        let found = operators(&trace);
        prop_assert_eq!(found.len(), expected.len());
        // Between the first and the last start that was read at once.
        let at_once = |late: &i64| *late < 60;
        let first = late.iter().position(at_once).unwrap_or_default();
        let last = late.iter().rposition(at_once).unwrap_or_default();
        let inside = found.iter().zip(&expected).skip(first).take(last.saturating_sub(first));
        for ((_, start, _), middle) in inside {
            prop_assert!((start - middle.0).abs() <= 62, "{start} for {}", middle.0);
        }
    }
}
