//! The contract: what the repository holds is what the code serves, and what it says is what the service does.

use std::{collections::BTreeSet, fs, path::Path};

use llmprof::http;
use serde_json::{Value, json};

use crate::api::{Api, MODEL};

/// Every operation, by its id.
fn operations() -> Vec<(String, &'static Value)> {
    let paths = http::contract()["paths"].as_object().unwrap().values();
    let all = paths.flat_map(|path| path.as_object().unwrap().values()).filter(|part| part["operationId"].is_string());
    all.map(|operation| (operation["operationId"].as_str().unwrap().to_owned(), operation)).collect()
}

/// Calls `visit` with every value in `value`.
fn walk<'a>(value: &'a Value, visit: &mut impl FnMut(&'a Value)) {
    visit(value);
    match value {
        Value::Array(parts) => parts.iter().for_each(|part| walk(part, visit)),
        Value::Object(parts) => parts.values().for_each(|part| walk(part, visit)),
        _ => {}
    }
}

#[tokio::test]
async fn the_repository_holds_the_contract_that_is_served() {
    let kept = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("contracts/profile.yaml")).unwrap();
    assert!(kept == http::contract_yaml(), "run `just write-contract` and look at what changed");
    let api = Api::new().await;
    let (yaml, json) = (api.get("/openapi.yaml").await, api.get("/openapi.json").await);
    assert_eq!((yaml.headers["content-type"].to_str().unwrap(), yaml.text()), ("application/yaml", kept));
    assert_eq!((json.headers["content-type"].to_str().unwrap(), &json.json()), ("application/json", http::contract()));
    assert_eq!(json.json()["openapi"], "3.1.0");
}

#[test]
fn every_operation_shows_a_request_and_each_of_its_answers() {
    let mut bare = Vec::new();
    for (name, operation) in operations() {
        let request = operation.pointer("/requestBody/content").and_then(Value::as_object).into_iter().flatten();
        let answers = operation["responses"].as_object().unwrap().values();
        let answers = answers.filter_map(|answer| answer["content"].as_object()).flatten();
        for (kind, media) in request.chain(answers) {
            let examples =
                media["examples"].as_object().map_or(0, |examples| examples.values().filter(|e| !e["value"].is_null()).count());
            if media["example"].is_null() && examples == 0 {
                bare.push(format!("{name}: {kind}"));
            }
        }
        let has_summary = operation["summary"].as_str().is_some_and(|summary| !summary.is_empty());
        assert!(has_summary && operation["tags"].as_array().is_some_and(|tags| tags.len() == 1), "{name}");
    }
    assert!(bare.is_empty(), "without an example: {bare:#?}");
}

#[test]
fn every_error_code_is_shown_where_it_is_answered() {
    let mut shown = BTreeSet::new();
    for (name, operation) in operations() {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            if status.starts_with('2') || status.starts_with('3') {
                continue;
            }
            for (code, example) in answer.pointer("/content/application~1json/examples").unwrap().as_object().unwrap() {
                assert_eq!(example["value"]["error"]["code"], *code, "{name} {status}");
                shown.insert(code.clone());
            }
        }
    }
    let codes = http::contract().pointer("/components/schemas/ErrorCode/enum").unwrap().as_array().unwrap();
    let codes: BTreeSet<_> = codes.iter().map(|code| code.as_str().unwrap().to_owned()).collect();
    assert!(codes.contains("run_not_found"), "codes are told as they are sent: {codes:?}");
    assert_eq!(shown, codes);
}

#[test]
fn every_reference_leads_to_a_schema_and_no_parameter_is_null() {
    let contract = http::contract();
    walk(contract, &mut |part| {
        if let Some(target) = part["$ref"].as_str() {
            assert!(contract.pointer(target.trim_start_matches('#')).is_some(), "{target} leads nowhere");
        }
    });
    for (name, operation) in operations() {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let schema = &parameter["schema"];
            assert!(
                schema["$ref"].is_string() || schema["type"].as_str().is_some_and(|kind| kind != "null"),
                "{name}: {parameter}"
            );
        }
    }
}

#[tokio::test]
async fn the_requests_that_it_shows_are_accepted() {
    let api = Api::new().await;
    let submit = operations().into_iter().find(|(name, _)| name == "submit_run").unwrap().1;
    let examples = submit.pointer("/requestBody/content/application~1json/examples").unwrap().as_object().unwrap();
    assert!(examples.len() >= 2);
    for (name, example) in examples {
        let answer = api.post(&example["value"]).await;
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn limits_and_defaults_are_those_that_it_tells() {
    let api = Api::new().await;
    let fields = http::contract().pointer("/components/schemas/SubmitModel/properties").unwrap().as_object().unwrap();
    let spec = {
        let id = api.submit(json!({})).await;
        api.get(&format!("/runs/{id}")).await.json()["spec"].clone()
    };
    let mut bounded = 0;
    for (name, field) in fields {
        if let Some(default) = field.get("default") {
            let subject = &spec["subject"];
            let found = [&spec["common"], &subject["passes"], &subject["workload"]].into_iter().find_map(|part| part.get(name));
            assert_eq!(found, Some(default), "{name}");
        }
        for (bound, beyond) in [("minimum", -1), ("maximum", 1)] {
            let Some(limit) = field[bound].as_i64() else { continue };
            bounded += 1;
            let status = async |value: i64| api.post(&json!({ "model": MODEL, name: value })).await.status.as_u16();
            assert_eq!((status(limit).await, status(limit + beyond).await), (202, 422), "{name}: {bound} {limit}");
        }
    }
    assert_eq!(bounded, 12, "each of the six numbers has two bounds");
}
