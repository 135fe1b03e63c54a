//! Each rule on a sketch where it fires, and on one where it must not; and the table of rules in
//! `specs/findings.md`.

use std::collections::BTreeSet;

use llmprof_core::{
    domain::finding::Severity,
    trace::{
        counter::{CounterValues, Stall, UncountedOperations},
        environment::{HostLoad, LoadSource},
        event::{Event, StageRange},
        kernel::Kernel,
        range::Range,
        stage::StageRules,
        timeline::Timeline,
        untimed::TimeFault,
    },
};

use super::*;
use crate::{
    kernels::{KernelRecord, counters::CounterRecord},
    roofline::RooflinePoint,
    stages::{DECODE, PREFILL, StageNote, experts::ExpertUse, stage_calls::StageCalls},
    stats::Spread,
};
use sketches::*;

/// Asserts that the rule fires on the first sketch and not on the second; returns its first
/// finding.
#[track_caller]
fn fires(id: &str, on: (Analysis, Trace), not_on: (Analysis, Trace)) -> Finding {
    let rule = rules().find(|rule| rule.id.id == id).unwrap_or_else(|| panic!("no rule {id}"));
    let found = rule.apply(&on.0, &on.1);
    assert_eq!(rule.apply(&not_on.0, &not_on.1), [], "{id} fires without its evidence");
    assert_eq!(rule.apply(&Analysis::default(), &Trace::default()), [], "{id} fires on nothing");
    let found = found.into_iter().next().unwrap_or_else(|| panic!("{id} does not fire"));
    assert!(
        !found.evidence.is_empty()
            && found.advice.as_ref().is_some_and(|advice| !advice.is_empty()),
        "{found:?}"
    );
    assert_eq!(
        found.max_saving.is_some(),
        rule.id.max_saving.is_some(),
        "{id}: {:?}",
        found.max_saving
    );
    found
}

#[test]
fn a_launch_bound_decode_could_save_its_gaps_between_kernels() {
    // Kernels take 4 of 20 ms traced and 10 ms unprofiled; with 10 they fill the unprofiled pass.
    let found = fires("decode_launch_bound", (busy(4.0), no_trace()), (busy(10.0), no_trace()));
    let saving = found.max_saving.clone().unwrap();
    assert_eq!((saving.stage.as_str(), saving.ms, saving.pct.round()), (DECODE, Some(6.0), 60.0));
    assert_eq!(
        (found.evidence["source"].as_str(), found.message.contains("80 %")),
        ("traced pass", true),
        "{found:?}"
    );
    // Without an unprofiled pass, only the traced one decides.
    let only = |ms| Analysis { only_traced: true, ..busy(ms) };
    fires("decode_launch_bound", (only(10.0), no_trace()), (only(19.0), no_trace()));
    let eager = |graph, device| {
        let mut analysis = Analysis { start: start(device, graph, 0), ..busy(4.0) };
        analysis.stages.decode_steps = Some(2);
        if device == "cpu" {
            analysis.stage_gpu.totals.clear();
        }
        analysis
    };
    fires(
        "decode_eager",
        (eager(false, "cuda:0"), no_trace()),
        (eager(true, "cuda:0"), no_trace()),
    );
    fires("decode_eager", (eager(false, "cuda:0"), no_trace()), (eager(false, "cpu"), no_trace()));
}

#[test]
fn decodes_that_a_recording_cuts_are_counted_unless_an_open_range_names_them() {
    let cut = |steps| {
        let mut analysis = analysis();
        analysis.stages.cut_steps = steps;
        analysis
    };
    let found = fires("decode_cut", (cut(7), no_trace()), (cut(0), no_trace()));
    assert_eq!(
        found.message,
        "The recording has 7 steps of decodes that are not whole; decode is timed by 2 whole \
         decodes."
    );
    let open = Range::new(("", DECODE), (1, None), (1, true));
    let open = Timeline { ranges: vec![open], ..Timeline::default() };
    let nsys = Some(open.with_rules(StageRules::default()));
    fires("decode_cut", (cut(7), no_trace()), (cut(7), Trace { timeline: nsys, ..no_trace() }));
    let mut none = cut(1);
    none.stages.rows.clear();
    let found = fires("decode_cut", (none, no_trace()), (cut(0), no_trace()));
    assert_eq!(found.message, "The recording has 1 step of decodes, and no whole decode.");
}

#[test]
fn a_kernel_at_its_roof_could_save_its_own_share() {
    let found = fires("at_memory_roof", under_roof(20.0, 85.0, 30.0), under_roof(20.0, 79.0, 30.0));
    assert_eq!(found.max_saving.as_ref().unwrap().ms, Some(2.0));
    fires("at_memory_roof", under_roof(20.0, 85.0, 30.0), under_roof(4.0, 85.0, 30.0));
    fires("at_compute_roof", under_roof(20.0, 30.0, 85.0), under_roof(20.0, 90.0, 85.0));
}

#[test]
fn uncounted_tensor_work_is_reported() {
    let with = |uncounted| {
        let values =
            CounterValues { tensor_pct: Some(40.0), uncounted, ..CounterValues::default() };
        (profiled("gemm", 50.0, values), no_trace())
    };
    let tensor = || with(Some(UncountedOperations::TensorCores));
    fires("tensor_work_uncounted", tensor(), with(None));
    fires("tensor_work_uncounted", tensor(), with(Some(UncountedOperations::HalfPrecision)));
}

#[test]
fn launches_that_no_counters_stand_for_are_reported() {
    let with = |unlike_ms| {
        let mut analysis = profiled("gemm", 50.0, CounterValues::default());
        analysis.counters[0].unlike_ms = unlike_ms;
        // Another record of the same launches.
        analysis.counters.push(analysis.counters[0].clone());
        (analysis, no_trace())
    };
    let found = fires("launches_unlike_profiled", with(Some(6.0)), with(Some(4.0)));
    assert_eq!(found.evidence["its launches without counters, ms"], "6.000");
    fires("launches_unlike_profiled", with(Some(6.0)), with(None));
}

#[test]
fn heavy_parts_are_reported() {
    let vision = |share| {
        let mut analysis = analysis();
        let ms = Spread::of([share / 10.0]).unwrap();
        analysis.stages.notes = vec![StageNote {
            part: "vision".into(),
            inside: PREFILL.into(),
            ms,
            share_pct: Some(share),
        }];
        analysis
    };
    fires("vision_dominates_prefill", (vision(60.0), no_trace()), (vision(40.0), no_trace()));
    let load = |seconds: i64| {
        let mut analysis =
            Analysis { start: start("cuda:0", false, seconds * 1000 * MS), ..analysis() };
        analysis.stages.wall_ms = Spread::of([20.0]);
        analysis
    };
    fires("load_dominates", (load(9), no_trace()), (load(4), no_trace()));
    let first = |ms| Trace { baseline: ranges(PREFILL, &[ms, 10, 10]), ..Trace::default() };
    fires("warmup_short", (analysis(), first(13)), (analysis(), first(11)));
    let layers = |least: f64| {
        let of = |(layer, distinct): (u32, f64)| {
            let distinct = Spread::of([distinct]).unwrap();
            ExpertUse { layer, stage: PREFILL.into(), distinct, total: 64, expected: None }
        };
        Analysis { experts: [(1, 60.0), (2, least), (3, 61.0)].map(of).to_vec(), ..analysis() }
    };
    fires("expert_imbalance", (layers(30.0), no_trace()), (layers(55.0), no_trace()));
}

#[test]
fn the_work_of_kernels_is_taken_from_their_names() {
    let of =
        |name: &str, stage: &str| (with_kernels(vec![kernel(name, stage, 100, 10.0)]), no_trace());
    let found = fires(
        "kv_cache_copies",
        of("CatArrayBatchedCopy", DECODE),
        of("CatArrayBatchedCopy", PREFILL),
    );
    assert_eq!(found.max_saving.as_ref().unwrap().ms, Some(1.0), "a tenth of the stage's 10 ms");
    fires("kv_cache_copies", of("CatArrayBatchedCopy", DECODE), of("index_copy_kernel", DECODE));
    let mut fixed = of("CatArrayBatchedCopy", DECODE);
    fixed.0.stage_gpu.totals.iter_mut().for_each(|it| it.graph_launches = Some(1));
    fires("kv_cache_copies", of("CatArrayBatchedCopy", DECODE), fixed);
    let tiny = |total_ms| (with_kernels(vec![kernel("k", DECODE, 1000, total_ms)]), no_trace());
    fires("tiny_kernels", tiny(4.0), tiny(50.0));
    fires("tiny_kernels", tiny(4.0), tiny(2.0));
    let variants = |name_variants| {
        (
            with_kernels(vec![KernelRecord { name_variants, ..kernel("k", DECODE, 12, 50.0) }]),
            no_trace(),
        )
    };
    fires("name_collisions", variants(12), variants(1));
}

#[test]
fn gemms_that_fill_few_tiles_are_reported() {
    fires("gemm_small", (gemm(1, 1280, 50.0), no_trace()), (gemm(1, 1280, 2.0), no_trace()));
    fires(
        "gemm_tiles_unfilled",
        (gemm(129, 1280, 50.0), no_trace()),
        (gemm(128, 1280, 50.0), no_trace()),
    );
    let mut whole = gemm(1, 1280, 50.0);
    whole.gemms.records[0].stage = String::new();
    let found = fires("gemm_small", (whole, no_trace()), (gemm(1, 1280, 2.0), no_trace()));
    assert!(found.message.contains("the GEMMs of the recording with"), "{}", found.message);
}

#[test]
fn a_busy_host_is_reported_with_its_load() {
    let load = |cpu_wait_pct, busy_pct| {
        let load = HostLoad {
            cpu_wait_pct,
            source: LoadSource::Pressure,
            load_start: Some(2.5),
            load_end: None,
            busy_pct,
        };
        let mut trace = no_trace();
        trace.environment.load = Some(load);
        (analysis(), trace)
    };
    let found = fires("host_busy", load(Some(93.4), 20), load(Some(19.9), 20));
    assert!(found.message.contains("93.4 %"), "{}", found.message);
    assert_eq!(found.evidence["load average at the start"], "2.50");
    assert_eq!(found.evidence["threshold, %"], "20");
    for none in [load(Some(93.4), 0), load(None, 20)] {
        fires("host_busy", load(Some(20.0), 20), none);
    }
}

#[test]
fn the_stage_with_more_time_over_all_instances_dominates() {
    let decode_steps = |n: u32| {
        let mut analysis = analysis();
        for row in &mut analysis.stages.rows {
            let is_decode = row.stage == DECODE;
            (row.ms.mean, row.ms.n) = if is_decode { (10.1, n) } else { (50.1, 1) };
        }
        (analysis, no_trace())
    };
    let found = fires("stage_dominates", decode_steps(256), decode_steps(5));
    assert_eq!(
        found.message,
        "Decode takes 51.6 times as long as prefill over all measured instances."
    );
    assert_eq!(found.evidence["decode_all instances"], "256");
}

#[test]
fn calls_of_no_known_family_are_counted_and_named() {
    let named = |name: &str| {
        let mut nsys = crate::kernels::tests::capture("call 1 1 1..2\ncall 1 2 3..4");
        nsys.strings = vec![name.into()];
        (Analysis::default(), Trace { timeline: Some(nsys), ..Trace::default() })
    };
    let found = fires("calls_unknown", named("cuTileLaunch"), named("cuLaunchKernelEx"));
    assert_eq!((&*found.evidence["calls of cuTileLaunch"], &*found.evidence["names"]), ("2", "1"));
}

#[test]
fn work_without_a_valid_time_is_named_and_critical_where_figures_are_withheld() {
    let untimed = |count: u64| {
        let mut nsys = crate::kernels::tests::capture("call 1 1 1..2\nkernel 1 a 5..9 7");
        let kernel = Kernel::from(nsys.kernels.get(0));
        (0..400).for_each(|_| nsys.kernels.push(kernel));
        (0..count).for_each(|_| nsys.untimed.add_kernel(kernel, TimeFault::NotRecorded, 0));
        (Analysis::default(), Trace { timeline: Some(nsys), ..Trace::default() })
    };
    let few = fires("work_untimed", untimed(1), untimed(0));
    assert_eq!(
        (few.severity, few.message.as_str()),
        (
            Severity::Warning,
            "1 of 402 kernels (0.2 %) has no valid time and is left out of all times: start and \
             end are 0, so no time was recorded (1)."
        )
    );
    assert_eq!(fires("work_untimed", untimed(50), untimed(0)).severity, Severity::Critical);
}

#[test]
fn every_rule_has_an_id_of_its_own_and_advice() {
    let ids: BTreeSet<&str> = rules().map(|rule| rule.id.id).collect();
    assert_eq!(ids.len(), rules().count());
    for rule in rules() {
        assert!(rule.id.advice.is_some(), "{}", rule.id.id);
    }
}

mod ledger;
mod outlier_gaps;
mod sketches;
mod subjects;
