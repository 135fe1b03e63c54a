//! Operators of engines, some of whose work follows from their step.

use super::*;
use crate::{
    operators::framework::works::{StepReplays, Works},
    timeline::capture::Capture,
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

/// A decode step of two requests with 39 keys, and one of which only the tokens are known.
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
    let capture = Capture::of(trace.nsys.as_ref().unwrap());
    let works = Works::of(&capture, capture.framework.as_ref().unwrap());
    let replays = StepReplays::from([(Some(0), 3), (Some(1), 2), (Some(2), 7), (None, 5)]);
    let flops = 2 * 4 * (8 + 8) * (3 * 39 + 2 * 50);
    assert_eq!(works.of_replays(Some(0), &replays).flops, flops);
}
