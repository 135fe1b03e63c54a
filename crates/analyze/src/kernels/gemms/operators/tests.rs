//! Products of operators in sketched captures.

use llmprof_core::trace::{
    event::{Event, OPERATOR_DOMAIN, StageRange},
    timeline::Timeline,
};

use super::*;
use crate::kernels::{
    gemms::{GemmRecord, Gemms, LOG},
    tests::capture,
};

/// Prefill with a linear layer by a kernel of the program and one by a library, and experts.
const SKETCH: &str = "range 1 prefill 0..100
    range 1 q 10..20\nrange 1 k 20..30\nrange 1 experts 30..60
    call 1 1 11..12\ncall 1 2 21..22\ncall 1 3 31..32\ncall 1 4 33..34\ncall 1 5 35..36
    kernel 1 gemv_bf16 200..210 7
    kernel 2 nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT 210..230 7
    kernel 3 sort_by_expert_bf16 230..231 7
    kernel 4 grouped_up_bf16 240..280 7
    kernel 5 grouped_down_bf16 280..300 7";

fn sketched(sketch: &str) -> Timeline {
    let mut trace = capture(sketch);
    let operators = trace.ranges.iter_mut().filter(|it| it.name != "prefill");
    operators.for_each(|it| it.domain = OPERATOR_DOMAIN.into());
    trace
}

fn call(path: &str, op: &str, shapes: &[&[u64]], flops: u64) -> OperatorCall {
    OperatorCall {
        path: path.into(),
        op: op.into(),
        start_ns: 0,
        end_ns: 1,
        thread: 0,
        captured: false,
        warmup: false,
        repeat: 0,
        stage: "prefill".into(),
        shapes: shapes.iter().map(|it| it.to_vec()).collect(),
        dtype: "bf16".into(),
        flops,
        bytes: 0,
    }
}

/// The calls of [`SKETCH`]: 5 rows, each multiplied by the weights of 2 of 4 experts.
fn calls() -> Vec<OperatorCall> {
    let up: &[u64] = &[4, 6, 8];
    vec![
        call("q", "linear", &[&[1, 1, 64], &[32, 64]], 2 * 32 * 64),
        call("k", "linear", &[&[1, 1, 64], &[32, 64]], 2 * 32 * 64),
        call("experts", "experts", &[&[5, 8], up, &[4, 8, 3]], 3 * 2 * 10 * 8 * 3),
    ]
}

fn found(trace: &Timeline, calls: &[OperatorCall]) -> Vec<GemmRecord> {
    let events: Vec<Event> = calls.iter().cloned().map(Event::Op).collect();
    records(&Capture::of(trace), &Events::of(&events), true)
}

/// Function, sides, calls, launches and nanoseconds.
type Row<'a> = (&'a str, [u64; 3], u64, Option<u64>, Option<f64>);

fn rows(records: &[GemmRecord]) -> Vec<Row<'_>> {
    let row = |it: &'_ GemmRecord| {
        let ns = it.kernel_ms.map(|ms| (ms * 1e6).round());
        ([it.m, it.n, it.k], it.calls, it.kernel_calls, ns)
    };
    let all = records.iter().map(|it| (it.function.as_str(), row(it)));
    all.map(|(function, (sides, calls, launches, ns))| (function, sides, calls, launches, ns))
        .collect()
}

#[test]
fn kernels_of_the_program_have_the_products_of_their_operators_and_libraries_none() {
    let found = found(&sketched(SKETCH), &calls());
    assert_eq!(
        rows(&found),
        [
            ("linear", [1, 32, 64], 1, Some(1), Some(10.0)),
            ("experts", [10, 6, 8], 1, Some(1), Some(40.0)),
            ("experts", [10, 8, 3], 1, Some(1), Some(20.0)),
        ]
    );
    let up = &found[1];
    assert_eq!(
        (up.origin.as_str(), up.kernel_name.as_deref()),
        (OPERATOR, Some("grouped_up_bf16"))
    );
    assert_eq!(up.flops_per_s, Some(2.0 * 10.0 * 6.0 * 8.0 / 40e-9));
    assert_eq!((up.tile.as_deref(), up.left_type.as_str()), (None, "bf16"));
    let flops: u64 = found.iter().map(|it| it.total_flops).sum();
    let of_operators: u64 = calls().iter().filter(|it| it.path != "k").map(|it| it.flops).sum();
    assert_eq!(flops, of_operators, "experts are divided without a rest");
}

#[test]
fn operators_whose_shapes_differ_or_do_not_give_their_flops_have_no_product() {
    let trace = sketched(SKETCH);
    let mut several = calls();
    several.push(call("q", "linear", &[&[2, 64], &[32, 64]], 2 * 2 * 32 * 64));
    assert_eq!(rows(&found(&trace, &several))[0].0, "experts");
    let mut wrong = calls();
    wrong[0].flops += 1;
    wrong[2].flops += 1;
    assert_eq!(rows(&found(&trace, &wrong)), []);
    let mut attention = calls();
    attention.iter_mut().for_each(|it| it.op = "attention".into());
    assert_eq!(rows(&found(&trace, &attention)), []);
    let warmup = calls().into_iter().map(|it| OperatorCall { warmup: true, ..it });
    assert_eq!(rows(&found(&trace, &warmup.collect::<Vec<_>>())), []);
}

#[test]
fn without_the_kernels_of_all_calls_there_is_no_rate() {
    let twice = [calls(), calls()].concat();
    let found = found(&sketched(SKETCH), &twice);
    assert_eq!((found[0].calls, found[0].kernel_calls), (2, Some(1)));
    assert!(found.iter().all(|it| it.flops_per_s.is_none() && it.kernel_ms.is_some()));
}

#[test]
fn shares_are_of_one_execution_of_the_stage_whatever_the_origin() {
    let record = |origin: &str, calls: u64| GemmRecord {
        stage: "prefill".into(),
        origin: origin.into(),
        calls,
        flops_per_call: 100,
        total_flops: 100 * calls,
        ..GemmRecord::default()
    };
    // Logged once, traced in two repeats.
    let mut gemms = Gemms { records: vec![record(LOG, 1)], ..Gemms::default() };
    let range = |repeat: u32| {
        Event::Range(StageRange {
            name: "prefill".into(),
            start_ns: 0,
            end_ns: 1,
            device_ns: None,
            warmup: false,
            repeat,
            step: None,
        })
    };
    let events = [range(0), range(1)];
    gemms.add_operators(vec![record(OPERATOR, 6)], &Events::of(&events));
    let shares: Vec<_> =
        gemms.records.iter().map(|it| (it.origin.as_str(), it.share_pct)).collect();
    assert_eq!(shares, [(OPERATOR, Some(75.0)), (LOG, Some(25.0))]);
}
