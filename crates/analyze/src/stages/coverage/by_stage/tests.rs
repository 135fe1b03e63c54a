//! Coverage on sketches: real losses, and patterns that only look like one.

use llmprof_core::trace::{Trace, kernel::Kernel, timeline::ApiCall};
use proptest::prelude::*;

use super::*;
use crate::{analyze, kernels::tests::capture};

/// A capture whose calls launch kernels; those with correlation 900 and above synchronise.
fn traced(sketch: &str) -> Timeline {
    let mut trace = capture(sketch);
    let first = trace.strings.len() as u32;
    trace
        .strings
        .extend(["cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020"].map(str::to_owned));
    let named =
        |call: ApiCall| ApiCall { name: first + u32::from(call.correlation_id >= 900), ..call };
    trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
    trace
}

/// Launched and recorded kernels by stage.
fn counts(trace: &Timeline) -> Vec<(String, u64, u64)> {
    by_stage(&Capture::of(trace))
        .into_iter()
        .map(|it| (it.stage, it.launched, it.recorded))
        .collect()
}

fn stages(counts: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    counts
        .iter()
        .map(|(stage, launched, recorded)| ((*stage).to_owned(), *launched, *recorded))
        .collect()
}

const TWO_STAGES: &str = "range 1 prefill 0..10\nrange 1 decode_all 10..30
    call 1 1 1..2\ncall 1 2 3..4\ncall 1 3 12..13\ncall 1 4 14..15\ncall 1 900 16..29
    kernel 1 a 5..6 7\nkernel 2 a 6..7 7\nkernel 3 b 17..18 7\nkernel 4 b 18..19 7";

/// The capture without some of its kernels.
fn without(trace: &Timeline, lost: impl Fn(usize) -> bool) -> Timeline {
    let kept =
        trace.kernels.iter().enumerate().filter(|(at, _)| !lost(*at)).map(|(_, kernel)| kernel);
    Timeline { kernels: kept.collect(), ..trace.clone() }
}

#[test]
fn only_the_stage_that_lost_kernels_is_reported() {
    let trace = traced(TWO_STAGES);
    assert_eq!(counts(&trace), stages(&[("prefill", 2, 2), ("decode_all", 2, 2)]));
    let partial = without(&trace, |at| at == 3);
    assert_eq!(counts(&partial), stages(&[("prefill", 2, 2), ("decode_all", 2, 1)]));
    let found =
        analyze(&Trace { timeline: Some(partial), ..Trace::default() }, None, None).findings;
    let lost: Vec<_> =
        found.iter().filter(|it| it.id == KERNELS_LOST).map(|it| it.message.as_str()).collect();
    assert_eq!(lost, ["decode: 1 of 2 launched kernels is missing from the capture."]);
}

/// The last `cut` kernels of many are missing, and no call waited for them.
fn cut_at_end(launches: [u64; 2], cut: usize) -> Timeline {
    let mut trace = many(launches);
    let kept = trace.kernels.len() - cut;
    trace = without(&trace, |at| at >= kept);
    trace.cuda_calls = trace.cuda_calls.iter().filter(|it| it.start_ns < 180_000).collect();
    trace
}

#[test]
fn the_last_few_kernels_queued_at_the_end_of_the_capture_are_not_lost() {
    let few = cut_at_end([10, 100], 4);
    assert_eq!(counts(&few), stages(&[("prefill", 10, 10), ("decode_all", 96, 96)]));
    let mut trace = traced(TWO_STAGES);
    trace.kernels.truncate(0);
    assert_eq!(
        counts(&trace),
        stages(&[("prefill", 2, 0), ("decode_all", 2, 0)]),
        "a capture without any kernel lost them"
    );
}

#[test]
fn a_stage_without_most_of_its_kernels_is_incomplete_even_at_the_end_of_the_capture() {
    for cut in [100, 50, 6] {
        let trace = cut_at_end([10, 100], cut);
        let recorded = 100 - cut as u64;
        assert_eq!(counts(&trace), stages(&[("prefill", 10, 10), ("decode_all", 100, recorded)]));
        let analysis = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
        assert!(!has_figures(&analysis, "decode_all"));
        assert!(analysis.stage_gpu.totals.iter().all(|it| it.stage != "decode_all"));
        assert!(analysis.ledger.rows.iter().all(|it| it.stage != "decode_all"));
        let lost: Vec<_> = analysis.findings.iter().filter(|it| it.id == KERNELS_LOST).collect();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].evidence["launched after the last synchronisation"], cut.to_string());
        let advice = lost[0].advice.as_deref().unwrap();
        assert!(advice.contains("Synchronise the device before the capture ends"), "{advice}");
    }
}

#[test]
fn kernels_launched_before_the_capture_are_ignored() {
    let window = format!("{TWO_STAGES}\nkernel 7 b 4..5 7")
        .replace("call 1 1 ", "call 1 11 ")
        .replace("kernel 1 ", "kernel 11 ");
    let window = window.replace("call 1 2 ", "call 1 12 ").replace("kernel 2 ", "kernel 12 ");
    let window = window.replace("call 1 3 ", "call 1 13 ").replace("kernel 3 ", "kernel 13 ");
    let window = window.replace("call 1 4 ", "call 1 14 ").replace("kernel 4 ", "kernel 14 ");
    let trace = traced(&window);
    let found = by_stage(&Capture::of(&trace));
    assert!(found.iter().all(|it| it.reasons().is_empty() && it.unattributed == 0), "{found:?}");
}

#[test]
fn without_traced_calls_coverage_is_unknown_and_stages_have_no_shares() {
    let mut trace = traced(TWO_STAGES);
    trace.cuda_calls = Default::default();
    let found = by_stage(&Capture::of(&trace));
    assert!(
        found.iter().filter(|it| !it.stage.is_empty()).all(|it| it.unknown() && !it.lost()),
        "{found:?}"
    );
    let analysis = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
    assert!(analysis.stage_gpu.totals.is_empty());
    assert!(analysis.findings.iter().any(|it| it.id == KERNELS_UNATTRIBUTED));
    assert!(analysis.findings.iter().all(|it| it.id != KERNELS_LOST));
}

#[test]
fn a_stage_with_missing_launches_has_no_figures() {
    let mut trace = traced(TWO_STAGES);
    trace.cuda_calls = trace.cuda_calls.iter().filter(|call| call.correlation_id != 3).collect();
    let found = by_stage(&Capture::of(&trace));
    let decode = found.iter().find(|it| it.stage == "decode_all").unwrap();
    assert!(decode.unknown() && !decode.lost(), "{decode:?}");
    assert!(found.iter().find(|it| it.stage == "prefill").unwrap().reasons().is_empty());
}

#[test]
fn graphs_traced_as_a_whole_or_without_kernels_lose_nothing() {
    let mut trace =
        traced("range 1 decode_all 0..30\ncall 1 1 1..2\ncall 1 2 3..4\ncall 1 900 5..29");
    let graph = trace.strings.len() as u32;
    trace.strings.push("cudaGraphLaunch_v10000".into());
    trace.cuda_calls = trace
        .cuda_calls
        .iter()
        .map(|it| ApiCall { name: if it.correlation_id < 900 { graph } else { it.name }, ..it })
        .collect();
    assert_eq!(
        counts(&trace),
        stages(&[("decode_all", 2, 0)]),
        "a graph launch without any record lost its kernels"
    );
    trace.graphs = capture("graph 1 5 2..9 7\ngraph 2 5 9..16 7").graphs;
    let found = by_stage(&Capture::of(&trace));
    assert_eq!(
        (found[0].whole_graphs, found[0].launched, found[0].reasons().is_empty()),
        (2, 2, true)
    );
}

#[test]
fn launches_into_a_stream_that_was_already_capturing_do_not_run() {
    let mut trace = traced(
        "range 1 prefill 0..30\ncall 1 1 1..2\ncall 1 2 3..4\ncall 1 3 5..6\nkernel 3 a 6..7 7",
    );
    let ends = trace.strings.len() as u32;
    trace.strings.push("cudaStreamEndCapture_v10000".into());
    trace.cuda_calls = trace
        .cuda_calls
        .iter()
        .map(|it| ApiCall { name: if it.correlation_id == 2 { ends } else { it.name }, ..it })
        .collect();
    assert_eq!(counts(&trace), stages(&[("prefill", 1, 1)]));
}

#[test]
fn rows_of_the_driver_inside_those_of_the_runtime_lose_nothing() {
    let mut trace = traced(
        "range 1 prefill 0..30\ncall 1 1 1..4\ncall 1 1 2..3\ncall 1 2 5..8\ncall 1 2 6..7
        call 1 900 9..29\nkernel 1 a 10..11 7\nkernel 2 a 11..12 7",
    );
    assert_eq!(counts(&trace), stages(&[("prefill", 2, 2)]));
    trace.kernels = capture("kernel 1 a 10..11 7").kernels;
    assert_eq!(counts(&trace), stages(&[("prefill", 2, 1)]));
}

/// Consecutive stages with the given numbers of launches, each ending with a synchronising call.
fn many(launches: [u64; 2]) -> Timeline {
    let mut trace =
        traced("range 1 prefill 0..100000\nrange 1 decode_all 100000..200000\ncall 1 900 1..2");
    let (launch, wait) = (trace.strings.len() as u32 - 2, trace.strings.len() as u32 - 1);
    let template = Kernel::from(capture("kernel 1 a 5..6 7").kernels.get(0));
    trace.cuda_calls = Default::default();
    let mut id = 0;
    for (stage, count) in launches.iter().enumerate() {
        let stage_start = 100_000 * stage as i64;
        for at in 0..*count as i64 {
            id += 1;
            let (start_ns, global_tid) = (stage_start + 10 * at + 5, trace.ranges[0].global_tid);
            trace.cuda_calls.push(ApiCall {
                name: launch,
                start_ns,
                end_ns: start_ns + 1,
                global_tid,
                correlation_id: id,
            });
            trace.kernels.push(Kernel {
                start_ns: start_ns + 2,
                end_ns: start_ns + 8,
                correlation_id: id,
                ..template
            });
        }
        let start_ns = stage_start + 90_000;
        let global_tid = trace.ranges[0].global_tid;
        trace.cuda_calls.push(ApiCall {
            name: wait,
            start_ns,
            end_ns: start_ns + 9,
            global_tid,
            correlation_id: 100_000,
        });
    }
    trace
}

proptest! {
    #[test]
    fn every_stage_that_lost_kernels_is_reported_and_has_no_figures(
        launches in [1u64..400, 1u64..400], seed in any::<u64>(), dropped_pct in 0u64..101,
        from in 0usize..800, to in 0usize..800
    ) {
        let complete = many(launches);
        // Kernels are dropped at random inside a section of the capture.
        let random = |at: usize| (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let lost = |at: usize| {
            (from..to.max(from + 1)).contains(&at) && random(at) % 100 < dropped_pct
        };
        let trace = without(&complete, lost);
        let first = launches[0] as usize;
        let count = |kernels: std::ops::Range<usize>| kernels.filter(|at| lost(*at)).count();
        let dropped = [count(0..first), count(first..complete.kernels.len())];
        let analysis = analyze(&Trace { timeline: Some(trace), ..Trace::default() }, None, None);
        let stages = [("prefill", launches[0]), ("decode_all", launches[1])];
        for ((stage, launched), dropped) in stages.iter().zip(dropped) {
            let recorded = (launched - dropped as u64) as f64;
            let partial = percent(recorded, *launched as f64).unwrap() < COMPLETE_PCT;
            let reported = analysis.findings.iter().any(|it| {
                it.id == KERNELS_LOST
                    && it.evidence["stage"] == *stage
                    && it.evidence["missing kernels"] == dropped.to_string()
            });
            prop_assert_eq!(reported, partial, "{}: {} of {}", stage, dropped, launched);
            let has_gpu = analysis.stage_gpu.totals.iter().any(|it| it.stage == *stage);
            prop_assert_eq!(has_gpu, !partial);
            prop_assert!(!partial || !has_figures(&analysis, stage));
        }
    }
}

/// Returns true when the stage has any figure that needs all of its kernels.
fn has_figures(analysis: &Analysis, stage: &str) -> bool {
    let kernels = &analysis.kernels;
    let busy = kernels.stages.iter().any(|it| it.stage == stage && it.busy_ms.is_some());
    let records = kernels.records.iter().any(|it| it.stage == stage && it.share_pct.is_some());
    let classes = kernels.classes.iter().any(|it| it.stage == stage && it.share_pct.is_some());
    let operators =
        analysis.operators.rolled.iter().any(|it| it.stage == stage && it.device.is_some());
    kernels.stage_ms(stage).is_some() || busy || records || classes || operators
}

/// Single kernel launches next to `graphs` graph launches; the first `rows` have a recorded row.
fn with_graphs(kernels: u64, captured: u64, graphs: u64, rows: u64) -> Timeline {
    let mut trace = Timeline { ..capture("kernel 1 a 5..6 7") };
    let template = Kernel::from(trace.kernels.get(0));
    trace.kernels = Default::default();
    let names =
        ["cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamBeginCapture", "cudaStreamEndCapture"];
    let first = trace.strings.len() as u32;
    trace.strings.extend(names.map(str::to_owned));
    let (mut calls, mut id) = (Vec::new(), 0);
    let mut call = |name: u32| {
        id += 1;
        let start_ns = 10 * id;
        let one = capture("call 1 1 1..2").cuda_calls.iter().next().unwrap();
        calls.push(ApiCall {
            name: first + name,
            correlation_id: id,
            start_ns,
            end_ns: start_ns + 5,
            ..one
        });
        (id, start_ns)
    };
    if captured > 0 {
        call(2);
        (0..captured).for_each(|_| _ = call(0));
        call(3);
    }
    let mut sketch = String::new();
    for at in 0..graphs {
        let (id, start) = call(1);
        if at < rows {
            sketch += &format!("graph {id} 1 {}..{} 7\n", start + 6, start + 8);
        }
    }
    for _ in 0..kernels {
        let (correlation_id, start_ns) = call(0);
        let times = (start_ns + 6, start_ns + 9);
        trace.kernels.push(Kernel {
            correlation_id,
            start_ns: times.0,
            end_ns: times.1,
            ..template
        });
    }
    trace.graphs = capture(&sketch).graphs;
    trace.cuda_calls = calls.into_iter().collect();
    trace
}

#[test]
fn launches_of_graphs_without_any_row_are_lost_however_many_kernels_are_recorded() {
    let lost = |trace: &Timeline| by_stage(&Capture::of(trace)).iter().any(StageCoverage::lost);
    assert!(lost(&with_graphs(5_000, 3, 20, 0)), "kernels were captured");
    assert!(lost(&with_graphs(5_000, 0, 20, 10)), "other graphs have rows");
    assert!(!lost(&with_graphs(5_000, 3, 20, 20)), "all have rows");
    assert!(!lost(&with_graphs(5_000, 0, 20, 0)), "nothing shows that they have kernels");
    assert!(!lost(&with_graphs(5_000, 3, 0, 0)));
}
