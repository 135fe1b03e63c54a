//! Kernels with one known cause each.

use llmprof_core::trace::counter::{Stall, UncountedOperations};

use super::{
    super::floors::{Rate, Rates},
    *,
};

#[test]
fn bytes_read_twice_are_more_bytes() {
    let twice = CounterValues { dram_bytes: Some(600.0), ..busy() };
    let case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 100, 300, 0);
    insta::assert_snapshot!(case.counters("k", twice).rows(), @"
    floor 300 0
    more_bytes 300 300
    unexplained 400 0
    pass_difference 0 0
    ");
}

#[test]
fn counters_of_one_operator_explain_no_longer_launches_of_another() {
    let sketch = "range 1 prefill 0..1000\nrange 1 attn 0..10\nrange 1 mlp 20..30
        call 1 1 1..2\ncall 1 2 21..22\nkernel 1 k 0..250 7\nkernel 2 k 250..1000 7";
    let values = CounterValues { dram_bytes: Some(150.0), ..busy() };
    let case = Case::new(sketch, "prefill", 1000).counters("k", values);
    insta::assert_snapshot!(case.rows(), @"
    floor 150 0
    unexplained 850 0
    pass_difference 0 0
    ");
}

#[test]
fn the_floor_of_products_without_counters_is_placed_into_their_kernels() {
    let sketch = "range 1 prefill 0..1000\nrange 1 op 0..30
        call 1 1 1..2\ncall 1 2 21..22
        kernel 1 sgemm 0..600 7\nkernel 2 vectorized_elementwise_kernel 600..1000 7";
    let values = CounterValues {
        sm_pct: Some(50.0),
        memory_pct: Some(10.0),
        tensor_pct: Some(0.0),
        flops: [("fp32".to_owned(), 100.0)].into(),
        ..busy()
    };
    let case = Case::new(sketch, "prefill", 1000).operator("op", 300, 0, 0);
    // The second one computes no products, which could run on tensor cores.
    insta::assert_snapshot!(case.counters("vectorized_elementwise_kernel", values).rows(), @"
    floor 300 0
    instructions 200 200
    unexplained 500 0
    pass_difference 0 0
    ");
}

#[test]
fn few_warps_that_wait_and_many_that_wait_for_memory_are_latency() {
    let rows = |occupancy: f64, reason: &str, share_pct: f64| {
        let values = CounterValues {
            dram_bytes: Some(300.0),
            achieved_occupancy_pct: Some(occupancy),
            theoretical_occupancy_pct: Some(3.125),
            stalls: vec![Stall { reason: reason.into(), warps_per_issue: 9.0, share_pct }],
            ..busy()
        };
        let case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 100, 300, 0);
        case.counters("k", values).rows()
    };
    let latency = "floor 300 0\nlatency 700 700\nunexplained 0 0\npass_difference 0 0";
    let unexplained = "floor 300 0\nunexplained 700 0\npass_difference 0 0";
    assert_eq!(rows(40.0, "math_pipe_throttle", 30.0), latency);
    assert_eq!(rows(80.0, "long_scoreboard", 70.0), latency);
    assert_eq!(rows(80.0, "long_scoreboard", 40.0), unexplained);
    assert_eq!(rows(80.0, "math_pipe_throttle", 70.0), unexplained);
    assert_eq!(rows(40.0, "selected", 70.0), unexplained);
}

#[test]
fn products_without_tensor_cores_take_the_time_of_their_dtype() {
    let values = CounterValues {
        tensor_pct: Some(0.0),
        flops: [("fp32".to_owned(), 300.0)].into(),
        ..busy()
    };
    let case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 300, 0, 0);
    insta::assert_snapshot!(case.counters("k", values).rows(), @"
    floor 300 0
    tensor_cores 300 300
    unexplained 400 0
    pass_difference 0 0
    ");
}

#[test]
fn blocks_that_leave_sms_idle_are_waves_with_and_without_counters() {
    let mut case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 0, 100, 0);
    let nsys = case.trace.timeline.as_mut().unwrap();
    nsys.kernels = nsys.kernels.map(|_, it| it.grid = [4, 1, 1]);
    insta::assert_snapshot!(case.rows(), @"
    floor 100 0
    waves 600 600
    unexplained 300 0
    pass_difference 0 0
    ");
    let mut half = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 0, 100, 0);
    let nsys = half.trace.timeline.as_mut().unwrap();
    nsys.kernels = nsys.kernels.map(|_, it| it.grid = [15, 1, 1]);
    let mut half = half.counters("k", busy());
    half.trace.counters[0].grid = Some([15, 1, 1]);
    insta::assert_snapshot!(half.rows(), @"
    floor 100 0
    waves 250 250
    memory_traffic 200 200
    unexplained 450 0
    pass_difference 0 0
    ");
}

#[test]
fn a_kernel_that_stays_saves_at_most_its_time_above_a_launch() {
    let saving = |launch_ns, grid| {
        let mut case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 0, 100, 0);
        case.launch_ns = launch_ns;
        let nsys = case.trace.timeline.as_mut().unwrap();
        nsys.kernels = nsys.kernels.map(|_, it| it.grid = [grid, 1, 1]);
        let ledger = case.ledger();
        ledger.rows.iter().find(|it| it.cause == LedgerCause::Waves).unwrap().max_saving_ns
    };
    // Of 10 SMs, 4 have a block.
    for (launch_ns, saved) in [(0, 600), (400, 600), (900, 100), (1000, 0), (i64::MAX, 0)] {
        assert_eq!(saving(launch_ns, 4), saved, "{launch_ns}");
    }
    // A copy by a kernel is not necessary, so its launch is saved as well.
    let mut copy = Case::new(
        "range 1 prefill 0..1000\ncall 1 1 1..2\nkernel 1 copy_kernel 0..1000 7",
        "prefill",
        1000,
    );
    copy.launch_ns = 900;
    let row = copy.ledger().rows.remove(0);
    assert_eq!((row.cause, row.max_saving_ns), (LedgerCause::CopiesAndCasts, 1000));
}

#[test]
fn a_launch_takes_the_time_of_the_shortest_kernel_or_a_microsecond() {
    let of = |sketch: &str| launch_ns(&capture(sketch));
    assert_eq!(of("kernel 1 a 0..600 7\nkernel 2 b 600..5000 7"), 600);
    assert_eq!(of("kernel 1 a 0..90000 7"), 1000);
    assert_eq!(of("range 1 prefill 0..10"), 0);
}

#[test]
fn partial_tiles_are_the_share_of_tiles_without_results() {
    let mut case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 500, 0, 0);
    case.tile_fill.insert(("prefill".into(), "k".into(), [10, 1, 1]), 75.0);
    insta::assert_snapshot!(case.rows(), @"
    floor 500 0
    tiles 250 250
    unexplained 250 0
    pass_difference 0 0
    ");
}

#[test]
fn copies_casts_and_collectives_have_no_floor() {
    let sketch = "range 1 prefill 0..1000\nrange 1 op 0..10\ncall 1 1 1..2\ncall 1 2 2..3
        call 1 3 3..4\ncall 1 4 4..5\nkernel 1 k 0..400 7\nkernel 2 cast_f32_bf16 400..600 7
        kernel 3 ncclDevKernel_AllReduce 600..900 7\ncopy 4 64 900..1000";
    let case = Case::new(sketch, "prefill", 1000).operator("op", 0, 800, 0);
    insta::assert_snapshot!(case.rows(), @"
    floor 400 0
    copies_and_casts 300 300
    collectives 300 300
    unexplained 0 0
    pass_difference 0 0
    ");
}

#[test]
fn collectives_that_are_joined_are_waiting_and_transfer() {
    let sketch = "range 1 prefill 0..1000\nrange 1 op 0..10\ncall 1 1 1..2\ncall 1 2 2..3
        call 1 3 3..4\nkernel 1 k 0..400 7\nkernel 2 ncclDevKernel_AllReduce 400..600 7
        kernel 3 ncclDevKernel_AllReduce 600..1000 7";
    let case = Case::new(sketch, "prefill", 1000).operator("op", 0, 800, 0);
    let rows = |joined, wait_ns, transfer_ns| {
        let wait = KernelWait { launches: 2, ns: 600, joined, wait_ns, transfer_ns };
        let ledger = case.ledger_with(|analysis| {
            analysis.collectives.waits = [(("prefill".to_owned(), 1), wait)].into();
        });
        let collective = ledger.rows.iter().filter(|it| it.cause.as_str().starts_with("coll"));
        collective.map(|it| format!("{} {}", it.cause, it.ns)).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(rows(2, 421, 179), "collective_wait 421, collective_transfer 179");
    assert_eq!(rows(1, 100, 300), "collective_wait 100, collective_transfer 300, collectives 200");
    assert_eq!(rows(2, 600, 0), "collective_wait 600");
    assert_eq!(rows(0, 0, 0), "collectives 600");
}

#[test]
fn possible_constants_have_no_part_in_a_floor() {
    let rate = Rate { per_s: 1e12, source: "datasheet" };
    let rates = Rates { flops: [("f32".to_owned(), rate)].into(), ..Rates::default() };
    let of = |uncounted| {
        let flops = [("fp32".to_owned(), 5e3)].into();
        rates.counted_ns(&CounterValues { flops, uncounted, ..CounterValues::default() })
    };
    assert_eq!(of(Some(UncountedOperations::HalfPrecision)), Some(5.0));
    assert_eq!((of(Some(UncountedOperations::TensorCores)), of(None)), (None, None));
}

#[test]
fn a_gap_before_work_without_a_recorded_launch_is_idle_time_of_an_unknown_reason() {
    let sketch = "range 1 decode_all 0..40000\ncall 1 1 1000..2000\nkernel 1 a 3000..9000 7\n\
                  kernel 2 b 45000..49000 7";
    let trace = Trace { timeline: Some(capture(sketch)), ..Trace::default() };
    let rows = analyze(&trace, None, None).ledger.rows;
    let unknown = rows.iter().find(|it| it.cause == LedgerCause::GapUnknown);
    assert_eq!(unknown.map(|it| (it.ns, it.max_saving_ns)), Some((31_000, 0)));
}

#[test]
fn a_graph_that_starts_long_after_its_call_is_still_being_launched() {
    let sketch = "range 1 prefill 0..200000\ncall 1 1 0..1000\nkernel 1 a 2000..10000 7
        call 1 8 20000..30000\nkernel 8 b 170000..200000 7";
    let case = Case::new(sketch, "prefill", 200_000);
    insta::assert_snapshot!(case.rows(), @"
    gap_host 10000 10000
    gap_launch 2000 2000
    gap_graph_launch 150000 150000
    unexplained 38000 0
    pass_difference 0 0
    ");
}

#[test]
fn a_launch_far_longer_than_the_others_of_its_kernel_is_a_cause_of_its_own() {
    let sketch = |ns: i64| {
        let kernel = |at: i64| {
            let (id, from) = (20 + at, 1_000 * (1 + at));
            let to = if at == 8 { from + ns } else { from + 1_000 };
            format!("call 1 {id} {}..{}\nkernel {id} k {from}..{to} 7\n", 1 + at, 2 + at)
        };
        let end = 9_000 + ns;
        format!("range 1 prefill 0..{end}\n{}", (0..9).map(kernel).collect::<String>())
    };
    let of = |ns: i64| {
        let mut case = Case::new(&sketch(ns), "prefill", 9_000 + ns);
        // Each launch has blocks on half of the SMs.
        case.trace.timeline.as_mut().unwrap().target.gpus[0].sm_count = Some(20);
        let ledger = case.ledger();
        let ns = |cause: LedgerCause| ledger.members("prefill", cause).map(|it| it.ns).sum::<i64>();
        let long = ledger.members("prefill", LedgerCause::LongLaunches).next();
        let text = long.map(|it| it.evidence.clone()).unwrap_or_default();
        (ns(LedgerCause::Waves), ns(LedgerCause::LongLaunches), text)
    };
    let text = "one launch took 400 us, its others 1.00 us".to_owned();
    assert_eq!(of(400_000), (4_500, 399_000, text));
    assert_eq!(of(1_000), (4_500, 0, String::new()), "equal launches");

    // The usual launches have nothing above their launch that another grid could save.
    let mut case = Case::new(&sketch(400_000), "prefill", 409_000);
    case.trace.timeline.as_mut().unwrap().target.gpus[0].sm_count = Some(20);
    case.launch_ns = 1_000;
    let ledger = case.ledger();
    let saving = |cause: LedgerCause| {
        ledger.members("prefill", cause).map(|it| it.max_saving_ns).sum::<i64>()
    };
    assert_eq!((saving(LedgerCause::Waves), saving(LedgerCause::LongLaunches)), (0, 399_000));
}
