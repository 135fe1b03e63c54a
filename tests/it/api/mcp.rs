//! Tools of agents at `/mcp`: access, limits, and what a tool may do.
//!
//! The protocol itself is tested with its reference clients (`scripts/check-agents.sh`).

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use llmprof_service::{config::TokenPolicy, store::Role};
use serde_json::{Value, json};

use super::access::{api, token};
use crate::api::router::{Answer, Api};

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
