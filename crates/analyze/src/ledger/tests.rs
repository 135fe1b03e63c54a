//! Ledgers of sketches. Ceilings are 1 byte and 1 FLOP of bf16 per nanosecond.

mod causes;
mod missing;
mod sampled;

use llmprof_core::{
    domain::{device_peaks::DevicePeaks, dtype::Dtype},
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters},
        environment::Gpu,
        event::Event,
        timeline::{ApiCall, process_of},
    },
};
use serde_json::json;

use super::*;
use crate::{
    analyze,
    cost::{ModuleCost, Traffic},
    kernels::tests::capture,
    timeline::capture::Capture,
};

/// Inputs of a ledger.
struct Case {
    trace: Trace,
    work: Option<Vec<ModuleCost>>,
    tile_fill: evidence::TileFills,
    /// 0 unless set: sketches have kernels of nanoseconds.
    launch_ns: i64,
}

impl Case {
    /// A capture on a GPU of 10 SMs with 64 warps each, and the time of the unprofiled stage. Calls
    /// of correlation 8 launch a graph, calls of correlation 9 synchronise.
    fn new(sketch: &str, stage: &str, measured_ns: i64) -> Self {
        let mut nsys = capture(sketch);
        let name = nsys.strings.len() as u32;
        let calls = ["cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize"];
        nsys.strings.extend(calls.map(str::to_owned));
        let call = |correlation: i64| match correlation {
            8 => 1,
            9 => 2,
            _ => 0,
        };
        let named = |it: ApiCall| ApiCall { name: name + call(it.correlation_id), ..it };
        nsys.cuda_calls = nsys.cuda_calls.iter().map(named).collect();
        nsys.kernels = nsys.kernels.map(|_, it| (it.grid, it.block) = ([10, 1, 1], [64, 1, 1]));
        nsys.target.gpus = vec![Gpu {
            sm_count: Some(10),
            warps_per_sm: Some(64),
            l2_bytes: Some(1_000),
            ..Gpu::default()
        }];
        let mut baseline = vec![start(), range(stage, 0, measured_ns)];
        let steps = if stage == DECODE { 4 } else { 0 };
        let step = |at: i64| range("decode_step", at, at + 1);
        baseline.extend((0..steps).map(step));
        let trace = Trace { baseline, timeline: Some(nsys), ..Trace::default() };
        Self { trace, work: None, tile_fill: evidence::TileFills::new(), launch_ns: 0 }
    }

    /// Adds counters of a kernel in prefill.
    fn counters(mut self, kernel: &str, values: CounterValues) -> Self {
        self.trace.counters.push(LaunchCounters {
            stage: "prefill".into(),
            kernel: kernel.into(),
            grid: Some([10, 1, 1]),
            block: Some([64, 1, 1]),
            values,
            ..LaunchCounters::default()
        });
        self
    }

    /// Adds an operator's necessary work in prefill.
    fn operator(
        mut self,
        path: &str,
        flops: u64,
        weight_bytes: u64,
        activation_bytes: u64,
    ) -> Self {
        let prefill = Traffic {
            calls: 1,
            weight_bytes,
            activation_bytes,
            bytes: weight_bytes + activation_bytes,
            ..Traffic::default()
        };
        let row = ModuleCost {
            path: path.into(),
            op: "linear".into(),
            prefill_flops: flops,
            prefill,
            ..ModuleCost::default()
        };
        self.work.get_or_insert_default().push(row);
        self
    }

    fn ledger(&self) -> Ledger {
        self.ledger_with(|_| {})
    }

    /// The ledger of a changed analysis.
    fn ledger_with(&self, change: impl FnOnce(&mut Analysis)) -> Ledger {
        let peaks = DevicePeaks {
            name: "d".into(),
            reported_as: vec![],
            dense_tflops: [("bf16".to_owned(), 0.001), ("f32".to_owned(), 0.0005)].into(),
            boost_mhz: [].into(),
            memory_gb_s: 1.0,
            source: "s".into(),
        };
        self.ledger_on(Some(&peaks), change)
    }

    /// The ledger on a device with these peaks.
    fn ledger_on(&self, peaks: Option<&DevicePeaks>, change: impl FnOnce(&mut Analysis)) -> Ledger {
        let mut analysis = analyze(&self.trace, None, peaks);
        change(&mut analysis);
        let nsys = self.trace.timeline.as_ref().unwrap();
        let wanted = crate::timeline::gpu::step_idle::WantedSteps::default();
        let splits = crate::timeline::gpu::device_tables(&Capture::of(nsys), None, &wanted).1;
        let ceilings = DeviceCeilings::of(&Default::default(), peaks, None);
        let input = LedgerInput {
            nsys: Some(nsys),
            splits: &splits,
            work: self.work.as_deref().map(necessary::of_each_stage),
            dtype: Some(Dtype::Bf16),
            ceilings: &ceilings,
            waits: &analysis.collectives.waits,
            tile_fill: self.tile_fill.clone(),
            launch_ns: self.launch_ns,
        };
        let ledger = ledger(&analysis, &input);
        for stage in &ledger.stages {
            let sum: i64 = ledger.of_stage(&stage.stage).map(|it| it.ns).sum();
            assert_eq!(sum, stage.measured_ns, "{ledger:#?}");
        }
        ledger
    }

    /// `cause ns saving` of each row.
    fn rows(&self) -> String {
        let line = |it: &LedgerRow| format!("{} {} {}", it.cause, it.ns, it.max_saving_ns);
        self.ledger().rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

fn start() -> Event {
    serde_json::from_value(json!({
        "kind": "start", "schema": 3, "t_ns": 0, "unix_ns": 0, "pid": 1, "model": "m",
        "weights": "synthetic", "parameters": 1, "weight_bytes": 2, "dtype": "bf16",
        "device": "cuda:0", "threads": 1, "prompt_tokens": 1, "image_tokens": 0, "images": [],
        "decode_graph": false, "load_ns": 0
    }))
    .unwrap()
}

fn range(name: &str, start_ns: i64, end_ns: i64) -> Event {
    serde_json::from_value(json!({
        "kind": "range", "name": name, "start_ns": start_ns, "end_ns": end_ns, "warmup": false,
        "repeat": 0
    }))
    .unwrap()
}

/// Counters without an idle unit: one wave of 32 blocks of 2 warps per SM.
fn busy() -> CounterValues {
    CounterValues {
        sm_pct: Some(20.0),
        memory_pct: Some(30.0),
        dram_pct: Some(30.0),
        tensor_pct: Some(20.0),
        theoretical_occupancy_pct: Some(3.125),
        achieved_occupancy_pct: Some(95.0),
        flops_complete: true,
        ..CounterValues::default()
    }
}

const ONE_KERNEL: &str = "range 1 prefill 0..1000\nrange 1 op 0..10\ncall 1 1 1..2
    kernel 1 k 0..1000 7";

#[test]
fn a_synchronisation_in_each_step_is_a_gap_with_its_call() {
    let step = |at: i64| {
        let t = at * 100;
        format!(
            "range 1 decode_step {t}..{}\ncall 1 {} {}..{}\nkernel {} k {}..{} 7
             call 1 9 {}..{}\n",
            t + 100,
            at + 20,
            t + 1,
            t + 2,
            at + 20,
            t + 10,
            t + 60,
            t + 20,
            t + 90
        )
    };
    let sketch = (0..4).map(step).collect::<String>();
    let case = Case::new(&format!("range 1 decode_all 0..400\n{sketch}"), DECODE, 380);
    insta::assert_snapshot!(case.rows(), @"
    gap_host 44 38
    gap_launch 36 32
    gap_sync 120 108
    unexplained 200 0
    pass_difference -20 0
    ");
    let ledger = case.ledger();
    let row = ledger.rows.iter().find(|it| it.cause == LedgerCause::GapSync).unwrap();
    assert_eq!((row.step_ns, row.largest.as_deref()), (Some(30.0), Some("k")));
}

#[test]
fn an_operator_faster_than_its_floor_is_capped_and_counted() {
    let case = Case::new(ONE_KERNEL, "prefill", 1200).operator("op", 100, 1500, 0);
    insta::assert_snapshot!(case.rows(), @"
    floor 1000 0
    unexplained 0 0
    pass_difference 200 0
    ");
    let stage = case.ledger().stages.remove(0);
    assert_eq!((stage.capped_operators, stage.capped_ns), (1, 500));
}

#[test]
fn only_activations_beyond_the_l2_cache_have_to_move() {
    let floor = |activations| {
        let case = Case::new(ONE_KERNEL, "prefill", 1000).operator("op", 0, 100, activations);
        case.ledger().stages[0].floor_ns
    };
    assert_eq!((floor(1_000), floor(1_200)), (Some(100), Some(300)));
}

#[test]
fn without_a_model_the_floor_is_that_of_the_counted_work() {
    let values = CounterValues { dram_bytes: Some(450.0), ..busy() };
    let case = Case::new(ONE_KERNEL, "prefill", 1000).counters("k", values);
    insta::assert_snapshot!(case.rows(), @"
    floor 450 0
    unexplained 550 0
    pass_difference 0 0
    ");
    assert_eq!(case.ledger().stages[0].floor_of, Some(FloorOf::Kernels));
}

#[test]
fn a_graph_traced_as_a_whole_has_the_floors_of_its_operators() {
    let sketch = "range 1 prefill 0..1000\ncall 1 8 1..2\ngraph 8 5 0..1000 7";
    let case = Case::new(sketch, "prefill", 900).operator("op", 0, 300, 0);
    insta::assert_snapshot!(case.rows(), @"
    floor 300 0
    unexplained 700 0
    pass_difference -100 0
    ");
}

#[test]
fn the_floor_of_a_model_is_divided_by_time_over_the_operators_of_another_program() {
    let sketch = "range 1 prefill 0..1000\nrange 1 attn 0..10\nrange 1 mlp 20..30
        call 1 1 1..2\ncall 1 2 21..22\nkernel 1 k 0..250 7\nkernel 2 k 250..1000 7";
    let case = Case::new(sketch, "prefill", 1000)
        .operator("decoder.layers.*.self_attn", 0, 300, 0)
        .operator("decoder.layers.*.mlp", 0, 100, 0)
        // For a share of the floor, no necessary bytes are known.
        .counters("k", CounterValues { dram_bytes: Some(700.0), ..busy() });
    insta::assert_snapshot!(case.rows(), @"
    floor 400 0
    unexplained 600 0
    pass_difference 0 0
    ");
    let ledger = case.ledger();
    let floor = |path: &str| {
        let mut members = ledger.members("prefill", LedgerCause::Floor);
        members.find(|it| it.operator.as_deref() == Some(path)).map(|it| it.ns)
    };
    assert_eq!((floor("attn"), floor("mlp")), (Some(100), Some(300)));
}

#[test]
fn overlapping_kernels_save_only_the_time_in_which_they_run_alone() {
    let sketch = "range 1 prefill 0..1000\ncall 1 1 1..2\ncall 1 2 2..3
        kernel 1 copy_kernel 0..600 7\nkernel 2 k 400..1000 8";
    insta::assert_snapshot!(Case::new(sketch, "prefill", 1000).rows(), @"
    copies_and_casts 500 400
    unexplained 500 0
    pass_difference 0 0
    ");
}

#[test]
fn a_shorter_traced_decode_is_scaled_to_the_unprofiled_steps() {
    let mut case =
        Case::new("range 1 decode_all 0..100\ncall 1 1 1..2\nkernel 1 k 0..100 7", DECODE, 420);
    case.trace.traced = vec![start(), range(DECODE, 0, 100), range("decode_step", 0, 100)];
    insta::assert_snapshot!(case.rows(), @"
    unexplained 400 0
    pass_difference 20 0
    ");
}

#[test]
fn several_repeats_and_gpus_are_means() {
    let mut case = Case::new(
        "range 1 prefill 0..1001\nrange 1 prefill 2000..3000\ncall 1 1 1..2\ncall 1 2 2001..2002
         call 1 3 2..3\nkernel 1 k 0..1001 7\nkernel 3 k 1..501 7\nkernel 2 k 2000..3000 7",
        "prefill",
        900,
    );
    let nsys = case.trace.timeline.as_mut().unwrap();
    nsys.kernels = nsys.kernels.map(|at, it| it.device = u32::from(at == 1));
    let ledger = case.ledger();
    assert_eq!(ledger.stages[0].traced_ns, Some(1000), "2001 ns of windows on each of two GPUs");
    insta::assert_snapshot!(case.rows(), @"
    gap_host 375 0
    unexplained 625 0
    pass_difference -100 0
    ");
}

#[test]
fn instances_at_once_on_one_gpu_each_have_the_time_of_their_window() {
    for (second, traced) in [(0, 1000), (400, 1000), (1000, 1000), (5000, 1000)] {
        let sketch = format!(
            "range 1 prefill 0..1000\nrange 2 prefill {second}..{}\ncall 1 1 1..2
             call 2 2 {}..{}\nkernel 1 k 0..500 7\nkernel 2 k {}..{} 8",
            second + 1000,
            second + 1,
            second + 2,
            second + 500,
            second + 1000
        );
        let ledger = Case::new(&sketch, "prefill", 1000).ledger();
        let stage = &ledger.stages[0];
        assert_eq!((stage.measured_ns, stage.traced_ns), (1000, Some(traced)), "{second}");
        let work = ledger.members("prefill", LedgerCause::Unexplained).map(|it| it.ns);
        let gaps: i64 = ledger.rows.iter().filter(|it| it.cause.is_gap()).map(|it| it.ns).sum();
        assert_eq!(work.sum::<i64>() + gaps, 1000, "{second}");
    }
}

#[test]
fn gaps_while_the_profiler_works_are_its_own_and_no_saving() {
    let sketch = "range 1 prefill 0..1000\ncall 1 1 1..2\ncall 1 2 500..510\ncall 1 9 100..400
        kernel 1 k 2..102 7\nkernel 2 k 600..700 7";
    let rows = |overheads: &[(i64, i64)], measured_ns| {
        let mut case = Case::new(sketch, "prefill", measured_ns);
        let nsys = case.trace.timeline.as_mut().unwrap();
        let process = process_of(nsys.ranges[0].global_tid);
        let own = overheads.iter().map(|(start, end)| (process, *start, *end));
        // The profiler of another process delays only that process.
        let all = own.chain([(process + (1 << 24), 0, 1000)]);
        nsys.framework.overheads = all.collect();
        case.rows()
    };
    insta::assert_snapshot!(rows(&[], 1000), @"
    gap_host 401 401
    gap_launch 101 101
    gap_sync 298 298
    unexplained 200 0
    pass_difference 0 0
    ");
    // In 50..150 the GPU is idle for 48 ns, and the host waits all of this time.
    insta::assert_snapshot!(rows(&[(50, 150), (450, 550), (900, 2000)], 1000), @"
    profiler_overhead 248 0
    gap_host 251 251
    gap_launch 51 51
    gap_sync 250 250
    unexplained 200 0
    pass_difference 0 0
    ");
    // A faster unprofiled pass had no work of the profiler, before it had fewer gaps.
    insta::assert_snapshot!(rows(&[(50, 150), (450, 550)], 880), @"
    profiler_overhead 148 0
    gap_host 351 351
    gap_launch 51 51
    gap_sync 250 250
    unexplained 200 0
    pass_difference -120 0
    ");
    insta::assert_snapshot!(rows(&[(50, 150), (450, 550)], 800), @"
    profiler_overhead 148 0
    gap_host 351 322
    gap_launch 51 46
    gap_sync 250 230
    unexplained 200 0
    pass_difference -200 0
    ");
}
