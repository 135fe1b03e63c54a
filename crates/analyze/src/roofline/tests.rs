//! Points and bounds on sketches of counters.

use llmprof_core::{
    domain::device_peaks::Devices,
    trace::{
        counter::CounterValues,
        event::{Ceiling, Event},
    },
};
use proptest::prelude::*;

use super::*;
use crate::{events::Events, kernels::StageKernels};

fn record(geometry: u32, calls: Option<u64>, values: CounterValues) -> CounterRecord {
    CounterRecord {
        stage: "prefill".into(),
        kernel_name: "gemm".into(),
        grid: Some([geometry, 1, 1]),
        block: Some([128, 1, 1]),
        timeline_calls: calls,
        timeline_total_ms: calls.map(|calls| calls as f64),
        timeline_mean_ms: calls.map(|_| 1.0),
        unlike_ms: None,
        like: None,
        profiled: 3,
        full_name: String::new(),
        signature: String::new(),
        profiled_in: None,
        flops_per_byte: values.arithmetic_intensity(),
        values,
    }
}

/// A launch with these FLOPs, bytes and nanoseconds, and these utilisations of SM and memory.
fn values(format: &str, flops: f64, bytes: f64, ns: f64, [sm, memory]: [f64; 2]) -> CounterValues {
    CounterValues {
        duration_ns: Some(ns),
        dram_bytes: Some(bytes),
        sm_pct: Some(sm),
        memory_pct: Some(memory),
        dram_pct: Some(memory),
        flops: [(format.to_owned(), flops)].into(),
        flops_complete: true,
        ..CounterValues::default()
    }
}

fn placed(counters: &[CounterRecord], events: &[Event]) -> Roofline {
    let devices = Devices::from_toml(include_str!("../../../../conf/devices.toml")).unwrap();
    let stage = "prefill".to_owned();
    let (graph_launches, graph_ms, all) = (0, 0.0, Some(100.0));
    let stages = vec![StageKernels {
        stage,
        launches: 9,
        kernel_ms: all,
        busy_ms: all,
        graph_launches,
        graph_ms,
    }];
    let kernels = KernelTimes { stages, ..KernelTimes::default() };
    roofline(
        counters,
        &kernels,
        &DeviceCeilings::of(&Events::of(events), devices.find("NVIDIA H200"), None),
    )
}

fn ceiling(what: &str, dtype: &str, per_second: f64) -> Event {
    Event::Ceiling(Ceiling {
        what: what.into(),
        dtype: dtype.into(),
        shape: vec![],
        per_second,
        tries: 1,
    })
}

#[test]
fn the_ridge_is_peak_over_bandwidth_of_the_datasheet_and_as_measured() {
    let events = [ceiling("matmul", "bf16", 751e12), ceiling("copy", "bf16", 4.3e12)];
    let roofline =
        placed(&[record(1, Some(1), values("fp32", 1.0, 1.0, 1.0, [1.0, 1.0]))], &events);
    let ridges: Vec<_> = roofline
        .roofs
        .iter()
        .map(|it| (it.source.as_str(), it.dtype.as_str(), it.ridge_flops_per_byte.round()))
        .collect();
    assert_eq!(
        ridges,
        [
            ("datasheet", "bf16", 206.0),
            ("measured", "bf16", 175.0),
            ("datasheet", "f16", 206.0),
            ("datasheet", "f32", 14.0)
        ]
    );
}

#[test]
fn a_point_is_compared_with_the_slope_left_of_the_ridge_and_the_peak_right_of_it() {
    // 24 TFLOP/s at 10 FLOP/B, where memory allows 48; 494.5 TFLOP/s at 1000 FLOP/B, where compute
    // allows 989.
    let left =
        placed(&[record(1, Some(1), values("tensor_bf16", 24e6, 2.4e6, 1e3, [20.0, 50.0]))], &[]);
    let right = placed(
        &[record(1, Some(1), values("tensor_bf16", 494.5e6, 494.5e3, 1e3, [50.0, 20.0]))],
        &[],
    );
    let shares = [&left, &right].map(|it| it.points[0].datasheet_pct.unwrap());
    assert!(shares.iter().all(|share| (share - 50.0).abs() < 1e-9), "{shares:?}");
    assert_eq!(
        (left.points[0].roof_dtype.as_deref(), left.points[0].measured_pct),
        (Some("bf16"), None)
    );
}

#[test]
fn the_busier_unit_is_the_bound_unless_both_are_low() {
    let bound = |sm, memory| {
        placed(&[record(1, Some(1), values("fp32", 1.0, 1.0, 1e3, [sm, memory]))], &[]).points[0]
            .bound
    };
    assert_eq!(bound(60.0, 59.9), Some(KernelBound::Compute));
    assert_eq!(bound(61.0, 85.0), Some(KernelBound::Memory));
    assert_eq!(bound(59.9, 59.9), Some(KernelBound::Latency));
    let unknown = CounterValues { sm_pct: None, ..values("fp32", 1.0, 1.0, 1e3, [0.0, 90.0]) };
    assert_eq!(placed(&[record(1, None, unknown)], &[]).points[0].bound, None);
}

#[test]
fn instantiations_of_one_template_are_points_of_their_own() {
    let of = |signature: &str, flops| CounterRecord {
        signature: signature.into(),
        full_name: signature.into(),
        ..record(1, Some(1), values("fp32", flops, 1e3, 1e3, [50.0, 20.0]))
    };
    let records = [of("gemm<float>", 1e3), of("gemm<int>", 8e3)];
    let points = placed(&records, &[]).points;
    let rows: Vec<_> = points.iter().map(|it| (it.full_name.as_str(), it.flops_per_byte)).collect();
    assert_eq!(rows, [("gemm<float>", Some(1.0)), ("gemm<int>", Some(8.0))]);
}

#[test]
fn uncounted_operations_leave_no_point_but_a_reason() {
    for (uncounted, reason) in [
        (Some(UncountedOperations::TensorCores), "tensor core operations"),
        (Some(UncountedOperations::HalfPrecision), "loads of constants"),
        (None, "were not counted"),
    ] {
        let values = CounterValues {
            flops_complete: false,
            uncounted,
            ..values("fp32", 1e6, 1e6, 1e3, [50.0, 70.0])
        };
        let point = placed(&[record(1, Some(1), values)], &[]).points.remove(0);
        assert_eq!(
            (point.flops, point.flops_per_byte, point.flops_per_s, point.format),
            (None, None, None, None)
        );
        assert!(point.missing.unwrap().contains(reason));
        assert_eq!((point.bound, point.bytes_per_s), (Some(KernelBound::Memory), Some(1e12)));
    }
}

#[test]
fn a_share_above_the_datasheet_roof_is_removed_with_a_finding() {
    let over =
        placed(&[record(1, Some(1), values("tensor_bf16", 2e9, 1e3, 1e3, [99.0, 1.0]))], &[]);
    assert_eq!(
        (over.points[0].datasheet_pct, over.findings[0].id.as_str()),
        (None, "roofline_impossible")
    );
    assert_eq!(over.findings[0].evidence["percent"], "202.2");
}

proptest! {
    #[test]
    fn launch_configurations_are_weighted_by_their_launches(
        launches in prop::collection::vec(
            (1u64..50, 1.0f64..1e9, 1.0f64..1e9, 1.0f64..1e9, 0.0f64..100.0), 1..5
        )
    ) {
        let record = |(at, it): (usize, &(u64, f64, f64, f64, f64))| {
            record(at as u32, Some(it.0), values("fp32", it.1, it.2, it.3, [it.4, 0.0]))
        };
        let records: Vec<_> = launches.iter().enumerate().map(record).collect();
        let point = point(&records.iter().collect::<Vec<_>>());
        // The same sums, launch by launch.
        let each = || launches.iter().flat_map(|it| std::iter::repeat_n(it, it.0 as usize));
        let (flops, bytes, ns) =
            each().fold((0.0, 0.0, 0.0), |(f, b, t), it| (f + it.1, b + it.2, t + it.3));
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
        prop_assert!(near(point.flops_per_byte.unwrap(), flops / bytes));
        prop_assert!(near(point.flops_per_s.unwrap(), flops / ns * 1e9));
        prop_assert!(near(point.bytes_per_s.unwrap(), bytes / ns * 1e9));
        let min = launches.iter().map(|it| it.4).fold(f64::INFINITY, f64::min);
        let max = launches.iter().map(|it| it.4).fold(0.0, f64::max);
        prop_assert!((min - 1e-9..=max + 1e-9).contains(&point.sm_pct.unwrap()));
    }
}
