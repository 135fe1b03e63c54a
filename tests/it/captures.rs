//! The parser over real exports, held to facts that were counted by plain SQL (`tests/fixtures/captures/README.md`).

use std::{collections::HashMap, fs::File, path::Path};

use llmprof::{
    parse,
    trace::{kernel::Kernel, nsys::NsysTrace, range::Range},
};

fn capture(name: &str) -> NsysTrace {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{name}.sqlite.zst"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    zstd::stream::copy_decode(File::open(packed).unwrap(), File::create(&path).unwrap()).unwrap();
    parse::nsys::read(&path).unwrap()
}

/// Kernels whose launching call lies inside a range of each of these names, on the thread of the call: how many, and their time.
fn launched_inside(trace: &NsysTrace, names: &[&str]) -> (usize, i64) {
    let process = |thread: i64| thread >> 24;
    let calls: HashMap<_, _> =
        trace.cuda_calls.iter().map(|c| ((process(c.global_tid), c.correlation_id), (c.global_tid, c.start_ns))).collect();
    let ranges: Vec<Vec<&Range>> = names.iter().map(|n| trace.ranges.iter().filter(|r| r.name == *n).collect()).collect();
    let launched = |k: &&Kernel| {
        let (thread, at) = calls[&(process(k.global_pid), k.correlation_id)];
        let encloses = |r: &&Range| r.global_tid == thread && r.start_ns <= at && r.end_ns.is_none_or(|end| at <= end);
        ranges.iter().all(|named| named.iter().any(encloses))
    };
    total(trace.kernels.iter().filter(launched))
}

fn total<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> (usize, i64) {
    kernels.fold((0, 0), |(count, ns), k| (count + 1, ns + k.end_ns - k.start_ns))
}

/// How often each range name occurs in a domain.
fn ranges(trace: &NsysTrace, domain: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for range in trace.ranges.iter().filter(|r| r.domain == domain) {
        *counts.entry(range.name.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn the_deepseek_decoder_holds_what_sql_counts() {
    let trace = capture("hf-deepseek-decoder");
    assert_eq!((trace.tool_version.as_deref(), trace.schema_version.as_deref()), (Some("2025.3.2.0"), Some("3.20.3")));
    assert_eq!(total(trace.kernels.iter()), (13_050, 50_249_920));
    assert_eq!(trace.cuda_calls.len(), 32_761);
    let stages = ranges(&trace, "");
    assert_eq!(["prefill", "decode_all", "decode_step"].map(|name| stages[name]), [2, 2, 12]);
    assert_eq!(launched_inside(&trace, &["prefill"]), (1_972, 15_243_102));
    assert_eq!(launched_inside(&trace, &["decode_all"]), (10_800, 27_012_363));
    assert!(trace.os_calls.is_empty() && !trace.tables.contains(&"OSRT_API".to_owned()), "this run did not trace the OS runtime");
}

#[test]
fn the_llama_and_its_mock_hold_what_sql_counts() {
    let whole = capture("hf-llama-e2e");
    assert_eq!(whole.kernels.len(), 18_262);
    let inside = |trace: &NsysTrace, names: &[&str]| {
        let (count, ns) = launched_inside(trace, names);
        (count, (ns + 50) / 100) // tenths of a microsecond, as the facts are given
    };
    assert_eq!(inside(&whole, &["measured", "prefill", "decoder.self_attn"]), (136, 7_240));
    assert_eq!(inside(&whole, &["measured", "decode_all", "decoder.self_attn"]), (2_304, 81_973));
    assert_eq!(whole.ranges.len(), ranges(&whole, "LLM").values().sum::<usize>(), "all ranges are in the domain LLM");

    let mock = capture("hf-llama-attention-mock");
    assert_eq!(mock.kernels.len(), 1_380);
    assert_eq!(inside(&mock, &["measured", "prefill", "decoder.self_attn"]), (17, 891));
    assert_eq!(inside(&mock, &["measured", "decode_all", "decoder.self_attn"]), (288, 9_949));
}

#[test]
fn replayed_kernels_name_their_graph_node() {
    let trace = capture("torch-cuda-graph-node");
    assert_eq!(trace.kernels.len(), 5_260);
    assert_eq!(trace.kernels.iter().filter(|k| k.graph_node.is_some()).count(), 4_608);
    assert_eq!(ranges(&trace, "LLM")["decode_step"], 32);
}

#[test]
fn kernel_records_add_up_to_what_sql_counts_per_stage() {
    let trace = capture("hf-deepseek-decoder");
    let kernels = llmprof::analyze::kernels::kernels(&trace);
    let sum = |stage: Option<&str>| {
        let of = kernels.records.iter().filter(|record| stage.is_none_or(|stage| record.stage == stage));
        of.fold((0, 0), |(calls, ns), record| (calls + record.calls, ns + (record.total_ms * 1e6).round() as i64))
    };
    assert_eq!(sum(None), (13_050, 50_249_920));
    assert_eq!(sum(Some("prefill")), (1_972, 15_243_102));
    assert_eq!(sum(Some("decode_all")), (10_800, 27_012_363));
    assert_eq!(kernels.orphans, 0);
    assert!(kernels.stages.iter().all(|stage| stage.busy_ms <= stage.kernel_ms + 1e-9));
}
