//! One program recorded by nsys and by the profiler of PyTorch: a sketch of both, since profilers
//! differ in names, clocks and ids.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use llmprof_analyze::{
    align::{
        Verdict,
        settings::{Operation, Question, Thresholds},
    },
    parse::aliases,
};
use llmprof_core::{domain::ids::RunId, trace::stage::StageRules};
use llmprof_report::{
    diff::{StoredReport, run_diff, stored},
    pipeline::{self, Statements, align_pair},
};
use llmprof_service::config;
use rusqlite::Connection;
use uuid::Uuid;

/// Short name, name by the profiler of PyTorch, name by nsys, nanoseconds, grid.
const KERNELS: [(&str, &str, &str, i64, u32); 3] = [
    (
        "CatArrayBatchedCopy",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous \
         namespace)::OpaqueType<2u>, unsigned int, 3, 64, 64>(T1*)",
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::<unnamed>::OpaqueType\
         <(unsigned int)2>, unsigned int, (int)3, (int)64, (int)64>(T1 *)",
        4_000,
        264,
    ),
    ("nvjet_tst_128x64", "nvjet_tst_128x64", "nvjet_tst_128x64", 13_000, 64),
    (
        "vectorized_elementwise_kernel",
        "void at::native::vectorized_elementwise_kernel<8, at::f<bool>, std::array<char*, 3ul> >\
         (int, bool)",
        "void at::native::vectorized_elementwise_kernel<(int)8, at::f<bool>, std::array<char *, \
         (unsigned long)3>>(int, bool)",
        1_024,
        2,
    ),
];
const STEPS: i64 = 4;
/// Nanoseconds between two launches, and from the start of one step to the start of the next.
const LAUNCH: i64 = 20_000;
const STEP: i64 = 100_000;
const ZERO: i64 = 5_000_000_000;

/// Calls `kernel` with the step and index of each launch.
fn each(mut kernel: impl FnMut(i64, usize)) {
    for step in 0..STEPS {
        (0..KERNELS.len()).for_each(|at| kernel(step, at));
    }
}

fn nsys(dir: &Path) -> PathBuf {
    let path = dir.join("run.sqlite");
    let mut sql = "create table META_DATA_EXPORT (name text, value text);
        insert into META_DATA_EXPORT values ('EXPORT_SCHEMA_VERSION', '3.20.3');
        create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int,
            textId int, domainId int);
        create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, correlationId int,
            globalTid int, nameId int);
        create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int,
            correlationId int, globalPid int, shortName int, demangledName int,
            registersPerThread int, gridX int, gridY int, gridZ int, blockX int, blockY int,
            blockZ int);
        create table StringIds (id integer primary key, value text);
        insert into StringIds values (1, 'cudaLaunchKernel_v7000');"
        .to_owned();
    let (process, thread) = (9_i64 << 24, 9_i64 << 24 | 9);
    for (at, (short, _, full, ..)) in KERNELS.iter().enumerate() {
        let ids = (10 + at, 20 + at);
        write!(sql, "insert into StringIds values ({}, '{short}'), ({}, '{full}');", ids.0, ids.1)
            .unwrap();
    }
    for step in 0..STEPS {
        let (start, end) = (ZERO + step * STEP, ZERO + step * STEP + STEP - 1_000);
        write!(
            sql,
            "insert into NVTX_EVENTS values ({start}, {end}, 59, 'decode_all', {thread}, null, 0);"
        )
        .unwrap();
    }
    each(|step, at| {
        let (_, _, _, ns, grid) = KERNELS[at];
        let call = ZERO + step * STEP + LAUNCH * at as i64 + 500;
        let (start, id) = (call + 9_000, 1 + step * 3 + at as i64);
        let (short, full) = (10 + at, 20 + at);
        write!(
            sql,
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values ({call}, {}, {id}, {thread}, 1);
             insert into CUPTI_ACTIVITY_KIND_KERNEL values ({start}, {}, 0, 7, {id}, {process},
                {short}, {full}, 32, {grid}, 1, 1, 128, 1, 1);",
            call + 5_000,
            start + ns,
        )
        .unwrap();
    });
    Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
    path
}

fn micros(ns: i64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn kineto(dir: &Path) -> PathBuf {
    let mut events = Vec::new();
    for step in 0..STEPS {
        events.push(format!(
            r#"{{"ph": "X", "cat": "user_annotation", "name": "decode_all", "pid": 5, "tid": 5,
                "ts": {}, "dur": {}}}"#,
            micros(step * STEP),
            micros(STEP - 1_000)
        ));
    }
    each(|step, at| {
        let (_, name, _, ns, grid) = KERNELS[at];
        let call = step * STEP + LAUNCH * at as i64 + 500;
        let id = 100 + step * 3 + at as i64;
        events.push(format!(
            r#"{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": 5,
                "ts": {}, "dur": {}, "args": {{"correlation": {id}}}}},
               {{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {},
                "dur": {}, "args": {{"device": 0, "stream": 7, "correlation": {id},
                "registers per thread": 32, "grid": [{grid}, 1, 1], "block": [128, 1, 1]}}}}"#,
            micros(call),
            micros(5_000),
            micros(call + 9_000),
            micros(ns),
        ));
    });
    let path = dir.join("run.pt.trace.json");
    let head = r#""baseTimeNanoseconds": 1790857026000000000"#;
    fs::write(&path, format!("{{{head}, \"traceEvents\": [{}]}}", events.join(","))).unwrap();
    path
}

fn report(capture: &Path) -> StoredReport {
    let analyzed = pipeline::analyze_capture(
        &[capture.to_owned()],
        &[],
        Statements::default(),
        &config::devices().unwrap(),
    )
    .unwrap();
    let files = analyzed.render(RunId(Uuid::nil()));
    let text = |wanted: &str| &files.iter().find(|(name, _)| *name == wanted).unwrap().1;
    let kernels = text("kernels.json").as_bytes();
    stored(text("report.json").as_bytes(), Some(kernels), aliases::read).unwrap()
}

#[test]
fn captures_of_both_profilers_have_the_same_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let (nsys, kineto) = (report(&nsys(dir.path())), report(&kineto(dir.path())));
    let diff = run_diff(&nsys, &kineto, &[]).diff;
    assert_eq!(diff.kernels.len(), 3, "{:#?}", diff.kernels);
    for kernel in &diff.kernels {
        assert!(kernel.a.is_some() && kernel.b.is_some(), "{kernel:#?}");
        assert_eq!(kernel.change_ms, 0.0, "{kernel:#?}");
    }
    let stages: Vec<_> = diff.stages.iter().map(|it| (it.name.as_str(), it.change_ms)).collect();
    assert!(stages.contains(&("decode_all", 0.0)), "{stages:?}");
    assert!(stages.iter().all(|(_, change_ms)| *change_ms == 0.0), "{stages:?}");
    assert!(!diff.comparable, "times of different profilers have no verdict");
    let profiler = diff.checks.iter().find(|it| it.what == "profiler").unwrap();
    assert_eq!((profiler.same, profiler.forbids), (Some(false), true), "{profiler:#?}");
}

#[test]
fn captures_of_both_profilers_are_aligned_by_range_and_by_sequence() {
    let dir = tempfile::tempdir().unwrap();
    let (nsys, kineto) = (nsys(dir.path()), kineto(dir.path()));
    for operation in [Some("decode_all"), None] {
        let question = Question {
            operation: Operation::of(operation, None, &[]).unwrap(),
            stage: None,
            thresholds: Thresholds::default(),
            waivers: vec![],
            forwards: None,
            today: "2026-11-01".into(),
        };
        let rules = StageRules::default();
        let sides = (("kineto", kineto.as_path()), ("nsys", nsys.as_path()));
        let found = align_pair::compare(sides.0, sides.1, &rules, &question).unwrap();
        let kernels: Vec<_> = found.sequence.iter().collect();
        assert_eq!(kernels.len() % 3, 0, "{operation:?}: {kernels:#?}");
        assert!(
            matches!(found.verdict, Verdict::Pass | Verdict::Warn),
            "{operation:?}: {found:#?}"
        );
    }
}
