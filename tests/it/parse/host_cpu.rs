//! Threads on cores and samples of the CPU, of a real system-wide capture and of altered ones. The
//! program measured itself that its thread was on no core for 288.5 ms between its launches, on a
//! core that it shared with process 482.

use std::{path::Path, process::Command};

use llmprof_analyze::{Analysis, parse};
use llmprof_core::trace::Trace;
use llmprof_report::perfetto;
use rusqlite::Connection;
use serde_json::Value;

use crate::{
    parse::perfetto::{Wire, decode},
    support::captures::capture,
};

const CAPTURE: &str = "torch-shared-core";
const OFF_CORE_MS: f64 = 288.5;
const SPINNER: i64 = 482;
const RULES: [&str; 5] = [
    "switches_contradict_calls",
    "process_untraced",
    "launching_thread_displaced",
    "launching_thread_off_core",
    "gaps_in_function",
];

/// The report of `llmprof analyze` for the capture in `path`.
fn analysed(path: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .arg("analyze")
        .arg(path)
        .args(["--format", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The same of the capture changed by `sql`.
fn report(sql: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(CAPTURE, &path, sql).unwrap();
    analysed(&path)
}

fn rows<'a>(report: &'a Value, table: &str) -> Vec<&'a Value> {
    report["host_cpu"][table].as_array().unwrap().iter().collect()
}

/// The one row of decode.
fn of_decode<'a>(report: &'a Value, table: &str) -> &'a Value {
    rows(report, table).into_iter().find(|it| it["stage"] == "decode_all").unwrap()
}

/// The findings of the host's cores, with their messages.
fn findings(report: &Value) -> Vec<(&str, &str)> {
    let all = report["findings"].as_array().unwrap().iter();
    let known = all.map(|it| (it["id"].as_str().unwrap(), it["message"].as_str().unwrap()));
    known.filter(|it| RULES.contains(&it.0)).collect()
}

fn ids(report: &Value) -> Vec<&str> {
    findings(report).into_iter().map(|it| it.0).collect()
}

#[test]
fn the_process_on_the_core_of_the_launching_thread_is_named_with_its_time() {
    let report = report("");
    let stage = of_decode(&report, "stages");
    let ms = |key: &str| stage[key].as_f64().unwrap();
    for key in ["off_core_ms", "taken_ms"] {
        assert!((ms(key) - OFF_CORE_MS).abs() < 0.01 * OFF_CORE_MS, "{key}: {}", ms(key));
    }
    let parts = ms("on_core_ms") + ms("off_core_ms") + ms("unknown_ms");
    assert!((parts - ms("idle_host_ms")).abs() < 1e-5, "{stage}");
    let gpu = report["stage_gpu"].as_array().unwrap().iter();
    let idle = gpu.filter(|it| it["stage"] == "decode_all").map(|it| it["idle_host_ms"].clone());
    assert_eq!(idle.collect::<Vec<_>>(), [stage["idle_host_ms"].clone()]);
    assert_eq!(of_decode(&report, "takers")["process"], SPINNER);
    assert_eq!(report["host_cpu"]["is_system_wide"], true);
    assert_eq!(report["host_cpu"]["calls_on_core_pct"], 100.0);
    let found = findings(&report);
    assert_eq!(found[0].0, "launching_thread_displaced");
    assert!(found[0].1.contains("longest python (process 482) with 288 ms."), "{}", found[0].1);
}

#[test]
fn the_first_page_names_who_had_the_core_in_its_largest_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(CAPTURE, &path, "").unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_llmprof")).arg("analyze").arg(&path).output().unwrap();
    let page = String::from_utf8(output.stdout).unwrap();
    let reason = page.lines().find(|it| it.trim_start().starts_with("1. ")).unwrap();
    assert!(reason.contains("the launching thread was on no core"), "{reason}");
}

#[test]
fn times_switches_and_samples_of_threads_equal_plain_sql() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(CAPTURE, &path, "").unwrap();
    let report = analysed(&path);
    // Each time on a core is from a switch to it to the next switch on that core, if that is of the
    // same thread.
    let sql = "
        with ordered as (
          select globalTid as tid, start, isSchedIn,
                 lead(start) over core as next, lead(globalTid) over core as next_tid,
                 (select max(start) from SCHED_EVENTS) as last
          from SCHED_EVENTS window core as (partition by cpu order by start, isSchedIn))
        select tid & 16777215, sum(ifnull(next, last) - start) / 1e6, count(*),
               (select count(*) from COMPOSITE_EVENTS where globalTid = tid)
        from ordered where isSchedIn and ifnull(next_tid, tid) = tid group by tid";
    let db = Connection::open(&path).unwrap();
    let mut statement = db.prepare(sql).unwrap();
    let row = |it: &rusqlite::Row| Ok((it.get(0)?, it.get(1)?, it.get(2)?, it.get(3)?));
    let expected: Vec<(i64, f64, i64, i64)> =
        statement.query_map([], row).unwrap().map(Result::unwrap).collect();
    assert_eq!(expected.len(), 92);
    let threads = rows(&report, "threads");
    for (thread, ms, switches, samples) in expected {
        let found = threads.iter().find(|it| it["thread"] == thread).unwrap();
        let on_core = found["on_core_ms"].as_f64().unwrap();
        // A thread that was on a core from the start has no switch to it.
        let is_longer = found["switches"].as_i64().unwrap() > switches;
        assert!((on_core - ms).abs() < 1e-3 || is_longer, "thread {thread}: {on_core}, {ms} ms");
        assert_eq!(found["samples"], samples, "thread {thread}");
    }
    let total: i64 = threads.iter().map(|it| it["samples"].as_i64().unwrap()).sum();
    assert_eq!(total, 6001);
}

#[test]
fn switches_of_other_times_than_the_calls_are_named_and_prove_nothing() {
    let report = report(
        "update SCHED_EVENTS set start = start + 2000000000 where globalTid in
           (select globalTid from CUPTI_ACTIVITY_KIND_RUNTIME)",
    );
    assert!(rows(&report, "stages").is_empty() && rows(&report, "takers").is_empty());
    assert_eq!(ids(&report), ["switches_contradict_calls"]);
}

#[test]
fn a_recording_of_one_command_does_not_state_what_others_did() {
    let report = report(
        "delete from SCHED_EVENTS where globalTid not in
           (select globalTid from CUPTI_ACTIVITY_KIND_RUNTIME);
         update META_DATA_CAPTURE set value = 'ProcessTree' where value = 'SystemWide'",
    );
    assert_eq!(report["host_cpu"]["is_system_wide"], false);
    let (id, message) = findings(&report)[0];
    assert_eq!(id, "launching_thread_off_core");
    assert!(message.ends_with("and other programs were not recorded."), "{message}");
    assert_eq!(of_decode(&report, "stages")["taken_ms"], 0.0);
}

#[test]
fn samples_alone_show_functions_and_no_times_on_cores() {
    let report = report("drop table SCHED_EVENTS");
    let stage = of_decode(&report, "stages");
    assert!(stage["on_core_ms"].is_null() && stage["off_core_ms"].is_null(), "{stage}");
    assert_eq!(ids(&report), ["gaps_in_function"]);
    let functions = "in functions of python3.12 without symbols in 44 of 140 samples (31.4 %).";
    assert!(findings(&report)[0].1.ends_with(functions), "{:?}", findings(&report));
}

#[test]
fn a_process_sampled_in_the_driver_without_recorded_calls_is_named() {
    // The launching process is recorded as another one.
    let report = report(
        "update CUPTI_ACTIVITY_KIND_RUNTIME set globalTid = globalTid + (1 << 24);
         update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = globalPid + (1 << 24);
         update NVTX_EVENTS set globalTid = globalTid + (1 << 24)",
    );
    let found = findings(&report);
    assert_eq!(found[0].0, "process_untraced", "{found:?}");
    assert!(found[0].1.contains("python (process 507), and no call of CUDA"), "{found:?}");
}

#[test]
fn exports_without_a_table_or_column_of_the_host_are_read_without_it() {
    for sql in [
        "drop table SCHED_EVENTS; drop table COMPOSITE_EVENTS",
        "alter table SCHED_EVENTS drop column cpu; drop table COMPOSITE_EVENTS",
        "delete from SCHED_EVENTS; delete from COMPOSITE_EVENTS",
    ] {
        assert_eq!(report(sql)["host_cpu"], Value::Null, "{sql}");
    }
    let report = report("drop table SAMPLING_CALLCHAINS; drop table ThreadNames");
    assert!(rows(&report, "functions").is_empty());
    assert_eq!(ids(&report), ["launching_thread_displaced"]);
}

#[test]
fn the_rows_of_cores_have_the_times_of_each_thread_and_the_samples_of_the_launching_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(CAPTURE, &path, "").unwrap();
    let report = analysed(&path);
    let trace = Trace { timeline: Some(parse::timeline(&[path]).unwrap()), ..Trace::default() };
    let written = perfetto::write(&trace, &Analysis::default(), Vec::new()).unwrap();
    let slices = decode(&written).slices;
    let of_cores: Vec<_> = slices.iter().filter(|it| it.row.starts_with("core ")).collect();
    for thread in rows(&report, "threads") {
        let id = thread["thread"].as_u64().unwrap();
        let is_of_thread = |args: &[(String, Wire)]| {
            args.iter().any(|it| *it == ("thread id".to_owned(), Wire::Number(id)))
        };
        let of_thread = of_cores.iter().filter(|it| is_of_thread(&it.args));
        let ns: u64 = of_thread.map(|it| it.times.1 - it.times.0).sum();
        let ms = thread["on_core_ms"].as_f64().unwrap();
        assert!((ns as f64 / 1e6 - ms).abs() < 1e-3, "thread {id}: {ns} ns, {ms} ms");
    }
    let sampled = slices.iter().filter(|it| it.row == "samples of thread 507").count() as u64;
    let launching = rows(&report, "threads").into_iter().find(|it| it["thread"] == 507).unwrap();
    assert_eq!(Some(sampled), launching["samples"].as_u64());
}
