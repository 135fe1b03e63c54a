//! Captures damaged with SQL: losses are reported, and no figures are computed from the rest.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::captures::{E2E, MOCK, capture};

/// Exit code, output and errors of `llmprof analyze` for a capture changed by `sql`.
fn analyze(name: &str, sql: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.sqlite");
    capture(name, &path, sql).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_llmprof"))
        .arg("analyze")
        .arg(&path)
        .args(more)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn report(name: &str, sql: &str, more: &[&str]) -> Value {
    let (code, report, error) = analyze(name, sql, &[&["--format", "json"], more].concat());
    assert_eq!(code, Some(0), "{error}");
    serde_json::from_str(&report).unwrap()
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().unwrap()
}

fn findings<'a>(of: &'a Value, id: &str) -> Vec<&'a Value> {
    list(of, "findings").iter().filter(|it| it["id"] == id).collect()
}

fn row<'a>(of: &'a Value, table: &str, stage: &str) -> Option<&'a Value> {
    list(of, table).iter().find(|it| it["stage"] == stage)
}

#[test]
fn a_capture_that_lost_nearly_all_kernels_is_partial_and_has_no_gpu_figures() {
    let lost = "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 500 != 0";
    let of = report(MOCK, lost, &[]);
    assert_eq!(of["state"], "partial");
    for stage in ["prefill", "decode_all"] {
        assert!(
            findings(&of, "kernels_lost")
                .iter()
                .any(|it| it["severity"] == "critical" && it["evidence"]["stage"] == stage)
        );
        assert_eq!(row(&of, "stage_gpu", stage), None, "{stage}");
        assert!(
            row(&of, "stage_kernels", stage)
                .is_none_or(|it| it["kernel_ms"].is_null() && it["busy_ms"].is_null())
        );
    }
    let absent = |it: &Value| it["share_pct"].is_null();
    assert!(list(&of, "kernels_topk").iter().filter(|it| it["stage"] != "").all(absent));
    assert!(list(&of, "operators").iter().all(|it| it["device"].is_null()));
    assert!(list(&of, "regions").is_empty() && of["decode_step"].is_null());
    let complete = report(MOCK, "", &[]);
    assert_eq!(
        (complete["state"].as_str(), findings(&complete, "kernels_lost").len()),
        (Some("succeeded"), 0)
    );
    assert!(
        row(&complete, "stage_gpu", "decode_all")
            .is_some_and(|it| it["busy_pct"].as_f64().unwrap() > 0.0)
    );
}

#[test]
fn only_the_stage_that_lost_kernels_has_no_figures() {
    let inside = "select r.correlationId from CUPTI_ACTIVITY_KIND_RUNTIME r, NVTX_EVENTS e
         where r.start between e.start and e.end
        and coalesce(e.text, (select value from StringIds where id = e.textId)) = 'decode_all'";
    let lost = format!(
        "delete from CUPTI_ACTIVITY_KIND_KERNEL where correlationId in ({inside}) and rowid % 2"
    );
    let of = report(MOCK, &lost, &[]);
    let stages: Vec<_> =
        findings(&of, "kernels_lost").iter().map(|it| it["evidence"]["stage"].clone()).collect();
    assert!(
        stages.contains(&"decode_all".into()) && !stages.contains(&"prefill".into()),
        "{stages:?}"
    );
    assert!(
        row(&of, "stage_gpu", "prefill").is_some() && row(&of, "stage_gpu", "decode_all").is_none()
    );
}

#[test]
fn without_the_cuda_api_there_is_no_busy_time() {
    let of = report(MOCK, "drop table CUPTI_ACTIVITY_KIND_RUNTIME", &[]);
    assert_eq!(findings(&of, "kernels_unattributed").len(), 1);
    assert!(findings(&of, "kernels_lost").is_empty() && list(&of, "stage_gpu").is_empty());
}

#[test]
fn graphs_traced_as_a_whole_are_not_reported_as_lost() {
    let whole = "create table CUPTI_ACTIVITY_KIND_GRAPH_TRACE as
              select min(start) as start, max(end) as end, deviceId, streamId,
                correlationId, globalPid, 7 as graphId
              from CUPTI_ACTIVITY_KIND_KERNEL where graphNodeId is not null group by correlationId;
        delete from CUPTI_ACTIVITY_KIND_KERNEL where graphNodeId is not null";
    assert!(findings(&report("torch-cuda-graph-node", whole, &[]), "kernels_lost").is_empty());
    let lost =
        "delete from CUPTI_ACTIVITY_KIND_KERNEL where graphNodeId is not null and rowid % 3 = 0";
    assert!(!findings(&report("torch-cuda-graph-node", lost, &[]), "kernels_lost").is_empty());
}

#[test]
fn a_capture_that_lost_kernels_is_not_aligned() {
    let dir = TempDir::new().unwrap();
    capture(
        MOCK,
        &dir.path().join("mock.sqlite"),
        "delete from CUPTI_ACTIVITY_KIND_KERNEL where rowid % 2",
    )
    .unwrap();
    capture(E2E, &dir.path().join("e2e.sqlite"), "").unwrap();
    let align = |mock: &str| {
        let path = |name: &str| dir.path().join(name).display().to_string();
        let args = [
            "align",
            "--mock",
            &path(mock),
            "--e2e",
            &path("e2e.sqlite"),
            "--range",
            "decoder.self_attn",
        ]
        .map(str::to_owned);
        Command::new(env!("CARGO_BIN_EXE_llmprof")).args(args).output().unwrap().status.code()
    };
    assert_eq!(align("mock.sqlite"), Some(2));
}

/// Removes the end of a prefill inside `measured`.
const OPEN_PREFILL: &str = "update NVTX_EVENTS set end = null where rowid = (
    select max(rowid) from NVTX_EVENTS where eventType = 59
    and coalesce(text, (select value from StringIds where id = textId)) = 'prefill')";

#[test]
fn a_stage_without_an_end_takes_no_time_from_the_next_one() {
    let closed = report(E2E, "", &["--include-ranges", "measured"]);
    let of = report(E2E, OPEN_PREFILL, &["--include-ranges", "measured"]);
    let found = findings(&of, "range_unclosed");
    assert!(
        found.len() == 1 && found[0]["message"].as_str().unwrap().contains("prefill"),
        "{found:?}"
    );
    let launches = |of: &Value, stage: &str| {
        row(of, "stage_kernels", stage).map(|it| it["launches"].as_u64().unwrap())
    };
    assert_eq!(launches(&of, "decode_all"), launches(&closed, "decode_all"));
    let (open, bounded) =
        (launches(&of, "prefill").unwrap(), launches(&closed, "prefill").unwrap());
    assert!(
        open >= bounded && open < bounded + 40,
        "{open} launches, and {bounded} with the range's end"
    );
    assert!(
        !list(&of, "stages").iter().any(|it| it["stage"] == "prefill"),
        "its length is unknown"
    );
}

#[test]
fn an_unknown_or_shared_range_exits_with_2_and_the_names() {
    for (more, expected) in [
        (&["--include-ranges", "measurd"][..], "no range named \"measurd\"; available: measured, "),
        (&["--exclude-ranges", "prefil"], "no range named \"prefil\"; available: prefill, "),
        (
            &["--stage", "prefill=measured", "--stage", "decode_all=measured"],
            "range \"measured\" is named for two stages, prefill and decode_all; name it for one",
        ),
        (&["--stage", "decode=decode_al"], "no range named \"decode_al\"; available: decode_all, "),
    ] {
        let (code, report, error) = analyze(MOCK, "", more);
        assert_eq!((code, report.as_str()), (Some(2), ""), "{error}");
        let is_short = error.lines().count() == 1 && error.len() < 500;
        assert!(error.contains(expected) && is_short, "{error}");
    }
}

#[test]
fn work_outside_the_included_ranges_is_last_in_every_table() {
    let of = report(E2E, "", &["--include-ranges", "measured"]);
    assert!(
        list(&of, "kernels_topk")
            .iter()
            .all(|it| ["prefill", "decode_all", ""].contains(&it["stage"].as_str().unwrap()))
    );
    let between = row(&of, "stage_kernels", "").map_or(0, |it| it["launches"].as_u64().unwrap());
    assert!(between < 100, "{between} kernels in the range and in no stage");
    let outside: Vec<_> = list(&of, "stage_kernels")
        .iter()
        .filter(|it| it["stage"] == "outside the included ranges")
        .collect();
    let all: u64 =
        list(&of, "stage_kernels").iter().map(|it| it["launches"].as_u64().unwrap()).sum();
    assert!(outside.len() == 1 && all == 18_262, "{all} kernels");
    let operators = list(&of, "operators");
    let last = operators.iter().position(|it| it["stage"] == "outside the included ranges");
    assert!(last.is_none_or(|at| at + 1 == operators.len()));
}

#[test]
fn the_cold_first_prefill_of_a_capture_without_warm_up_has_its_own_row() {
    let of = report("hf-deepseek-decoder", "", &[]);
    let cold = findings(&of, "cold_first_instance");
    assert!(cold.iter().any(|it| it["evidence"]["stage"] == "prefill"), "{cold:?}");
    let prefill = row(&of, "stages", "prefill").unwrap();
    assert!(
        (prefill["ms"]["mean"].as_f64().unwrap() - 39.7).abs() < 0.1 && prefill["ms"]["n"] == 1,
        "{prefill}"
    );
    let note =
        list(&of, "stage_notes").iter().find(|it| it["part"] == "cold first instance").unwrap();
    assert!((note["ms"]["mean"].as_f64().unwrap() - 881.9).abs() < 1.0, "{note}");
    let (_, text, _) = analyze("hf-deepseek-decoder", "", &[]);
    assert!(text.contains("prefill, cold first instance"));
}

#[test]
fn kernels_of_a_capture_are_separated_by_significant_full_names() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let report = report("hf-deepseek-decoder", "", &["--out", out.to_str().unwrap()]);
    let full = std::fs::read_to_string(out.join("kernels_full.csv")).unwrap();
    assert!(full.starts_with("stage,full_name,kernel_name,"));
    let full = list(&report, "kernels_full");
    for it in list(&report, "kernels_topk") {
        let same =
            |of: &&Value| of["stage"] == it["stage"] && of["kernel_name"] == it["kernel_name"];
        let times: Vec<i64> =
            full.iter().filter(same).map(|it| it["launch_ns"]["total"].as_i64().unwrap()).collect();
        let all: i64 = times.iter().sum();
        assert!(it["name_variants"] == 1 || times.iter().all(|ns| 10 * ns < all), "{it}");
    }
}
