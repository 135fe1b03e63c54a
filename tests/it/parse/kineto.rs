//! Real traces by the profiler of PyTorch, compared with counts from plain Python over their JSON
//! (`tests/fixtures/captures/README.md`).

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use llmprof_analyze::{Analysis, operators::OperatorRecord, parse};
use llmprof_core::{
    domain::ids::RunId,
    trace::{
        Trace,
        framework::{FrameworkCall, OperatorSignature},
        kernel::TracedKernel,
        names,
        timeline::Timeline,
    },
};
use llmprof_report::{
    ReportForm, perfetto,
    pipeline::{self, Statements},
};
use llmprof_service::config;
use uuid::Uuid;

use crate::parse::perfetto::decode;

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("torch-kineto-{name}.json.gz"))
}

fn read(name: &str) -> Timeline {
    parse::kineto::read(&[fixture(name)]).unwrap()
}

fn analysed(name: &str) -> Analysis {
    llmprof_analyze::analyze(&Trace { timeline: Some(read(name)), ..Trace::default() }, None, None)
}

fn total<'a>(kernels: impl Iterator<Item = TracedKernel<'a>>) -> (usize, i64) {
    kernels.fold((0, 0), |(count, ns), k| (count + 1, ns + k.end_ns - k.start_ns))
}

/// Kernels whose launching call lies inside a range of this name on its thread.
fn launched_inside(trace: &Timeline, name: &str) -> (usize, i64) {
    let calls: BTreeMap<i64, (i64, i64)> = trace
        .cuda_calls
        .iter()
        .map(|it| (it.correlation_id, (it.global_tid, it.start_ns)))
        .collect();
    let launched = |kernel: &TracedKernel| {
        let (thread, at) = calls[&kernel.correlation_id];
        trace.ranges.iter().any(|range| {
            range.name == name
                && range.global_tid == thread
                && range.start_ns <= at
                && range.end_ns.is_some_and(|end| at <= end)
        })
    };
    total(trace.kernels.iter().filter(launched))
}

fn summed(records: &[OperatorRecord], path: &str, of: fn(&OperatorRecord) -> u64) -> u64 {
    records.iter().filter(|it| it.path == path).map(of).sum()
}

#[test]
fn the_eager_trace_equals_its_counts() {
    let trace = read("eager");
    assert_eq!(total(trace.kernels.iter()), (1358, 4_120_015));
    let names: BTreeSet<u32> = trace.kernels.kinds().iter().map(|it| it.full_name).collect();
    assert_eq!(names.len(), 39);
    assert_eq!(launched_inside(&trace, "prefill"), (262, 1_376_227));
    assert_eq!(launched_inside(&trace, "decode_all"), (1096, 2_743_788));
    assert_eq!((trace.cuda_calls.len(), trace.copies.len()), (1298 + 274, 7));
    assert_eq!((trace.framework.len(), trace.ranges.len()), (4807, 6));
    assert_eq!(trace.target.gpus[0].name, "NVIDIA H200");
    assert_eq!(trace.findings, []);

    let analysis = analysed("eager");
    let stages: Vec<_> = analysis
        .kernels
        .stages
        .iter()
        .map(|it| (it.stage.as_str(), it.launches, it.kernel_ms))
        .collect();
    assert_eq!(stages, [("decode_all", 1096, Some(2.743788)), ("prefill", 262, Some(1.376227))]);
    let records = &analysis.operators.by_path;
    assert_eq!(summed(records, "aten::mm", |it| it.calls), 215);
    assert_eq!(summed(records, "aten::mm", |it| it.flops), 346_822_803_456);
    assert_eq!(summed(records, "aten::scaled_dot_product_attention", |it| it.calls), 30);
    // The time of every kernel belongs to exactly one operator.
    let exclusive: f64 = records.iter().filter_map(|it| it.device).map(|it| it.exclusive_ms).sum();
    assert!((exclusive - 4.120015).abs() < 1e-9, "{exclusive}");
    let flops = |path: &str| summed(records, path, |it| it.flops);
    assert_eq!([flops("aten::linear"), flops("aten::matmul")], [0, 0]);
    assert!(flops("aten::_cudnn_attention_forward") > 0);
    assert_eq!(flops("aten::scaled_dot_product_attention"), 0, "counted once, where it ran");
    let mfu: Vec<_> = analysis.mfu.rows.iter().map(|it| it.scope.as_str()).collect();
    assert_eq!(mfu, ["prefill", "decode_all", "model"]);
    assert!(analysis.coverage.iter().all(|it| it.reasons().is_empty()), "{:?}", analysis.coverage);
}

/// The operator of a launch by its recorded id is the innermost one around its call.
#[test]
fn recorded_operators_are_those_around_the_calls() {
    let with_ids = read("eager");
    assert!(!with_ids.framework.operators.is_empty());
    let mut by_enclosure = with_ids.clone();
    by_enclosure.framework.operators = Default::default();
    let device = |nsys: Timeline| {
        let trace = Trace { timeline: Some(nsys), ..Trace::default() };
        let records = llmprof_analyze::analyze(&trace, None, None).operators.by_path;
        let of = |it: &OperatorRecord| Some((it.stage.clone(), it.path.clone(), it.device?));
        let mut found: Vec<_> = records.iter().filter_map(of).collect();
        found.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        found
    };
    assert_eq!(device(with_ids), device(by_enclosure));
}

#[test]
fn the_graph_trace_equals_its_counts_and_has_no_operator() {
    let trace = read("graph");
    assert_eq!(total(trace.kernels.iter()), (40, 150_561));
    let names: BTreeSet<u32> = trace.kernels.kinds().iter().map(|it| it.full_name).collect();
    assert_eq!(names.len(), 2);
    let launches: BTreeSet<i64> = trace.kernels.iter().map(|it| it.correlation_id).collect();
    assert_eq!(launches.len(), 5, "a launch for each replay");
    let nodes: BTreeSet<u64> = trace.kernels.iter().filter_map(|it| it.graph_node).collect();
    assert_eq!(nodes.len(), 40);
    let analysis = analysed("graph");
    assert!(analysis.operators.by_path.is_empty() && analysis.mfu.rows.is_empty());
    assert!(analysis.coverage.iter().all(|it| it.reasons().is_empty()), "{:?}", analysis.coverage);
    assert_eq!(launched_inside(&trace, "decode_all"), (40, 150_561));
}

/// Reports of both traces name the profiler that recorded them, and no other.
#[test]
fn reports_name_the_profiler_of_the_trace() {
    for name in ["eager", "graph"] {
        let analyzed = pipeline::analyze_capture(
            &[fixture(name)],
            &[],
            Statements::default(),
            &config::devices().unwrap(),
        )
        .unwrap();
        let report = analyzed.render_one(ReportForm::Markdown, RunId(Uuid::nil()));
        assert!(report.contains("| PyTorch profiler |"), "{name}: the pass of the ledger");
        assert!(report.contains("| Profiler | PyTorch profiler (schema 1, CUPTI 130001) |"));
        // A remedy may propose a capture by nsys; no sentence states that there was one.
        for line in report.lines().filter(|line| line.contains("nsys")) {
            assert!(line.contains("or sample GPU metrics with nsys"), "{name}: {line}");
        }
    }
}

/// Operators, kernels and ranges of a trace are slices; a call that ends after the one around it is
/// cut.
#[test]
fn the_timeline_has_the_operators_of_a_trace() {
    let slices = |nsys: Timeline| {
        let trace = Trace { timeline: Some(nsys), ..Trace::default() };
        decode(&perfetto::write(&trace, &Analysis::default(), Vec::new()).unwrap()).slices
    };
    let all = slices(read("eager"));
    let count = |kind: &str| all.iter().filter(|it| it.kind == kind).count();
    assert_eq!([count("operator"), count("kernel"), count("range")], [4807, 1358, 6]);
    let mm: Vec<_> = all.iter().filter(|it| it.name == "aten::mm").collect();
    assert_eq!((mm.len(), mm[0].process.as_str()), (215, "traced pass (PyTorch profiler)"));
    assert_eq!(mm[0].row, "operators of thread 1996");

    let mut crossing = Timeline::default();
    crossing.framework.signatures = vec![OperatorSignature::default()];
    for (start_ns, end_ns) in [(0, 10), (5, 12), (20, 30)] {
        crossing.framework.push(FrameworkCall { start_ns, end_ns, global_tid: 1, signature: 0 });
    }
    let times: Vec<_> = slices(crossing).iter().map(|it| it.times).collect();
    assert_eq!(times, [(0, 10), (5, 10), (20, 30)]);
}

/// A trace cut anywhere is refused, never read in part.
#[test]
fn a_truncated_trace_is_refused() {
    let mut text = String::new();
    MultiGzDecoder::new(std::fs::File::open(fixture("graph")).unwrap())
        .read_to_string(&mut text)
        .unwrap();
    let text = text.trim_end();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.json");
    for length in (1..text.len()).step_by(997).chain([text.len() - 1]) {
        std::fs::write(&path, &text[..length]).unwrap();
        let error = parse::kineto::read(std::slice::from_ref(&path)).unwrap_err();
        let error = llmprof_core::chain(&error);
        assert!(error.contains("truncated") || error.contains("ends at byte"), "{length}: {error}");
    }
}

/// Kernels of one function have one canonical name in both profilers.
#[test]
fn names_of_both_profilers_are_equal() {
    let kineto = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::\
                  (anonymous namespace)::OpaqueType<2u>, unsigned int, 3, 64, 64>(T1*)";
    let nsys = "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::\
                OpaqueType<(unsigned int)2>, unsigned int, (int)3, (int)64, (int)64>(T1 *)";
    assert_eq!(names::base_name(kineto), names::base_name(nsys));
    assert_eq!(names::canonical(kineto), names::canonical(nsys));
}

/// DeepSeek's decoder in transformers, once under each profiler, launched its 50,727 kernels in the
/// same order: each pair is one kernel.
#[test]
fn names_of_a_program_under_both_profilers_are_equal_in_pairs() {
    let pairs = include_str!("../../fixtures/names-pytorch-nsys.tsv");
    let mut kernels = std::collections::BTreeSet::new();
    for pair in pairs.lines() {
        let (pytorch, nsys) = pair.split_once('\t').unwrap();
        assert_eq!(names::base_name(pytorch), names::base_name(nsys));
        assert_eq!(names::canonical(pytorch), names::canonical(nsys));
        kernels.insert(names::canonical(nsys));
    }
    assert_eq!((pairs.lines().count(), kernels.len()), (83, 83));
}

#[test]
fn products_of_operators_are_in_the_table_of_gemms_with_their_kernels() {
    let analysis = analysed("eager");
    let gemms = &analysis.gemms.records;
    let is_product = |path: &str| ["aten::mm", "aten::addmm", "aten::bmm"].contains(&path);
    for stage in ["prefill", "decode_all"] {
        let of_stage = || gemms.iter().filter(|it| it.stage == stage);
        let operators = || {
            let all = analysis.operators.by_path.iter();
            all.filter(|it| it.stage == stage && is_product(&it.path))
        };
        assert!(of_stage().all(|it| it.origin == "operator" && is_product(&it.function)));
        let flops: u64 = of_stage().map(|it| it.total_flops).sum();
        assert!(flops > 0 && flops == operators().map(|it| it.flops).sum::<u64>(), "{stage}");
        let calls: u64 = of_stage().map(|it| it.calls).sum();
        assert_eq!(calls, operators().map(|it| it.calls).sum::<u64>(), "{stage}");
        // Their kernels are products, their reductions, and nothing else.
        let ms: f64 = of_stage().filter_map(|it| it.kernel_ms).sum();
        let of_class = analysis.kernels.classes.iter();
        let of_class = of_class.filter(|it| it.stage == stage && it.class == "gemm");
        let expected: f64 = of_class.map(|it| it.total_ms).sum();
        assert!((ms - expected).abs() < 1e-9, "{stage}: {ms} of {expected} ms");
    }
    let shares: f64 =
        gemms.iter().filter(|it| it.stage == "prefill").filter_map(|it| it.share_pct).sum();
    assert!((shares - 100.0).abs() < 1e-6, "{shares}");
    assert!(gemms.iter().all(|it| it.flops_per_s.is_some() && it.kernel_calls == Some(it.calls)));
}
