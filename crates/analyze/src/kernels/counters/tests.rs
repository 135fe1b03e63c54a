//! Counters joined with small timelines.

use llmprof_core::trace::{counter::OpenRange, timeline::Timeline};
use proptest::prelude::*;

use super::*;
use crate::{
    kernels::{KernelTimes, kernels, tests::capture},
    roofline::{ceilings::DeviceCeilings, roofline},
};

fn profiled(stage: &str, kernel: &str, grid: u32, duration_ns: f64, sm_pct: f64) -> LaunchCounters {
    let values = CounterValues {
        duration_ns: Some(duration_ns),
        sm_pct: Some(sm_pct),
        ..CounterValues::default()
    };
    LaunchCounters {
        stage: stage.into(),
        kernel: kernel.into(),
        grid: Some([grid, 1, 1]),
        block: Some([1; 3]),
        values,
        ..LaunchCounters::default()
    }
}

/// A kernel with two launch configurations in decode, 1 for 30 ns and 2 for 10 ns, and one
/// launch in prefill.
fn timeline() -> Timeline {
    timeline_with(27)
}

/// The launch in prefill takes 28 ns.
fn timeline_of_equal_launches() -> Timeline {
    timeline_with(48)
}

fn timeline_with(end_of_prefill_ns: i64) -> Timeline {
    let mut trace = capture(&format!(
        "range 1 prefill 0..10\nrange 1 decode_all 10..20
         call 1 1 1..2\ncall 1 2 11..12\ncall 1 3 13..14
         kernel 1 gemm 20..{end_of_prefill_ns} 7\nkernel 2 gemm 30..60 7\nkernel 3 gemm 60..70 7",
    ));
    trace.kernels = trace.kernels.map(|at, kernel| kernel.grid[0] = if at == 2 { 2 } else { 1 });
    trace
}

#[test]
fn counters_are_joined_by_stage_name_and_launch_configuration() {
    let launches = [
        profiled("decode_all", "gemm", 1, 40.0, 50.0),
        profiled("decode_all", "gemm", 1, 60.0, 70.0),
    ];
    let trace = timeline();
    let records = counters(&launches, Some(&Capture::of(&trace)));
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(
        (record.timeline_calls, record.timeline_mean_ms, record.profiled),
        (Some(1), Some(30e-6), 2)
    );
    assert_eq!((record.values.duration_ns, record.values.sm_pct), (Some(50.0), Some(60.0)));
}

#[test]
fn counters_of_a_kernel_weight_its_launch_configurations_by_time() {
    let trace = timeline();
    let launches = [
        profiled("decode_all", "gemm", 1, 40.0, 80.0),
        profiled("decode_all", "gemm", 2, 20.0, 40.0),
    ];
    let joined = Capture::of(&trace);
    let mut records = kernels(&joined).records;
    attach(&mut records, &counters(&launches, Some(&joined)));
    let of = |stage: &str| records.iter().find(|it| it.stage == stage).unwrap().counters.clone();
    let decode = of("decode_all").unwrap();
    assert_eq!(
        (decode.sm_pct, decode.launch_configs, decode.covered_pct),
        (Some(70.0), 2, Some(100.0))
    );
    assert_eq!(decode.replay_ms, Some(30e-6), "durations are weighted by calls, not by time");
    assert_eq!(of("prefill"), None, "not profiled in prefill");
}

/// A launch of a page of all stages, inside a range of this name.
fn in_range(range: &str, launch: LaunchCounters) -> LaunchCounters {
    let ranges = ["LLM", "LLM.op"].map(|domain| OpenRange {
        domain: domain.into(),
        name: if domain == "LLM" { range.into() } else { "decode_all".into() },
    });
    LaunchCounters { stage: String::new(), all_stages: true, ranges: ranges.into(), ..launch }
}

#[test]
fn counters_of_all_stages_are_attributed_by_the_ranges_of_each_launch() {
    let trace = timeline();
    let launches = [
        in_range("prefill", profiled("", "gemm", 1, 40.0, 80.0)),
        in_range("decode", profiled("", "gemm", 1, 20.0, 40.0)),
        in_range("elsewhere", profiled("", "gemm", 2, 20.0, 30.0)),
    ];
    let found = counters(&launches, Some(&Capture::of(&trace)));
    let rows: Vec<_> = found
        .iter()
        .map(|it| (it.stage.as_str(), it.values.sm_pct.unwrap(), it.profiled_in.as_deref()))
        .collect();
    let expected =
        [("decode_all", 40.0, None), ("decode_all", 30.0, None), ("prefill", 80.0, None)];
    assert_eq!(rows, expected);
}

#[test]
fn a_geometry_profiled_in_one_stage_stands_for_the_other_and_names_its_stage() {
    let trace = timeline_of_equal_launches();
    let joined = Capture::of(&trace);
    let launch = profiled("", "gemm", 1, 40.0, 80.0);
    let prefill = in_range("prefill", launch.clone());
    let found = counters(std::slice::from_ref(&prefill), Some(&joined));
    let rows: Vec<_> = found
        .iter()
        .map(|it| (it.stage.as_str(), it.timeline_mean_ms, it.profiled_in.as_deref()))
        .collect();
    let expected = [("decode_all", Some(30e-6), Some("prefill")), ("prefill", Some(28e-6), None)];
    assert_eq!(rows, expected);
    let without_ranges = LaunchCounters { all_stages: true, ..profiled("", "gemm", 1, 40.0, 80.0) };
    let found = counters(&[without_ranges], Some(&joined));
    let stages = |it: &CounterRecord| (it.stage.clone(), it.profiled_in.clone());
    let dominant = [("decode_all", None), ("prefill", Some("decode_all"))];
    let dominant = dominant.map(|(it, of)| (it.to_owned(), of.map(str::to_owned)));
    assert_eq!(
        found.iter().map(stages).collect::<Vec<_>>(),
        dominant,
        "of a program without ranges"
    );
    let of_stage = LaunchCounters { stage: "prefill".into(), ..launch.clone() };
    assert_eq!(counters(&[of_stage], Some(&joined)).len(), 1, "of an older run");
    let imported = LaunchCounters { all_stages: false, ..in_range("prefill", launch) };
    assert_eq!(counters(&[imported], Some(&joined)).len(), 1, "of an import");
    let other = in_range("prefill", profiled("", "gemm", 2, 40.0, 80.0));
    assert_eq!(counters(&[other], Some(&joined)).len(), 1, "no other stage has it");
    let unlike = timeline();
    let found = counters(&[prefill], Some(&Capture::of(&unlike)));
    let stages: Vec<_> = found.iter().map(|it| it.stage.as_str()).collect();
    assert_eq!(stages, ["prefill"], "launches of 7 ns do not stand for those of 30 ns");
}

/// Launches of one persistent kernel in prefill, one after the other.
fn persistent(durations: &[i64]) -> Timeline {
    let mut sketch = "range 1 prefill 0..1000\n".to_owned();
    for (at, ns) in (1..).zip(durations) {
        let start = 10_000 * at;
        sketch += &format!("call 1 {at} {at}..{at}\nkernel {at} gemm {start}..{} 7\n", start + ns);
    }
    capture(&sketch)
}

#[test]
fn counters_of_a_launch_do_not_stand_for_longer_ones_with_the_same_grid() {
    let trace = persistent(&[20, 20, 64, 64, 64]);
    let joined = Capture::of(&trace);
    let read = |durations: &[f64], is_ours: bool| {
        let launch = |ns: &f64| LaunchCounters {
            all_stages: is_ours,
            ..in_range("prefill", profiled("", "gemm", 1, *ns, *ns))
        };
        let launches: Vec<_> = durations.iter().map(launch).collect();
        let found = counters(&launches, Some(&joined));
        let mut records = kernels(&joined).records;
        attach(&mut records, &found);
        let rows: Vec<_> = found
            .iter()
            .map(|it| {
                let ns = |ms: Option<f64>| (ms.unwrap() * 1e6).round();
                (it.timeline_calls.unwrap(), ns(it.timeline_total_ms), ns(it.unlike_ms))
            })
            .collect();
        let of = records[0].counters.clone().unwrap();
        (rows, of.covered_pct.unwrap().round(), of.sm_pct.unwrap().round(), of.launch_configs)
    };
    let short = (vec![(2, 40.0, 192.0)], 17.0, 25.0, 1);
    assert_eq!(read(&[25.0], false), short);
    assert_eq!(read(&[50.0], true).0, short.0, "ours is the first, however slow under ncu");
    assert_eq!(read(&[50.0], false).0, [(3, 192.0, 40.0)]);
    let both = (vec![(3, 192.0, 0.0), (2, 40.0, 0.0)], 100.0, 62.0, 1);
    assert_eq!(read(&[25.0, 70.0], false), both, "(40 x 25 + 192 x 70) / 232");
    let unknown =
        LaunchCounters { values: CounterValues::default(), ..profiled("", "gemm", 1, 0.0, 0.0) };
    let found = counters(&[unknown], Some(&joined));
    assert_eq!(found[0].timeline_calls, None, "which of both is unknown");
}

#[test]
fn counters_without_timeline_launches_are_kept_but_not_attached() {
    let launches = [profiled("decode_all", "gemm", 9, 40.0, 80.0)];
    let trace = timeline();
    let joined = Capture::of(&trace);
    let mut records = kernels(&joined).records;
    let found = counters(&launches, Some(&joined));
    attach(&mut records, &found);
    assert_eq!((found[0].timeline_calls, found[0].values.sm_pct), (None, Some(80.0)));
    assert!(records.iter().all(|it| it.counters.is_none()));
    assert_eq!(counters(&launches, None).len(), 1);
}

/// The timeline with two instantiations of one template of equal geometry in decode: the second
/// kernel, for 30 ns, adds integers, the third one floats.
fn two_instantiations() -> Timeline {
    let mut trace = timeline();
    let first = trace.strings.len() as u32;
    trace.strings.extend(
        ["add<(int)4, int>", "add<(int)4, float>"].map(|it| format!("void at::{it}(T2 *)")),
    );
    trace.kernels = trace.kernels.map(|at, kernel| {
        kernel.grid = [1; 3];
        if at > 0 {
            kernel.full_name = first + at as u32 - 1;
        }
    });
    trace
}

fn instantiation(full_name: &str) -> LaunchCounters {
    LaunchCounters {
        full_name: full_name.into(),
        signature: llmprof_core::trace::names::signature(full_name),
        ..profiled("decode_all", "gemm", 1, 40.0, 80.0)
    }
}

#[test]
fn counters_of_an_instantiation_have_its_time_alone() {
    let trace = two_instantiations();
    let joined = Capture::of(&trace);
    let ns = |full_name: &str| {
        let records = counters(&[instantiation(full_name)], Some(&joined));
        records[0].timeline_total_ms.map(|ms| (ms * 1e6).round())
    };
    assert_eq!(ns("void at::add<4, int>(T2 *)"), Some(30.0), "as ncu prints it");
    assert_eq!(ns("void at::add<4, float>(T2 *)"), Some(10.0));
    assert_eq!(ns("void at::add<4, double>(T2 *)"), None, "another one ran in decode");
    assert_eq!(ns("gemm"), None, "which of both is unknown");
}

#[test]
fn rows_of_two_instantiations_have_their_own_counters() {
    let trace = two_instantiations();
    let joined = Capture::of(&trace);
    let mut records = kernels(&joined).records;
    let floats = instantiation("void at::add<4, float>(T2 *)");
    attach(&mut records, &counters(&[floats], Some(&joined)));
    let counted = |name: &str| {
        let row = records.iter().find(|it| it.full_name.contains(name)).unwrap();
        row.counters.as_ref().and_then(|it| it.covered_pct)
    };
    assert_eq!((counted("float"), counted("int>")), (Some(100.0), None));
}

/// Counters of a launch configuration of a kernel, with FLOPs, bytes, calls and milliseconds.
fn config(at: usize, (flops, bytes, calls, ms): (f64, f64, u64, f64)) -> CounterRecord {
    let values = CounterValues {
        flops: [("fp32".to_owned(), flops)].into(),
        flops_complete: true,
        dram_bytes: Some(bytes),
        ..CounterValues::default()
    };
    CounterRecord {
        stage: "prefill".into(),
        kernel_name: "gemm".into(),
        full_name: "gemm".into(),
        signature: String::new(),
        grid: Some([at as u32, 1, 1]),
        block: Some([128, 1, 1]),
        timeline_calls: Some(calls),
        timeline_total_ms: Some(ms),
        timeline_mean_ms: Some(ms / calls as f64),
        unlike_ms: None,
        like: None,
        profiled: 1,
        profiled_in: None,
        flops_per_byte: values.arithmetic_intensity(),
        values,
    }
}

#[test]
fn flops_per_byte_are_unknown_if_those_of_a_launch_configuration_are() {
    let known = config(0, (8.0, 2.0, 3, 1.0));
    let unknown = CounterRecord {
        values: CounterValues { flops_complete: false, ..known.values.clone() },
        ..config(1, (8.0, 2.0, 3, 9.0))
    };
    let of = |records: &[&CounterRecord]| summary(records, 10.0).unwrap().flops_per_byte;
    assert_eq!((of(&[&known]), of(&[&known, &unknown])), (Some(4.0), None));
}

#[test]
fn constants_of_one_launch_do_not_hide_the_operations_of_all() {
    let half = Some(UncountedOperations::HalfPrecision);
    let launch = |possible_constants, uncounted: Option<UncountedOperations>| {
        let values = CounterValues {
            flops: [("fp32".to_owned(), 1000.0)].into(),
            possible_constants,
            flops_complete: uncounted.is_none(),
            uncounted,
            ..CounterValues::default()
        };
        LaunchCounters { values, ..LaunchCounters::default() }
    };
    let (none, many) = (launch(0.0, None), launch(150.0, half));
    let of = |launches: &[&LaunchCounters]| {
        let mean = mean(launches);
        (mean.possible_constants, mean.total_flops(), mean.uncounted)
    };
    assert_eq!(of(&[&none, &many]), (75.0, Some(1000.0), None));
    assert_eq!(of(&[&many, &many]), (150.0, None, half));
    let tensor = launch(0.0, Some(UncountedOperations::TensorCores));
    assert_eq!(of(&[&none, &many, &tensor]).2, Some(UncountedOperations::TensorCores));
    let unknown = LaunchCounters::default();
    assert_eq!(of(&[&many, &unknown]), (75.0, None, None));
}

proptest! {
    /// The time of a profiled kernel is the sum over launches with counters and without counters.
    #[test]
    fn counters_stand_for_each_launch_once(
        durations in prop::collection::vec(1i64..200, 1..20),
        replayed in prop::collection::vec(1.0f64..200.0, 1..5),
    ) {
        let trace = persistent(&durations);
        let launches: Vec<_> =
            replayed.iter().map(|ns| profiled("prefill", "gemm", 1, *ns, 1.0)).collect();
        let found = counters(&launches, Some(&Capture::of(&trace)));
        let like: f64 = found.iter().map(|it| it.timeline_total_ms.unwrap()).sum();
        let all: i64 = durations.iter().sum();
        prop_assert_eq!(found.iter().map(|it| it.profiled).sum::<u64>(), replayed.len() as u64);
        prop_assert_eq!(((like + found[0].unlike_ms.unwrap()) * 1e6).round() as i64, all);
    }

    /// Time has no part in a ratio of operations and bytes.
    #[test]
    fn flops_per_byte_of_a_kernel_are_those_of_its_roofline_point(
        configs in prop::collection::vec((0.0f64..1e9, 1.0f64..1e9, 1u64..50, 0.001f64..9.0), 1..5)
    ) {
        let records: Vec<_> =
            configs.iter().enumerate().map(|(at, config)| self::config(at, *config)).collect();
        let (flops, bytes) = configs.iter().fold((0.0, 0.0), |(flops, bytes), it| {
            (flops + it.0 * it.2 as f64, bytes + it.1 * it.2 as f64)
        });
        let refs: Vec<_> = records.iter().collect();
        let points = roofline(&records, &KernelTimes::default(), &DeviceCeilings::default()).points;
        for found in [summary(&refs, 10.0).unwrap().flops_per_byte, points[0].flops_per_byte] {
            let found = found.unwrap();
            prop_assert!((found - flops / bytes).abs() <= 1e-9 * found, "{found}");
        }
    }
}
