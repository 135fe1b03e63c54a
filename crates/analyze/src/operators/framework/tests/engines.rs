//! Operators of engines, some of whose work follows from their step.

use llmprof_core::trace::graph_capture::CapturedOperator;

use super::*;
use crate::{
    operators::framework::{
        replays_by_stage,
        works::{Counted, StepReplays, Works},
    },
    timeline::{
        capture::Capture,
        framework_nests::{FrameworkIndex, NestItem, ThreadNest},
        graph_replays::JoinedReplay,
        open_ranges::{NONE, OpenNest, StepInside},
        step_states::LEFT_OUT,
    },
};

#[test]
fn flops_and_bytes_each_count_for_the_innermost_call_that_has_them() {
    let experts: &[&[u64]] = &[&[3, 8], &[4, 12, 8], &[4, 8, 6], &[3, 2], &[3, 2]];
    let trace = with_operators(
        "range 1 prefill 0..1000\ncall 1 1 120..121\nkernel 1 gemm 300..310 7
        call 1 2 140..141\nkernel 2 k 310..330 7\ncall 1 3 160..161\nkernel 3 gemm 330..360 7",
        &[
            ("vllm::fused_experts", 100, 200, experts),
            ("_C::silu_and_mul", 130, 150, &[&[6, 6], &[6, 12]]),
        ],
    );
    let found = operators(&trace);
    let of = |path| {
        let it = find(&found, path);
        let device = it.device.unwrap();
        ((it.flops, it.bytes), (device.flops_per_s, device.bytes_per_s))
    };
    let flops = 2 * 3 * 2 * (12 * 8 + 8 * 6);
    assert_eq!(of("vllm::fused_experts"), ((flops, 0), (Some(flops as f64 / 60e-9), None)));
    assert_eq!(of("_C::silu_and_mul"), ((0, 216), (None, Some(216.0 / 20e-9))));
    assert_eq!(found.work["prefill"].flops, flops);
}

/// A decode step of two requests with 39 keys, and one whose tokens are known and keys are not.
const STEP: &str = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk39sqsq2sqsk39)";
const BARE_STEP: &str = "execute_context_0(0)_generation_2(2)";

const ATTENTION: &str = "vllm::unified_attention_with_output";
const HEADS: &[&[u64]] = &[&[2, 4, 8], &[2, 2, 8], &[2, 2, 8], &[2, 4, 8]];
const STEP_FLOPS: u64 = 2 * 4 * 39 * (8 + 8);

#[test]
fn attention_has_the_keys_of_the_step_that_it_runs_in() {
    let sketch =
        |step: &str| format!("range 1 {step} 0..1000\ncall 1 1 120..121\nkernel 1 gemm 300..340 7");
    let call = (ATTENTION, 110, 160, HEADS);
    let cache: &[&[u64]] = &[&[2, 2, 8], &[2, 2, 8], &[9, 16, 2, 8], &[9, 16, 2, 8]];
    let write = ("_C_cache_ops::reshape_and_cache_flash", 60, 90, cache);
    let of = |step: &str, calls: &[(&str, i64, i64, &[&[u64]])]| {
        let found = operators(&with_operators(&sketch(step), calls));
        let it = find(&found, ATTENTION);
        (it.flops, it.bytes, it.device.unwrap().flops_per_s, found.work["decode_all"].flops)
    };
    let rate = Some(STEP_FLOPS as f64 / 40e-9);
    let bytes = 39 * 2 * (8 + 8) * 2 + 2 * 4 * (8 + 8) * 2;
    assert_eq!(of(STEP, &[write, call]), (STEP_FLOPS, bytes, rate, STEP_FLOPS));
    assert_eq!(of(STEP, &[call]), (STEP_FLOPS, 0, rate, STEP_FLOPS), "unknown type of the cache");
    assert_eq!(of(BARE_STEP, &[write, call]), (0, 0, None, 0));
    // The rows are not the step's.
    let other: &[&[u64]] = &[&[1, 4, 8], &[1, 2, 8], &[1, 2, 8], &[1, 4, 8]];
    assert_eq!(of(STEP, &[write, (ATTENTION, 110, 160, other)]), (0, 0, None, 0));
}

#[test]
fn attention_of_layers_that_differ_in_time_has_no_work() {
    let of = |end: i64| {
        let sketch = format!(
            "range 1 {STEP} 0..1000\ncall 1 1 120..121\ncall 1 2 220..221
            kernel 1 gemm 300..310 7\nkernel 2 gemm 320..{end} 7"
        );
        let calls = [(ATTENTION, 110, 160, HEADS), (ATTENTION, 210, 260, HEADS)];
        let found = operators(&with_operators(&sketch, &calls));
        (find(&found, ATTENTION).flops, found.work["decode_all"].flops)
    };
    assert_eq!(of(330), (2 * STEP_FLOPS, 2 * STEP_FLOPS));
    assert_eq!(of(360), (0, 0), "some layers attend to a window");
}

#[test]
fn replays_of_a_graph_have_the_work_of_each_of_their_steps() {
    let later = STEP.replace("sk39", "sk50");
    let sketch = format!(
        "range 1 {STEP} 0..1000\nrange 1 {later} 1000..2000\nrange 1 {BARE_STEP} 2000..3000
        call 1 1 120..121\nkernel 1 gemm 300..340 7"
    );
    let trace = with_operators(&sketch, &[(ATTENTION, 110, 160, HEADS)]);
    let capture = Capture::of(trace.timeline.as_ref().unwrap());
    let works = Works::of(&capture, capture.framework.as_ref().unwrap());
    let replays = StepReplays::from([(Some(0), 3), (Some(1), 2), (Some(2), 7), (None, 5)]);
    let flops = 2 * 4 * (8 + 8) * (3 * 39 + 2 * 50);
    assert_eq!(works.of_replays(Some(0), &replays).flops, flops);
}

#[test]
fn a_replay_has_the_stage_of_its_call_after_a_step_is_taken_out_of_a_decode() {
    let trace = capture(
        "range 1 prefill 0..10\nrange 1 decode_all 20..80\nrange 1 prefill 90..100
         call 1 1 1..2\ncall 1 2 30..31\ncall 1 3 50..51\ncall 1 4 91..92",
    );
    let mut capture = Capture::of(&trace);
    let place = capture.stages.instances[1].place;
    capture.take_out(&[StepInside { range: (45, 60), place, span: (45, 60) }]);
    let mut index = FrameworkIndex::default();
    index.replays.joined.extend((0..4).map(|call| JoinedReplay { graph: call, call }));
    let found = replays_by_stage(&capture, &index, &Works::of(&capture, &index));
    let stages = found.keys().map(|(_, number)| capture.stage_label(*number));
    assert_eq!(stages.collect::<Vec<_>>(), ["prefill", "decode_all", LEFT_OUT, "prefill"]);
}

const FLASH: &str = "_vllm_fa2_C::varlen_fwd";
const CACHED: &[&[u64]] = &[&[2, 4, 8], &[9, 16, 2, 8], &[9, 16, 2, 8], &[2, 4, 8]];

/// Two calls of flash attention inside attention of the engine, the second one causal.
fn two_inside(causal: &str) -> Trace {
    let sketch = format!(
        "range 1 {STEP} 0..1000\ncall 1 1 120..121\ncall 1 2 140..141
        kernel 1 gemm 300..340 7\nkernel 2 gemm 340..380 7"
    );
    let calls =
        [(ATTENTION, 110, 160, HEADS), (FLASH, 115, 130, CACHED), (FLASH, 135, 150, CACHED)];
    let mut trace = with_operators(&sketch, &calls);
    let nsys = trace.timeline.as_mut().unwrap();
    for (signature, causal) in nsys.framework.signatures[1..].iter_mut().zip([causal, "True"]) {
        signature.values = vec![String::new(); 15];
        signature.values.extend([causal, "-1", "-1"].map(String::from));
    }
    nsys.graph_captures.operators.extend(calls.iter().zip(0..).map(|(call, signature)| {
        CapturedOperator { start_ns: call.1, end_ns: call.2, signature, is_range: false }
    }));
    trace
}

#[test]
fn attention_next_to_attention_to_a_part_of_the_keys_has_no_work() {
    let of = |causal: &str| {
        let trace = two_inside(causal);
        let found = operators(&trace);
        let work = |path| {
            let it = find(&found, path);
            (it.flops, it.bytes)
        };
        let capture = Capture::of(trace.timeline.as_ref().unwrap());
        let works = Works::of(&capture, capture.framework.as_ref().unwrap());
        let items = (0..3).map(NestItem::Captured).collect();
        let nest = OpenNest { entries: vec![(0, NONE), (1, 0), (2, 0)], ..OpenNest::default() };
        let thread = ThreadNest { thread: 0, items, nest };
        let captured = works.counted(&thread, &[true; 3], capture.trace);
        let captured: Vec<bool> = captured.iter().map(|it| it.any()).collect();
        ([work(ATTENTION), work(FLASH)], captured)
    };
    let bytes = 39 * 2 * (8 + 8) * 2 + 2 * 4 * (8 + 8) * 2;
    let both = (2 * STEP_FLOPS, 2 * bytes);
    assert_eq!(of("True"), ([(0, 0), both], vec![false, true, true]));
    assert_eq!(of("False"), ([(0, 0); 2], vec![false; 3]), "a prefix that requests share");
}

#[test]
fn only_a_captured_call_needs_a_launching_call_for_its_work() {
    let trace = two_inside("True");
    let capture = Capture::of(trace.timeline.as_ref().unwrap());
    let works = Works::of(&capture, capture.framework.as_ref().unwrap());
    let all = Counted { flops: true, bytes: true };
    let counts = |item| works.lookup().counts((item, all), || None, capture.trace);
    assert_eq!(counts(NestItem::Call(1)), all, "its kernel is joined by the recorded operator");
    assert_eq!(counts(NestItem::Captured(1)), Counted::default());
}
