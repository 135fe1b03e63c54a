//! The contract: the repository's copy equals the served one, and the service follows it.

use std::{collections::BTreeSet, fs, path::Path};

use llmprof_service::http;
use serde_json::{Value, json};

use crate::api::router::{Api, MODEL};

/// Every operation, by its id.
fn operations() -> Vec<(String, &'static Value)> {
    let paths = http::contract()["paths"].as_object().unwrap().values();
    let all = paths
        .flat_map(|path| path.as_object().unwrap().values())
        .filter(|part| part["operationId"].is_string());
    all.map(|operation| (operation["operationId"].as_str().unwrap().to_owned(), operation))
        .collect()
}

/// The responses of an operation by status, with shared ones in place of their references.
fn responses(operation: &'static Value) -> impl Iterator<Item = (&'static str, &'static Value)> {
    operation["responses"].as_object().unwrap().iter().map(|(status, response)| {
        let target = response["$ref"].as_str().map(|target| target.trim_start_matches('#'));
        let response = target.map_or(Some(response), |it| http::contract().pointer(it));
        (status.as_str(), response.unwrap())
    })
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
async fn the_copy_in_the_repository_equals_the_served_contract() {
    let kept =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("contracts/profile.yaml"))
            .unwrap();
    assert!(kept == http::contract_yaml(), "run `just write-contract` and review the changes");
    let parsed: Value = yaml_serde::from_str(&kept).unwrap();
    assert!(parsed == *http::contract(), "the YAML and the JSON differ");
    let api = Api::new().await;
    let (yaml, json) = (api.get("/openapi.yaml").await, api.get("/openapi.json").await);
    assert_eq!(
        (yaml.headers["content-type"].to_str().unwrap(), yaml.text()),
        ("application/yaml", kept)
    );
    assert_eq!(
        (json.headers["content-type"].to_str().unwrap(), &json.json()),
        ("application/json", http::contract())
    );
    assert_eq!(json.json()["openapi"], "3.1.0");
}

#[test]
fn every_operation_has_examples_of_its_request_and_responses() {
    let mut bare = Vec::new();
    for (name, operation) in operations() {
        let request = operation
            .pointer("/requestBody/content")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let answers = responses(operation).filter_map(|(_, it)| it["content"].as_object());
        for (kind, media) in request.chain(answers.flatten()) {
            let examples = media["examples"]
                .as_object()
                .map_or(0, |examples| examples.values().filter(|e| !e["value"].is_null()).count());
            if media["example"].is_null() && examples == 0 {
                bare.push(format!("{name}: {kind}"));
            }
        }
        let has_summary = operation["summary"].as_str().is_some_and(|summary| !summary.is_empty());
        assert!(
            has_summary && operation["tags"].as_array().is_some_and(|tags| tags.len() == 1),
            "{name}"
        );
    }
    assert!(bare.is_empty(), "without an example: {bare:#?}");
}

#[test]
fn every_operation_that_writes_lists_the_full_disk() {
    for path in http::contract()["paths"].as_object().unwrap().values() {
        for method in ["post", "put", "patch", "delete"] {
            let operation = &path[method];
            let listed = operation["responses"]["507"].is_object();
            assert!(operation.is_null() || listed, "{}", operation["operationId"]);
        }
    }
}

#[test]
fn every_operation_lists_its_errors_as_shared_responses() {
    let (mut shown, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (name, operation) in operations() {
        for status in ["405", "500"] {
            assert!(operation["responses"][status].is_object(), "{name}: {status}");
        }
        for (status, answer) in responses(operation) {
            if status.starts_with('2') || status.starts_with('3') {
                continue;
            }
            let reference = operation["responses"][status]["$ref"].as_str();
            named.insert(reference.unwrap_or_else(|| panic!("{name} {status}")).to_owned());
            for (code, example) in
                answer.pointer("/content/application~1json/examples").unwrap().as_object().unwrap()
            {
                assert_eq!(example["value"]["error"]["code"], *code, "{name} {status}");
                shown.insert(code.clone());
            }
        }
    }
    let codes =
        http::contract().pointer("/components/schemas/ErrorCode/enum").unwrap().as_array().unwrap();
    let codes: BTreeSet<_> = codes.iter().map(|code| code.as_str().unwrap().to_owned()).collect();
    assert!(codes.contains("run_not_found"), "codes in the form of responses: {codes:?}");
    assert_eq!(shown, codes);
    let declared = http::contract()["components"]["responses"].as_object().unwrap();
    let declared: BTreeSet<_> =
        declared.keys().map(|name| format!("#/components/responses/{name}")).collect();
    assert_eq!(named, declared, "every shared response is used");
}

#[test]
fn every_reference_exists_and_no_parameter_is_null() {
    let contract = http::contract();
    walk(contract, &mut |part| {
        if let Some(target) = part["$ref"].as_str() {
            assert!(
                contract.pointer(target.trim_start_matches('#')).is_some(),
                "{target} does not exist"
            );
        }
    });
    for (name, operation) in operations() {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let schema = &parameter["schema"];
            assert!(
                schema["$ref"].is_string()
                    || schema["type"].as_str().is_some_and(|kind| kind != "null"),
                "{name}: {parameter}"
            );
        }
    }
}

#[tokio::test]
async fn the_example_requests_are_accepted() {
    let api = Api::new().await;
    let submit = operations().into_iter().find(|(name, _)| name == "submit_run").unwrap().1;
    let examples = submit
        .pointer("/requestBody/content/application~1json/examples")
        .unwrap()
        .as_object()
        .unwrap();
    assert!(examples.len() >= 2);
    for (name, example) in examples {
        let answer = api.post(&example["value"]).await;
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn the_service_applies_the_documented_limits_and_defaults() {
    let api = Api::new().await;
    let fields = http::contract()
        .pointer("/components/schemas/SubmitModel/properties")
        .unwrap()
        .as_object()
        .unwrap();
    let spec = {
        let id = api.submit(json!({})).await;
        api.get(&format!("/runs/{id}")).await.json()["spec"].clone()
    };
    let mut bounded = 0;
    for (name, field) in fields {
        if let Some(default) = field.get("default") {
            let subject = &spec["subject"];
            let found = [&spec["common"], &subject["passes"], &subject["workload"]]
                .into_iter()
                .find_map(|part| part.get(name));
            assert_eq!(found, Some(default), "{name}");
        }
        for (bound, beyond) in [("minimum", -1), ("maximum", 1)] {
            let Some(limit) = field[bound].as_i64() else { continue };
            bounded += 1;
            let status = async |value: i64| {
                api.post(&json!({ "model": MODEL, name: value })).await.status.as_u16()
            };
            assert_eq!(
                (status(limit).await, status(limit + beyond).await),
                (202, 422),
                "{name}: {bound} {limit}"
            );
        }
    }
    assert_eq!(bounded, 14, "each of the seven numbers has two bounds");
}
