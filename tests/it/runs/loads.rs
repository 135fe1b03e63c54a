//! Servers under a load of llmprof's own client: requests, percentiles and failures of a run.

use llmprof_report::format::figure;
use serde_json::{Value, json};

use super::commands::{finding, json, nsys, read, service, submit};
use crate::{
    load::llm_server::{command_line, installed},
    support::service::{Service, processes_of},
};

const FAKE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/llm-server/fake.py");

/// A server without a model, under two loads at a time of eight requests.
fn fake(mode: &str) -> String {
    format!(
        "[commands.fake]\ndescription = 'A fake LLM'\nkind = 'server'\nprogram = 'python3'\n\
         args = ['{FAKE}', '{{port}}', '{mode}']\n\
         ready = {{ url = 'http://127.0.0.1:{{port}}/', within_s = 60 }}\n\
         load = {{ concurrency = 2, requests = '{{requests}}', new_tokens = 4, timeout = 20 }}\n\
         params.requests = {{ type = 'int', min = 1, max = 99, default = 8, description = 'n' }}\n"
    )
}

async fn table(service: &Service, id: &str, name: &str) -> Vec<Value> {
    let table = service.json(&format!("/runs/{id}/tables/{name}?limit=200")).await;
    table["rows"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_run_of_a_server_has_each_request_of_its_load_and_their_percentiles() {
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &fake("whole"), "none");
    let id = submit(&service, "fake", json!({ "requests": 6 }), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let rows = table(&service, &id, "requests").await;
    assert_eq!(rows.len(), 12, "two repeats of six: the warm-up does not count");
    for row in &rows {
        assert_eq!((&row["pass"], &row["failure"]), (&json!("unprofiled"), &Value::Null));
        assert_eq!((&row["prompt_tokens"], &row["output_tokens"]), (&json!(9), &json!(4)));
        assert!(row["first_token_ms"].as_f64() > Some(5.0), "{row}");
    }
    let latency = table(&service, &id, "request_latency").await;
    let of = |metric: &str| latency.iter().find(|row| row["metric"] == metric).unwrap().clone();
    assert_eq!(of("end_to_end")["n"], 12);
    assert!(of("end_to_end")["p50_ms"].as_f64() > Some(20.0), "{latency:?}");
    assert!(of("time_per_output_token")["p99_ms"].as_f64() > Some(5.0), "{latency:?}");
    for list in ["requests", "request_latency"] {
        let report = json(&service, &id, "report.json");
        assert!(!report[list].as_array().unwrap().is_empty(), "{list}");
    }
    assert_eq!(read(&service, &id, "requests.csv").lines().count(), 13);
    let report = read(&service, &id, "report.md");
    let median = figure(of("time_to_first_token")["p50_ms"].as_f64().unwrap());
    let sentence = format!("The first token of a request takes {median} ms: the median of 12");
    assert!(report.contains("Request Latency") && report.contains(&sentence), "{report}");
    let ttft = &service.json("/runs").await["runs"][0]["headline"]["ttft"];
    assert_eq!(*ttft, of("time_to_first_token")["p50_ms"]);
    assert!(finding(&run, "requests_failed").is_none());
}

#[tokio::test]
async fn failed_requests_are_a_finding_and_a_load_without_a_response_fails_the_run() {
    let data = tempfile::tempdir().unwrap();
    let fails = service(data.path(), &fake("fails"), "none");
    let id = submit(&fails, "fake", json!({}), json!({ "warmup": 0 })).await;
    let run = fails.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let found = finding(&run, "requests_failed").unwrap();
    assert!(found["evidence"]["reasons"].as_str().unwrap().starts_with("status: "), "{found}");

    for (mode, reason) in [("garbage", "unreadable"), ("dies", "exited with code 7")] {
        let data = tempfile::tempdir().unwrap();
        let service = service(data.path(), &fake(mode), "none");
        let id = submit(&service, "fake", json!({}), json!({ "warmup": 0 })).await;
        let run = service.end(&id).await;
        assert_eq!((&run["state"], &run["failed_step"]), (&json!("failed"), &json!("baseline")));
        assert!(run["message"].as_str().unwrap().contains(reason), "{run:#}");
        assert_eq!(processes_of(&id), [""; 0]);
    }
}

#[tokio::test]
async fn under_the_real_nsys_a_real_server_is_recorded_in_a_window_of_its_load() {
    let (Some(nsys), Some(folder)) = (nsys(), installed()) else { return };
    let (program, args) = command_line(&folder, "{port}");
    let args: Vec<String> = args.iter().map(|arg| format!("{arg:?}")).collect();
    let command = format!(
        "[commands.llama]\ndescription = 'llama.cpp'\nkind = 'server'\n\
         program = {program:?}\nargs = [{}]\n\
         ready = {{ url = 'http://127.0.0.1:{{port}}/health', within_s = 120 }}\n\
         [commands.llama.load]\nconcurrency = 4\nrequests = 8\nnew_tokens = 8\n\
         prompt_tokens = 16\nbody = {{ ignore_eos = true }}\n",
        args.join(", ")
    );
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &command, &nsys);
    let more = json!({ "mode": "light", "warmup": 1, "repeats": 1 });
    let id = submit(&service, "llama", json!({}), more).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let requests = read(&service, &id, "requests.csv");
    for pass in ["unprofiled", "before_window", "after_window"] {
        let of_pass: Vec<_> =
            requests.lines().filter(|line| line.starts_with(&format!("{pass},"))).collect();
        assert_eq!(of_pass.len(), 8, "{pass}: {requests}");
        assert!(of_pass.iter().all(|line| line.contains(",8,8,length,200,")), "{of_pass:?}");
    }
    // More requests than the load has: it runs until the window has ended.
    assert!(requests.lines().filter(|line| line.starts_with("traced,")).count() > 8);
    let window = json(&service, &id, "nsys/window.json");
    assert!(window["recorded_s"].as_f64() >= Some(1.0), "{window}");
    assert_eq!(window["is_cut"], false);
    let report = json(&service, &id, "report.json");
    let ids: Vec<&str> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_str().unwrap())
        .collect();
    assert!(ids.contains(&"window_cost") && ids.contains(&"window_unproven"), "{ids:?}");
    assert!(!ids.contains(&"window_failed") && !ids.contains(&"overhead_unknown"), "{ids:?}");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn under_the_real_nsys_a_server_that_dies_in_its_window_leaves_nothing() {
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let command = fake("whole").replace("'{port}', 'whole'", "'{port}', '{mode}'")
        + "[commands.fake.params.mode]\ntype = 'enum'\nvalues = ['whole', 'dies-late']\n\
           default = 'whole'\ndescription = 'm'\n";
    let service = service(data.path(), &command, &nsys);
    let more = json!({ "mode": "light", "warmup": 0, "repeats": 1 });
    let params = json!({ "mode": "dies-late", "requests": 4 });
    let id = submit(&service, "fake", params, more).await;
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("partial"), &Value::Null), "{run:#}");
    let steps = run["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["step"] == "nsys").unwrap();
    let message = step["message"].as_str().unwrap();
    assert!(message.contains("the server") || message.contains("Connection refused"), "{step:#}");
    assert_eq!(processes_of(&id), [""; 0]);
}

/// A fake server with a profiler of its own.
fn gated(mode: &str) -> String {
    fake(mode).replace(&format!("'{mode}']"), &format!("'{mode}', '{{out}}']"))
        + "[commands.fake.gate]\nstart = 'http://127.0.0.1:{port}/start_profile'\n\
           stop = 'http://127.0.0.1:{port}/stop_profile'\nbody = { num_steps = 40 }\n\
           collect = '{out}/*.json*'\nwithin_s = 3\n"
}

#[tokio::test]
async fn a_server_with_a_gate_is_recorded_by_its_own_profiler() {
    let data = tempfile::tempdir().unwrap();
    let service = service(data.path(), &gated("gate"), "none");
    let more = json!({ "mode": "light", "warmup": 0, "repeats": 1 });
    let id = submit(&service, "fake", json!({}), more).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let report = json(&service, &id, "report.json");
    assert_eq!(report["engine_steps"].as_array().unwrap().len(), 34);
    let findings = report["findings"].as_array().unwrap();
    let proven = findings.iter().find(|it| it["id"] == "window_proven").unwrap();
    assert_eq!(
        proven["message"],
        "The window contains 4 prefill and 30 decode steps from the middle of the load."
    );
    assert!(findings.iter().any(|it| it["id"] == "window_by_gate"), "{findings:#?}");
    assert!(read(&service, &id, "pytorch/trace-1.json").contains("execute_context"));
    let requests = read(&service, &id, "requests.csv");
    for pass in ["before_window,", "traced,", "after_window,"] {
        assert!(requests.lines().any(|line| line.starts_with(pass)), "{pass} {requests}");
    }
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn a_gate_that_fails_is_a_finding_or_a_failure_and_a_trace_is_kept() {
    let more = json!({ "mode": "light", "warmup": 0, "repeats": 1 });
    let data = tempfile::tempdir().unwrap();
    let fails = service(data.path(), &gated("stop-fails"), "none");
    let id = submit(&fails, "fake", json!({}), more.clone()).await;
    let run = fails.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let found = finding(&run, "window_failed").unwrap();
    assert!(found["evidence"]["reason"].as_str().unwrap().contains("responded with 500"));
    assert!(read(&fails, &id, "pytorch/trace-1.json").contains("execute_context"));
    for (mode, reason) in [
        ("start-fails", "the server's profiler did not start: http://127.0.0.1:"),
        ("no-trace", "no new trace matches "),
    ] {
        let data = tempfile::tempdir().unwrap();
        let service = service(data.path(), &gated(mode), "none");
        let id = submit(&service, "fake", json!({}), more.clone()).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "partial", "{mode}: {run:#}");
        let steps = run["steps"].as_array().unwrap();
        let step = steps.iter().find(|step| step["step"] == "nsys").unwrap();
        assert!(step["message"].as_str().unwrap().starts_with(reason), "{step:#}");
        assert_eq!(processes_of(&id), [""; 0]);
    }
}
