//! The timeline over real captures and events, held to the rules of Chrome's trace event format that Perfetto's UI relies on.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    path::Path,
};

use llmprof::{parse, report::perfetto, trace::Trace};
use serde_json::Value;

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn captured(name: &str) -> Trace {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    let packed = File::open(fixture(&format!("captures/{name}.sqlite.zst"))).unwrap();
    zstd::stream::copy_decode(packed, File::create(&path).unwrap()).unwrap();
    Trace { nsys: Some(parse::nsys::read(&path).unwrap()), ..Trace::default() }
}

fn plain() -> Trace {
    let (power, _) = parse::power::read(&fixture("nvml-synthetic.jsonl")).unwrap();
    Trace { baseline: parse::events::read(&fixture("events-tiny.jsonl")).unwrap().events, power, ..Trace::default() }
}

fn events(trace: &Trace) -> Vec<Value> {
    let mut text = Vec::new();
    perfetto::write(trace, &mut text).unwrap();
    let mut written: Value = serde_json::from_slice(&text).unwrap();
    match written["traceEvents"].take() {
        Value::Array(events) => events,
        other => panic!("no list of events: {other}"),
    }
}

fn ns(microseconds: &Value) -> i64 {
    (microseconds.as_f64().unwrap() * 1e3).round() as i64
}

/// Checks a timeline; returns how many slices it has.
fn check(trace: &Trace) -> usize {
    let events = events(trace);
    let track = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    let named = |what: &str| -> HashSet<(u64, u64)> { events.iter().filter(|it| it["name"] == what).map(track).collect() };
    let (threads, processes) = (named("thread_name"), named("process_name"));
    let mut open: HashMap<(u64, u64), Vec<(i64, i64)>> = HashMap::new();
    let mut begun: HashMap<u64, (i64, String)> = HashMap::new();
    let mut counted: HashMap<String, i64> = HashMap::new();
    let mut slices = 0;
    for event in &events {
        let at = || ns(&event["ts"]);
        match event["ph"].as_str().unwrap() {
            "X" => {
                slices += 1;
                let (from, to) = (at(), at() + ns(&event["dur"]));
                let stack = open.entry(track(event)).or_default();
                assert!(stack.last().is_none_or(|last| last.0 <= from), "not in order: {event}");
                stack.retain(|outer| outer.1 > from);
                assert!(stack.iter().all(|outer| to <= outer.1), "crosses a slice of its track: {event}");
                stack.push((from, to));
                assert!(threads.contains(&track(event)), "a track without a name: {event}");
                assert!(processes.iter().any(|process| process.0 == track(event).0), "a process without a name: {event}");
            }
            "b" => {
                let id = event["id"].as_u64().unwrap();
                assert!(begun.insert(id, (at(), event["name"].to_string())).is_none(), "begun twice: {event}");
            }
            "e" => {
                let (from, name) = begun.remove(&event["id"].as_u64().unwrap()).unwrap();
                assert!(from <= at() && name == event["name"].to_string(), "{event}");
            }
            "C" => {
                let last = counted.insert(event["name"].to_string(), at());
                assert!(last.is_none_or(|last| last <= at()), "a counter that goes back: {event}");
            }
            "M" => assert!(event["args"]["name"].is_string(), "{event}"),
            other => panic!("no such phase: {other}"),
        }
    }
    assert!(begun.is_empty(), "never ended: {begun:?}");
    slices
}

#[test]
fn slices_of_a_track_nest_in_order_and_every_track_is_named() {
    let kernels = |trace: &Trace| trace.nsys.as_ref().map_or(0, |nsys| nsys.kernels.len());
    for name in ["hf-deepseek-decoder", "hf-llama-e2e", "hf-llama-attention-mock", "torch-cuda-graph-node"] {
        let trace = captured(name);
        assert!(check(&trace) > kernels(&trace), "{name}");
    }
    assert!(check(&plain()) > 100);
}

#[test]
fn kernels_side_by_side_on_one_stream_and_ranges_that_cross_do_not_cover_each_other() {
    let mut trace = captured("torch-cuda-graph-node");
    let nsys = trace.nsys.as_mut().unwrap();
    // Every second kernel begins in the middle of the one before it, as branches of one graph do.
    let all: Vec<_> = nsys.kernels.iter().take(100).collect();
    nsys.kernels = (0..all.len())
        .map(|at| {
            let mut kernel = all[at];
            if at % 2 == 1 {
                kernel.start_ns = i64::midpoint(all[at - 1].start_ns, all[at - 1].end_ns);
                kernel.stream = all[at - 1].stream;
            }
            kernel
        })
        .collect();
    nsys.ranges.iter_mut().for_each(|range| range.push_pop = false);
    assert!(check(&trace) >= 100);
    let lanes =
        events(&trace).iter().filter(|it| it["args"]["name"].as_str().is_some_and(|name| name.contains("beside"))).count();
    assert!(lanes > 0);
}
