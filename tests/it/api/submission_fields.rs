//! Fields of submissions: each way to submit a run has every field of the contract, or leaves it
//! out with a reason.

use std::{collections::BTreeSet, fs, process::Command};

use axum::http::Method;
use llmprof_core::domain::subject::RunSpec;
use llmprof_service::http;
use serde_json::{Value, json};

use crate::{
    api::router::{Api, MODEL},
    support::service::LLMPROF,
    ui::page::{HOST, page},
};

const OF_FILE: &str = "a FILE has it";
const OLDER_NAME: &str = "an older name of inputs";
const RECREATED: &str = "config.yaml has it, which is submitted as a file";

/// The names of a contract's field on the command line, if it has other ones.
const OPTIONS: [(&str, &[&str]); 4] = [
    ("labels", &["label"]),
    ("target", &["part", "command", "param"]),
    ("profiling", &["set"]),
    ("inputs", &["inputs", "prompt", "image"]),
];
/// The same as arguments of the tool `submit_run`.
const ARGUMENTS: [(&str, &[&str]); 2] =
    [("target", &["part", "command", "params"]), ("inputs", &["inputs", "prompt"])];

/// Fields of both submissions, by the contract.
fn fields(schema: &str) -> BTreeSet<String> {
    let path = format!("/components/schemas/{schema}/properties");
    let fields = http::contract().pointer(&path).and_then(Value::as_object);
    fields.unwrap_or_else(|| panic!("no {schema}")).keys().cloned().collect()
}

/// Asserts that every field of `schema` is found by `has` or left out with a reason, not both.
fn assert_complete(way: &str, schema: &str, left_out: &[(&str, &str)], has: impl Fn(&str) -> bool) {
    let fields = fields(schema);
    assert!(fields.len() > 10, "{fields:?}");
    for (name, reason) in left_out {
        assert!(fields.contains(*name) && !reason.is_empty(), "{way}: no field {name}");
    }
    for field in &fields {
        let is_left_out = left_out.iter().any(|(name, _)| name == field);
        assert_ne!(has(field), is_left_out, "{way}: {field} of {schema}, left out: {is_left_out}");
    }
}

/// Names of a field: its own, unless a table has others.
fn names<'a>(table: &[(&str, &'a [&'a str])], field: &'a str) -> Vec<&'a str> {
    let other = table.iter().find(|(name, _)| *name == field);
    other.map_or_else(|| vec![field], |(_, names)| names.to_vec())
}

#[test]
fn the_command_line_has_every_field_of_a_submission() {
    let help = Command::new(LLMPROF).args(["submit", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let options: BTreeSet<&str> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .filter_map(|line| line.split([' ', '=']).next())
        .collect();
    let left_out = [("mock", OF_FILE), ("inputs_manifest", OLDER_NAME), ("resolved", RECREATED)];
    for (schema, left_out) in [("SubmitModel", &left_out[..]), ("SubmitCommand", &left_out[2..])] {
        assert_complete("llmprof submit", schema, left_out, |field| {
            let names = names(&OPTIONS, field);
            names.iter().all(|name| options.contains(name.replace('_', "-").as_str()))
        });
    }
}

#[tokio::test]
async fn the_tool_of_agents_has_every_field_of_a_submission() {
    let api = Api::new().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    let headers = [
        HOST,
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2025-06-18"),
    ];
    let listed = api.ask(Method::POST, "/mcp", &headers, list).await.json();
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    let tool = tools.into_iter().find(|it| it["name"] == "submit_run").unwrap();
    let arguments = &tool["inputSchema"]["properties"];
    let left_out = [
        ("mock", "it tests the alignment itself"),
        ("inputs_manifest", OLDER_NAME),
        ("resolved", RECREATED),
    ];
    for (schema, left_out) in [("SubmitModel", &left_out[..]), ("SubmitCommand", &left_out[2..])] {
        assert_complete("submit_run", schema, left_out, |field| {
            names(&ARGUMENTS, field).iter().all(|name| arguments.get(name).is_some())
        });
    }
}

#[tokio::test]
async fn the_forms_have_every_field_of_a_submission() {
    let api = Api::new().await;
    let left_out = [
        ("mock", "it tests the alignment itself"),
        ("inputs_manifest", OLDER_NAME),
        ("resolved", RECREATED),
        ("dry_run", "the queue shows the steps"),
    ];
    let model = page(&api.ask(Method::GET, "/", &[HOST], "").await, 200);
    assert_complete("the form of a model", "SubmitModel", &left_out, |field| {
        model.contains(&format!("name=\"{field}\""))
    });
    let command = api.ask(Method::GET, "/ui/commands/tiny-generate", &[HOST], "").await;
    let command = page(&command, 200);
    assert_complete("the form of a command", "SubmitCommand", &left_out[2..], |field| {
        let name = if field == "target" { "param.tokens" } else { field };
        command.contains(&format!("name=\"{name}\""))
    });
}

#[test]
fn the_python_client_passes_every_field_of_a_submission() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python/src/llmprof/_client.py");
    let text = fs::read_to_string(file).unwrap();
    let (_, submit) = text.split_once("def submit(").unwrap();
    let (submit, _) = submit.split_once("def upload(").unwrap();
    // Fields without an argument of their own.
    let (others, passed) = ("**fields: Any,", "**fields,");
    assert!(submit.contains(others) && submit.contains(passed), "{submit}");
    for schema in ["SubmitModel", "SubmitCommand"] {
        let fields = fields(schema);
        let named = submit.lines().filter_map(|line| line.trim().strip_prefix('"'));
        let named: Vec<&str> = named.filter_map(|line| line.split("\": ").next()).collect();
        assert!(named.iter().filter(|name| fields.contains(**name)).count() > 5, "{named:?}");
    }
}

/// Submissions with a value other than the default in every field but those left out.
fn submissions() -> [(&'static str, Value, Value); 3] {
    let common = json!({
        "mode": "light", "repeats": 4, "warmup": 1, "device": "cpu", "timeout_s": 60,
        "labels": ["a"], "revision": "r1", "priority": -1,
        "profiling": { "nsys": { "delay_s": 2 } },
    });
    let with = |more: Value| {
        let mut body = common.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let work = json!({ "model": MODEL, "inputs": "inputs.yaml", "max_new_tokens": 7, "seed": 9,
        "dtype": "f32" });
    let mut model = with(work.clone());
    model["batch"] = json!(2);
    let mut part = with(work);
    for (name, value) in [
        ("target", json!("decoder.layers.1.mlp")),
        ("align_with", json!("e2e")),
        ("mock", json!({ "dtype": "f32" })),
    ] {
        part[name] = value;
    }
    let call = json!({ "command": "tiny-generate", "params": { "tokens": 8 } });
    let of_part = json!({ "target": "", "align_with": "", "mock": "" });
    [
        ("SubmitModel", model, of_part),
        ("SubmitModel", part, json!({ "batch": "a part runs alone" })),
        ("SubmitCommand", with(json!({ "target": call })), json!({})),
    ]
}

#[tokio::test]
async fn a_repetition_and_a_recreated_row_have_every_field_of_a_submission() {
    let api = Api::new().await;
    for (schema, body, of_others) in submissions() {
        let answer = api.post(&body).await;
        assert_eq!(answer.status, 202, "{body}: {}", answer.text());
        let id = answer.json()["run_id"].as_str().unwrap().to_owned();
        let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
        // `gate` repeats a run by its spec, and `check --repair` reads the spec of its folder.
        let read: RunSpec = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), spec);
        let again = Value::from(read.submission().unwrap());
        let left_out = ["inputs_manifest", "resolved", "dry_run"];
        for field in fields(schema) {
            if left_out.contains(&field.as_str()) || of_others.get(&field).is_some() {
                continue;
            }
            let (sent, repeated) = (&body[&field], &again[&field]);
            assert!(!sent.is_null(), "the test sends no {field}");
            match field.as_str() {
                "profiling" => assert_eq!(repeated["nsys"]["delay_s"], sent["nsys"]["delay_s"]),
                "target" | "mock" if sent.is_object() => assert!(repeated.is_object(), "{again}"),
                _ => assert_eq!(repeated, sent, "{field}: {again}"),
            }
        }
    }
}
