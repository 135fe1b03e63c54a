//! The form that imports captures.

use serde_json::json;

use crate::{
    api::{
        imports::{FORM, form, timeline},
        router::Api,
    },
    support::captures::MOCK,
    ui::page::{HOST, OWN, assert_contains, location, page},
};
use axum::http::Method;

const PAGE: &str = "/ui/import";

#[tokio::test]
async fn a_form_imports_captures_with_revision_and_labels() {
    let api = Api::new().await;
    let text = page(&api.get(PAGE).await, 200);
    assert_contains(&text, &["enctype=\"multipart/form-data\"", "name=\"revision\"", "llama-tiny"]);
    assert!(page(&api.get("/").await, 200).contains("href=\"/ui/import\""));
    let inputs: Vec<&str> = text.matches("aria-describedby=\"hint-").collect();
    assert_eq!((inputs.len(), text.matches("<small id=\"hint-").count()), (12, 12), "hints");
    let capture = timeline(MOCK);
    let files: [(&str, &[u8]); 1] = [("mock.sqlite.zst", &capture)];
    let texts = [
        ("model", ""),
        ("label", "hf, nightly,"),
        ("revision", " 3f2c1ab "),
        ("stage", ""),
        ("model_config", ""),
        ("prompt_tokens", ""),
        ("dtype", ""),
    ];
    let answer = api.ask(Method::POST, PAGE, &[HOST, OWN, FORM], form(&files, &texts)).await;
    let run = location(&answer).strip_prefix("/ui/runs/").unwrap().to_owned();
    let spec = api.get(&format!("/runs/{run}")).await.json()["spec"].clone();
    assert_eq!(spec["common"]["labels"], json!(["hf", "nightly"]));
    assert_eq!(spec["common"]["revision"], "3f2c1ab");
    assert_eq!(spec["subject"]["files"][0]["name"], "mock.sqlite.zst");
}

#[tokio::test]
async fn a_refused_import_shows_the_reason_and_leaves_no_run() {
    let api = Api::new().await;
    let files: [(&str, &[u8]); 1] = [("<b>.csv", b"a,b\n1,2\n")];
    let body = form(&files, &[("revision", "r1")]);
    let text = page(&api.ask(Method::POST, PAGE, &[HOST, OWN, FORM], body).await, 422);
    assert_contains(&text, &["role=\"alert\"", "not a capture but a text"]);
    assert!(!text.contains("<b>"));
    let foreign = ("origin", "http://elsewhere.example");
    let files: [(&str, &[u8]); 1] = [("a.csv", b"a,b\n")];
    let refused = api.ask(Method::POST, PAGE, &[HOST, foreign, FORM], form(&files, &[])).await;
    page(&refused, 403);
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}
