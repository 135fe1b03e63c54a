//! The load generator as a process: servers that behave, servers that do not, a real one.

pub mod fake_server;
pub mod llm_server;

use std::{path::Path, process::Output, time::Duration};

use serde_json::Value;
use tokio::process::Command;

use self::fake_server::{FakeServer, Script, chat, head};
use crate::support::service::LLMPROF;

/// Runs `llmprof load` on a server; returns its output and the lines of its record.
pub async fn load(url: &str, args: &[&str], folder: &Path) -> (Output, Vec<Value>) {
    let out = folder.join("requests.jsonl");
    let child = Command::new(LLMPROF)
        .args(["load", url, "--out"])
        .arg(&out)
        .args(args)
        .env_remove("OPENAI_API_KEY")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(120), child).await.unwrap().unwrap();
    let lines = std::fs::read_to_string(&out).unwrap_or_default();
    (output, lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn requests(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line["kind"] == "request").collect()
}

#[tokio::test]
async fn a_load_records_every_request_and_prints_the_latencies() {
    let server = FakeServer::start(Script::Whole(chat(5))).await;
    let folder = tempfile::tempdir().unwrap();
    let args = ["--concurrency", "3", "--requests", "10", "--new-tokens", "5", "--model", "m"];
    let (output, lines) = load(&server.url, &args, folder.path()).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&lines[0]["kind"], &lines[11]["kind"]), (&"load".into(), &"end".into()));
    let found = requests(&lines);
    let mut numbers: Vec<u64> = found.iter().map(|it| it["request"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    for request in found {
        let at = |name: &str| request[name].as_i64().unwrap();
        assert!(at("intended_ns") <= at("sent_ns") && at("sent_ns") < at("first_token_ns"));
        assert!(at("first_token_ns") <= at("ended_ns"), "{request}");
        assert_eq!(request["token_ns"].as_array().unwrap().len(), 5);
        assert_eq!((at("prompt_tokens"), at("completion_tokens")), (7, 5));
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("10 requests complete, 0 failed; "), "{text}");
    for metric in ["time_to_first_token", "inter_token", "time_per_output_token", "end_to_end"] {
        assert!(text.contains(metric), "{text}");
    }
    let sent = server.requests();
    assert_eq!(sent.len(), 10);
    assert!(sent[0].starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", sent[0]);
    let body: Value = serde_json::from_str(sent[0].split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!((&body["stream"], &body["max_tokens"]), (&true.into(), &5.into()));
}

#[tokio::test]
async fn an_open_loop_counts_latencies_from_the_intended_time() {
    // One response at a time: each takes 50 ms, and 40 a second arrive.
    let server = FakeServer::start(Script::Serial(Duration::from_millis(50), chat(1))).await;
    let folder = tempfile::tempdir().unwrap();
    let args = ["--rate", "40", "--requests", "20", "--new-tokens", "1", "--seed", "3"];
    let (output, lines) = load(&server.url, &args, folder.path()).await;
    assert!(output.status.success(), "{output:?}");
    let mut waits: Vec<(i64, i64)> = requests(&lines)
        .iter()
        .map(|it| {
            let at = |name: &str| it[name].as_i64().unwrap();
            (at("intended_ns"), at("first_token_ns") - at("intended_ns"))
        })
        .collect();
    waits.sort_unstable();
    assert_eq!(waits[0].0, 0, "the first request is intended for the start");
    let longest = waits.iter().map(|it| it.1).max().unwrap();
    assert!(longest > 300_000_000, "the queue of a slow server is part of the latency: {waits:?}");
}

#[tokio::test]
async fn each_way_to_misbehave_is_a_failure_of_its_name_and_the_load_ends() {
    let token = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
    let stream = |body: &str| format!("{}{body}", head("text/event-stream"));
    let cases = [
        (Script::Whole("HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\noops".into()), "status"),
        (Script::Whole(format!("{}{{\"object\":1}}", head("application/json"))), "not_a_stream"),
        (Script::Whole(stream("data: <html>busy</html>\n\n")), "unreadable"),
        (Script::Whole(stream(&format!("{token}event: error\ndata: oom\n\n"))), "server_error"),
        (Script::Whole(stream(token)), "ended_early"),
        (Script::Whole(stream("data: [DONE]\n\n")), "no_tokens"),
        (Script::Whole(stream(&format!("data: {}", "x".repeat(2 << 20)))), "too_large"),
        (Script::Whole("\x01\x02 not HTTP\r\n\r\n".into()), "connection"),
        (Script::Whole(String::new()), "connection"),
        (Script::Stall(stream(token)), "timeout"),
        (Script::Endless(stream(""), format!(": {}\n", "x".repeat(1000))), "timeout"),
    ];
    for (script, failure) in cases {
        let name = format!("{failure}: {script:?}");
        let server = FakeServer::start(script).await;
        let folder = tempfile::tempdir().unwrap();
        let args = ["--concurrency", "2", "--requests", "3", "--timeout", "1"];
        let (output, lines) = load(&server.url, &args, folder.path()).await;
        assert_eq!(output.status.code(), Some(1), "{name:.80}: {output:?}");
        let failures: Vec<_> = requests(&lines).iter().map(|it| it["failure"].clone()).collect();
        assert_eq!(failures, [failure, failure, failure], "{name:.80}: {lines:?}");
        assert!(requests(&lines)[0]["message"].is_string());
    }
}

#[tokio::test]
async fn a_stopped_load_keeps_what_it_measured() {
    let server = FakeServer::start(Script::Stall(format!(
        "{}data: {{\"choices\":[{{\"text\":\"a\"}}]}}\n\n",
        head("text/event-stream")
    )))
    .await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("requests.jsonl");
    let mut child = Command::new(LLMPROF)
        .args(["load", &server.url, "--concurrency", "2", "--requests", "9", "--quiet", "--out"])
        .arg(&out)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    server.wait_for(2).await;
    let pid = nix::unistd::Pid::from_raw(child.id().unwrap().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = tokio::time::timeout(Duration::from_secs(60), child.wait()).await;
    assert_eq!(status.unwrap().unwrap().code(), Some(1));
    let text = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found = requests(&lines);
    assert_eq!(found.len(), 2, "{text}");
    assert!(found.iter().all(|it| it["failure"] == "stopped"), "{text}");
    assert_eq!(lines.last().unwrap()["is_stopped"], true);
}

#[tokio::test]
async fn invalid_options_end_with_code_2_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (url, args, expected) in [
        ("nope", &[][..], "invalid URL \"nope\""),
        ("http://127.0.0.1:1", &["--rate", "0"][..], "rate: 0 is not between 0.001 and 100000"),
        ("http://127.0.0.1:1", &["--body", "[1]"][..], "--body is not a JSON object"),
        ("http://127.0.0.1:1", &["--vocabulary", "9"][..], "a vocabulary needs --api completions"),
        ("http://127.0.0.1:1", &["--prompts", "/absent"][..], "cannot read /absent"),
    ] {
        let (output, lines) = load(url, args, folder.path()).await;
        let reason = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{url} {args:?}: {reason}");
        assert!(reason.starts_with(&format!("llmprof: {expected}")), "{reason}");
        assert_eq!(reason.lines().count(), 1, "{reason}");
        assert!(lines.is_empty());
    }
}
