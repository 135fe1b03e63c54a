//! Integers from outside: each that the contract or the schema of a tool bounds is refused by name,
//! value and range.

use std::collections::BTreeMap;

use axum::http::Method;
use llmprof_service::http;
use serde_json::{Map, Value, json};

use crate::api::router::{Api, MODEL};

const ID: &str = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45";

/// The operations of the contract: method, path and operation.
fn operations() -> impl Iterator<Item = (Method, &'static str, &'static Value)> {
    let paths = http::contract()["paths"].as_object().unwrap();
    let methods = [("get", Method::GET), ("post", Method::POST), ("delete", Method::DELETE)];
    paths.iter().flat_map(move |(path, item)| {
        let named = methods.clone();
        let operation =
            move |(name, method): (&str, Method)| Some((method, path.as_str(), item.get(name)?));
        named.into_iter().filter_map(operation).collect::<Vec<_>>()
    })
}

/// The value of a reference of the contract, or the value itself.
fn resolved(value: &'static Value) -> &'static Value {
    match value["$ref"].as_str() {
        Some(to) => http::contract().pointer(to.trim_start_matches('#')).unwrap(),
        None => value,
    }
}

/// A path of the contract with its parameters filled in.
fn filled(path: &str) -> String {
    let series = "5e884898da28047151d0e56f8dc62927";
    [("{name}", MODEL), ("{series_id}", series), ("{table}", "kernels"), ("{image}", "0")]
        .into_iter()
        .fold(path.to_owned(), |path, (name, value)| path.replace(name, value))
        .split('/')
        .map(|part| if part.starts_with('{') { ID } else { part })
        .collect::<Vec<_>>()
        .join("/")
}

/// The bounds of an integer's schema. An integer of 0 or more may state no minimum.
fn range(schema: &Value) -> Option<(i64, i64)> {
    let kind = &schema["type"];
    let is_integer =
        *kind == "integer" || kind.as_array().is_some_and(|it| it.contains(&json!("integer")));
    is_integer.then_some(())?;
    Some((schema["minimum"].as_i64().unwrap_or(0), schema["maximum"].as_i64()?))
}

/// An integer with a minimum and a maximum; `0` in its path is an item of a list.
struct BoundedInteger {
    path: Vec<String>,
    min: i64,
    max: i64,
}

/// The bounded integers of a schema at `path`.
fn bounded(schema: &'static Value, path: &[String]) -> Vec<BoundedInteger> {
    let schema = resolved(schema);
    if let Some((min, max)) = range(schema) {
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

/// The examples of a JSON body: an integer is a field of one of them.
fn examples(content: &Value) -> Vec<Value> {
    let many = content["examples"].as_object().into_iter().flatten();
    let many = many.map(|(_, example)| example["value"].clone());
    let one = content.get("example").cloned();
    one.into_iter().chain(many).filter(Value::is_object).collect()
}

#[tokio::test]
async fn an_integer_of_a_body_outside_its_range_is_refused_by_field_and_range() {
    let api = Api::new().await;
    let headers = [("content-type", "application/json")];
    let mut checked = 0;
    for (method, path, operation) in operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        for BoundedInteger { path: field, min, max } in bounded(&content["schema"], &[]) {
            let name = match field.as_slice() {
                [.., list, item] if item == "0" => format!("{list}[0]"),
                [.., name] => name.clone(),
                [] => panic!("a request is an object"),
            };
            for value in [min - 1, max + 1, 1_000_000_000_000_000_000] {
                let expected = format!("{name}: {value} is not between {min} and {max}");
                let mut messages = Vec::new();
                for body in examples(content) {
                    let body = with(body, &field, value).to_string();
                    let answer = api.ask(method.clone(), &filled(path), &headers, body).await;
                    assert_eq!(answer.error(), (422, "invalid_request".into()), "{path} {name}");
                    messages.push(answer.json()["error"]["message"].to_string());
                }
                let is_stated = messages.iter().any(|message| message.contains(&expected));
                assert!(is_stated, "{path}: {expected}: {messages:?}");
                checked += 1;
            }
        }
    }
    assert!(checked >= 100, "only {checked} integers were found in the contract");
}

#[tokio::test]
async fn an_integer_of_a_query_outside_its_range_is_refused_by_name_and_range() {
    let api = Api::new().await;
    let mut checked = BTreeMap::<&str, u32>::new();
    for (method, path, operation) in operations() {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = resolved(parameter);
            if parameter["in"] != "query" {
                continue;
            }
            let Some((min, max)) = range(resolved(&parameter["schema"])) else { continue };
            let name = parameter["name"].as_str().unwrap();
            // The sizes of a stated model count with the model alone.
            let more = match (path, name) {
                ("/captures", "prompt_tokens") => "&model_config=llama-tiny",
                ("/captures", _) => "&model_config=llama-tiny&prompt_tokens=1",
                _ => "",
            };
            let wrong = [
                (min - 1).to_string(),
                (max + 1).to_string(),
                "1000000000000".to_owned(),
                "18446744073709551616".to_owned(),
            ];
            for value in wrong {
                let url = format!("{}?{name}={value}{more}", filled(path));
                let answer = api.ask(method.clone(), &url, &[], "").await;
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                let expected = format!("{name}: {value} is not between {min} and {max}");
                assert!(answer.status.is_client_error(), "{url}: {message}");
                assert!(message.contains(&expected), "{url}: {message}");
            }
            *checked.entry(name).or_default() += 1;
        }
    }
    assert!(checked["limit"] >= 8 && checked.len() >= 5, "{checked:?}");
}

#[tokio::test]
async fn an_integer_of_a_tool_outside_its_range_is_refused_by_argument_and_range() {
    let api = Api::new().await;
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("host", "localhost"),
        ("mcp-protocol-version", "2025-06-18"),
    ];
    let ask = async |method: &str, params: Value| {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = api.ask(Method::POST, "/mcp", &headers, request.to_string()).await;
        answer.json()["result"].clone()
    };
    let listed = ask("tools/list", json!({})).await;
    let mut checked = 0;
    for tool in listed["tools"].as_array().unwrap() {
        let schema = &tool["inputSchema"];
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let Some((min, max)) = range(property) else { continue };
            for value in [min - 1, max + 1, max.max(1_000_000_000) * 1_000] {
                let required = schema["required"].as_array().into_iter().flatten();
                let mut arguments: Map<String, Value> =
                    required.map(|name| (name.as_str().unwrap().to_owned(), json!(ID))).collect();
                arguments.insert(name.clone(), json!(value));
                let call = json!({ "name": tool["name"], "arguments": arguments });
                let result = ask("tools/call", call).await;
                let text = result["content"][0]["text"].as_str().unwrap_or_default();
                let expected = format!("{name}: {value} is not between {min} and {max}");
                assert_eq!(result["isError"], true, "{}: {expected}", tool["name"]);
                assert!(text.contains(&expected), "{}: {text}", tool["name"]);
                checked += 1;
            }
        }
    }
    assert!(checked >= 20, "only {checked} integers were found in the tools");
}
