//! Runs on a session under the real nsys: windows of one server, and the end of the session.

use std::{fs, path::Path, time::Instant};

use rusqlite::Connection;
use serde_json::{Value, json};

use super::commands::{finding, json, nsys, read, service};
use crate::{
    load::llm_server::{command_line, installed},
    support::{
        service::{PATIENCE, Service, pause, processes_of},
        session::{close, end, fake_server, start, submit_on, try_submit, wait_for},
    },
};

/// Median end-to-end latency of the requests of a pass, ms.
async fn median(service: &Service, id: &str, pass: &str) -> f64 {
    let table = service.json(&format!("/runs/{id}/tables/request_latency?limit=200")).await;
    let rows = table["rows"].as_array().unwrap().clone();
    let of_pass = |row: &&Value| row["pass"] == pass && row["metric"] == "end_to_end";
    let row = rows.iter().find(of_pass).unwrap_or_else(|| panic!("{pass}: {rows:#?}"));
    row["p50_ms"].as_f64().unwrap()
}

/// Mean duration of the ranges of each stage, ms, by plain SQL: vLLM names a step by its numbers of
/// prompts and generations.
fn ranges_by_sql(export: &Path) -> [(&'static str, f64); 2] {
    let export = Connection::open(export).unwrap();
    let sql = "select avg(end - start) / 1e6 from NVTX_EVENTS left join StringIds
        on StringIds.id = textId where coalesce(text, value) like ?
        and end < (select max(duration) from ANALYSIS_DETAILS)";
    [("prefill", "execute_context_1%"), ("decode_all", "execute_context_0%")]
        .map(|(stage, name)| (stage, export.query_row(sql, [name], |row| row.get(0)).unwrap()))
}

/// Each pass before and after the window sent `requests` requests, an even number: the middle two
/// `end_ms` of the pass without a profiler enclose its median.
async fn check_requests(service: &Service, id: &str, requests: usize) -> [f64; 2] {
    let csv = read(service, id, "requests.csv");
    for pass in ["unprofiled", "before_window", "after_window"] {
        let of_pass = csv.lines().filter(|line| line.starts_with(&format!("{pass},")));
        assert_eq!(of_pass.count(), requests, "{pass}: {csv}");
    }
    let mut took: Vec<f64> = csv
        .lines()
        .filter(|line| line.starts_with("unprofiled,"))
        .map(|line| line.split(',').nth(7).unwrap().parse().unwrap())
        .collect();
    took.sort_by(f64::total_cmp);
    let p50 = median(service, id, "unprofiled").await;
    let (below, above) = (took[took.len() / 2 - 1], took[took.len() / 2]);
    assert!(below - 1e-6 <= p50 && p50 <= above + 1e-6, "{p50} of {took:?}");
    [p50, median(service, id, "traced").await]
}

/// Plain SQL agrees with the stages of the report, which has the cost of the window and its proof.
fn check_report(service: &Service, id: &str) {
    let report = json(service, id, "report.json");
    let ids: Vec<&str> =
        report["findings"].as_array().unwrap().iter().filter_map(|it| it["id"].as_str()).collect();
    assert!(ids.contains(&"window_cost") && ids.contains(&"window_proven"), "{ids:?}");
    let stage_ms = &report["aggregates"]["stage_ms"];
    for (stage, mean) in ranges_by_sql(&service.run_dir(id).join("nsys/run.sqlite")) {
        // On a busy host the first instance may be a cold one, which the mean leaves out.
        let notes = report["stage_notes"].as_array().unwrap();
        let is_cold = |it: &&Value| it["part"] == "cold first instance" && it["inside"] == stage;
        let cold = notes.iter().find(is_cold).map(|it| it["ms"]["mean"].as_f64().unwrap());
        let [n, warm] = ["n", "mean"].map(|it| stage_ms[stage][it].as_f64().unwrap());
        let reported = cold.map_or(warm, |cold| (warm * n + cold) / (n + 1.0));
        // Steps sleep 5 ms; what they take beyond is the host's load.
        assert!((reported / mean - 1.0).abs() < 1e-9 && mean >= 5.0, "{mean}: {stage_ms:#}");
    }
}

#[tokio::test]
async fn under_the_real_nsys_three_windows_on_one_session_agree() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake_server(), &nsys);
    let session = start(&service, json!({ "label": "three" })).await;
    let ready = wait_for(&service, &session, &["ready"]).await;
    assert_eq!((&ready["devices"], &ready["command"]), (&json!(["cpu"]), &json!("fake")));
    let server = processes_of(&session);
    assert!(!server.is_empty());
    // Another run for the device waits for the end of the session.
    let other = service.submit(json!({})).await;
    let waiting = service.json("/queue").await["waiting"][0].clone();
    let reason = format!("no estimate: the session {session} holds cpu until ");
    assert!(waiting["unknown_because"].as_str().unwrap().starts_with(&reason), "{waiting:#}");
    // The second and the third wait for the first.
    let mut runs = Vec::new();
    for requests in [8, 8, 12] {
        let params = json!({ "requests": requests });
        runs.push((submit_on(&service, &session, params, json!({})).await, requests));
    }
    let (mut medians, mut reports) = (Vec::new(), Vec::new());
    for (at, (id, requests)) in runs.iter().enumerate() {
        let run = service.end(id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(run["spec"]["subject"]["call"]["session"], session.as_str());
        let window = json(&service, id, "nsys/window.json");
        assert!(window["recorded_s"].as_f64() >= Some(1.0), "{window}");
        assert_eq!(window["is_cut"], false);
        let attached = finding(&run, "session_attached").unwrap();
        assert_eq!(attached["evidence"]["earlier runs"], at.to_string(), "{attached}");
        assert!(finding(&run, "window_failed").is_none(), "{:#}", run["findings"]);
        check_report(&service, id);
        medians.push(check_requests(&service, id, *requests).await);
        reports.push(fs::read(service.run_dir(id).join("nsys/run.nsys-rep")).unwrap());
        assert_eq!(processes_of(id), [""; 0]);
    }
    // Requests sleep 20 ms.
    assert!(medians.iter().flatten().all(|it| *it >= 20.0), "{medians:?}");
    assert!(reports[0] != reports[1] && reports[1] != reports[2]);
    // nsys has helpers of its own for a moment after a window.
    let started = Instant::now();
    while processes_of(&session) != server {
        let left = processes_of(&session);
        assert!(started.elapsed() < PATIENCE, "the server alone stays: {server:?}, {left:?}");
        pause().await;
    }
    assert_eq!(service.json(&format!("/runs/{other}")).await["state"], "queued");
    let shown = wait_for(&service, &session, &["ready"]).await;
    assert_eq!(shown["runs"], 3, "{shown:#}");

    assert_eq!(end(&service, &session).await, 204);
    let ended = wait_for(&service, &session, &["ended"]).await;
    assert_eq!(ended["message"], "ended on request", "{ended:#}");
    assert_eq!(processes_of(&session), [""; 0]);
    assert_eq!(fs::read_dir(data.path().join("sessions")).unwrap().count(), 0);
    let (status, answer) = try_submit(&service, &session, json!({}), json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("session_ended")), "{answer}");
    let run = service.end(&other).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
}

#[tokio::test]
async fn under_the_real_nsys_a_real_server_has_several_windows_in_one_run() {
    let (Some(nsys), Some(folder)) = (nsys(), installed()) else { return };
    let (program, args) = command_line(&folder, "{port}");
    let args: Vec<String> = args.iter().map(|arg| format!("{arg:?}")).collect();
    let command = format!(
        "[commands.fake]\ndescription = 'llama.cpp'\nkind = 'server'\n\
         program = {program:?}\nargs = [{}]\n\
         ready = {{ url = 'http://127.0.0.1:{{port}}/health', within_s = 120 }}\n\
         [commands.fake.load]\nconcurrency = 4\nrequests = 8\nnew_tokens = 8\n\
         prompt_tokens = 16\nbody = {{ ignore_eos = true }}\n",
        args.join(", ")
    );
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &command, &nsys);
    let session = start(&service, json!({})).await;
    let more = json!({ "profiling": { "nsys": { "repeats": 3 } } });
    let id = submit_on(&service, &session, json!({}), more).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let folders = ["nsys", "nsys/window-2", "nsys/window-3"];
    let windows = folders.map(|it| json(&service, &id, &format!("{it}/window.json")));
    for (folder, window) in folders.iter().zip(&windows) {
        assert!(window["recorded_s"].as_f64() >= Some(1.0), "{window}");
        let file = |name: &str| service.run_dir(&id).join(folder).join(name);
        assert!(fs::metadata(file("run.nsys-rep")).unwrap().len() > 0);
        assert!(fs::metadata(file("run.sqlite")).unwrap().len() > 0);
        assert!(file("requests-after.jsonl").exists());
    }
    close(&service, &session).await;
}

#[tokio::test]
async fn under_the_real_nsys_a_run_is_cancelled_in_its_window_and_the_next_has_one() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake_server(), &nsys);
    let session = start(&service, json!({})).await;
    let first = submit_on(&service, &session, json!({}), json!({})).await;
    let next = submit_on(&service, &session, json!({}), json!({})).await;
    let in_window = |event: &Value| {
        event["event"] == "progress" && event["step"] == "nsys" && event["phase"] == "measure"
    };
    service.follow(&first, in_window).await;
    service.post(&format!("/runs/{first}/cancel"), &json!({})).await;
    assert_eq!(service.end(&first).await["state"], "cancelled");
    let run = service.end(&next).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    wait_for(&service, &session, &["ready"]).await;
    close(&service, &session).await;
}

#[tokio::test]
async fn under_the_real_nsys_a_run_that_records_at_the_end_of_a_lifetime_ends_first() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    // More steps than a window of the maximum length has.
    let window = "window = { max_s = 14, min_steps = { prefill = 0, decode = 100000 } }";
    let targets = fake_server().replace("window = { max_s = 3 }", window);
    let service = service(data.path(), &targets, &nsys);
    let session = start(&service, json!({ "lifetime_s": 10 })).await;
    let id = submit_on(&service, &session, json!({}), json!({})).await;
    let waits = submit_on(&service, &session, json!({}), json!({})).await;
    wait_for(&service, &session, &["ending"]).await;
    let (status, answer) = try_submit(&service, &session, json!({}), json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("session_ended")), "{answer}");
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let ended = wait_for(&service, &session, &["ended"]).await;
    assert_eq!(ended["message"], "its lifetime of 10 s has passed");
    let run = service.end(&waits).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(finding(&run, "session_ended").is_some(), "{run:#}");
    assert_eq!(processes_of(&session), [""; 0]);
}
