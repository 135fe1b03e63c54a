//! The reader on sketches of traces: what versions write differently, and input that no profiler
//! wrote.

use std::{fs, io::Write as _, path::PathBuf};

use llmprof_core::trace::{
    clocks::WaitTarget, kernel::UNNUMBERED_NODE, timeline::ON_HOST, untimed::TimeFault,
};

use super::*;

/// Writes texts as traces of one capture and reads them.
fn read_all(texts: &[&[u8]]) -> Result<Timeline, String> {
    let dir = tempfile::tempdir().unwrap();
    let write = |(at, text): (usize, &&[u8])| {
        let path = dir.path().join(format!("{at}.json"));
        fs::write(&path, text).unwrap();
        path
    };
    let paths: Vec<PathBuf> = texts.iter().enumerate().map(write).collect();
    read(&paths).map_err(|error| {
        llmprof_core::chain(&error).replace(&format!("{}/", dir.path().display()), "")
    })
}

fn read_text(text: &str) -> Result<Timeline, String> {
    read_all(&[text.as_bytes()])
}

/// A trace with these events and no header.
pub fn trace(events: &[&str]) -> Timeline {
    read_text(&format!(r#"{{"traceEvents": [{}]}}"#, events.join(","))).unwrap()
}

fn ids(trace: &Timeline) -> Vec<&str> {
    trace.findings.iter().map(|it| it.id.as_str()).collect()
}

const CALL: &str = r#"{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5,
    "tid": 6, "ts": 1.0, "dur": 2, "args": {"External id": 9, "correlation": 3}}"#;
const KERNEL: &str = r#"{"ph": "X", "cat": "kernel", "name": "void ns::k<16>(int)", "pid": 0,
    "tid": 7, "ts": 4.5, "dur": 1.25, "args": {"External id": 9, "device": 0, "stream": 7,
    "correlation": 3, "registers per thread": 32, "shared memory": 16, "grid": [2, 1, 1],
    "block": [64, 1, 1]}}"#;
const OPERATOR: &str = r#"{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 6,
    "ts": 0.5, "dur": 5, "args": {"External id": 9, "Input Dims": [[2, 3], [3, 4]],
    "Input type": ["float", "float"]}}"#;

#[test]
fn a_kernel_has_its_launch_its_shape_and_its_operator() {
    let trace = trace(&[CALL, KERNEL, OPERATOR]);
    let kernel = trace.kernels.get(0);
    let text = |at: u32| trace.strings[at as usize].as_str();
    assert_eq!((text(kernel.name), text(kernel.full_name)), ("k", "void ns::k<16>(int)"));
    // Times count from the first event.
    assert_eq!((kernel.start_ns, kernel.end_ns), (4000, 5250));
    assert_eq!((kernel.grid, kernel.block), ([2, 1, 1], [64, 1, 1]));
    assert_eq!((kernel.registers, kernel.stream, kernel.device), (32, 7, 0));
    let call = trace.cuda_calls.get(0);
    assert_eq!((call.correlation_id, kernel.correlation_id), (3, 3));
    assert_eq!((call.global_tid, kernel.global_pid), (5 << 24 | 6, 5 << 24));
    assert_eq!(trace.framework.signatures[0].shapes, [vec![2, 3], vec![3, 4]]);
    assert_eq!(trace.framework.operators.get(5 << 24, 3), Some(0));
    assert!(trace.findings.is_empty(), "{:?}", trace.findings);
}

#[test]
fn waits_have_the_device_and_the_stream_that_are_recorded() {
    let wait = |correlation: i64, device: i64, stream: i64| {
        format!(
            r#"{{"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": {device}, "tid": 7,
                "ts": 5, "dur": 2, "args": {{"cuda_sync_kind": "Stream Sync", "context": 1,
                "device": {device}, "stream": {stream}, "correlation": {correlation}}}}}"#
        )
    };
    let read = trace(&[CALL, KERNEL, &wait(5, 0, 7), &wait(4, 0, -1), &wait(6, 1, 7)]);
    let target = |correlation, device, stream| WaitTarget {
        process: 5 << 24,
        correlation,
        device: Some(device),
        stream,
    };
    // Nothing ran on device 1.
    let expected = [target(4, 0, None), target(5, 0, Some(7)), target(6, ON_HOST, Some(7))];
    assert_eq!(read.wait_targets, expected);
    assert!(read.findings.is_empty(), "{:?}", read.findings);
}

#[test]
fn packed_traces_read_like_plain_ones() {
    let text = format!(r#"{{"traceEvents": [{CALL}, {KERNEL}]}}"#);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for packed in [gzip.finish().unwrap(), zstd] {
        let trace = read_all(&[&packed]).unwrap();
        assert_eq!((trace.kernels.len(), trace.kernels.get(0).ns()), (1, 1250));
        let cut = read_all(&[&packed[..packed.len() / 2]]).unwrap_err();
        assert!(cut.contains("0.json"), "{cut}");
        let cut = read_all(&[&packed[..packed.len() - 2]]).unwrap_err();
        assert!(cut.contains("truncated: the compressed data ends early; copy"), "{cut}");
    }
}

#[test]
fn version_1_13_numbers_kernels_by_correlation_and_not_by_operator() {
    let old = |text: &str| text.replace("\"External id\": 9", "\"External id\": 3");
    // An operator that happens to have the number of the kernel's correlation.
    let other = OPERATOR.replace("\"External id\": 9", "\"External id\": 3");
    let read = trace(&[&old(CALL), &old(KERNEL), &other]);
    assert!(read.framework.operators.is_empty(), "ids of correlations name no operators");
    assert_eq!(trace(&[CALL, KERNEL, OPERATOR]).framework.operators.get(5 << 24, 3), Some(0));
}

#[test]
fn times_are_exact_with_a_base_and_since_1970() {
    let base = r#""baseTimeNanoseconds": 1790857026000000000"#;
    let kernels = [("4461382452007.101", "2.944"), ("4461382452010.001", "0.001")];
    let event = |(ts, dur): &(&str, &str)| {
        KERNEL.replace("\"ts\": 4.5", &format!("\"ts\": {ts}")).replace("1.25", dur)
    };
    let events = kernels.iter().map(event).collect::<Vec<_>>().join(",");
    // The base may follow the events.
    let read = read_text(&format!(r#"{{"traceEvents": [{events}], {base}}}"#)).unwrap();
    let times: Vec<(i64, i64)> = read.kernels.iter().map(|it| (it.start_ns, it.end_ns)).collect();
    assert_eq!(times, [(0, 2944), (2900, 2901)]);
    let old = trace(&[&event(&("1664989026123456", "3")), &event(&("1664989026123460", "1"))]);
    let times: Vec<(i64, i64)> = old.kernels.iter().map(|it| (it.start_ns, it.end_ns)).collect();
    assert_eq!(times, [(0, 3000), (4000, 5000)]);
}

#[test]
fn whole_microseconds_are_a_finding() {
    let of = |us: &str| {
        let event = |at: usize| KERNEL.replace("4.5", &at.to_string()).replace("1.25", us);
        let events: Vec<String> = (0..10).map(event).collect();
        let texts: Vec<&str> = events.iter().map(String::as_str).collect();
        ids(&trace(&texts)).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("3"), ["trace_times_coarse"]);
    assert_eq!(of("10"), [""; 0], "1 us is a tenth of it at most");
    assert_eq!(ids(&trace(&[KERNEL])), [""; 0]);
}

#[test]
fn ranges_are_annotations_of_the_host() {
    let range = |cat: &str, name: &str| {
        format!(
            r#"{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 5, "tid": 6, "ts": 1,
                "dur": 2}}"#
        )
    };
    let read = trace(&[
        &range("user_annotation", "prefill"),
        &range("gpu_user_annotation", "prefill"),
        &range("user_annotation", "ProfilerStep#12"),
    ]);
    let names: Vec<&str> = read.ranges.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["prefill", "ProfilerStep"]);
    assert_eq!(read.rules.stage(names[0], &read.ranges[0].domain), Some("prefill"));
}

#[test]
fn kernels_of_a_replay_share_its_launch_and_are_told_apart() {
    let launch = CALL.replace("cudaLaunchKernel", "cudaGraphLaunch");
    let read = trace(&[&launch, KERNEL, &KERNEL.replace("4.5", "6.5")]);
    let nodes: Vec<u64> = read.kernels.iter().filter_map(|it| it.graph_node).collect();
    assert_eq!(nodes.len(), 2);
    assert!(nodes[0] != nodes[1] && nodes.iter().all(|it| it & UNNUMBERED_NODE != 0));
    let own = KERNEL.replace("\"device\"", "\"graph node id\": 77, \"graph id\": 1, \"device\"");
    let read = trace(&[&launch, &own]);
    assert_eq!(read.kernels.get(0).graph_node, Some(1 << 32 | 77));
    let whole = own.replace("\"graph node id\": 77", "\"graph node id\": 4294967373");
    assert_eq!(trace(&[&launch, &whole]).kernels.get(0).graph_node, Some(1 << 32 | 77));
    assert_eq!(trace(&[CALL, KERNEL]).kernels.get(0).graph_node, None);
}

#[test]
fn ranks_are_processes_with_devices_of_their_own() {
    let file = |rank: u32| {
        format!(
            r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 4}},
                "baseTimeNanoseconds": 1000,
                "deviceProperties": [{{"id": 0, "name": "NVIDIA H200", "numSms": 132,
                    "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
                    "maxThreadsPerMultiprocessor": 2048, "warpSize": 32}}],
                "cuda_driver_version": 13000, "cuda_runtime_version": 12040,
                "traceEvents": [{CALL}, {KERNEL}]}}"#
        )
    };
    let read = read_all(&[file(0).as_bytes(), file(1).as_bytes()]).unwrap();
    let of = |at: usize| (read.kernels.get(at).global_pid, read.kernels.get(at).device);
    assert_ne!(of(0).0, of(1).0, "both files name process 5");
    assert_eq!((of(0).1, of(1).1), (0, 1), "both files name device 0");
    let mut names: Vec<&String> = read.processes.values().collect();
    names.sort();
    assert_eq!(names, ["process, rank 0", "process, rank 1, pid 5"]);
    let gpus: Vec<_> = read.target.gpus.iter().map(|it| (it.index, it.sm_count)).collect();
    assert_eq!(gpus, [(0, Some(132)), (1, Some(132))]);
    assert_eq!(read.target.gpus[0].warps_per_sm, Some(64));
    assert_eq!(read.target.cuda_versions().unwrap(), "CUDA 12.4");
    assert_eq!(ids(&read), ["trace_ranks_incomplete"]);
    assert!(
        read.findings[0].message.contains("2 of 4 ranks: 0, 1"),
        "{}",
        read.findings[0].message
    );
}

#[test]
fn a_device_without_a_name_is_called_by_its_architecture() {
    let named = |properties: &str| {
        let text = format!(
            r#"{{"deviceProperties": [{{"id": 0, {properties}}}],
                "traceEvents": [{CALL}, {KERNEL}]}}"#
        );
        read_text(&text).unwrap().target.gpus.remove(0).name
    };
    let amd = r#""name": "", "computeMajor": 9, "computeMinor": 4, "warpSize": 64"#;
    assert_eq!(named(amd), "AMD GPU (gfx94x)");
    let nvidia = r#""computeMajor": 9, "computeMinor": 0, "warpSize": 32"#;
    assert_eq!(named(nvidia), "NVIDIA GPU (sm_90)");
    assert_eq!(named(r#""name": "NVIDIA H200", "warpSize": 32"#), "NVIDIA H200");
    assert_eq!(named(r#""computeMajor": 9"#), "");
}

/// Events of a rank as a merged trace has them: a text names each process.
fn merged(rank: u32) -> String {
    let label = |event: &str, pid: u32| {
        event.replace(&format!("\"pid\": {pid}"), &format!("\"pid\": \"[TP0{rank}] {pid}\""))
    };
    [label(CALL, 5), label(KERNEL, 0), label(OPERATOR, 5)].join(",")
}

#[test]
fn a_process_that_a_text_names_is_read_like_one_with_a_number() {
    let name = r#"{"ph": "M", "name": "process_name", "pid": "[TP01] 5", "ts": 1,
        "args": {"name": "python"}}"#;
    let read = trace(&[&merged(1), name]);
    let plain = trace(&[CALL, KERNEL, OPERATOR]);
    let kernel = |it: &Timeline| llmprof_core::trace::kernel::Kernel::from(it.kernels.get(0));
    assert_eq!(kernel(&read), kernel(&plain));
    assert_eq!(read.cuda_calls.get(0), plain.cuda_calls.get(0));
    assert_eq!(read.framework.operators.get(5 << 24, 3), Some(0));
    assert_eq!(read.processes[&(5 << 24)], "python, pid [TP01] 5");
    let bare = merged(1).replace("\"device\": 0, ", "").replace("[TP01] 0", "[TP01] 3");
    assert_eq!(trace(&[&bare]).kernels.get(0).device, 3, "the device is in the text");
}

#[test]
fn ranks_of_a_merged_trace_are_refused_by_their_labels() {
    let events = [merged(0), merged(1)].join(",");
    let merged_file = format!(r#"{{"traceEvents": [{events}]}}"#);
    let error = read_text(&merged_file).unwrap_err();
    assert!(error.contains("several processes ([TP00] 5, [TP01] 5)"), "{error}");
    // Next to the files of the ranks, which it would repeat.
    let file = format!(r#"{{"traceEvents": [{CALL}, {KERNEL}]}}"#);
    let error = read_all(&[file.as_bytes(), merged_file.as_bytes()]).unwrap_err();
    assert!(error.contains("1.json") && error.contains("without merged ones"), "{error}");
    // Without CUDA calls, by the operators.
    let operators = [merged(0), merged(1)].join(",").replace("cuda_runtime", "other");
    assert!(read_text(&format!("[{operators}]")).unwrap_err().contains("[TP01] 5"));
}

#[test]
fn a_trace_that_is_given_twice_is_a_finding() {
    let file = |id: &str, rank: u32| {
        format!(
            r#"{{"trace_id": "{id}", "distributedInfo": {{"rank": {rank}, "world_size": 2}},
                "traceEvents": [{CALL}, {KERNEL}]}}"#
        )
    };
    let found = |files: [String; 2]| {
        let read = read_all(&[files[0].as_bytes(), files[1].as_bytes()]).unwrap();
        let twice = read.findings.iter().find(|it| it.id == "trace_repeated");
        twice.map(|it| it.message.clone())
    };
    let twice = found([file("A", 1), file("A", 1)]).unwrap();
    assert!(twice.starts_with("1.json holds the same events as 0.json"), "{twice}");
    let other = file("A", 1).replace("\"dur\": 2", "\"dur\": 3");
    let twice = found([file("A", 1), other]).unwrap();
    assert!(twice.ends_with("of one recording: 0.json and 1.json; each counts."), "{twice}");
    assert_eq!(found([file("A", 0), file("B", 1)]), None);
    assert_eq!(found([file("A", 0), file("A", 1)]), None, "ranks of one request");
}

#[test]
fn a_file_with_the_events_of_another_one_counts_once() {
    let first = format!(r#"{{"traceName": "a", "traceEvents": [{CALL}, {KERNEL}]}}"#);
    let rewritten = first.replace("\"a\"", "\"b\"").replace(": ", ":\n ");
    let marked = format!("\u{feff}{first}");
    let other_process = first.replace("\"pid\": 5", "\"pid\": 8");
    let read = |second: &str| read_all(&[first.as_bytes(), second.as_bytes()]).unwrap();
    for copy in [&first, &rewritten, &marked] {
        let read = read(copy);
        assert_eq!((read.kernels.len(), read.processes.len()), (1, 1), "{copy}");
        let finding = read.findings.iter().find(|it| it.id == "trace_repeated").unwrap();
        assert!(finding.message.starts_with("1.json holds the same events as 0.json"));
    }
    for other in [other_process, first.replace("\"dur\": ", "\"dur\": 1")] {
        assert_eq!(read(&other).processes.len(), 2, "{other}");
    }
}

#[test]
fn deeply_nested_arguments_take_no_stack() {
    let deep =
        |open: &str, close: &str| format!("{}1{}", open.repeat(200_000), close.repeat(200_000));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let args = format!("\"Input Dims\": {0}, \"grid\": {0}, \"other\": {0}", deep(open, close));
        let event = OPERATOR.replace("\"Input Dims\": [[2, 3], [3, 4]]", &args);
        let read = trace(&[&event, KERNEL]);
        assert_eq!((read.framework.len(), read.kernels.len()), (1, 1));
        assert!(read.framework.signatures[0].shapes.is_empty());
    }
}

#[test]
fn events_that_are_given_twice_count_once() {
    let read = trace(&[CALL, KERNEL, CALL, KERNEL, &CALL.replace("3}}", "4}}")]);
    assert_eq!((read.kernels.len(), read.cuda_calls.len()), (1, 2));
    assert_eq!(ids(&read), ["kernel_records_repeated"]);
    assert_eq!(read.findings[0].evidence["repetitions of calls"], "1");
}

#[test]
fn decreasing_times_are_sorted() {
    let read = trace(&[&KERNEL.replace("4.5", "9.5"), KERNEL, CALL]);
    let starts: Vec<i64> = read.kernels.iter().map(|it| it.start_ns).collect();
    assert_eq!(starts, [3500, 8500]);
}

#[test]
fn numbers_as_text_are_read_with_a_finding() {
    let quoted = KERNEL
        .replace("\"ts\": 4.5", "\"ts\": \"4.5\"")
        .replace("\"correlation\": 3", "\"correlation\": \"3\"");
    let read = trace(&[CALL, &quoted]);
    assert_eq!((read.kernels.get(0).correlation_id, read.kernels.get(0).ns()), (3, 1250));
    assert_eq!(ids(&read), ["trace_numbers_quoted"]);
}

#[test]
fn unknown_categories_and_open_events_are_counted() {
    let read = trace(&[
        KERNEL,
        &KERNEL.replace("\"kernel\"", "\"xpu_kernel\""),
        &KERNEL.replace("\"ph\": \"X\"", "\"ph\": \"B\""),
        r#"{"ph": "i", "name": "mark", "ts": 1}"#,
        r#"{"ph": "f", "id": 3, "cat": "ac2g", "name": "ac2g", "ts": 1}"#,
    ]);
    assert_eq!((read.kernels.len(), ids(&read)), (1, vec!["trace_events_unknown"]));
    let finding = &read.findings[0];
    assert!(finding.message.starts_with("2 events"), "{}", finding.message);
    assert_eq!(finding.evidence["categories"], "xpu_kernel");
}

#[test]
fn missing_fields_leave_an_event_out_or_a_value_absent() {
    let read = trace(&[
        KERNEL,
        r#"{"ph": "X", "cat": "kernel", "name": "k"}"#,
        r#"{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}"#,
        r#"{"cat": "kernel", "name": "k", "ts": 1, "dur": 2}"#,
        r#"{"ph": "X", "cat": "kernel", "name": "bare", "ts": 7, "dur": 2}"#,
        "{}",
    ]);
    assert_eq!((read.kernels.len(), ids(&read)), (2, vec!["trace_events_incomplete"]));
    assert!(read.findings[0].message.starts_with("4 events"), "{}", read.findings[0].message);
    let bare = read.kernels.get(1);
    assert_eq!((bare.ns(), bare.correlation_id, bare.grid), (2000, 0, [0; 3]));
}

#[test]
fn a_bare_list_of_events_is_read_with_a_finding() {
    let read = read_text(&format!("[{CALL}, {KERNEL}]")).unwrap();
    assert_eq!((read.kernels.len(), ids(&read)), (1, vec!["trace_header_missing"]));
}

#[test]
fn rules_are_checked_against_the_ranges_of_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    let range = r#"{"ph": "X", "cat": "user_annotation", "name": "ctx", "pid": 5, "tid": 6,
        "ts": 1, "dur": 2}"#;
    fs::write(&path, format!(r#"{{"traceEvents": [{range}]}}"#)).unwrap();
    let rules = |range: &str| {
        StageRules::with(vec![format!("prefill={range}").parse().unwrap()], vec![], vec![])
    };
    assert_eq!(check(&path, &rules("ctx")).unwrap(), Ok(()));
    assert_eq!(check(&path, &rules("gen")).unwrap().unwrap_err().available, ["ctx"]);
}

mod collectives;
mod graph_captures;
mod pairs;
mod refused;
mod stacks;
mod untimed;
mod window;
