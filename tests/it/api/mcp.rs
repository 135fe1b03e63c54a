//! Tools of agents at `/mcp`: access, limits, and what a tool may do.
//!
//! The protocol itself is tested with its reference clients (`scripts/check-agents.sh`).

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use llmprof_core::domain::state::RunState;
use llmprof_report::headline;
use llmprof_service::{config::TokenPolicy, store::Role};
use serde_json::{Value, json};

use super::access::{api, token};
use crate::api::{
    diff::golden,
    router::{Answer, Api},
};

const HEADERS: [(&str, &str); 2] =
    [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];

/// A request of the protocol of 2025-06-18.
async fn send(api: &Api, token: &str, body: impl Into<Body>) -> Answer {
    let of_request =
        [("host", "localhost"), ("authorization", token), ("mcp-protocol-version", "2025-06-18")];
    api.ask(Method::POST, "/mcp", &[&HEADERS[..], &of_request].concat(), body).await
}

/// The result of a call of a tool.
async fn call(api: &Api, token: &str, tool: &str, arguments: Value) -> Value {
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": tool, "arguments": arguments } });
    let answer = send(api, token, request.to_string()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

/// The text of a tool's error.
fn error(answer: &Value) -> &str {
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    result["content"][0]["text"].as_str().unwrap()
}

async fn guarded() -> Api {
    api(|access| access.tokens = TokenPolicy::Required).await
}

#[tokio::test]
async fn an_agent_needs_a_token_and_may_do_what_its_token_may() {
    let api = guarded().await;
    assert_eq!(send(&api, "", "{}").await.error(), (401, "unauthenticated".into()));
    assert_eq!(send(&api, "Bearer none", "{}").await.error(), (401, "unauthenticated".into()));
    let viewer = token(&api, "vera", Role::Viewer).await;
    let submitter = token(&api, "ann", Role::Submitter).await;
    let run = json!({ "model": "deepseek-ocr-tiny" });
    let refused = call(&api, &viewer, "submit_run", run.clone()).await;
    assert!(error(&refused).starts_with("forbidden: role submitter required"), "{refused}");
    let queued = call(&api, &submitter, "submit_run", run).await;
    let id = queued["result"]["structuredContent"]["run_id"].as_str().unwrap().to_owned();
    let seen = call(&api, &viewer, "find_runs", json!({})).await;
    let run = &seen["result"]["structuredContent"]["runs"][0];
    assert_eq!((&run["run_id"], &run["owner"]), (&json!(id), &json!("ann")));
    let other = token(&api, "bob", Role::Submitter).await;
    let refused = call(&api, &other, "cancel_run", json!({ "run_id": id })).await;
    assert!(error(&refused).contains("only its owner or an admin"), "{refused}");
    let cancelled = call(&api, &submitter, "cancel_run", json!({ "run_id": id })).await;
    assert_eq!(cancelled["result"]["structuredContent"]["state"], "cancelled");
}

#[tokio::test]
async fn a_page_of_another_site_cannot_use_the_tools() {
    let api = Api::new().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    let ask = async |headers: &[(&str, &str)]| {
        api.ask(Method::POST, "/mcp", &[&HEADERS[..], headers].concat(), list.clone()).await
    };
    let own = ask(&[("host", "127.0.0.1:8080")]).await;
    assert_eq!(own.json()["result"]["tools"].as_array().unwrap().len(), 10);
    let rebound = ask(&[("host", "evil.example")]).await;
    assert_eq!(rebound.error(), (421, "misdirected_request".into()));
    let cross = ask(&[("host", "127.0.0.1:8080"), ("origin", "https://evil.example")]).await;
    assert_eq!(cross.error(), (403, "cross_origin".into()));
    let named = Api::configured(|config| config.server.hosts = vec!["gpu-host".into()]).await;
    let asked = named
        .ask(Method::POST, "/mcp", &[&HEADERS[..], &[("host", "gpu-host:8080")]].concat(), list)
        .await;
    assert_eq!(asked.status, StatusCode::OK, "a listed host: {}", asked.text());
}

#[tokio::test]
async fn a_request_is_small_json_and_posted() {
    let api = Api::new().await;
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(1 << 18));
    assert_eq!(send(&api, "", large).await.error(), (413, "body_too_large".into()));
    let form = [("content-type", "text/plain")];
    let text = api.ask(Method::POST, "/mcp", &form, "{}").await;
    assert_eq!(text.error(), (415, "unsupported_media_type".into()));
    let stream = api.ask(Method::GET, "/mcp", &HEADERS, Body::empty()).await;
    assert_eq!(stream.error(), (405, "method_not_allowed".into()));
    let broken = send(&api, "", "{\"jsonrpc\"").await;
    assert!(
        broken.status.is_client_error() && broken.text().lines().count() == 1,
        "{}",
        broken.text()
    );
}

#[tokio::test]
async fn a_message_that_is_not_a_request_and_wrong_params_have_the_codes_of_json_rpc() {
    let api = Api::new().await;
    let ping = json!({ "jsonrpc": "2.0", "id": 3, "method": "ping" });
    let request = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": params }).to_string()
    };
    let (id, none) = (json!(3), Value::Null);
    for (body, status, id, code) in [
        (String::new(), 400, &none, -32700),
        ("{".to_owned(), 400, &none, -32700),
        (json!([ping, ping]).to_string(), 400, &none, -32600),
        (json!(7).to_string(), 400, &none, -32600),
        (json!({ "jsonrpc": "2.0", "id": 3 }).to_string(), 200, &id, -32600),
        (request("tools/call", json!({ "name": "table", "arguments": "x" })), 200, &id, -32602),
        (request("tools/call", json!({ "name": "table", "arguments": [] })), 200, &id, -32602),
        (request("tools/call", json!({ "arguments": {} })), 200, &id, -32602),
        (request("tools/call", json!({ "name": "none" })), 200, &id, -32602),
        (request("tools/list", json!([])), 200, &id, -32602),
        (request("no/such", json!({})), 200, &id, -32601),
    ] {
        let answer = send(&api, "", body.clone()).await;
        assert_eq!(answer.status.as_u16(), status, "{body}: {}", answer.text());
        let answer = answer.json();
        assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (id, Some(code)), "{body}");
    }
    let wrong = call(&api, "", "table", json!({ "run_id": 3 })).await;
    assert!(error(&wrong).contains("run_id"), "an argument of a tool is for the agent: {wrong}");
}

#[tokio::test]
async fn errors_of_tools_are_one_line_with_the_code_of_the_api() {
    let api = Api::new().await;
    let missing = json!({ "run_id": "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10" });
    for (tool, arguments, text) in [
        ("ledger", missing.clone(), "run_not_found: "),
        ("wait_for_run", json!({ "run_id": "latest" }), "find_runs lists the ids"),
        ("wait_for_run", json!({}), "missing field `run_id`"),
        ("table", json!({ "run_id": "a", "tabel": "b" }), "unknown field `tabel`"),
        ("table", json!({ "run_id": missing["run_id"], "table": "../x" }), "is not a name"),
        ("find_runs", json!({ "limit": 1000 }), "limit: 1000 is not between 1 and 50"),
        ("find_runs", json!({ "limit": "many" }), "expected an integer"),
        ("find_runs", json!({ "since": "yesterday" }), "invalid_parameter: since"),
        ("submit_run", json!({ "model": "gpt" }), "no model gpt"),
        ("submit_run", json!({ "command": "rm" }), "rm"),
        ("series", json!({ "series_id": "x" }), "series without it lists all"),
    ] {
        let answer = call(&api, "", tool, arguments).await;
        let line = error(&answer);
        assert!(line.contains(text) && line.lines().count() == 1, "{tool}: {line}");
        assert!(!line.contains("struct ") && !line.contains("u32"), "{line}");
    }
    let unknown = call(&api, "", "delete_everything", json!({})).await;
    let message = unknown["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("no tool \"delete_everything\"; the tools are "), "{message}");
    let queued = api.submit(json!({})).await;
    let early = call(&api, "", "ledger", json!({ "run_id": queued })).await;
    assert!(error(&early).starts_with("run_not_finished: "), "{early}");
}

#[tokio::test]
async fn an_agent_that_requests_everything_gets_bounded_answers() {
    let api = Api::new().await;
    let label = "x".repeat(64);
    for at in 0..50 {
        let labels: Vec<String> = (0..16).map(|no| format!("{at}-{no}-{label:.56}")).collect();
        api.submit(json!({ "labels": labels })).await;
    }
    let answer = call(&api, "", "find_runs", json!({ "limit": 50 })).await;
    let content = &answer["result"]["structuredContent"];
    assert!(content.to_string().len() <= 16 << 10, "{}", content.to_string().len());
    let (kept, left_out) = (content["runs"].as_array().unwrap().len(), &content["left_out"]);
    assert!(kept > 5 && left_out["runs"]["count"] == 50 - kept, "{kept} {left_out}");
    assert!(left_out["runs"]["get_them_by"].as_str().unwrap().contains("cursor"));
}

#[tokio::test]
async fn a_wait_is_bounded_and_lists_pending_steps() {
    let api = Api::new().await;
    let id = api.submit(json!({ "mode": "basic" })).await;
    let waited = call(&api, "", "wait_for_run", json!({ "run_id": id, "timeout_s": 0 })).await;
    let content = &waited["result"]["structuredContent"];
    assert_eq!((&content["state"], &content["has_ended"]), (&json!("queued"), &json!(false)));
    assert_eq!(content["pending"], json!(["preflight", "baseline", "analyze", "report"]));
    let too_long = call(&api, "", "wait_for_run", json!({ "run_id": id, "timeout_s": 3600 })).await;
    assert!(error(&too_long).contains("is not between 0 and 50"), "{too_long}");
    let (wait, cancel) = (json!({ "run_id": id, "timeout_s": 50 }), json!({ "run_id": id }));
    let (waited, _) =
        tokio::join!(call(&api, "", "wait_for_run", wait), call(&api, "", "cancel_run", cancel));
    let content = &waited["result"]["structuredContent"];
    assert_eq!((&content["state"], &content["has_ended"]), (&json!("cancelled"), &json!(true)));
}

#[tokio::test]
async fn an_agent_takes_the_place_of_its_calls_alone() {
    let api = api(|access| access.concurrent_requests = 1).await;
    let found = call(&api, "", "find_runs", json!({})).await;
    assert_eq!(found["result"]["structuredContent"]["runs"], json!([]));
}

/// A run that ended with this report.
async fn reported(api: &Api, mut report: Value) -> String {
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    report["run_id"] = json!(id);
    let text = report.to_string();
    let point = headline::point(&serde_json::from_value(report).unwrap());
    let files = [("report.json", text.as_str())];
    api.end_in_series(&run, RunState::Succeeded, &files, Some(Box::new(point))).await;
    id
}

/// Changes of a run of three repeats, each with the places of ttft, tpot, wall and tokens_per_s.
fn kinds_of_runs() -> Vec<(Value, [&'static str; 4])> {
    let [ttft, tpot, wall, rate] = [
        "aggregates medians.ttft_ms.p50",
        "aggregates medians.tpot_ms.p50",
        "aggregates medians.wall_ms.p50",
        "aggregates medians.tokens_per_s.p50",
    ];
    let ms = json!({ "mean": 2.1, "std": 0.1, "min": 2.0, "max": 2.3, "n": 4 });
    let latency = |metric: &str| {
        json!({ "pass": "unprofiled", "metric": metric, "n": 9, "mean_ms": 9.0, "p50_ms": 3.0,
            "p90_ms": 4.0, "p99_ms": 5.0, "max_ms": 70.0 })
    };
    let latencies = [latency("time_to_first_token"), latency("time_per_output_token")];
    let of_requests = "request_latency p50_ms";
    vec![
        (json!({}), [ttft, tpot, wall, rate]),
        (
            json!({ "/aggregates/medians": null }),
            [
                "aggregates first_token_ms.mean",
                "aggregates per_token_ms.mean",
                "aggregates wall_ms.mean",
                "aggregates tokens_per_s.mean",
            ],
        ),
        (json!({ "/only_traced": true }), [ttft, "step_times p50_ms", wall, rate]),
        (
            json!({ "/step_batches": [{ "class": "decode", "requests": 4, "steps": 4, "ms": ms,
                "p50_ms": 2.0, "period_ms": 2.5 }] }),
            [ttft, "step_batches period_ms", wall, rate],
        ),
        (
            json!({ "/aggregates/command": { "of": "process", "plain_ms": ms,
                "plain_p50_ms": 2.2 } }),
            [ttft, tpot, "aggregates command.plain_p50_ms", rate],
        ),
        (
            json!({ "/aggregates/command": { "of": "process", "plain_ms": ms } }),
            [ttft, tpot, "aggregates command.plain_ms.mean", rate],
        ),
        (
            json!({ "/request_latency": latencies, "/aggregates/loads": [{ "pass": "unprofiled",
                "repeat": 0, "complete": 9, "failed": 0, "output_tokens": 90, "ms": 450.0 }] }),
            [of_requests, of_requests, wall, "request_loads tokens_per_s"],
        ),
    ]
}

#[tokio::test]
async fn the_source_of_a_headline_figure_is_the_record_that_stands_for_the_kind_of_run() {
    let api = Api::new().await;
    for (changes, places) in kinds_of_runs() {
        let mut report = golden("cpu-report.json").unwrap();
        for (pointer, value) in changes.as_object().unwrap() {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            report.pointer_mut(parent).unwrap()[name] = value.clone();
        }
        let id = reported(&api, report).await;
        let listed = call(&api, "", "find_runs", json!({})).await;
        let runs = listed["result"]["structuredContent"]["runs"].as_array().unwrap();
        let stated = &runs.iter().find(|it| it["run_id"] == id.as_str()).unwrap()["headline"];
        for (name, place) in ["ttft", "tpot", "wall", "tokens_per_s"].into_iter().zip(places) {
            let cell = json!({ "run_id": id, "table": "aggregates", "column": name });
            let answer = call(&api, "", "source_of_figure", cell).await;
            let found = &answer["result"]["structuredContent"];
            let figure = &found["figure"];
            assert!(figure["value"].is_number(), "{changes}: {answer}");
            assert_eq!(figure["value"], stated[name], "{changes}: {name}");
            let (table, column) = (&figure["table"], &figure["column"]);
            assert_eq!(format!("{table} {column}").replace('"', ""), place, "{changes}: {name}");
            let formula = found["formula"].as_str().unwrap();
            let is_mean = place.ends_with(".mean");
            let is_median = !is_mean && place != "request_loads tokens_per_s";
            assert_eq!(formula.contains("median"), is_median, "{place}: {formula}");
            let text = answer["result"]["content"][0]["text"].as_str().unwrap();
            assert_eq!(text.contains("has means only"), is_mean, "{text}");
            assert_ne!(found["counts"], json!({}), "{found}");
        }
    }
}

#[tokio::test]
async fn an_absent_median_names_the_record_that_has_the_figure_and_samples_are_in_its_formula() {
    let api = Api::new().await;
    let mut report = golden("cpu-report.json").unwrap();
    let ms = json!({ "mean": 2.0, "std": null, "min": 2.0, "max": 2.0, "n": 1 });
    let two = json!({ "mean": 2.0, "std": 0.0, "min": 2.0, "max": 2.0, "n": 2 });
    report["aggregates"]["command"] = json!({ "of": "process", "plain_ms": two,
        "plain_p50_ms": 2.0 });
    report["aggregates"]["medians"]["wall_ms"] = Value::Null;
    report["aggregates"]["medians"]["tokens_per_s"] = Value::Null;
    let sample = |at: u32| {
        json!({ "sample": at, "prompt_tokens": 8, "image_tokens": 0, "images": 0, "wall_ms": ms,
            "slowest": false })
    };
    report["samples"] = json!([sample(0), sample(1)]);
    let of_samples = reported(&api, report.clone()).await;
    let batch = |class: &str, requests: u32| {
        json!({ "class": class, "requests": requests, "steps": 4, "ms": ms,
            "p50_ms": 2.0 })
    };
    report["step_batches"] = json!([batch("decode", 4), batch("decode", 8), batch("prefill", 1)]);
    let engine = reported(&api, report.clone()).await;
    report.as_object_mut().unwrap().remove("step_batches");
    report["aggregates"]["medians"] = Value::Null;
    let earlier = reported(&api, report).await;
    for (id, column, expected) in [
        (&of_samples, "medians.wall_ms", "wall of this run is command.plain_p50_ms of aggregates"),
        (&of_samples, "medians.ttft_ms", "time of prefill; each repeat is all 2 samples"),
        (&of_samples, "tpot", "decode steps; each repeat is all 2 samples"),
        (&of_samples, "command.plain_p50_ms", "whole command; of two repeats, their mean"),
        (&of_samples, "tokens_per_s", "it is a mean, and the run has no median"),
        (&engine, "ttft", "its requests wait before it"),
        (&engine, "tpot", "table step_batches has them by number of requests"),
        (&earlier, "medians.ttft_ms", "a report of an earlier version has means only"),
    ] {
        let cell = json!({ "run_id": id, "table": "aggregates", "column": column });
        let answer = call(&api, "", "source_of_figure", cell).await;
        let text = answer["result"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(expected) && !text.contains("unknown"), "{column}: {text}");
    }
}
