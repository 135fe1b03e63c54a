//! Fields of the forms of pages: known ones only, each once, and numbers within the contract.

use std::{collections::BTreeSet, fs};

use axum::http::Method;
use serde_json::{Value, json};

use crate::{
    api::{
        alignments::pair,
        imports::{FORM, form, timeline},
        router::{Api, MODEL},
    },
    support::captures::MOCK,
    ui::page::{HOST, OWN, UNKNOWN, assert_contains, location, page, post},
};

#[tokio::test]
async fn an_unknown_field_of_any_form_is_refused_by_name_and_nothing_is_queued() {
    let api = Api::new().await;
    let command = "/ui/commands/tiny-generate";
    let session = format!("{command}/session");
    for (path, body, hint) in [
        ("/ui/runs", format!("model={MODEL}&repeat=3"), "did you mean `repeats`?"),
        ("/ui/runs", format!("model={MODEL}&xyz=3"), "expected one of repeats, warmup"),
        (command, "param.tokens=7&param.token=8".into(), "did you mean `param.tokens`?"),
        (command, "param.tokens=7&max_new_tokens=8".into(), "unknown field `max_new_tokens`"),
        (session.as_str(), "param.tokens=7&lifetime=8".into(), "did you mean `lifetime_s`?"),
        ("/ui/alignments", "mock=1&e2e=2&forward=3".into(), "did you mean `forwards`?"),
        ("/ui/sweeps", format!("model={MODEL}&batches=1"), "did you mean `batch`?"),
        ("/ui/baselines", "name=main&labels=x".into(), "did you mean `label`?"),
        ("/ui/baselines/accept", "baseline=main&reasons=x".into(), "did you mean `reason`?"),
        ("/ui/login", "token=x&nexts=%2F".into(), "did you mean `next`?"),
    ] {
        let text = page(&post(&api, path, &[], &body).await, 422);
        assert!(text.contains("unknown field `") && text.contains(hint), "{path} {body}: {text}");
    }
    let capture = timeline(MOCK);
    let files: [(&str, &[u8]); 1] = [("mock.sqlite.zst", &capture)];
    let body = form(&files, &[("labels", "x")]);
    let answer = api.ask(Method::POST, "/ui/import", &[HOST, OWN, FORM], body).await;
    assert!(answer.text().contains("unknown field labels"), "{}", answer.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
    assert_eq!(api.get("/baselines").await.json()["baselines"], json!([]));
}

#[tokio::test]
async fn a_field_of_any_form_is_given_once() {
    let api = Api::new().await;
    for (path, body) in [
        ("/ui/runs", format!("model={MODEL}&model={MODEL}")),
        ("/ui/alignments", "mock=1&mock=2&e2e=3".into()),
        ("/ui/sweeps", format!("model={MODEL}&batch=1&batch=2")),
        ("/ui/baselines", "name=main&label=x&label=y".into()),
    ] {
        let text = page(&post(&api, path, &[], &body).await, 422);
        assert_contains(&text, &["role=\"alert\"", "given more than once; send it once"]);
    }
}

/// The addresses of all forms and buttons of the pages, with names of this service.
fn addresses() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/service/src/http/ui/templates");
    let mut found = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let page = fs::read_to_string(file.unwrap().path()).unwrap();
        let posted = page.split("method=\"post\" action=\"").skip(1);
        for form in posted.chain(page.split("formaction=\"").skip(1)) {
            let mut address = String::new();
            for part in form.split("{{ ") {
                match part.split_once(" }}") {
                    Some((name, rest)) => {
                        address += match name {
                            name if name.contains("unpin") => "pin",
                            name if name.ends_with(".command") => "tiny-generate",
                            _ => UNKNOWN,
                        };
                        address += rest;
                    }
                    None => address += part,
                }
            }
            found.insert(address.split('"').next().unwrap().to_owned());
        }
    }
    found
}

#[tokio::test]
async fn every_form_and_button_of_the_pages_refuses_an_unknown_field() {
    let api = Api::new().await;
    let addresses = addresses();
    assert!(addresses.len() >= 18, "{addresses:?}");
    for address in addresses {
        let answer = match address.as_str() {
            "/ui/import" => {
                let capture = timeline(MOCK);
                let files: [(&str, &[u8]); 1] = [("mock.sqlite.zst", &capture)];
                let body = form(&files, &[("unlikely", "x")]);
                api.ask(Method::POST, &address, &[HOST, OWN, FORM], body).await
            }
            _ => post(&api, &address, &[], "unlikely=x").await,
        };
        let text = page(&answer, 422).replace('`', "");
        assert!(text.contains("unknown field unlikely"), "{address}: {text}");
    }
    for body in ["", "a=b"] {
        let path = format!("/ui/runs/{UNKNOWN}/cancel");
        let answer = api.ask(Method::POST, &path, &[HOST, OWN], body).await;
        let status = if body.is_empty() { 404 } else { 415 };
        page(&answer, status);
    }
}

#[tokio::test]
async fn a_field_that_would_be_ignored_is_refused_by_its_label_with_the_reason() {
    let api = Api::new().await;
    let command = "/ui/commands/tiny-generate";
    let session = format!("{command}/session");
    let request = "request=%7B%7D";
    let baseline = "name=main&remove=remove&label=x";
    for (path, body, why) in [
        (session.as_str(), "repeats=3", "Repeats: each run on the session has its own"),
        (&session, "warmup=3", "Warm-up: each run"),
        (&session, "timeout_s=3", "Time limit: each run"),
        (&session, "priority=3", "Priority: each run"),
        (&session, "revision=r1", "Revision: each run"),
        (&session, "profiling=ncu.details%3Dtrue", "Settings of the passes: a session has"),
        (&session, "labels=a,b", "Labels: a session has one label; enter one"),
        (&session, &format!("session={UNKNOWN}"), "Session: a session does not run on another"),
        (command, "lifetime_s=100", "Lifetime of a session: only a session has one"),
        ("/ui/sweeps", &format!("{request}&batch=1"), "Batch: the request in JSON replaces"),
        ("/ui/sweeps", &format!("{request}&model={MODEL}"), "Model: the request in JSON"),
        ("/ui/sweeps", &format!("{request}&max_minutes=1"), "Limit in minutes: the request"),
        ("/ui/baselines", baseline, "a baseline is removed by its name alone"),
    ] {
        let text = page(&post(&api, path, &[], body).await, 422);
        assert_contains(&text, &["role=\"alert\"", why]);
    }
    assert_eq!(api.get("/sessions").await.json()["sessions"], json!([]));
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn an_unknown_parameter_of_a_page_is_refused_by_name() {
    let api = Api::new().await;
    for path in [
        "/",
        "/ui/diff",
        "/ui/alignments",
        "/ui/series",
        "/ui/inputs",
        "/ui/commands/tiny-generate",
        "/ui/sweeps",
        "/ui/baselines",
    ] {
        let text = page(&api.get(&format!("{path}?stat=failed")).await, 400);
        assert!(text.contains("unknown parameter `stat`"), "{path}: {text}");
    }
}

#[tokio::test]
async fn text_in_a_number_field_is_refused_with_the_range() {
    let api = Api::new().await;
    let runs = format!("mock={UNKNOWN}&e2e={UNKNOWN}");
    let sweep = format!("model={MODEL}&batch=1&max_minutes=-1");
    for (path, body, why) in [
        ("/ui/runs", format!("model={MODEL}&repeats=1e9"), ["Repeats \"1e9\"", "1 and 100"]),
        ("/ui/runs", format!("model={MODEL}&warmup=-1"), ["Warm-up: -1", "0 and 100"]),
        ("/ui/alignments", format!("{runs}&forwards=few"), ["each side \"few\"", "1 and 1000000"]),
        ("/ui/sweeps", sweep, ["Limit in minutes: -1", "1 and 1440"]),
    ] {
        let text = page(&post(&api, path, &[], &body).await, 422).replace("&quot;", "\"");
        assert_contains(&text, &why);
    }
}

#[tokio::test]
async fn the_ranges_of_the_forms_are_those_of_the_contract() {
    let api = Api::new().await;
    let schemas = api.get("/openapi.json").await.json()["components"]["schemas"].clone();
    pair(&api).await;
    let home = page(&api.get("/").await, 200);
    let alignments = page(&api.get("/ui/alignments").await, 200);
    for (text, field) in [
        (&home, "repeats"),
        (&home, "warmup"),
        (&home, "max_new_tokens"),
        (&home, "batch"),
        (&home, "seed"),
        (&home, "timeout_s"),
        (&home, "priority"),
        (&alignments, "forwards"),
    ] {
        let schema = if field == "forwards" { "AlignmentSpec" } else { "SubmitModel" };
        let [min, max] = ["minimum", "maximum"].map(|end| bound(&schemas[schema], field, end));
        let input = format!("name=\"{field}\" type=\"number\" min=\"{min}\" max=\"{max}\"");
        assert!(text.contains(&input), "{input}");
    }
}

/// A bound of a field, which may be in a part of the schema.
fn bound(schema: &Value, field: &str, end: &str) -> i64 {
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let found = [schema].into_iter().chain(parts).find_map(|it| it["properties"][field].get(end));
    found.and_then(Value::as_i64).unwrap_or_else(|| panic!("no {end} of {field}: {schema}"))
}

#[tokio::test]
async fn a_form_queues_one_run_and_redirects_to_its_page() {
    let api = Api::new().await;
    let body = format!(
        "key=k&model={MODEL}&mode=basic&repeats=4&labels=a%2C+b&dtype=&device=\
                       &profiling=nsys.delay_s%3D2"
    );
    let first = post(&api, "/ui/runs", &[], &body).await;
    let again = post(&api, "/ui/runs", &[], &body).await;
    let changed = post(&api, "/ui/runs", &[], &body.replace("=4", "=5")).await;
    let id = location(&first).strip_prefix("/ui/runs/").unwrap().to_owned();
    assert_eq!(location(&again), location(&first), "a button pressed twice");
    assert_ne!(location(&changed), location(&first), "went back and changed a field");
    let spec = &api.get(&format!("/runs/{id}")).await.json()["spec"];
    let passes = &spec["subject"]["passes"];
    assert_eq!(
        (&passes["repeats"], &spec["common"]["labels"], &passes["mode"]),
        (&json!(4), &json!(["a", "b"]), &json!("basic"))
    );
    let form = page(&api.get(&format!("/?again={id}")).await, 200);
    assert_contains(
        &form,
        &[
            "value=\"basic\" checked",
            "name=\"repeats\" type=\"number\" min=\"1\" max=\"100\" value=\"4\"",
            "value=\"a, b\"",
            "nsys.delay_s=2</textarea>",
        ],
    );
    let settings = "settings=nsys.sample%3Dnone%0Ansys.cpuctxsw%3Dnone";
    let lighter = page(&api.get(&format!("/?again={id}&{settings}")).await, 200);
    assert_contains(&lighter, &["nsys.sample=none\nnsys.cpuctxsw=none"]);
}
