//! Compressed responses: texts for clients that accept them, and nothing else.

use axum::http::{Method, header};
use serde_json::{Value, json};

use super::router::Api;

#[tokio::test]
async fn texts_are_compressed_and_bundles_ranges_and_events_are_not() {
    let api = Api::new().await;
    let log = "0123456789\n".repeat(1000);
    let id = api.ended_with(&[("a.log", &log)]).await;
    let get =
        async |path: &str, headers: &[(&str, &str)]| api.ask(Method::GET, path, headers, "").await;
    let file = format!("/runs/{id}/artifacts/a.log");
    let plain = get(&file, &[]).await;
    assert_eq!((plain.text().as_str(), plain.header(header::CONTENT_ENCODING)), (log.as_str(), ""));
    let etag = plain.header(header::ETAG);
    for (accepted, encoding) in [("gzip", "gzip"), ("zstd", "zstd"), ("gzip, zstd", "zstd")] {
        let packed = get(&file, &[("accept-encoding", accepted)]).await;
        assert_eq!(packed.header(header::CONTENT_ENCODING), encoding, "{accepted}");
        assert_eq!(packed.header(header::ETAG), format!("W/{etag}"), "its bytes are others");
        assert!(
            packed.body.len() < log.len() / 10 && packed.header(header::CONTENT_LENGTH).is_empty()
        );
        let known = [("accept-encoding", accepted), ("if-none-match", &format!("W/{etag}"))];
        assert_eq!(get(&file, &known).await.status, 304);
    }
    let contract = get("/openapi.json", &[("accept-encoding", "zstd")]).await;
    let unpacked = zstd::decode_all(contract.body.as_slice()).unwrap();
    let read: Value = serde_json::from_slice(&unpacked).unwrap();
    assert!(read["paths"].is_object() && contract.body.len() < unpacked.len() / 4);
    assert!(contract.header(header::VARY).contains("accept-encoding"));

    let part = get(&file, &[("accept-encoding", "gzip"), ("range", "bytes=5-1999")]).await;
    assert_eq!((part.status.as_u16(), part.header(header::CONTENT_ENCODING)), (206, ""));
    assert_eq!(part.text(), &log[5..2000]);
    for path in ["/bundle", "/events"] {
        let answer = get(&format!("/runs/{id}{path}"), &[("accept-encoding", "gzip, zstd")]).await;
        assert!(
            answer.status == 200 && answer.header(header::CONTENT_ENCODING).is_empty(),
            "{path}"
        );
    }
    let small = get("/healthz", &[("accept-encoding", "gzip")]).await;
    assert_eq!(small.header(header::CONTENT_ENCODING), "");
}

#[tokio::test]
async fn a_request_is_answered_whatever_encodings_it_refuses() {
    let api = Api::new().await;
    for (accepted, encoding) in [
        ("gzip;q=0, identity;q=0", ""),
        ("identity;q=0", ""),
        ("*;q=0", ""),
        ("identity;q=0, *;q=0", ""),
        ("identity;q=0.00001, *;q=0", ""),
        ("br, IDENTITY; Q=0.000", ""),
        ("br", ""),
        (",;=", ""),
        ("", ""),
        ("identity, gzip;q=0.5", ""),
        ("gzip, identity;q=0", "gzip"),
        ("zstd, *;q=0", "zstd"),
    ] {
        let headers = [("accept-encoding", accepted), ("content-type", "application/json")];
        let contract = api.ask(Method::GET, "/openapi.json", &headers, "").await;
        let found = contract.header(header::CONTENT_ENCODING);
        assert_eq!((contract.status.as_u16(), found), (200, encoding), "{accepted:?}");
        let run = json!({ "model": "llama-tiny" }).to_string();
        let queued = api.ask(Method::POST, "/runs", &headers, run).await;
        assert_eq!(queued.status, 202, "{accepted:?}: {}", queued.text());
    }
}

#[tokio::test]
async fn errors_do_not_name_types_of_the_program() {
    let api = Api::new().await;
    for body in [
        json!({ "model": 7 }),
        json!({ "model": "llama-tiny", "profiling": { "nsys": { "trace": {} } } }),
        json!({ "model": "llama-tiny", "mock": 7 }),
        json!({ "model": "llama-tiny", "labels": { "a": 1 } }),
        json!({ "model": "llama-tiny", "repeats": [1] }),
        json!({ "model": "llama-tiny", "inputs": { "prompt": 7 } }),
        json!({ "target": { "command": "x", "params": [] } }),
    ] {
        let answer = api.post(&body).await;
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(answer.status, 422, "{message}");
        let names = ["struct", "enum", "variant", "u32", "sequence", " map"];
        assert!(!names.iter().any(|name| message.contains(name)), "{body}: {message}");
    }
}
