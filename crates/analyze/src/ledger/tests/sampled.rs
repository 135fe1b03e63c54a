//! Kernels with sampled metrics and no counters.

use llmprof_core::trace::gpu_metrics::GpuMetric;

use super::*;
use crate::sampled::figures::{SampledKernel, SampledStage, SampledValue};
use GpuMetric::{DramRead, DramWrite, SmIssue, SmsActive, TensorActive, WarpsInFlight};

/// Own values with a half-width of 1.
fn own(metrics: &[(GpuMetric, f64)]) -> Vec<(GpuMetric, SampledValue)> {
    let value = |pct| SampledValue { pct, half_width: 1.0, group: None, is_group_mean: false };
    metrics.iter().map(|(metric, pct)| (*metric, value(*pct))).collect()
}

fn sampled(kernel: &str, metrics: &[(GpuMetric, SampledValue)]) -> SampledKernel {
    SampledKernel {
        stage: "prefill".into(),
        device: 0,
        kernel_name: kernel.into(),
        grid: Some([10, 1, 1]),
        block: Some([64, 1, 1]),
        calls: 1,
        total_ms: 1e-3,
        mean_ms: None,
        share_pct: None,
        samples: 40,
        is_concurrent: false,
        metrics: metrics.iter().copied().collect(),
        like: None,
    }
}

/// The ledger of one kernel of 1,000 ns with these sampled metrics.
fn ledger_of(metrics: &[(GpuMetric, SampledValue)], operator_bytes: Option<u64>) -> Ledger {
    let case = Case::new(ONE_KERNEL, "prefill", 1000);
    let case = match operator_bytes {
        Some(bytes) => case.operator("op", 100, bytes, 0),
        None => case,
    };
    case.ledger_with(|analysis| analysis.sampled.kernels = vec![sampled("k", metrics)])
}

fn rows(ledger: &Ledger) -> String {
    let line = |it: &LedgerRow| format!("{} {} {} {}", it.cause, it.ns, it.pass, it.samples);
    ledger.rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// All metrics of a kernel with few warps.
const FEW_WARPS: [(GpuMetric, f64); 6] = [
    (SmsActive, 80.0),
    (SmIssue, 30.0),
    (TensorActive, 5.0),
    (WarpsInFlight, 20.0),
    (DramRead, 15.0),
    (DramWrite, 5.0),
];

#[test]
fn samples_show_idle_sms_and_instructions_where_there_are_no_counters() {
    let metrics = [
        (SmsActive, 60.0),
        (SmIssue, 35.0),
        (TensorActive, 5.0),
        (DramRead, 15.0),
        (DramWrite, 5.0),
    ];
    let ledger = ledger_of(&own(&metrics), None);
    insta::assert_snapshot!(rows(&ledger), @"
    floor 200 gpu_metrics 40
    waves 400 gpu_metrics 40
    instructions 150 gpu_metrics 40
    unexplained 250 gpu_metrics 40
    pass_difference 0  0
    ");
    let sources: Vec<&str> = ledger.rows.iter().map(|it| it.counter.as_str()).collect();
    assert_eq!(
        sources,
        [
            "dram_read, dram_write, tensor_active",
            "sms_active",
            "dram_read, dram_write, sm_issue",
            "",
            "time of the stage"
        ]
    );
}

#[test]
fn samples_of_few_warps_are_latency_unless_a_unit_is_at_its_roof() {
    let with = |warps: f64, issue: f64| {
        let value = |(metric, pct)| match metric {
            WarpsInFlight => (metric, warps),
            SmIssue => (metric, issue),
            _ => (metric, pct),
        };
        rows(&ledger_of(&own(&FEW_WARPS.map(value)), None))
    };
    // 20 of the 80 % that the active SMs can hold.
    insta::assert_snapshot!(with(20.0, 30.0), @"
    floor 200 gpu_metrics 40
    waves 200 gpu_metrics 40
    instructions 100 gpu_metrics 40
    latency 500 gpu_metrics 40
    unexplained 0  0
    pass_difference 0  0
    ");
    insta::assert_snapshot!(with(60.0, 30.0), @"
    floor 200 gpu_metrics 40
    waves 200 gpu_metrics 40
    instructions 100 gpu_metrics 40
    unexplained 500 gpu_metrics 40
    pass_difference 0  0
    ");
    insta::assert_snapshot!(with(20.0, 85.0), @"
    floor 200 gpu_metrics 40
    waves 200 gpu_metrics 40
    instructions 600 gpu_metrics 40
    unexplained 0  0
    pass_difference 0  0
    ");
}

#[test]
fn samples_show_traffic_of_device_memory_beyond_the_floor_of_an_operator() {
    let metrics = [
        (SmsActive, 100.0),
        (SmIssue, 10.0),
        (WarpsInFlight, 90.0),
        (DramRead, 50.0),
        (DramWrite, 20.0),
    ];
    insta::assert_snapshot!(rows(&ledger_of(&own(&metrics), Some(300))), @"
    floor 300 unprofiled 0
    more_bytes 400 gpu_metrics 40
    unexplained 300 gpu_metrics 40
    pass_difference 0  0
    ");
    // For operators of another program, no necessary bytes are known.
    let sketch = "range 1 prefill 0..1000\nrange 1 a 0..10\nrange 1 b 20..30
        call 1 1 1..2\ncall 1 2 21..22\nkernel 1 k 0..500 7\nkernel 2 k 500..1000 7";
    let case = Case::new(sketch, "prefill", 1000).operator("op", 100, 300, 0);
    let change =
        |analysis: &mut Analysis| analysis.sampled.kernels = vec![sampled("k", &own(&metrics))];
    insta::assert_snapshot!(rows(&case.ledger_with(change)), @"
    floor 300 unprofiled 0
    memory_traffic 400 gpu_metrics 80
    unexplained 300 gpu_metrics 80
    pass_difference 0  0
    ");
}

#[test]
fn a_missing_metric_never_adds_to_a_floor_or_a_cause() {
    let ns = |ledger: &Ledger, cause| {
        let row = ledger.rows.iter().find(|it| it.cause == cause);
        row.map_or(0, |it| it.ns)
    };
    let all = ledger_of(&own(&FEW_WARPS), None);
    for (metric, _) in FEW_WARPS {
        let metrics: Vec<_> = FEW_WARPS.into_iter().filter(|it| it.0 != metric).collect();
        let without = ledger_of(&own(&metrics), None);
        let needs_peak = [DramRead, DramWrite, TensorActive].contains(&metric);
        let stage = &without.stages[0];
        assert_eq!(stage.floor_ns, (!needs_peak).then_some(200), "{metric}");
        assert_eq!(stage.times_floor.is_none(), needs_peak, "{metric}");
        if metric != SmIssue && metric != SmsActive {
            let latency = ns(&without, LedgerCause::Latency);
            assert_eq!(latency, 0, "{metric}: {without:#?}");
        }
        // Without a floor, its part of the instructions is theirs.
        let busy = |it: &Ledger| {
            let floor = it.stages[0].floor_ns.unwrap_or(0);
            floor + ns(it, LedgerCause::Instructions)
        };
        assert!(busy(&without) <= busy(&all), "{metric}");
    }
}

#[test]
fn products_outside_the_tensor_cores_have_no_floor_and_are_not_other_instructions() {
    let with_tensor = |kernel: &str, tensor: f64| {
        let value = |(metric, pct)| match metric {
            TensorActive => (metric, tensor),
            SmIssue => (metric, 60.0),
            _ => (metric, pct),
        };
        let case = Case::new(&ONE_KERNEL.replace(" k ", &format!(" {kernel} ")), "prefill", 1000);
        let ledger = case.ledger_with(|analysis| {
            analysis.sampled.kernels = vec![sampled(kernel, &own(&FEW_WARPS.map(value)))];
        });
        let is_shown = |it: &&LedgerRow| {
            [LedgerCause::TensorCores, LedgerCause::Instructions].contains(&it.cause)
        };
        let causes = ledger.rows.iter().filter(is_shown).map(|it| (it.cause, it.ns));
        (ledger.stages[0].floor_ns, causes.collect::<Vec<_>>())
    };
    let gemm = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n";
    assert_eq!(with_tensor(gemm, 1.0), (None, vec![(LedgerCause::TensorCores, 600)]));
    assert_eq!(with_tensor(gemm, 5.0), (Some(200), vec![(LedgerCause::Instructions, 400)]));
    assert_eq!(with_tensor("k", 1.0), (Some(200), vec![(LedgerCause::Instructions, 400)]));
}

#[test]
fn products_limited_by_memory_read_operands_and_other_kernels_pass_activations_on() {
    use LedgerCause::{MemoryTraffic, OperandTraffic};
    let metrics = [
        (SmsActive, 100.0),
        (SmIssue, 10.0),
        (TensorActive, 1.0),
        (WarpsInFlight, 90.0),
        (DramRead, 60.0),
        (DramWrite, 10.0),
    ];
    let traffic = |ledger: &Ledger| {
        let is_traffic = |it: &&LedgerRow| [OperandTraffic, MemoryTraffic].contains(&it.cause);
        let rows = ledger.rows.iter().filter(is_traffic);
        rows.map(|it| (it.cause, it.ns)).collect::<Vec<_>>()
    };
    for (kernel, expected, has_samples_alone) in [
        ("gemv2T_kernel_val", OperandTraffic, true),
        ("gemvNSP_kernel", OperandTraffic, true),
        ("mul_mat_vec_q", OperandTraffic, true),
        ("dequantize_mul_mat_vec_q4_0_cuda", OperandTraffic, true),
        ("triton_red_fused_mm_0", OperandTraffic, true),
        ("Cijk_Alik_Bljk_SB_MT16x16x64", OperandTraffic, true),
        // Their share of device memory is a floor of their own.
        ("paged_attention_v2_kernel", OperandTraffic, false),
        ("fused_moe_kernel", OperandTraffic, false),
        ("vectorized_elementwise_kernel", MemoryTraffic, false),
        ("combine_bf16", MemoryTraffic, false),
        ("splitKreduce_kernel", MemoryTraffic, true),
        ("rms_norm_kernel", MemoryTraffic, false),
        ("k", MemoryTraffic, false),
    ] {
        let sketch = ONE_KERNEL.replace(" k ", &format!(" {kernel} "));
        let case = Case::new(&sketch, "prefill", 1000);
        let by_samples = case.ledger_with(|analysis| {
            analysis.sampled.kernels = vec![sampled(kernel, &own(&metrics))];
        });
        let of_samples = if has_samples_alone { vec![(expected, 700)] } else { vec![] };
        assert_eq!(traffic(&by_samples), of_samples, "{kernel}");
        let counted = case.counters(kernel, busy()).ledger();
        assert_eq!(traffic(&counted), [(expected, 300)], "{kernel}");
    }
}

#[test]
fn a_device_without_tensor_cores_uses_none() {
    let mut case = Case::new(ONE_KERNEL, "prefill", 1000);
    let without = FEW_WARPS.into_iter().filter(|it| it.0 != TensorActive).collect::<Vec<_>>();
    let mut floor = |capability: &str| {
        let gpus = &mut case.trace.timeline.as_mut().unwrap().target.gpus;
        gpus[0].compute_capability = Some(capability.into());
        let change = |analysis: &mut Analysis| {
            analysis.sampled.kernels = vec![sampled("k", &own(&without))];
        };
        case.ledger_with(change).stages[0].floor_ns
    };
    assert_eq!((floor("6.1"), floor("9.0")), (Some(200), None));
}

#[test]
fn the_mean_of_a_group_is_part_of_the_floor_and_proves_no_cause_of_a_kernel() {
    let mut metrics = own(&FEW_WARPS);
    for (metric, value) in &mut metrics {
        (value.is_group_mean, value.group) = (*metric != SmIssue, Some(1));
    }
    let ledger = ledger_of(&metrics, None);
    insta::assert_snapshot!(rows(&ledger), @"
    floor 200 gpu_metrics 40
    unexplained 800 gpu_metrics 40
    pass_difference 0  0
    ");
    let rest = ledger.members("prefill", LedgerCause::Unexplained).next().unwrap();
    assert_eq!(
        rest.evidence,
        "no value of the kernel alone: SMs active, device memory, tensor cores, occupancy"
    );
}

#[test]
fn an_occupancy_of_values_that_are_not_known_to_within_half_is_no_evidence() {
    let latency = |half_width: f64| {
        let mut metrics = own(&FEW_WARPS);
        metrics[3].1 = SampledValue { pct: 5.5, half_width, ..metrics[3].1 };
        let ledger = ledger_of(&metrics, None);
        ledger.rows.iter().any(|it| it.cause == LedgerCause::Latency)
    };
    assert_eq!((latency(2.7), latency(6.7)), (true, false));
}

#[test]
fn the_samples_of_a_row_are_at_most_those_of_the_stage() {
    let sketch = "range 1 prefill 0..1000\ncall 1 1 1..2\ncall 1 2 2..3
        kernel 1 a 0..500 7\nkernel 2 b 500..1000 7";
    let ledger = Case::new(sketch, "prefill", 1000).ledger_with(|analysis| {
        let metrics = own(&FEW_WARPS);
        analysis.sampled.kernels = vec![sampled("a", &metrics), sampled("b", &metrics)];
        analysis.sampled.stages = vec![SampledStage {
            stage: "prefill".into(),
            device: 0,
            kernel_ms: 1e-3,
            samples: 50,
            sm_clock_mhz: None,
            metrics: [].into(),
        }];
    });
    let row = ledger.rows.iter().find(|it| it.cause == LedgerCause::Latency).unwrap();
    assert_eq!((row.samples, row.members), (50, 2), "each overlaps 40 samples");
}
