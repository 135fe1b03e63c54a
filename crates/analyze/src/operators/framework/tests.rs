//! Operators of a framework on sketches of captures.

mod engines;

use llmprof_core::{
    domain::device_peaks::DevicePeaks,
    trace::{
        Trace,
        framework::{FrameworkCall, OperatorSignature},
        timeline::ApiCall,
    },
};
use proptest::prelude::*;

use crate::{
    analyze,
    kernels::tests::capture,
    operators::{OperatorRecord, Operators},
    roofline::limits::RateOf,
    stages::in_stage,
};

/// A capture of a sketch, with operators from lines `NAME START..END SHAPES` on thread 1.
pub fn with_operators(sketch: &str, operators: &[(&str, i64, i64, &[&[u64]])]) -> Trace {
    let mut nsys = capture(sketch);
    for (name, start_ns, end_ns, shapes) in operators {
        let signature = nsys.framework.signatures.len() as u32;
        nsys.framework.signatures.push(OperatorSignature {
            name: (*name).into(),
            shapes: shapes.iter().map(|it| it.to_vec()).collect(),
            types: vec!["c10::BFloat16".into(); shapes.len()],
            values: vec![],
        });
        nsys.framework.push(FrameworkCall {
            start_ns: *start_ns,
            end_ns: *end_ns,
            global_tid: 7 << 24 | 1,
            signature,
        });
    }
    Trace { timeline: Some(nsys), ..Trace::default() }
}

fn operators(trace: &Trace) -> Operators {
    analyze(trace, None, None).operators
}

fn find<'a>(all: &'a Operators, path: &str) -> &'a OperatorRecord {
    all.rolled.iter().find(|it| it.path == path).unwrap()
}

proptest! {
    #[test]
    fn no_rate_of_any_shape_is_above_the_peaks_without_a_finding_that_names_it(
        calls in prop::collection::vec((1_u64..3000, 1_u64..3000, 1_u64..3000, 1_i64..40), 1..8)
    ) {
        let mut sketch = "range 1 prefill 0..1000000".to_owned();
        let shapes: Vec<[Vec<u64>; 2]> =
            calls.iter().map(|(m, n, k, _)| [vec![*m, *k], vec![*k, *n]]).collect();
        let shapes: Vec<[&[u64]; 2]> = shapes.iter().map(|[a, b]| [&a[..], &b[..]]).collect();
        let mut operators: Vec<(&str, i64, i64, &[&[u64]])> = vec![];
        for (at, ((.., us), shapes)) in calls.iter().zip(&shapes).enumerate() {
            let start = 100 + 50_000 * at as i64;
            let (call, kernel) = (start + 1, start + 10);
            sketch += &format!(
                "\ncall 1 {at} {call}..{}\nkernel {at} gemm {kernel}..{} 7",
                call + 1,
                kernel + us * 1000
            );
            let name = ["aten::mm", "aten::matmul"][at % 2];
            operators.push((name, start, start + 5, shapes));
        }
        let trace = with_operators(&sketch, &operators);
        let peaks = DevicePeaks {
            name: "d".into(),
            reported_as: vec![],
            dense_tflops: [("bf16".to_owned(), 100.0)].into(),
            boost_mhz: [].into(),
            memory_gb_s: 1000.0,
            source: "s".into(),
        };
        let analysis = analyze(&trace, None, Some(&peaks));
        let found = analyze(&trace, None, None).operators;
        let named = |row: &str, of: RateOf| {
            analysis.removed_rates.iter().any(|it| it.of == of && it.row == row)
        };
        for (kept, all) in analysis.operators.rolled.iter().zip(&found.rolled) {
            let row = in_stage(&kept.path, &kept.stage);
            let device = |it: &OperatorRecord| it.device.map(|it| (it.flops_per_s, it.bytes_per_s));
            let (Some(kept), Some(all)) = (device(kept), device(all)) else { continue };
            let limits = [(RateOf::Flops, 100e12), (RateOf::Bytes, 1e12)];
            for ((of, peak), (kept, all)) in
                limits.into_iter().zip([(kept.0, all.0), (kept.1, all.1)])
            {
                prop_assert!(kept.is_none_or(|it| it <= peak * 1.01));
                prop_assert!(kept == all || named(&row, of));
            }
        }
        let ids: Vec<&str> = analysis.findings.iter().map(|it| it.id.as_str()).collect();
        let has = |of| analysis.removed_rates.iter().any(|it| it.of == of);
        prop_assert_eq!(ids.contains(&"rate_above_peak"), has(RateOf::Flops));
        prop_assert_eq!(ids.contains(&"operand_rate_above_bandwidth"), has(RateOf::Bytes));
    }
}

const A: &[u64] = &[2, 3];
const B: &[u64] = &[3, 5];
const WEIGHT: &[u64] = &[5, 3];

#[test]
fn a_product_inside_another_operator_counts_once_for_the_one_that_launched_it() {
    let trace = with_operators(
        "range 1 prefill 0..1000\ncall 1 1 120..121\nkernel 1 gemm 300..340 7",
        &[
            ("aten::linear", 100, 200, &[A, WEIGHT]),
            ("aten::matmul", 105, 190, &[A, B]),
            ("aten::mm", 110, 180, &[A, B]),
        ],
    );
    let found = operators(&trace);
    let flops = |path| find(&found, path).flops;
    assert_eq!([flops("aten::linear"), flops("aten::matmul"), flops("aten::mm")], [0, 0, 60]);
    assert_eq!(found.work["prefill"].flops, 60);
    let device = |path| {
        let device = find(&found, path).device.unwrap();
        (device.kernels, device.inclusive_ms, device.exclusive_ms)
    };
    assert_eq!(device("aten::mm"), (1, 40e-6, 40e-6));
    assert_eq!(device("aten::linear"), (1, 40e-6, 0.0));
    let linear = find(&found, "aten::linear");
    assert_eq!((linear.inclusive_ms, linear.exclusive_ms), (Some(100e-6), Some(15e-6)));
    assert_eq!((linear.op.as_str(), linear.dtype.as_str()), ("linear", "bf16"));
}

#[test]
fn rates_are_over_the_work_inside_the_calls_with_flops() {
    // The product launches its kernel inside an inner call, after a copy of its own; another call
    // of it leaves the work to a product inside.
    let trace = with_operators(
        "range 1 prefill 0..1000\ncall 1 1 120..121\nkernel 1 copy 300..310 7
        call 1 2 140..141\nkernel 2 gemm 310..340 7\ncall 1 3 540..541\nkernel 3 gemm 600..620 7",
        &[
            ("aten::addmm", 100, 200, &[&[5], A, B]),
            ("aten::inner", 130, 190, &[A, B]),
            ("aten::addmm", 500, 600, &[&[5], A, B]),
            ("aten::mm", 530, 580, &[A, B]),
        ],
    );
    let found = operators(&trace);
    let product = find(&found, "aten::addmm");
    assert_eq!((product.calls, product.flops), (2, 60));
    assert_eq!(product.flops_per_s, None, "the host only launches the product");
    assert_eq!(product.device.unwrap().flops_per_s, Some(60.0 / 40e-9));
    assert_eq!(find(&found, "aten::mm").device.unwrap().flops_per_s, Some(60.0 / 20e-9));
    assert_eq!(find(&found, "aten::inner").flops_per_s, None);
}

#[test]
fn a_product_without_kernels_counts_only_in_a_capture_without_any() {
    let product: (&str, i64, i64, &[&[u64]]) = ("aten::mm", 110, 180, &[A, B]);
    let on_gpu = with_operators(
        "range 1 prefill 0..1000\ncall 1 1 500..501\nkernel 1 copy 600..640 7",
        &[product],
    );
    assert_eq!(find(&operators(&on_gpu), "aten::mm").flops, 0);
    let on_cpu = with_operators("range 1 prefill 0..1000", &[product]);
    assert_eq!(find(&operators(&on_cpu), "aten::mm").flops, 60);
}

#[test]
fn a_stage_that_lost_kernels_has_no_count_of_flops_whichever_kernel_is_missing() {
    let kernels = ["kernel 1 gemm 300..340 7", "kernel 2 gemm 600..640 7"];
    let flops = |recorded: &[&str]| {
        let sketch = format!(
            "range 1 prefill 0..1000\ncall 1 1 120..121\ncall 1 2 520..521\n{}",
            recorded.join("\n")
        );
        let product: (&str, i64, i64, &[&[u64]]) = ("aten::mm", 110, 180, &[A, B]);
        let mut trace = with_operators(&sketch, &[product, ("aten::mm", 510, 580, &[A, B])]);
        let nsys = trace.timeline.as_mut().unwrap();
        nsys.strings.push("cudaLaunchKernel".into());
        let name = nsys.strings.len() as u32 - 1;
        nsys.cuda_calls = nsys.cuda_calls.iter().map(|it| ApiCall { name, ..it }).collect();
        let analysis = analyze(&trace, None, None);
        let rows = analysis.mfu.rows.len();
        (analysis.operators.work["prefill"].flops, rows > 0)
    };
    assert_eq!(flops(&kernels), (120, true));
    for kernel in kernels {
        assert_eq!(flops(&[kernel]), (0, false), "{kernel} alone");
    }
}

#[test]
fn a_stage_with_a_product_outside_all_operators_has_no_count_of_flops() {
    let sketch = "range 1 prefill 0..1000\ncall 1 1 120..121\ncall 1 2 500..501
        kernel 1 gemm 300..340 7\nkernel 2 gemm 600..640 7";
    let trace = with_operators(sketch, &[("aten::mm", 110, 180, &[A, B])]);
    let analysis = analyze(&trace, None, None);
    assert_eq!(analysis.operators.work["prefill"].flops, 0);
    assert!(analysis.mfu.rows.is_empty());
    assert_eq!(find(&analysis.operators, "aten::mm").flops, 60);
    let complete = sketch.replace("500..501", "130..131");
    let trace = with_operators(&complete, &[("aten::mm", 110, 180, &[A, B])]);
    let analysis = analyze(&trace, None, None);
    let row = &analysis.mfu.rows[0];
    assert_eq!((row.scope.as_str(), row.flops, row.bytes), ("prefill", 60, None));
}

#[test]
fn the_recorded_operator_of_a_launch_counts_before_the_one_around_its_call() {
    let mut trace = with_operators(
        "call 1 1 120..121\nkernel 1 gemm 300..340 7",
        &[("aten::a", 100, 200, &[]), ("aten::b", 400, 500, &[])],
    );
    let kernels = |trace: &Trace, path| find(&operators(trace), path).device.map(|it| it.kernels);
    assert_eq!([kernels(&trace, "aten::a"), kernels(&trace, "aten::b")], [Some(1), None]);
    trace.timeline.as_mut().unwrap().framework.operators.extend([(7 << 24, 1, 1)]);
    assert_eq!([kernels(&trace, "aten::a"), kernels(&trace, "aten::b")], [None, Some(1)]);
}

#[test]
fn a_kernel_without_a_launching_call_and_operator_belongs_to_none() {
    let trace = with_operators("kernel 1 gemm 300..340 7", &[("aten::a", 100, 400, &[])]);
    assert_eq!(find(&operators(&trace), "aten::a").device, None);
}

#[test]
fn operators_and_ranges_nest_in_one_tree() {
    let trace = with_operators(
        "range 1 layers.3.mlp 50..300\ncall 1 1 120..121\nkernel 1 gemm 400..440 7",
        &[("aten::mm", 110, 180, &[A, B])],
    );
    let found = operators(&trace);
    let range = find(&found, "layers.*.mlp");
    assert_eq!((range.op.as_str(), range.exclusive_ms), ("range", Some(180e-6)));
    let device = range.device.unwrap();
    assert_eq!((device.inclusive_ms, device.exclusive_ms), (40e-6, 0.0));
}

#[test]
fn an_operator_inside_itself_counts_its_time_once() {
    let trace = with_operators(
        "call 1 1 120..121\ncall 1 2 230..231\nkernel 1 k 400..440 7\nkernel 2 k 500..510 7",
        &[("aten::to", 100, 300, &[]), ("aten::to", 110, 180, &[])],
    );
    let found = operators(&trace);
    let it = find(&found, "aten::to");
    assert_eq!((it.calls, it.inclusive_ms, it.exclusive_ms), (2, Some(200e-6), Some(200e-6)));
    let device = it.device.unwrap();
    assert_eq!((device.calls, device.kernels, device.inclusive_ms), (1, 2, 50e-6));
}

#[test]
fn operators_with_shapes_whose_products_are_not_counted_are_the_reason_for_no_utilisation() {
    let sketch = "range 1 prefill 0..100
        call 1 1 11..12\nkernel 1 gemm 20..30 7
        call 1 2 31..32\nkernel 2 gemm 40..70 7
        call 1 3 51..52\nkernel 3 gemm 70..75 7";
    let of = |shapes: &[&[u64]]| {
        let names = [("own::a", 10, 20), ("own::b", 30, 40), ("own::c", 50, 60)];
        let calls = names.map(|(name, from, to)| (name, from, to, shapes));
        let mut trace = with_operators(sketch, &calls);
        trace.subject = llmprof_core::domain::subject::SubjectKind::Import;
        let nsys = trace.timeline.as_mut().unwrap();
        nsys.tool = llmprof_core::trace::framework::TimelineTool::Pytorch;
        let analysis = analyze(&trace, None, None);
        (analysis.operators.uncounted.clone(), analysis.why_uncounted().map(|it| it.0))
    };
    let (names, why) = of(&[A, B]);
    assert_eq!(names, ["own::b", "own::a", "own::c"], "longest first");
    let why = why.unwrap();
    assert!(why.contains("the FLOPs of own::b and own::a are not counted"), "{why}");
    assert_eq!(of(&[]), (vec![], None), "without shapes");
}
