//! `llmprof mcp`: the tools over standard input and output, with only URL and token.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use llmprof_service::store::Role;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use super::{
    command, run,
    servers::{FakeServer, response},
};
use crate::{
    api::router::Api,
    support::service::{Service, Setup, command as serve},
};

/// Sends requests of the protocol of 2025-06-18; returns the answers in order.
fn talk(command: &mut Command, calls: &[(&str, Value)]) -> Vec<Value> {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut send = |message: Value| writeln!(input, "{message}").unwrap();
    let client = json!({ "name": "test", "version": "1" });
    let hello =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    send(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello }));
    let hello: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
    assert_eq!(hello["result"]["serverInfo"]["name"], "llmprof", "{hello}");
    send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let mut answers = Vec::new();
    for (id, (tool, arguments)) in (1..).zip(calls) {
        let params = json!({ "name": tool, "arguments": arguments });
        send(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }));
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answers.push(answer["result"].clone());
    }
    drop(input);
    assert!(output.next().is_none(), "nothing else is printed");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    answers
}

/// The text of a tool's error at a service with this URL.
fn refused(folder: &Path, url: &str, change: impl FnOnce(&mut Command)) -> String {
    let mut command = command(folder, url, &["mcp"]);
    change(&mut command);
    let answer = talk(&mut command, &[("find_runs", json!({}))]).remove(0);
    assert_eq!(answer["isError"], true, "{answer}");
    let line = answer["content"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(line.lines().count(), 1, "{line}");
    line
}

#[tokio::test]
async fn a_remote_service_is_used_with_url_and_token_alone() {
    let api = Api::new().await;
    let secret = "llmprof_0123456789";
    let digest = Sha256::digest(secret.as_bytes()).into();
    api.store.create_token("ann", Role::Submitter, &digest, None).await.unwrap().unwrap();
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("token"), secret).unwrap();
    let mut agent = command(folder.path(), &service.base, &["mcp", "--token-file", "token"]);
    let run = json!({ "model": "deepseek-ocr-tiny", "mode": "basic" });
    let answers = talk(&mut agent, &[("submit_run", run), ("find_runs", json!({}))]);
    let id = &answers[0]["structuredContent"]["run_id"];
    let found = &answers[1]["structuredContent"]["runs"][0];
    assert_eq!((&found["run_id"], &found["owner"]), (id, &json!("ann")));
}

#[tokio::test]
async fn failures_between_agent_and_service_are_one_line_with_the_remedy() {
    let folder = tempdir().unwrap();
    let folder = folder.path();
    run(&mut command(folder, "gpu-host:8080", &["mcp"]))
        .assert_refused(&["invalid --server", "expected a URL"]);
    let away = refused(folder, "http://127.0.0.1:9", |_| ());
    assert!(away.contains("no answer from http://127.0.0.1:9") && away.contains("--server"));
    let page = FakeServer::start("", |_, _| response("200 OK", "text/html", "<p>hello"));
    let foreign = refused(folder, &page.url, |_| ());
    assert!(foreign.contains("is not an llmprof service"), "{foreign}");
    let other = FakeServer::start("", |head, _| {
        let error = r#"{"error":{"code":"route_not_found","message":"no route","request_id":"a"}}"#;
        match head.contains("/version") {
            true => response("200 OK", "application/json", r#"{"version":"9.9.9"}"#),
            false => response("404 Not Found", "application/json", error),
        }
    });
    let version = refused(folder, &other.url, |_| ());
    assert!(version.starts_with("route_not_found: ") && version.contains("9.9.9"), "{version}");
    assert!(version.contains("use the same version of both"), "{version}");

    let api = Api::new().await;
    let digest = Sha256::digest(b"llmprof_old").into();
    let expiry = Some(Duration::from_millis(1));
    api.store.create_token("ann", Role::Viewer, &digest, expiry).await.unwrap().unwrap();
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let expired = refused(folder, &service.base, |it| {
        it.env("LLMPROF_TOKEN", "llmprof_old");
    });
    assert!(expired.contains("expired") && expired.contains("llmprof token create"), "{expired}");
}

#[test]
fn a_repeated_argument_is_refused_and_the_next_message_is_answered() {
    let folder = tempdir().unwrap();
    let mut command = command(folder.path(), "http://127.0.0.1:9", &["mcp"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let hello = r#"{"protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}}"#
        .replace('\n', "");
    let call = |arguments: &str| format!(r#"{{"name": "find_runs", "arguments": {arguments}}}"#);
    for (id, method, params, expected) in [
        (0, "initialize", hello, "/result/serverInfo/name"),
        (1, "tools/call", call(r#"{"limit": 1, "limit": 2}"#), "/error/message"),
        (2, "tools/call", call("{}"), "/result/isError"),
    ] {
        let head = format!(r#""jsonrpc": "2.0", "id": {id}, "method": "{method}""#);
        writeln!(input, r#"{{{head}, "params": {params}}}"#).unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        let found = answer.pointer(expected).unwrap_or_else(|| panic!("{answer}"));
        if id == 1 {
            let text = found.as_str().unwrap();
            assert!(text.contains("`limit` is given more than once"), "{text}");
        }
        if id == 0 {
            writeln!(input, r#"{{"jsonrpc": "2.0", "method": "notifications/initialized"}}"#)
                .unwrap();
        }
    }
    // A line that no parser reads has an answer too, and the last line needs no end.
    for (line, code) in [("garbage".to_owned(), -32700), ("7".repeat(1 << 20), -32600)] {
        writeln!(input, "{line}").unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!((&answer["id"], answer["error"]["code"].as_i64()), (&Value::Null, Some(code)));
    }
    write!(input, r#"{{"jsonrpc": "2.0", "id": 4, "method": "ping"}}"#).unwrap();
    drop(input);
    let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
    assert_eq!(answer["id"], 4, "{answer}");
    assert!(output.next().is_none(), "nothing else is printed");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_agent_that_leaves_ends_the_command() {
    let folder = tempdir().unwrap();
    let ended = run(&mut command(folder.path(), "http://127.0.0.1:9", &["mcp"]));
    assert_eq!((ended.code, ended.stdout.as_str()), (0, ""), "{ended:?}");
}
