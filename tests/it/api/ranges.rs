//! Integers of requests: each that the contract bounds is refused by field, value and range.

use axum::http::Method;
use llmprof_service::http;
use serde_json::{Map, Value, json};

use crate::api::router::{Api, MODEL};

/// A request with its schema and the fields that it requires.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    let id = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45";
    let sweep = json!({ "base": { "model": MODEL }, "axes": { "new_tokens": [8] } });
    vec![
        ("/runs", "SubmitModel", json!({ "model": MODEL })),
        ("/runs", "SubmitCommand", json!({ "target": { "command": "tiny-generate" } })),
        ("/sessions", "StartSession", json!({ "command": "vllm-serve" })),
        ("/sweeps", "SubmitSweep", sweep),
        ("/gates", "SubmitGate", json!({ "baseline": "main", "runs": [id] })),
        ("/alignments", "AlignmentSpec", json!({ "mock": id, "e2e": id })),
    ]
}

/// An integer with a minimum and a maximum; `0` in its path is an item of a list.
struct BoundedInteger {
    path: Vec<String>,
    min: i64,
    max: i64,
}

/// The bounded integers of a schema at `path`.
fn bounded(schema: &Value, path: &[String]) -> Vec<BoundedInteger> {
    if let Some(to) = schema["$ref"].as_str() {
        return bounded(http::contract().pointer(to.trim_start_matches('#')).unwrap(), path);
    }
    let kind = &schema["type"];
    let is_integer =
        *kind == "integer" || kind.as_array().is_some_and(|it| it.contains(&json!("integer")));
    let range = schema["minimum"].as_i64().zip(schema["maximum"].as_i64());
    if let (true, Some((min, max))) = (is_integer, range) {
        return vec![BoundedInteger { path: path.to_vec(), min, max }];
    }
    let at = |key: &str| [path, &[key.to_owned()]].concat();
    let mut found = Vec::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        // The base of a sweep is a submission.
        if name != "base" {
            found.extend(bounded(property, &at(name)));
        }
    }
    for form in schema["oneOf"].as_array().into_iter().flatten() {
        found.extend(bounded(form, path));
    }
    if schema["items"].is_object() {
        found.extend(bounded(&schema["items"], &at("0")));
    }
    if schema["additionalProperties"].is_object() {
        found.extend(bounded(&schema["additionalProperties"], &at("batch")));
    }
    found
}

/// `body` with `value` at `path`.
fn with(body: Value, path: &[String], value: i64) -> Value {
    let Some((key, rest)) = path.split_first() else { return json!(value) };
    if key == "0" {
        return json!([with(Value::Null, rest, value)]);
    }
    let mut fields = match body {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let inner = fields.remove(key).unwrap_or_default();
    fields.insert(key.clone(), with(inner, rest, value));
    Value::from(fields)
}

#[tokio::test]
async fn an_integer_outside_the_range_of_the_contract_is_refused_by_field_and_range() {
    let api = Api::new().await;
    let mut checked = 0;
    for (url, schema, body) in requests() {
        let schema = &http::contract()["components"]["schemas"][schema];
        for BoundedInteger { path, min, max } in bounded(schema, &[]) {
            let name = match path.as_slice() {
                [.., list, item] if item == "0" => format!("{list}[0]"),
                [.., name] => name.clone(),
                [] => panic!("a request is an object"),
            };
            for value in [min - 1, max + 1] {
                let body = with(body.clone(), &path, value).to_string();
                let json = [("content-type", "application/json")];
                let answer = api.ask(Method::POST, url, &json, body.clone()).await;
                assert_eq!(answer.error(), (422, "invalid_request".into()), "{url} {body}");
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                let expected = format!("{name}: {value} is not between {min} and {max}");
                assert!(message.contains(&expected), "{url} {body}: {message}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 100, "only {checked} integers were found in the contract");
}
