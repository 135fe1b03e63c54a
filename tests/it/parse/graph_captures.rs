//! A window of an engine that replays CUDA graphs, joined to the traces of their captures, and
//! compared with the same window without graphs.

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use llmprof_analyze::{
    Analysis, parse,
    timeline::{
        capture::Capture,
        engine_steps::EngineStepRecord,
        graph_replays::{GraphReplays, NotJoined},
    },
};
use llmprof_core::{
    domain::subject::SubjectKind,
    trace::{Trace, engine_steps::StepClass, timeline::Timeline},
};
use regex::Regex;
use tempfile::TempDir;

const BATCHES: [u64; 3] = [2, 4, 8];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("engine-{name}.json.gz"))
}

fn capture_file(batch: u64) -> PathBuf {
    fixture(&format!("graph-capture-bs{batch}"))
}

/// Writes a window whose steps have the detailed names of vLLM, or none.
fn window(dir: &TempDir, name: &str, named: bool) -> PathBuf {
    let mut text = String::new();
    let packed = fs::File::open(fixture(name)).unwrap();
    MultiGzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let detailed = Regex::new(r"execute_\d+_context_\d+\(\w*\)_generation_\d+\(\w*\)").unwrap();
    let path = dir.path().join(format!("{name}-{named}.json"));
    let text = if named { text.into() } else { detailed.replace_all(&text, "work") };
    fs::write(&path, text.as_bytes()).unwrap();
    path
}

fn read(window: PathBuf, batches: &[u64]) -> Timeline {
    let captures = batches.iter().map(|it| capture_file(*it));
    parse::kineto::read(&std::iter::once(window).chain(captures).collect::<Vec<_>>()).unwrap()
}

/// Batches of the joined replays, and the reasons of the others.
fn outcome(trace: &Timeline) -> (Vec<Option<u64>>, Vec<NotJoined>) {
    let replays = GraphReplays::of(&Capture::of(trace));
    let batch = |graph: u32| trace.graph_captures.graphs[graph as usize].batch;
    let joined = replays.joined.iter().map(|it| batch(it.graph)).collect();
    (joined, replays.not_joined.keys().copied().collect())
}

fn analysed(trace: Timeline) -> Analysis {
    let subject = SubjectKind::Import;
    llmprof_analyze::analyze(
        &Trace { timeline: Some(trace), subject, ..Trace::default() },
        None,
        None,
    )
}

#[test]
fn a_capture_is_not_work_and_its_launches_are_the_nodes_of_a_replay() {
    let trace = parse::kineto::read(&[fixture("graph-window")]).unwrap();
    let joined = read(fixture("graph-window"), &BATCHES);
    let size = |it: &Timeline| {
        let calls = [it.cuda_calls.len(), it.framework.len(), it.ranges.len()];
        (it.kernels.len(), it.copies.len(), calls)
    };
    assert_eq!(size(&joined), size(&trace));
    assert_eq!((joined.processes.len(), &joined.findings), (1, &trace.findings));
    assert_eq!((trace.kernels.len(), joined.graph_captures.files.len()), (4104, 3));
    let graphs: Vec<_> = joined
        .graph_captures
        .graphs
        .iter()
        .map(|it| (it.batch, it.mode.as_deref(), it.launches.len(), it.is_whole))
        .collect();
    // 418 kernels and a copy; two launches before the capture ran.
    let graph = |batch| (Some(batch), Some("FULL"), 419, true);
    assert_eq!(graphs, BATCHES.map(graph));
}

#[test]
fn replays_have_the_operators_and_shapes_of_the_graph_that_holds_their_step() {
    let dir = TempDir::new().unwrap();
    let trace = read(window(&dir, "graph-window", true), &BATCHES);
    assert_eq!(outcome(&trace), (vec![Some(8); 9], vec![]));
    let capture = Capture::of(&trace);
    let index = capture.framework.as_ref().unwrap();
    let (mut all, mut shaped) = (0, 0);
    for (at, (kernel, _)) in capture.kernels().enumerate() {
        if kernel.graph_node.is_none() {
            continue;
        }
        all += kernel.ns();
        let Some((_, nest, entry)) = index.innermost(at) else { continue };
        let signature = nest.items[entry as usize].signature(&trace).unwrap();
        let signature = &trace.framework.signatures[signature];
        let has_shapes = signature.shapes.iter().any(|it| !it.is_empty());
        shaped += if has_shapes { kernel.ns() } else { 0 };
        if signature.name.starts_with("triton_") {
            assert_eq!(trace.text(kernel.full_name), signature.name);
        }
    }
    assert_eq!(all, 15_799_340);
    assert!(shaped * 100 > all * 95, "{shaped} of {all} ns");
    drop(capture);
    let records = analysed(trace).operators.by_path;
    let mm = records.iter().find(|it| it.path == "aten::mm" && it.stage == "decode_all").unwrap();
    assert_eq!(mm.shapes[0][0], 8);
    assert!(mm.captured_calls > 0 && mm.flops > 0);
}

/// Only one capture may have been replayed, but nothing in the window proves it.
#[test]
fn a_batch_without_proof_has_no_operators() {
    let dir = TempDir::new().unwrap();
    let unnamed = || window(&dir, "graph-window", false);
    assert_eq!(outcome(&read(unnamed(), &BATCHES)), (vec![], vec![NotJoined::BatchUnproven]));
    let named = || window(&dir, "graph-window", true);
    assert_eq!(outcome(&read(named(), &[2, 4])), (vec![], vec![NotJoined::BatchMissing]));
    let analysis = analysed(read(named(), &[2, 4]));
    let found = analysis.findings.iter().find(|it| it.id == "graph_replays_not_joined").unwrap();
    let message = "The operators of 9 of 9 graph replays (100.0 % of the kernel time of replays) \
                   are unknown: their steps have more requests than the captures that fit.";
    assert_eq!(found.message, message);
    assert_eq!(outcome(&read(named(), &[8])), (vec![Some(8); 9], vec![]));
}

#[test]
fn a_capture_alone_says_what_to_add() {
    let analysis = analysed(parse::kineto::read(&[capture_file(4)]).unwrap());
    let found = analysis.findings.iter().find(|it| it.id == "graph_capture_alone").unwrap();
    assert!(found.message.contains("batch 4, FULL, 419 launches"), "{}", found.message);
    assert!(analysis.kernels.records.is_empty() && analysis.operators.by_path.is_empty());
    let no_stages = analysis.findings.iter().find(|it| it.id == "no_stages").unwrap();
    assert!(no_stages.message.contains("capture of a graph"), "{}", no_stages.message);
    for it in &analysis.findings {
        let advice = it.advice.as_deref().unwrap_or_default();
        let is_of_window = ["activities=", "record_function"].map(|it| advice.contains(it));
        assert_eq!(is_of_window, [false; 2], "{}: {advice}", it.id);
    }
}

/// Kernels and their time of a decode step by operator.
fn per_step(trace: Timeline) -> BTreeMap<String, (f64, f64)> {
    let analysis = analysed(trace);
    let is_decode = |it: &&EngineStepRecord| it.class == Some(StepClass::Decode);
    assert_eq!(analysis.engine_steps.iter().filter(is_decode).count(), 9);
    let mut sums: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for it in &analysis.operators.by_path {
        // A first step that was cold has a stage of its own.
        if let Some(device) = it.device.filter(|_| it.stage != "prefill" && !it.stage.is_empty()) {
            let sum = sums.entry(it.path.clone()).or_default();
            *sum = (sum.0 + device.kernels as f64, sum.1 + device.exclusive_ms);
        }
    }
    let steps = sums["aten::random_"].0;
    sums.values_mut().for_each(|it| *it = (it.0 / steps, it.1 / steps));
    sums
}

/// Attention and its gathers work on padded lengths in the graph, and differ.
#[test]
fn decode_steps_with_and_without_graphs_agree_by_operator() {
    let dir = TempDir::new().unwrap();
    let graph = per_step(read(window(&dir, "graph-window", true), &BATCHES));
    let eager = per_step(read(window(&dir, "eager-window", true), &[]));
    for (name, kernels) in [
        ("aten::mm", 81.0),
        ("aten::where", 32.0),
        ("aten::clamp", 32.0),
        ("aten::fill_", 32.0),
        ("aten::lt", 16.0),
        ("aten::arange", 16.0),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", 65.0),
        ("triton_poi_fused_mul_silu_split_0", 16.0),
        ("triton_poi_fused__to_copy_add_cat_index_mul_split_sub_0", 16.0),
        ("triton_poi_fused__to_copy_add_cat_index_mul_split_sub_1", 16.0),
    ] {
        let (a, b) = (graph[name], eager[name]);
        assert!((a.0 - kernels).abs() < 2.5 && (b.0 - a.0).abs() < 2.5, "{name}: {a:?} {b:?}");
        assert!((a.1 / b.1 - 1.0).abs() < 0.2, "{name}: {a:?} {b:?}");
    }
}
