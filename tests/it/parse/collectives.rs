//! Collective operations of several ranks, from files to reports.

use std::{
    fs,
    path::{Path, PathBuf},
};

use llmprof_analyze::{Analysis, parse};
use llmprof_core::{domain::ids::RunId, trace::Trace};
use llmprof_report::pipeline::{self, Statements};
use llmprof_service::config;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{parse::sums::llmprof, support::captures::capture, support::golden::golden};

/// A second process on another GPU, with the same calls, ranges and kernels. One kernel is named as
/// an all-reduce; kernels of the first process start 1 us earlier.
const TWO_PROCESSES: &str = "
    update StringIds
        set value = 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)'
        where id in (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL
            join StringIds on id = shortName where value = 'splitKreduce_kernel');
    update StringIds set value = 'ncclDevKernel_AllReduce_Sum_bf16_RING_LL'
        where value = 'splitKreduce_kernel';
    create table kernels as select * from CUPTI_ACTIVITY_KIND_KERNEL;
    update kernels set globalPid = globalPid + 16777216;
    update CUPTI_ACTIVITY_KIND_KERNEL set start = start - 1000
        where shortName in (select id from StringIds where value like 'nccl%');
    insert into CUPTI_ACTIVITY_KIND_KERNEL select * from kernels;
    create table calls as select * from CUPTI_ACTIVITY_KIND_RUNTIME;
    update calls set globalTid = globalTid + 16777216;
    insert into CUPTI_ACTIVITY_KIND_RUNTIME select * from calls;
    create table ranges as select * from NVTX_EVENTS;
    update ranges set globalTid = globalTid + 16777216;
    insert into NVTX_EVENTS select * from ranges;
    insert into PROCESSES select globalPid + 16777216, pid + 1, name from PROCESSES where pid = 440;
    insert into TARGET_INFO_CUDA_DEVICE values (1, 0, 441);";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(name)
}

/// Nanoseconds as Kineto writes them.
fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// The events of one collective operation of a rank.
fn operation(number: i64, name: &str, elements: (i64, i64), times: (i64, i64)) -> [Value; 3] {
    let (start, end) = times;
    let kernel = match name {
        "allreduce" => "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        _ => "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    };
    let id = number * 10 + 1;
    [
        json!({"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 40, "tid": 41,
            "ts": us(start - 9_000), "dur": 5.0, "args": {"External id": id,
            "Collective name": name, "dtype": "BFloat16", "In msg nelems": elements.0,
            "Out msg nelems": elements.1, "Group size": 2, "Process Group Name": "1",
            "Process Group Description": "tensor_parallel", "Process Group Ranks": "[0, 1]",
            "Seq": number}}),
        json!({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "pid": 40,
            "tid": 41, "ts": us(start - 8_000), "dur": 2.0,
            "args": {"External id": id, "correlation": number + 1}}),
        json!({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 20, "ts": us(start),
            "dur": us(end - start), "args": {"External id": id, "device": 0, "stream": 20,
            "correlation": number + 1, "grid": [16, 1, 1], "block": [544, 1, 1]}}),
    ]
}

/// Ten decode steps of two ranks: an all-reduce of 64 KiB and an all-gather of 128 KiB each. Rank 1
/// is 40 us late; transfers take 20 us and 10 us.
fn write_ranks(dir: &Path) -> Vec<PathBuf> {
    let write = |rank: i64| {
        let late = rank * 40_000;
        let mut events = Vec::new();
        for step in 0..10 {
            let at = 1_000_000 + step * 200_000;
            events.push(json!({"ph": "X", "cat": "user_annotation", "name": "decode_all",
                "pid": 40, "tid": 41, "ts": us(at - 20_000), "dur": 150.0}));
            let times = (at + late, at + 60_000);
            events.extend(operation(2 * step, "allreduce", (32768, 32768), times));
            let times = (at + 65_000 + late, at + 115_000);
            events.extend(operation(2 * step + 1, "_allgather_base", (32768, 65536), times));
        }
        let trace = json!({"schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
            "baseTimeNanoseconds": 1790857026000000000_i64, "traceEvents": events});
        let path = dir.join(format!("rank{rank}.json"));
        fs::write(&path, trace.to_string()).unwrap();
        path
    };
    vec![write(0), write(1)]
}

fn report(files: &[PathBuf]) -> Vec<(&'static str, String)> {
    let devices = config::devices().unwrap();
    let run = pipeline::analyze_capture(files, &[], Statements::default(), &devices).unwrap();
    run.render(RunId(Uuid::nil()))
}

#[test]
fn a_report_of_two_ranks_has_their_waits_transfers_and_bandwidths() {
    let dir = tempfile::tempdir().unwrap();
    let files = report(&write_ranks(dir.path()));
    let text = |name: &str| &files.iter().find(|it| it.0 == name).unwrap().1;
    for name in ["collectives.csv", "ranks.csv", "ledger.csv"] {
        golden("ranks", name, text(name));
    }
    let report: Value = serde_json::from_str(text("report.json")).unwrap();
    let finding = report["findings"].as_array().unwrap();
    let straggler = finding.iter().find(|it| it["id"] == "collective_straggler").unwrap();
    assert_eq!(
        straggler["message"],
        "tensor_parallel (1): rank 1 is last in 20 of 20 collective operations in which ranks \
         wait; waiting takes 57 % of the time of all."
    );
    for name in ["report.md", "report.html"] {
        assert!(text(name).contains("Collective Operations"), "{name}");
    }
    let ledger = report["ledger"].as_array().unwrap();
    let sum: i64 = ledger.iter().map(|it| it["ns"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), report["ledger_stages"][0]["measured_ns"].as_i64());
}

#[test]
fn the_order_of_the_files_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = write_ranks(dir.path());
    let of = |files: &[PathBuf]| {
        let nsys = Some(parse::kineto::read(files).unwrap());
        llmprof_analyze::analyze(&Trace { timeline: nsys, ..Trace::default() }, None, None)
            .collectives
    };
    let tables = of(&files);
    files.reverse();
    let reversed = of(&files);
    assert_eq!(tables.records, reversed.records);
    let ranks = |of: &llmprof_analyze::collectives::CollectiveTables| -> Vec<_> {
        of.ranks.iter().map(|it| (it.rank, it.calls, it.wait_ms, it.times_last)).collect()
    };
    assert_eq!(ranks(&tables), ranks(&reversed));
}

#[test]
fn the_command_line_takes_one_trace_per_rank_and_refuses_several_exports() {
    let dir = tempfile::tempdir().unwrap();
    let files = write_ranks(dir.path());
    let out = dir.path().join("out");
    let path = |at: usize| files[at].to_str().unwrap();
    let (good, _, error) = llmprof(&[path(0), path(1), "--out", out.to_str().unwrap()]);
    assert!(good, "{error}");
    golden("ranks", "ranks.csv", &fs::read_to_string(out.join("ranks.csv")).unwrap());
    let (good, _, error) = llmprof(&[path(0), path(1), dir.path().to_str().unwrap()]);
    assert!(!good && error.contains("is a folder"), "{error}");
    let export = dir.path().join("b.sqlite");
    fs::write(&export, "SQLite format 3\0").unwrap();
    let (good, _, error) = llmprof(&[path(0), export.to_str().unwrap()]);
    assert!(!good && error.contains("records all ranks in one capture"), "{error}");
}

/// The processes of `torchrun` under one nsys share a clock, and their kernels have only a name.
#[test]
fn processes_of_one_nsys_capture_are_ranks_joined_by_place() {
    let dir = tempfile::tempdir().unwrap();
    let export = dir.path().join("run.sqlite");
    capture("hf-llama-e2e", &export, TWO_PROCESSES).unwrap();
    let nsys = parse::nsys::read(&export).unwrap();
    let analysis =
        llmprof_analyze::analyze(&Trace { timeline: Some(nsys), ..Trace::default() }, None, None);
    let records = &analysis.collectives.records;
    let record = records.iter().find(|it| it.stage == "decode_all").unwrap();
    assert_eq!((record.calls, record.joined, record.ranks), (256, 256, 2));
    assert_eq!(
        (record.skew_us, record.wait_us, record.slowest_rank),
        (Some(1.0), Some(0.5), Some(1))
    );
    assert_eq!((record.bytes, record.bus_bytes_per_s), (None, None));
    let ranks: Vec<_> = analysis
        .collectives
        .ranks
        .iter()
        .map(|it| (it.process, it.device, it.wait_ms, it.times_last))
        .collect();
    assert_eq!(ranks, [(440, 0, Some(0.256), Some(0)), (441, 1, Some(0.0), Some(256))]);
    assert!(analysis.findings.iter().any(|it| it.id == "collectives_without_size"));
    for stage in &analysis.ledger.stages {
        let sum: i64 = analysis.ledger.of_stage(&stage.stage).map(|it| it.ns).sum();
        assert_eq!(sum, stage.measured_ns, "{}", stage.stage);
    }
}

/// A real program of two processes on the CPU, which has no kernels.
#[test]
fn operations_on_the_host_are_a_finding_and_not_device_time() {
    let files = [0, 1].map(|rank| fixture(&format!("torch-gloo-rank{rank}.json.gz")));
    let nsys = parse::kineto::read(&files).unwrap();
    let ranks: Vec<_> = nsys
        .collectives
        .processes
        .values()
        .map(|it| (it.rank, it.world_size, it.backend.as_deref()))
        .collect();
    assert_eq!(ranks, [(Some(0), Some(2), Some("gloo")), (Some(1), Some(2), Some("gloo"))]);
    assert_eq!(nsys.collectives.on_host.get("gloo"), Some(&20));
    assert!(nsys.kernels.is_empty() && nsys.collectives.calls.is_empty());
    let trace = Trace { timeline: Some(nsys), ..Trace::default() };
    let analysis: Analysis = llmprof_analyze::analyze(&trace, None, None);
    assert!(analysis.collectives.groups.is_empty());
    let found = analysis.findings.iter().find(|it| it.id == "collectives_on_host").unwrap();
    assert!(found.message.starts_with("20 collective operations ran on the host (gloo)"));
}
