//! The audit log under floods of requests.

use std::{fs, sync::Arc};

use axum::http::Method;
use llmprof_service::{
    config, http,
    store::{
        Role,
        audit::{AuditLimits, AuditLog},
    },
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::api::router::{Api, MODEL};

/// An API that requires tokens, with its audit log in `data`.
async fn api(data: &std::path::Path, requests_per_s: u32, limits: AuditLimits) -> Api {
    of_proxy(data, requests_per_s, limits, false).await
}

/// The same, behind a proxy or not.
async fn of_proxy(
    data: &std::path::Path,
    requests_per_s: u32,
    limits: AuditLimits,
    behind_proxy: bool,
) -> Api {
    let settings = config::AccessSettings {
        tokens: config::TokenPolicy::Required,
        requests_per_s_per_address: 0,
        requests_per_s_per_token: requests_per_s,
        ..Default::default()
    };
    let log = AuditLog::open_limited(data, limits).unwrap();
    let access = http::AccessControl::new(&settings, false, behind_proxy, Some(log));
    let api = Api::with(Arc::new(access)).await;
    let hash = Sha256::digest(b"llmprof_root").into();
    api.store.create_token("root", Role::Admin, &hash, None).await.unwrap();
    api
}

const ROOT: (&str, &str) = ("authorization", "Bearer llmprof_root");
const WIDE: AuditLimits = AuditLimits { file_bytes: 1 << 20, files: 2 };

#[tokio::test]
async fn a_flood_without_a_token_leaves_bounded_files_and_every_change() {
    let dir = tempfile::tempdir().unwrap();
    let limits = AuditLimits { file_bytes: 16 << 10, files: 2 };
    let api = api(dir.path(), 0, limits).await;
    let unknown = "/runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";
    assert_eq!(api.ask(Method::DELETE, unknown, &[ROOT], "").await.status, 404);
    let long = format!("/runs/{}", "a".repeat(50_000));
    for _ in 0..200 {
        assert_eq!(api.get(&long).await.status, 401);
    }
    let files = AuditLog::files(dir.path());
    let bytes: u64 = files.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert!(bytes < 48 << 10, "{bytes} bytes");
    let entries = api.ask(Method::GET, "/audit?limit=1000", &[ROOT], "").await.json();
    let entries = entries["entries"].as_array().unwrap();
    let target = entries[0]["target"].as_str().unwrap();
    assert!(target.ends_with("… (50006 bytes)") && target.len() < 300, "{target}");
    assert_eq!(entries.last().unwrap()["target"], unknown, "the flood displaced the change");
}

#[tokio::test]
async fn a_change_by_a_tool_has_the_address_that_the_proxy_added() {
    let dir = tempfile::tempdir().unwrap();
    let api = of_proxy(dir.path(), 0, WIDE, true).await;
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "submit_run", "arguments": { "model": MODEL },
    } });
    let headers = [
        ROOT,
        ("host", "localhost"),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2025-06-18"),
        // The client's own, and the proxy's.
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-for", "198.51.100.7"),
    ];
    let answer = api.ask(Method::POST, "/mcp", &headers, call.to_string()).await;
    assert!(
        answer.json()["result"]["structuredContent"]["run_id"].is_string(),
        "{}",
        answer.text()
    );
    let entries = api.ask(Method::GET, "/audit", &[ROOT, ("host", "localhost")], "").await.json();
    let entries = entries["entries"].as_array().unwrap();
    let submitted = entries.iter().find(|it| it["action"] == "POST /runs").unwrap();
    assert_eq!(submitted["address"], "198.51.100.7");
    assert!(entries.iter().all(|it| it["address"] != "192.0.2.1"), "{entries:?}");
}

#[tokio::test]
async fn requests_beyond_a_rate_are_counted_and_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let api = api(dir.path(), 1, WIDE).await;
    let mut refused = 0;
    while refused < 3 {
        let answer = api.ask(Method::POST, "/runs", &[ROOT], "").await;
        refused += u32::from(answer.status == 429);
    }
    let recorded = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    assert!(recorded.contains("\"status\":415") && !recorded.contains("\"status\":429"));
    assert_eq!(fs::read_to_string(dir.path().join("audit-refused.jsonl")).unwrap(), "");
    let hash = Sha256::digest(b"llmprof_other").into();
    api.store.create_token("other", Role::Viewer, &hash, None).await.unwrap();
    let other = [("authorization", "Bearer llmprof_other")];
    let text = api.ask(Method::GET, "/metrics", &other, "").await.text();
    let line = r#"llmprof_refused_total{reason="token_rate"} 3"#;
    assert!(text.lines().any(|found| found == line), "{text}");
}
