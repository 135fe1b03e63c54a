//! Fields of a body that are given twice: refused by name in every object of every request.

use axum::http::Method;
use serde_json::{Value, json};

use crate::api::router::{Api, MODEL};

/// Requests with objects at every depth that they have.
fn requests() -> Vec<(&'static str, Value)> {
    let id = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45";
    let nsys = json!({ "delay_s": 1, "cuda_graph_trace": "graph" });
    let image = json!({ "name": "a", "data": "data:image/png;base64,AAAA" });
    vec![
        (
            "/runs",
            json!({ "model": MODEL, "profiling": { "nsys": nsys, "ncu": { "max_launches": 3 } },
                "inputs": { "prompt": "a", "images": [image] }, "repeats": 2 }),
        ),
        (
            "/runs",
            json!({ "model": MODEL, "resolved": { "run_s": 60, "run_bytes": 1 },
                "target": "decoder.layers.1.mlp", "align_with": "e2e",
                "mock": { "prompt_tokens": 4 } }),
        ),
        ("/runs", json!({ "target": { "command": "tiny-generate", "params": { "tokens": 8 } } })),
        ("/sessions", json!({ "command": "vllm-serve", "params": { "port": 1 } })),
        (
            "/sweeps",
            json!({ "base": { "model": MODEL, "profiling": { "nsys": nsys } },
                "axes": { "new_tokens": { "from": 1, "to": 2 } }, "limits": { "max_queued": 1 } }),
        ),
        ("/gates", json!({ "baseline": "main", "runs": [id], "fail_on": { "slower": 3 } })),
        ("/alignments", json!({ "mock": id, "e2e": id, "thresholds": { "count_pct": 1 } })),
        ("/baselines", json!({ "name": "main", "run_id": id })),
    ]
}

/// Each key of each object of `value`, with the text of `value` in which it is repeated.
fn with_repeated(value: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            let pair =
                |(key, value): (&String, &Value)| (json!(key).to_string(), value.to_string());
            let pairs: Vec<(String, String)> = fields.iter().map(pair).collect();
            let object = |pairs: &[(String, String)]| {
                let pairs: Vec<String> =
                    pairs.iter().map(|(key, text)| format!("{key}: {text}")).collect();
                format!("{{{}}}", pairs.join(", "))
            };
            for (at, (key, inner)) in fields.iter().enumerate() {
                let twice = [&pairs[..], &pairs[at..=at]].concat();
                found.push((key.clone(), object(&twice)));
                for (key, text) in with_repeated(inner) {
                    let mut pairs = pairs.clone();
                    pairs[at].1 = text;
                    found.push((key, object(&pairs)));
                }
            }
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                for (key, text) in with_repeated(inner) {
                    let mut items: Vec<String> = items.iter().map(Value::to_string).collect();
                    items[at] = text;
                    found.push((key, format!("[{}]", items.join(", "))));
                }
            }
        }
        _ => {}
    }
    found
}

#[tokio::test]
async fn a_field_given_twice_is_refused_by_name_in_every_object_of_a_body() {
    let api = Api::new().await;
    let json = [("content-type", "application/json")];
    let mut checked = 0;
    for (url, body) in requests() {
        for (key, body) in with_repeated(&body) {
            let answer = api.ask(Method::POST, url, &json, body.clone()).await;
            assert_eq!(answer.error(), (422, "invalid_request".into()), "{url} {body}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            let expected = format!("`{key}` is given more than once");
            assert!(message.contains(&expected), "{url} {body}: {message}");
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} fields were repeated");
}

#[tokio::test]
async fn an_argument_of_a_tool_given_twice_is_refused_by_name() {
    let api = Api::new().await;
    let headers =
        [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    let arguments = r#"{"model": "llama-tiny", "repeats": 2, "repeats": 3}"#;
    let body = format!(
        r#"{{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {{"name": "submit_run", "arguments": {arguments}}}}}"#
    );
    let answer = api.ask(Method::POST, "/mcp", &headers, body).await;
    let (answer, text) = (answer.json(), "params.arguments: `repeats` is given more than once");
    let error = json!({ "code": -32602, "message": text });
    assert_eq!((&answer["id"], &answer["error"]), (&json!(1), &error));
}
