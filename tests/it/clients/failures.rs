//! Failures between a command and its service: each is one line with the remedy, and none ends a
//! run.

use std::{
    io::{BufRead, BufReader, Read},
    time::Duration,
};

use llmprof_service::store::Role;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use super::{
    command, run,
    servers::{FakeServer, Reply, response},
};
use crate::{
    api::router::Api,
    support::service::{Service, Setup, command as serve},
};

const ID: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

fn paused(api: &Api) -> Service {
    let mut paused = serve(api.data(), &Setup::default());
    Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data())
}

#[test]
fn a_wrong_url_is_one_line_with_the_remedy() {
    let folder = tempdir().unwrap();
    let with = |url: &str| run(&mut command(folder.path(), url, &["list"]));
    with("gpu-host:8080").assert_refused(&["invalid --server", "expected a URL such as"]);
    with("http://ann:secret@host").assert_refused(&["--token-file"]);
    with("http://127.0.0.1:9").assert_refused(&["no answer from http://127.0.0.1:9", "--server"]);
    let page = FakeServer::start("", |_, _| response("200 OK", "text/html", "<p>hello"));
    with(&page.url).assert_refused(&["is not an llmprof service", "text/html"]);
    let missing = FakeServer::start("", |_, _| response("404 Not Found", "text/plain", "no"));
    with(&missing.url).assert_refused(&["is not an llmprof service", "404 Not Found"]);
    let other = FakeServer::start("", |_, _| response("200 OK", "application/json", "{\"a\":1}"));
    with(&other.url).assert_refused(&["is not an llmprof service", "unexpected JSON"]);
    let proxy = FakeServer::start("", |_, _| response("502 Bad Gateway", "text/html", "away"));
    with(&proxy.url).assert_refused(&["a proxy in front of", "502"]);
    let moved = FakeServer::start("", |head, _| {
        let path = head.split(' ').nth(1).unwrap();
        Reply::Text(format!(
            "HTTP/1.1 308 Moved\r\nlocation: https://gpu-host{path}\r\n\
            content-length: 0\r\nconnection: close\r\n\r\n"
        ))
    });
    let redirected = run(&mut command(folder.path(), &moved.url, &["watch", ID]));
    redirected.assert_refused(&["redirects to https://gpu-host; use that URL"]);
}

#[tokio::test]
async fn an_expired_token_and_a_missing_one_state_the_remedy() {
    let api = Api::new().await;
    let secret = "llmprof_0123456789";
    let digest = Sha256::digest(secret.as_bytes()).into();
    let expiry = Some(Duration::from_millis(1));
    api.store.create_token("ann", Role::Viewer, &digest, expiry).await.unwrap().unwrap();
    let service = paused(&api);
    let folder = tempdir().unwrap();
    let list = || command(folder.path(), &service.base, &["list"]);
    run(&mut list()).assert_refused(&["requires a token; set LLMPROF_TOKEN or --token-file"]);
    run(list().env("LLMPROF_TOKEN", secret)).assert_refused(&[
        "refused the token of LLMPROF_TOKEN",
        "expired",
        "llmprof token create",
    ]);
    std::fs::write(folder.path().join("token"), format!("{secret}\n")).unwrap();
    run(list().args(["--token-file", "token"])).assert_refused(&["refused the token of token"]);
    for (file, why) in [
        ("nothing", "No such file"),
        ("/dev/zero", "not a regular file"),
        (".", "not a regular file"),
    ] {
        let cannot = format!("--token-file: cannot read {file}: {why}");
        run(list().args(["--token-file", file])).assert_refused(&[&cannot]);
    }
    std::fs::write(folder.path().join("token"), "").unwrap();
    run(list().args(["--token-file", "token"])).assert_refused(&["does not contain one token"]);
}

#[tokio::test]
async fn a_token_of_too_low_a_role_is_refused_with_the_role() {
    let api = Api::new().await;
    let digest = Sha256::digest(b"llmprof_viewer").into();
    api.store.create_token("ann", Role::Viewer, &digest, None).await.unwrap().unwrap();
    let service = paused(&api);
    let folder = tempdir().unwrap();
    let submit = ["submit", "--model", "llama-tiny"];
    run(command(folder.path(), &service.base, &submit).env("LLMPROF_TOKEN", "llmprof_viewer"))
        .assert_refused(&["403", "role submitter required", "viewer"]);
}

#[test]
fn a_service_of_another_version_is_named() {
    let fake = FakeServer::start("", |head, _| {
        let version = head.starts_with("GET /version ");
        let body = if version { json!({ "version": "9.9.9" }) } else { json!({ "runs": [{}] }) };
        response("200 OK", "application/json", &body.to_string())
    });
    let folder = tempdir().unwrap();
    run(&mut command(folder.path(), &fake.url, &["list"])).assert_refused(&[
        "missing field",
        "the service is llmprof 9.9.9",
        "the same version",
    ]);
    let error = json!({ "error": { "code": "route_not_found", "message": "no route" } });
    let older = FakeServer::start("", move |head, _| match head.starts_with("GET /version ") {
        true => response("200 OK", "application/json", "{\"version\":\"0.0.1\"}"),
        false => response("404 Not Found", "application/json", &error.to_string()),
    });
    run(&mut command(folder.path(), &older.url, &["list"]))
        .assert_refused(&["no route", "the service is llmprof 0.0.1"]);
}

/// A service with an ended run whose journal has many events.
async fn with_events(api: &Api) -> (Service, String) {
    let id = api.submit(json!({})).await;
    let ended = api.start().await;
    let journal = api.journal(ended.id);
    for at in 0..50 {
        journal.log(llmprof_core::domain::state::Step::Baseline, &format!("line {at:03}"));
    }
    let files = [("report.md", "# report"), ("big.log", &*"0123456789".repeat(20_000))];
    api.end(&ended, llmprof_core::domain::state::RunState::Succeeded, &files).await;
    (paused(api), id)
}

#[tokio::test]
async fn a_stream_that_is_cut_resumes_after_its_last_event() {
    let api = Api::new().await;
    let (service, id) = with_events(&api).await;
    let proxy = FakeServer::start(&service.base, |head, before| {
        let cuts = before.iter().filter(|it| it.contains("/events ")).count();
        match head.contains("/events ") && cuts < 1 {
            true => Reply::Cut(2000),
            false => Reply::Forward,
        }
    });
    // The state is final from the start, so that only a stream that resumes has all events.
    let folder = tempdir().unwrap();
    let watched = run(&mut command(folder.path(), &proxy.url, &["watch", &id, "--json"]));
    assert_eq!(watched.code, 0, "{watched:?}");
    let events: Vec<Value> =
        watched.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines: Vec<&str> = events.iter().filter_map(|it| it["line"].as_str()).collect();
    let expected: Vec<String> = (0..50).map(|at| format!("line {at:03}")).collect();
    assert_eq!(lines, expected, "every line once, in order");
    let streams = proxy.requests("/events");
    assert_eq!(streams.len(), 2, "{streams:?}");
    assert!(!streams[0].contains("last-event-id") && streams[1].contains("last-event-id: "));
}

#[tokio::test]
async fn where_no_stream_gets_through_the_state_is_requested() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let service = paused(&api);
    let ended = json!({
        "run_id": id, "state": "succeeded", "name": "a", "queued_at": "2026-11-20T09:00:00Z",
        "started_at": "2026-11-20T09:00:00Z", "ended_at": "2026-11-20T09:00:01Z",
    });
    let proxy = FakeServer::start(&service.base, move |head, before| {
        let streams = before.iter().filter(|it| it.contains("/events ")).count();
        let is_stream = head.contains("/events ");
        match (is_stream, streams) {
            (true, _) => Reply::Cut(0),
            // The run ends while it is polled.
            (false, 3..) if before.len() > 5 => {
                response("200 OK", "application/json", &ended.to_string())
            }
            _ => Reply::Forward,
        }
    });
    let folder = tempdir().unwrap();
    let watched = run(&mut command(folder.path(), &proxy.url, &["watch", &id]));
    assert_eq!(watched.code, 0, "{watched:?}");
    assert!(watched.stderr.contains("polling the run"), "{watched:?}");
    assert_eq!(proxy.requests("/events").len(), 3, "streams are given up");
}

#[tokio::test]
async fn a_download_that_is_cut_resumes_and_another_file_in_its_place_is_refused() {
    let api = Api::new().await;
    let (service, id) = with_events(&api).await;
    let folder = tempdir().unwrap();
    let proxy = FakeServer::start(&service.base, |head, before| {
        let cuts = before.iter().filter(|it| it.contains("big.log ")).count();
        match head.contains("big.log ") && cuts < 3 {
            true => Reply::Cut(60_000),
            false => Reply::Forward,
        }
    });
    let fetched = run(&mut command(folder.path(), &proxy.url, &["fetch", &id, "big.log"]));
    assert_eq!(fetched.code, 0, "{fetched:?}");
    let file = std::fs::read(folder.path().join(&id).join("big.log")).unwrap();
    assert_eq!(file, "0123456789".repeat(20_000).as_bytes());
    let requests = proxy.requests("big.log");
    assert!(requests.len() == 4 && requests[1..].iter().all(|it| it.contains("range: bytes=")));

    let etag = "0".repeat(64);
    let files = json!({ "artifacts": [{ "path": "../a", "bytes": 1, "sha256": etag }] });
    let evil = FakeServer::start("", move |_, _| {
        response("200 OK", "application/json", &files.to_string())
    });
    run(&mut command(folder.path(), &evil.url, &["fetch", &id]))
        .assert_refused(&["outside the folder"]);
    let files = json!({ "artifacts": [{ "path": "a", "bytes": 2, "sha256": etag }] });
    let changed = FakeServer::start("", move |head, _| match head.contains("/artifacts/") {
        true => response("200 OK", "text/plain", "xx"),
        false => response("200 OK", "application/json", &files.to_string()),
    });
    run(&mut command(folder.path(), &changed.url, &["fetch", &id]))
        .assert_refused(&["differs from its SHA-256"]);
    assert!(!folder.path().join(&id).join("a").exists());
}

#[test]
fn a_gate_refuses_a_run_that_is_not_an_id_before_any_request() {
    let fake = FakeServer::start("", |_, _| response("200 OK", "application/json", "{}"));
    let folder = tempdir().unwrap();
    for id in ["..", "", "x/y", "../models", "latest"] {
        let gate = ["gate", "--baseline", "main", "--run", ID, "--run", id];
        run(&mut command(folder.path(), &fake.url, &gate))
            .assert_refused(&[&format!("invalid run {id:?}")]);
    }
    assert!(fake.requests("").is_empty());
}

#[tokio::test]
async fn ctrl_c_ends_the_command_and_not_the_run() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let service = paused(&api);
    let folder = tempdir().unwrap();
    let mut watching =
        command(folder.path(), &service.base, &["watch", &id, "--json"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watching.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["state"], "queued");
    kill(Pid::from_raw(watching.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(watching.wait().unwrap().code(), Some(130));
    let mut stderr = String::new();
    watching.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(
        stderr.contains("the run continues on") && stderr.contains("llmprof cancel"),
        "{stderr}"
    );
    assert_eq!(service.json(&format!("/runs/{id}")).await["state"], "queued");
}
