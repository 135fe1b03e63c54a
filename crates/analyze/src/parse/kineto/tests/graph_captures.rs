//! Captures of graphs among the traces of a capture.

use llmprof_core::trace::graph_capture::NodeWork;

use super::*;

fn call(name: &str, correlation: u32, ts: u32, args: &str) -> String {
    format!(
        r#"{{"ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 5, "tid": 6, "ts": {ts},
            "dur": 1, "args": {{"correlation": {correlation}{args}}}}}"#
    )
}

fn range(name: &str, ts: u32, dur: u32) -> String {
    format!(
        r#"{{"ph": "X", "cat": "user_annotation", "name": "{name}", "pid": 5, "tid": 6,
            "ts": {ts}, "dur": {dur}}}"#
    )
}

fn operator(ts: u32, dur: u32) -> String {
    OPERATOR.replace("\"ts\": 0.5, \"dur\": 5", &format!("\"ts\": {ts}, \"dur\": {dur}"))
}

fn text(events: &[String]) -> String {
    format!(r#"{{"traceEvents": [{}]}}"#, events.join(","))
}

/// A capture of two launches, after one that ran.
fn capture() -> Vec<String> {
    vec![
        range("capture_8_FULL", 90, 100),
        call("cudaLaunchKernel", 1, 95, ""),
        KERNEL.replace("\"correlation\": 3", "\"correlation\": 1"),
        call("cudaStreamBeginCapture", 2, 100, ""),
        operator(109, 5),
        call("hipLaunchKernel", 3, 110, r#", "kernel": "k", "grid": [4, 1, 1]"#),
        call("cuLaunchKernel", 3, 110, ""),
        operator(119, 5),
        call("cudaLaunchKernel", 4, 120, ""),
        call("cudaMemcpyAsync", 5, 130, ""),
        call("cudaLaunchKernel", 6, 131, ""),
        call("cudaLaunchKernel", 7, 132, ""),
        call("cudaStreamEndCapture", 8, 140, ""),
        call("cudaLaunchKernel", 9, 150, ""),
    ]
}

fn window() -> String {
    text(&[CALL.replace("LaunchKernel", "GraphLaunch"), KERNEL.into()])
}

#[test]
fn launches_between_the_start_and_end_of_a_capture_are_its_nodes() {
    let read = read_all(&[window().as_bytes(), text(&capture()).as_bytes()]).unwrap();
    let [graph] = read.graph_captures.graphs.as_slice() else {
        panic!("{:?}", read.graph_captures)
    };
    assert_eq!((graph.batch, graph.mode.as_deref()), (Some(8), Some("FULL")));
    assert_eq!((graph.file.as_str(), graph.process), ("1.json", None));
    assert!(graph.is_whole && !graph.is_forked);
    let works: Vec<NodeWork> = graph.launches.iter().map(|it| it.work).collect();
    use NodeWork::*;
    assert_eq!(works, [Kernel, Kernel, Copy, Kernel, Kernel], "the driver's row is of the first");
    let first = graph.launches[0];
    assert_eq!(read.text(first.kernel.unwrap()), "k");
    assert_eq!((first.grid, graph.launches[1].kernel), ([4, 1, 1], None));
    let operators = &read.graph_captures.operators;
    let shapes = |at: usize| &read.framework.signatures[operators[at].signature as usize].shapes;
    assert_eq!((operators.len(), shapes(1)), (2, &vec![vec![2, 3], vec![3, 4]]));
}

#[test]
fn a_trace_of_a_capture_is_neither_work_nor_a_rank() {
    let alone = read_all(&[window().as_bytes()]).unwrap();
    let read = read_all(&[window().as_bytes(), text(&capture()).as_bytes()]).unwrap();
    assert_eq!((read.kernels.len(), read.cuda_calls.len()), (1, 1));
    assert_eq!((read.framework.len(), read.ranges.len()), (0, 0));
    assert_eq!((&read.processes, &read.findings), (&alone.processes, &alone.findings));
    assert_eq!((read.graph_captures.files.len(), alone.graph_captures.files.len()), (1, 0));
    // Without the range, by its launches that have no kernel.
    let unnamed = text(&capture()[1..]);
    let read = read_all(&[unnamed.as_bytes()]).unwrap();
    assert_eq!((read.graph_captures.files.len(), read.graph_captures.graphs[0].batch), (1, None));
    assert!(read.kernels.is_empty());
}

#[test]
fn a_capture_inside_other_work_is_of_its_process() {
    let mut events = capture();
    events.push(call("cudaGraphLaunch", 20, 200, ""));
    let read = read_all(&[text(&events).as_bytes()]).unwrap();
    assert_eq!((read.kernels.len(), read.graph_captures.files.len()), (1, 0));
    assert_eq!(read.graph_captures.graphs[0].process, Some(5 << 24));
}

#[test]
fn a_capture_without_its_start_or_end_is_not_whole() {
    for cut in ["cudaStreamBeginCapture", "cudaStreamEndCapture"] {
        let mut events = capture();
        events.retain(|it| !it.contains(cut));
        let read = read_all(&[text(&events).as_bytes()]).unwrap();
        let graph = &read.graph_captures.graphs[0];
        assert!(!graph.is_whole && graph.launches.len() >= 5, "{cut}");
    }
    let mut events = capture();
    events.push(call("cudaStreamWaitEvent", 0, 125, ""));
    assert!(read_all(&[text(&events).as_bytes()]).unwrap().graph_captures.graphs[0].is_forked);
}

#[test]
fn the_list_of_captures_next_to_them_is_read() {
    let list = r#"[{"file": "graph_capture_rank_0.json.gz", "batch_size": 8, "mode": "FULL"},
                   {"file": "graph_capture_rank_0.1.json.gz", "batch_size": 2, "mode": "FULL"}]"#;
    let read = read_all(&[list.as_bytes(), window().as_bytes()]).unwrap();
    assert_eq!(read.graph_captures.listed, [2, 8]);
}

#[test]
fn ranges_of_rules_are_those_of_the_window() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture.json");
    fs::write(&path, text(&capture())).unwrap();
    let rules = StageRules::with(vec![], vec!["decode".into()], vec![]);
    assert_eq!(check(&path, &rules).unwrap(), Ok(()));
    fs::write(&path, window()).unwrap();
    assert!(check(&path, &rules).unwrap().is_err());
}
