//! Responses that are being sent when their caller loses access.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Method, Request, Response},
};
use llmprof_core::domain::state::RunState;
use llmprof_service::{config, http, store::Role};
use serde_json::{Value, json};

use crate::{
    api::{
        access::token,
        router::{Api, MODEL},
    },
    ui::{
        login::login,
        page::{HOST, post},
    },
};

/// An API that requires tokens and checks the caller of a response before each block.
async fn api() -> Api {
    let settings = config::AccessSettings {
        tokens: config::TokenPolicy::Required,
        requests_per_s_per_address: 0,
        requests_per_s_per_token: 0,
        ..Default::default()
    };
    let access = http::AccessControl::new(&settings, false, false, None);
    Api::with(Arc::new(access.with_recheck(Duration::ZERO))).await
}

async fn submit(api: &Api, token: &str) -> String {
    let headers = [("authorization", token), ("content-type", "application/json")];
    let body = json!({ "model": MODEL }).to_string();
    let answer = api.ask(Method::POST, "/runs", &headers, body).await;
    answer.json()["run_id"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
}

/// Paths of responses that take long, of a run that has ended and of one that is queued.
async fn paths(api: &Api) -> [String; 4] {
    let root = token(api, "root", Role::Admin).await;
    let ended = submit(api, &root).await;
    let run = api.start().await;
    let files = [("report.md", "# report"), ("logs/baseline.stderr.log", "0123456789")];
    api.end(&run, RunState::Succeeded, &files).await;
    let queued = submit(api, &root).await;
    [
        format!("/runs/{queued}/events"),
        format!("/runs/{ended}/artifacts/report.md"),
        format!("/runs/{ended}/artifacts/logs/baseline.stderr.log"),
        format!("/runs/{ended}/bundle"),
    ]
}

async fn open(api: &Api, path: &str, header: (&str, &str)) -> Response<Body> {
    let request = Request::get(path).header(HOST.0, HOST.1).header(header.0, header.1);
    let response = api.start_response(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200, "{path}");
    response
}

/// Events end with `refused`, downloads with an error.
async fn assert_refused(path: &str, response: Response<Body>) {
    let body = to_bytes(response.into_body(), usize::MAX).await;
    if !path.ends_with("/events") {
        assert!(body.is_err(), "{path}: {body:?}");
        return;
    }
    let text = String::from_utf8(body.unwrap().to_vec()).unwrap();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let data = last.strip_prefix("event: refused\ndata: ").unwrap_or_else(|| panic!("{text}"));
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["event"], "refused");
    assert!(data["message"].as_str().unwrap().contains("revoked"), "{data}");
}

#[tokio::test]
async fn a_response_that_is_being_sent_ends_when_its_token_is_revoked() {
    let api = api().await;
    for (number, path) in paths(&api).await.iter().enumerate() {
        let name = format!("viewer{number}");
        let bearer = token(&api, &name, Role::Viewer).await;
        let response = open(&api, path, ("authorization", &bearer)).await;
        assert!(api.store.revoke_token(&name).await.unwrap().is_some());
        assert_refused(path, response).await;
    }
}

#[tokio::test]
async fn a_response_that_is_being_sent_ends_with_its_login_session() {
    let api = api().await;
    for (number, path) in paths(&api).await.iter().enumerate() {
        let cookie = login(&api, &format!("viewer{number}"), Role::Viewer).await;
        let response = open(&api, path, ("cookie", &cookie)).await;
        post(&api, "/ui/logout", &[("cookie", &cookie)], "").await;
        assert_refused(path, response).await;
    }
}

#[tokio::test]
async fn a_response_of_a_valid_token_is_complete() {
    let api = api().await;
    let paths = paths(&api).await;
    let bearer = token(&api, "viewer", Role::Viewer).await;
    for path in &paths[1..] {
        let body = open(&api, path, ("authorization", &bearer)).await.into_body();
        assert!(!to_bytes(body, usize::MAX).await.unwrap().is_empty(), "{path}");
    }
}
