//! Impossible figures, one kind per test.

use llmprof_core::trace::counter::Stall;

use super::*;
use crate::{analyze, kernels::tests::capture};

fn counted(values: CounterValues) -> (CounterValues, Vec<&'static str>) {
    let launch = LaunchCounters {
        stage: "prefill".into(),
        kernel: "gemm".into(),
        values,
        ..LaunchCounters::default()
    };
    let mut violations = Violations::default();
    let kept = violations.counters(&[launch], None).remove(0).values;
    (kept, violations.figures.iter().map(|it| it.figure).collect())
}

#[test]
fn a_counter_far_above_its_ceiling_is_removed_and_the_others_stay() {
    let values = CounterValues {
        sm_pct: Some(6_577.0),
        dram_pct: Some(65.77),
        l2_hit_pct: Some(100.4),
        tensor_pct: Some(-1.0),
        registers: Some(300),
        stalls: vec![Stall {
            reason: "long_scoreboard".into(),
            warps_per_issue: 1.0,
            share_pct: f64::NAN,
        }],
        ..CounterValues::default()
    };
    let (kept, broken) = counted(values);
    assert_eq!(
        (kept.sm_pct, kept.dram_pct, kept.l2_hit_pct, kept.tensor_pct),
        (None, Some(65.77), Some(100.4), None)
    );
    assert_eq!((kept.registers, kept.stalls.len()), (None, 0));
    assert_eq!(
        broken,
        [
            "CounterValues.sm_pct",
            "CounterValues.tensor_pct",
            "Stall.share_pct",
            "CounterValues.registers"
        ]
    );
}

#[test]
fn an_impossible_counter_is_in_no_table_but_in_a_finding_with_its_cause() {
    let values =
        CounterValues { sm_pct: Some(6_570.0), memory_pct: Some(40.0), ..CounterValues::default() };
    let launch = LaunchCounters {
        kernel: "gemm".into(),
        grid: Some([1; 3]),
        block: Some([1; 3]),
        values,
        ..LaunchCounters::default()
    };
    let nsys = capture("range 1 prefill 0..50\ncall 1 1 5..6\nkernel 1 gemm 10..20 7");
    let trace = Trace { timeline: Some(nsys), counters: vec![launch], ..Trace::default() };
    let analysis = analyze(&trace, None, None);
    assert_eq!(
        (analysis.counters[0].values.sm_pct, analysis.counters[0].values.memory_pct),
        (None, Some(40.0))
    );
    assert_eq!(analysis.kernels.records[0].counters.as_ref().unwrap().sm_pct, None);
    assert!(analysis.roofline.points.iter().all(|it| it.sm_pct.is_none()));
    let found = analysis.findings.iter().find(|it| it.id == "figure_impossible").unwrap();
    assert!(
        found.message.starts_with("CounterValues.sm_pct of gemm would be 6570.0: "),
        "{}",
        found.message
    );
    assert!(found.evidence["cause"].contains("decimal signs"));
}

#[test]
fn work_before_its_launch_is_a_finding_on_the_stage() {
    let nsys =
        capture("range 1 prefill 5000..90000\ncall 1 1 60000..60001\nkernel 1 a 46000..46300 7");
    let analysis = analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None);
    let found: Vec<_> =
        analysis.findings.iter().filter(|it| it.id == "device_clock_differs").collect();
    assert_eq!(found.len(), 1);
    assert!(
        found[0]
            .message
            .contains("of prefill start before their launching call, by up to 0.014 ms")
    );
    assert_eq!(analysis.stage_gpu.totals[0].busy_ms, None);
    assert_eq!(analysis.kernels.records[0].total_ms, 300e-6, "a duration uses one clock");
}

#[test]
fn every_visited_figure_is_in_the_table_once() {
    let all: Vec<&str> = INVARIANTS
        .iter()
        .filter(|it| it.id != "work_after_launch")
        .flat_map(|it| it.figures)
        .copied()
        .collect();
    let once: std::collections::BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(once.len(), all.len());
    assert!(UNBOUNDED.iter().all(|(figure, why)| !once.contains(figure) && !why.is_empty()));
}
