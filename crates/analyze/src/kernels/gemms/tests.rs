//! GEMMs of sketched logs and captures.

use llmprof_core::{
    domain::device_peaks::Devices,
    trace::{
        event::{Ceiling, Event},
        gemm::ProcessGemms,
        timeline::Timeline,
    },
};

use super::*;
use crate::{events::Events, kernels::tests::capture};

fn call(m: u64, n: u64, k: u64, algorithm: Option<&str>) -> GemmCall {
    let bf16 = || "bf16".to_owned();
    let shape = GemmShape {
        m,
        n,
        k,
        batch: 1,
        left_type: bf16(),
        right_type: bf16(),
        out_type: bf16(),
        left_transposed: false,
        right_transposed: true,
        compute: "32f".into(),
    };
    GemmCall { shape, function: "cublasGemmEx".into(), algorithm: algorithm.map(str::to_owned) }
}

fn log(calls: &[(u64, u64, u64)]) -> GemmLog {
    GemmLog {
        calls: calls.iter().map(|&(m, n, k)| call(m, n, k, None)).collect(),
        ..GemmLog::default()
    }
}

fn table(gemms: &Gemms) -> Vec<(&str, u64, u64, Option<f64>, u64)> {
    gemms
        .records
        .iter()
        .map(|it| (it.stage.as_str(), it.m, it.calls, it.calls_per_step, it.total_flops))
        .collect()
}

#[test]
fn calls_beyond_those_of_the_first_log_are_decode() {
    let prefill = log(&[(512, 8, 4), (512, 8, 4)]);
    let all = log(&[(512, 8, 4), (512, 8, 4), (1, 8, 4), (1, 8, 4), (1, 8, 4), (1, 8, 4)]);
    let gemms = gemms(&GemmTrace { prefill, all, decode_steps: 2, ..GemmTrace::default() }, None);
    assert_eq!(
        table(&gemms),
        [("prefill", 512, 2, None, 65_536), ("decode_all", 1, 4, Some(2.0), 256)]
    );
    assert_eq!((gemms.records[0].share_pct, gemms.findings), (Some(100.0), vec![]));
}

#[test]
fn logs_that_start_differently_give_no_decode_stage() {
    let gemms = gemms(
        &GemmTrace {
            prefill: log(&[(512, 8, 4)]),
            all: log(&[(7, 8, 4), (1, 8, 4)]),
            ..GemmTrace::default()
        },
        None,
    );
    assert_eq!(
        gemms.records.iter().map(|it| it.stage.as_str()).collect::<Vec<_>>(),
        ["prefill", "", ""]
    );
    assert_eq!(gemms.findings[0].id, "gemm_stages_unknown");
}

#[test]
fn algorithms_of_cublaslt_are_added_to_cublas_calls_and_not_counted_again() {
    let lt = GemmLog { calls: vec![call(512, 8, 4, Some("algorithm 66"))], ..GemmLog::default() };
    let both = GemmTrace {
        prefill: log(&[(512, 8, 4)]),
        all: log(&[(512, 8, 4)]),
        lt_prefill: lt.clone(),
        ..GemmTrace::default()
    };
    let counted = gemms(&both, None);
    assert_eq!((counted.records.len(), counted.records[0].calls), (1, 1));
    assert_eq!(counted.records[0].algorithm.as_deref(), Some("algorithm 66"));
    let alone =
        gemms(&GemmTrace { lt_prefill: lt.clone(), lt_all: lt, ..GemmTrace::default() }, None);
    assert_eq!(alone.records.len(), 1, "a program that calls cublasLt directly has no other log");
}

#[test]
fn empty_and_truncated_logs_are_findings() {
    let cut = GemmLog { incomplete: 3, cut: true, ..GemmLog::default() };
    let gemms = gemms(&GemmTrace { all: cut, ..GemmTrace::default() }, None);
    let ids: Vec<_> = gemms.findings.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(
        (ids, gemms.records.len()),
        (vec!["gemm_calls_incomplete", "gemm_log_cut", "gemm_log_empty"], 0)
    );
}

#[test]
fn a_call_of_cublas_has_the_accumulator_that_cublaslt_used() {
    let f32s = |compute: &str| {
        let mut call = call(64, 8, 4, None);
        call.shape.compute = compute.into();
        GemmLog { calls: vec![call], ..GemmLog::default() }
    };
    let process = ProcessGemms { pid: 7, cublas: f32s("32f"), lt: f32s("32f_fast_tf32") };
    let found = gemms(&GemmTrace { processes: vec![process], ..GemmTrace::default() }, None);
    let rows: Vec<_> = found.records.iter().map(|it| (it.calls, it.compute.as_str())).collect();
    assert_eq!(rows, [(1, "32f_fast_tf32")]);
}

const NVJET: &str = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT";
const SPLIT: &str = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT";
const XMMA: &str = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x64x8_stage3_execute_kernel";

/// A capture of one thread: its stages, and kernels as `name stage-start duration`.
fn timeline(stages: &str, kernels: &[(&str, i64, i64)]) -> Timeline {
    let mut sketch = stages.to_owned();
    for (at, (name, launched, ns)) in kernels.iter().enumerate() {
        let (id, start) = (at + 1, 1_000 * (at as i64 + 1));
        sketch += &format!(
            "\ncall 1 {id} {launched}..{}\nkernel {id} {name} {start}..{} 7",
            launched + 1,
            start + ns
        );
    }
    capture(&sketch)
}

fn joined(trace: &GemmTrace, nsys: &Timeline) -> Gemms {
    gemms(trace, Some(&Capture::of(nsys)))
}

/// One line per record: stage, rows, calls, launches, nanoseconds.
type TimeRow<'a> = (&'a str, u64, u64, Option<u64>, Option<f64>);

fn times(gemms: &Gemms) -> Vec<TimeRow<'_>> {
    let ns = |it: &GemmRecord| it.kernel_ms.map(|ms| (ms * 1e6).round());
    fn row<'a>(it: &'a GemmRecord, ns: Option<f64>) -> TimeRow<'a> {
        (&it.stage, it.m, it.calls, it.kernel_calls, ns)
    }
    gemms.records.iter().map(|it| row(it, ns(it))).collect()
}

fn reasons(gemms: &Gemms) -> Vec<&str> {
    let found = gemms.findings.iter().filter(|it| it.id == "gemm_kernels_not_joined");
    found.map(|it| it.message.as_str()).collect()
}

#[test]
fn calls_get_the_time_of_the_kernels_in_their_place() {
    let stages = "range 1 prefill 0..100\nrange 1 decode_all 100..200";
    let kernels = [
        (NVJET, 1, 10),
        ("rms_norm_bf16", 2, 999),
        (SPLIT, 3, 20),
        ("cublasLt::splitKreduce_kernel", 4, 5),
        (NVJET, 101, 2),
        (NVJET, 102, 4),
    ];
    let nsys = timeline(stages, &kernels);
    // Two calls of the set-up come before the calls of prefill.
    let prefill = log(&[(9, 9, 9), (9, 9, 9), (512, 64, 64), (256, 64, 64)]);
    let mut all = prefill.clone();
    all.calls.extend(log(&[(1, 64, 64)]).calls);
    let found = joined(&GemmTrace { prefill, all, decode_steps: 1, ..GemmTrace::default() }, &nsys);
    assert_eq!(
        times(&found),
        [
            ("prefill", 512, 1, Some(1), Some(10.0)),
            ("prefill", 256, 1, Some(1), Some(25.0)),
            ("decode_all", 1, 1, Some(2), Some(6.0)),
        ],
        "set-up is not prefill, a reduction belongs to its product, steps repeat"
    );
    assert_eq!(reasons(&found), [""; 0]);
    let first = &found.records[0];
    assert_eq!(first.kernel_name.as_deref(), Some(NVJET));
    assert_eq!(first.flops_per_s, Some(2.0 * 512.0 * 64.0 * 64.0 / 10e-9));
    let one = &found.records[2];
    assert_eq!((one.tile.as_deref(), one.tile_fill_pct), (Some("8x64x64"), Some(12.5)));
}

#[test]
fn repeats_with_the_same_kernels_are_summed_and_others_left_out() {
    let stages = "range 1 prefill 0..100\nrange 1 prefill 200..300\nrange 1 prefill 400..500";
    let nsys = timeline(stages, &[(NVJET, 1, 10), (NVJET, 201, 30), (SPLIT, 401, 500)]);
    let prefill = log(&[(512, 64, 64)]);
    let found = joined(&GemmTrace { prefill, ..GemmTrace::default() }, &nsys);
    assert_eq!(times(&found)[0], ("prefill", 512, 1, Some(2), Some(40.0)));
}

#[test]
fn sequences_of_different_length_are_not_joined() {
    let stages = "range 1 prefill 0..100\nrange 1 decode_all 100..200";
    let kernels =
        [(NVJET, 1, 10), (NVJET, 2, 10), (NVJET, 101, 2), (NVJET, 102, 2), (NVJET, 103, 2)];
    let nsys = timeline(stages, &kernels);
    let prefill = log(&[(512, 64, 64)]);
    let mut all = prefill.clone();
    all.calls.extend(log(&[(1, 64, 64), (1, 8, 8)]).calls);
    let found = joined(&GemmTrace { prefill, all, decode_steps: 1, ..GemmTrace::default() }, &nsys);
    assert_eq!(
        reasons(&found),
        [
            "GEMMs of prefill have no kernel times: the log has 1 calls, the timeline 2 GEMM \
             kernels in prefill.",
            "GEMMs of decode have no kernel times: the log has 2 calls a step, the timeline 3 \
             GEMM kernels in 1 steps.",
        ]
    );
    assert!(found.records.iter().all(|it| it.kernel_ms.is_none() && it.kernel_name.is_none()));
}

#[test]
fn grouped_calls_are_the_reason_of_a_join_that_fails() {
    let nsys = timeline("range 1 prefill 0..100", &[(NVJET, 1, 10), (NVJET, 2, 10)]);
    let prefill = GemmLog { grouped: 1, ..log(&[(512, 64, 64)]) };
    let found = joined(&GemmTrace { prefill, ..GemmTrace::default() }, &nsys);
    assert_eq!(
        reasons(&found),
        ["GEMMs of prefill have no kernel times: the log has 1 calls, the timeline 2 GEMM \
          kernels in prefill, and 1 grouped GEMM calls without sizes."]
    );
    let messages: Vec<_> = found.findings.iter().map(|it| it.message.as_str()).collect();
    assert_eq!(
        messages[0],
        "1 grouped GEMM calls log no sizes per group and are not counted: shares are of the other \
         calls."
    );
}

#[test]
fn a_kernel_that_cannot_have_computed_its_call_prevents_the_join() {
    let nsys = timeline("range 1 prefill 0..100", &[(XMMA, 1, 10)]);
    let with_grid = |grid: [u32; 3]| {
        let mut nsys = nsys.clone();
        nsys.kernels = nsys.kernels.map(|_, kernel| kernel.grid = grid);
        nsys
    };
    let trace = |algorithm| GemmTrace {
        prefill: GemmLog { calls: vec![call(64, 128, 8, Some(algorithm))], ..GemmLog::default() },
        ..GemmTrace::default()
    };
    // 2 x 2 tiles of 32 rows and 64 columns.
    let fits = joined(&trace("algorithm 5, tile 64x32"), &with_grid([2, 2, 1]));
    assert_eq!((reasons(&fits).len(), fits.records[0].tile_fill_pct), (0, Some(100.0)));
    for (algorithm, grid) in
        [("algorithm 5, tile 64x32", [2, 1, 1]), ("algorithm 5, tile 64x64", [2, 2, 1])]
    {
        let found = joined(&trace(algorithm), &with_grid(grid));
        assert_eq!(reasons(&found).len(), 1, "{algorithm} {grid:?}");
        assert!(reasons(&found)[0].contains("call 0, 64 x 128 x 8, cannot be"));
        assert_eq!(found.records[0].kernel_ms, None);
    }
}

#[test]
fn a_shape_that_grows_with_the_step_is_joined_in_the_logged_steps_alone() {
    let stages = "range 1 prefill 0..9\nrange 1 decode_all 100..400\nrange 1 decode_step 100..200
        range 1 decode_step 200..300\nrange 1 decode_step 300..400";
    let kernels: Vec<(&str, i64, i64)> =
        [101, 102, 201, 202, 301, 302].into_iter().map(|at| (NVJET, at, at)).collect();
    let nsys = timeline(stages, &kernels);
    let all = log(&[(1, 64, 64), (1, 8, 5), (1, 64, 64), (1, 8, 6)]);
    let found = joined(&GemmTrace { all, decode_steps: 2, ..GemmTrace::default() }, &nsys);
    let by_k: Vec<_> = found.records.iter().map(|it| (it.k, it.kernel_calls)).collect();
    assert_eq!(by_k, [(64, Some(3)), (6, Some(1)), (5, Some(1))]);
    assert_eq!(found.records[0].kernel_ms, Some(603e-6), "101, 201 and 301 ns");
}

#[test]
fn the_ceiling_is_that_of_the_dtype_and_measured_where_it_was() {
    let record = |dtype: &str, compute: &str, kernel: &str, rate: f64| GemmRecord {
        left_type: dtype.into(),
        right_type: dtype.into(),
        compute: compute.into(),
        kernel_name: Some(kernel.into()),
        flops_per_s: Some(rate),
        ..GemmRecord::default()
    };
    let mut found = Gemms {
        records: vec![
            record("bf16", "32f", NVJET, 50e12),
            record("f32", "32f", XMMA, 50e12),
            record("f32", "32f_fast_tf32", XMMA, 50e12),
            record("f32", "32f", &XMMA.replace("f32f32_f32f32", "f32f32_tf32f32"), 50e12),
            record("bf16", "32f", NVJET, 300e12),
            record("bf16", "32f", NVJET, 3000e12),
        ],
        ..Gemms::default()
    };
    let measured = Ceiling {
        what: "matmul".into(),
        dtype: "bf16".into(),
        shape: vec![],
        per_second: 200e12,
        tries: 1,
    };
    let devices = Devices::from_toml(include_str!("../../../../../conf/devices.toml")).unwrap();
    let events = [Event::Ceiling(measured)];
    let events = Events::of(&events);
    let ceilings = DeviceCeilings::of(&events, devices.find("NVIDIA H200"), None);
    found.add_ceilings(&ceilings);
    let of: Vec<_> = found
        .records
        .iter()
        .map(|it| (it.ceiling.as_deref(), it.ceiling_pct.map(f64::round)))
        .collect();
    let tf32 =
        devices.find("NVIDIA H200").unwrap().flops_per_s("tf32").map(|of| (5e15 / of).round());
    assert_eq!(of[0], (Some("measured"), Some(25.0)));
    assert_eq!(of[1], (Some("datasheet"), Some(75.0)));
    assert_eq!(of[2], (tf32.map(|_| "datasheet"), tf32));
    assert_eq!(of[3], of[2], "of a kernel in tf32");
    assert_eq!(of[4], (Some("datasheet"), Some(30.0)), "150 % of the measured product");
    assert_eq!(of[5], (None, None));
}
