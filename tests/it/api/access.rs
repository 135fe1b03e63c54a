//! Access control: tokens, roles, owners, origins, hosts and the audit log.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{Method, header};
use llmprof_service::{
    config, http,
    store::{Role, audit::AuditLog},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::router::{Answer, Api, MODEL};

/// An API with changed access settings, without rate limits.
pub async fn api(change: impl FnOnce(&mut config::AccessSettings)) -> Api {
    let mut settings = config::AccessSettings {
        requests_per_s_per_address: 0,
        requests_per_s_per_token: 0,
        ..Default::default()
    };
    change(&mut settings);
    Api::with(Arc::new(http::AccessControl::new(&settings, false, false, None))).await
}

pub async fn token(api: &Api, name: &str, role: Role) -> String {
    let text = format!("llmprof_{name}");
    let hash = Sha256::digest(text.as_bytes()).into();
    assert!(api.store.create_token(name, role, &hash, None).await.unwrap().unwrap().valid);
    format!("Bearer {text}")
}

async fn ask(api: &Api, method: Method, path: &str, token: &str) -> Answer {
    api.ask(method, path, &[("authorization", token)], "").await
}

async fn submit(api: &Api, token: &str, key: &str) -> Answer {
    let headers =
        [("authorization", token), ("content-type", "application/json"), ("idempotency-key", key)];
    api.ask(Method::POST, "/runs", &headers, json!({ "model": MODEL }).to_string()).await
}

fn id(answer: &Answer) -> String {
    answer.json()["run_id"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
}

/// Every operation of the contract: name, method, a path with an id, and true if it needs a token.
fn operations() -> Vec<(String, Method, String, bool)> {
    let mut found = Vec::new();
    for (path, item) in http::contract()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Some(name) = operation["operationId"].as_str() else { continue };
            let path = path
                .replace("{run_id}", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
                .replace("{path}", "report.md")
                .replace("{alignment_id}", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
                .replace("{inputs_id}", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
                .replace("{image}", "0")
                .replace("{name}", "alignment.md");
            let guarded = operation["security"].as_array().is_some_and(|ways| !ways.is_empty());
            found.push((name.to_owned(), method.to_uppercase().parse().unwrap(), path, guarded));
        }
    }
    found
}

#[tokio::test]
async fn every_operation_except_health_and_contract_requires_a_token_with_its_role() {
    let api = api(|access| access.tokens = config::TokenPolicy::Required).await;
    let mut tokens = BTreeMap::new();
    for role in Role::ALL {
        tokens.insert(*role, token(&api, role.as_str(), *role).await);
    }
    let mut open = Vec::new();
    for (name, method, path, guarded) in operations() {
        if !guarded {
            assert_eq!(api.ask(method, &path, &[], "").await.status, 200, "{name}");
            open.push(name);
            continue;
        }
        let answer = api.ask(method.clone(), &path, &[], "").await;
        assert_eq!(answer.error(), (401, "unauthenticated".into()), "{name}");
        assert!(answer.header(header::WWW_AUTHENTICATE).starts_with("Bearer "), "{name}");
        for wrong in ["Bearer llmprof_0", "Bearer ", "Basic llmprof_admin", "llmprof_admin"] {
            assert_eq!(
                ask(&api, method.clone(), &path, wrong).await.status,
                401,
                "{name}: {wrong}"
            );
        }
        let needed = match name.as_str() {
            "list_audit" | "list_deliveries" | "replay_delivery" => Role::Admin,
            "submit_run" | "start_session" | "end_session" | "submit_capture" | "cancel_run"
            | "delete_run" | "pin_run" | "unpin_run" | "submit_alignment" | "delete_alignment"
            | "upload_inputs" | "delete_inputs" | "set_baseline" | "submit_gate"
            | "start_sweep" | "pause_sweep" | "resume_sweep" | "cancel_sweep" | "delete_sweep" => {
                Role::Submitter
            }
            _ => Role::Viewer,
        };
        for (role, token) in &tokens {
            let status = ask(&api, method.clone(), &path, token).await.status;
            assert_ne!(status, 401, "{name} as {role}");
            assert_eq!(status == 403, *role < needed, "{name} as {role}: {status}");
        }
    }
    open.sort();
    assert_eq!(open, ["healthz", "openapi_json", "openapi_yaml", "readyz"]);
}

#[tokio::test]
async fn a_loopback_service_requires_tokens_from_the_first_one_on() {
    let before = api(|_| ()).await;
    assert_eq!(before.get("/runs").await.status, 200);
    let api = api(|_| ()).await;
    let ann = token(&api, "ann", Role::Viewer).await;
    assert_eq!(
        (
            api.get("/runs").await.status.as_u16(),
            ask(&api, Method::GET, "/runs", &ann).await.status.as_u16()
        ),
        (401, 200)
    );
    assert_eq!(api.store.revoke_token("ann").await.unwrap().as_deref(), Some("ann"));
    assert_eq!(api.store.revoke_token("ann").await.unwrap(), None);
    assert_eq!(
        (
            api.get("/runs").await.status.as_u16(),
            ask(&api, Method::GET, "/runs", &ann).await.status.as_u16()
        ),
        (401, 401)
    );
}

#[tokio::test]
async fn an_expired_token_is_refused_and_names_are_unique() {
    let api = api(|_| ()).await;
    let hash = |text: &str| -> [u8; 32] { Sha256::digest(text.as_bytes()).into() };
    let made = api
        .store
        .create_token("old", Role::Admin, &hash("llmprof_old"), Some(std::time::Duration::ZERO))
        .await
        .unwrap();
    assert!(!made.unwrap().valid);
    assert_eq!(ask(&api, Method::GET, "/runs", "Bearer llmprof_old").await.status, 401);
    assert_eq!(
        api.store.create_token("old", Role::Viewer, &hash("llmprof_new"), None).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn the_last_use_is_stored_and_the_secret_is_not() {
    let api = api(|_| ()).await;
    let ann = token(&api, "ann", Role::Viewer).await;
    assert_eq!(api.store.tokens().await.unwrap()[0].last_used_at, None);
    ask(&api, Method::GET, "/runs", &ann).await;
    let kept = api.store.tokens().await.unwrap();
    assert!(kept[0].last_used_at.is_some());
    assert!(!format!("{kept:?}").contains("llmprof_ann"));
}

#[tokio::test]
async fn only_the_owner_and_admins_change_a_run() {
    let api = api(|_| ()).await;
    let (ann, bob) =
        (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    let root = token(&api, "root", Role::Admin).await;
    let (first, second) = (id(&submit(&api, &ann, "k").await), id(&submit(&api, &ann, "l").await));
    assert_eq!(
        ask(&api, Method::GET, &format!("/runs/{first}"), &bob).await.json()["owner"],
        "ann"
    );
    assert_eq!(ask(&api, Method::GET, "/runs", &bob).await.json()["runs"][0]["owner"], "ann");
    let cancel = |id: &str| format!("/runs/{id}/cancel");
    assert_eq!(
        ask(&api, Method::POST, &cancel(&first), &bob).await.error(),
        (403, "forbidden".into())
    );
    assert_eq!(ask(&api, Method::POST, &cancel(&first), &ann).await.status, 200);
    assert_eq!(
        ask(&api, Method::DELETE, &format!("/runs/{first}"), &bob).await.error(),
        (403, "forbidden".into())
    );
    assert_eq!(ask(&api, Method::DELETE, &format!("/runs/{first}"), &ann).await.status, 204);
    assert_eq!(
        ask(&api, Method::DELETE, &format!("/runs/{first}"), &ann).await.error(),
        (404, "run_not_found".into())
    );
    assert_eq!(ask(&api, Method::POST, &cancel(&second), &root).await.status, 200);
}

#[tokio::test]
async fn idempotency_keys_are_per_owner() {
    let api = api(|_| ()).await;
    let (ann, bob) =
        (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    let first = id(&submit(&api, &ann, "nightly").await);
    assert_eq!(id(&submit(&api, &ann, "nightly").await), first);
    assert_ne!(id(&submit(&api, &bob, "nightly").await), first);
}

#[tokio::test]
async fn quotas_are_per_owner() {
    let api =
        api(|access| (access.queued_runs_per_owner, access.disk_bytes_per_owner) = (2, 20)).await;
    let (ann, bob) =
        (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    for key in ["a", "b"] {
        assert_eq!(submit(&api, &ann, key).await.status, 202);
    }
    let refused = submit(&api, &ann, "c").await;
    assert_eq!(refused.error(), (429, "too_many_queued".into()));
    assert_eq!(refused.header(header::RETRY_AFTER), "60");
    assert_eq!(submit(&api, &ann, "a").await.status, 202, "a repeated key returns the queued run");
    assert_eq!(submit(&api, &bob, "a").await.status, 202);
    let run = api.start().await;
    api.end(
        &run,
        llmprof_core::domain::state::RunState::Succeeded,
        &[("report.md", "more than twenty bytes of report")],
    )
    .await;
    assert_eq!(submit(&api, &ann, "d").await.error(), (507, "disk_quota".into()));
}

#[tokio::test]
async fn a_token_above_its_rate_gets_a_retry_after() {
    let api = api(|access| access.requests_per_s_per_token = 1).await;
    let (ann, bob) =
        (token(&api, "ann", Role::Viewer).await, token(&api, "bob", Role::Viewer).await);
    let mut answers = Vec::new();
    while answers.last().is_none_or(|answer: &Answer| answer.status == 200) && answers.len() < 500 {
        answers.push(ask(&api, Method::GET, "/runs", &ann).await);
    }
    let refused = answers.last().unwrap();
    assert_eq!(refused.error(), (429, "rate_limited".into()));
    assert!(answers.len() > 4 && refused.header(header::RETRY_AFTER).parse::<u64>().unwrap() >= 1);
    assert_eq!(ask(&api, Method::GET, "/runs", &bob).await.status, 200);
    assert_eq!(api.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn pages_of_unlisted_origins_change_nothing() {
    let strict = api(|_| ()).await;
    let cancel = "/runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10/cancel";
    let from = |origin: &'static str| [("origin", origin), ("host", "localhost:8080")];
    let refused = strict.ask(Method::POST, cancel, &from("https://evil.example"), "").await;
    assert_eq!(refused.error(), (403, "cross_origin".into()));
    assert!(!refused.headers.contains_key("access-control-allow-origin"));
    assert_eq!(strict.ask(Method::POST, cancel, &from("null"), "").await.status, 403);
    assert_eq!(
        strict.ask(Method::POST, cancel, &from("http://localhost:8080"), "").await.status,
        404
    );
    let listed = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let answer = listed.ask(Method::POST, cancel, &from("https://tools.example"), "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN)),
        (404, "https://tools.example")
    );
    assert_eq!(
        listed.ask(Method::POST, cancel, &from("https://evil.example"), "").await.status,
        403
    );
}

#[tokio::test]
async fn rebound_host_names_are_refused_where_no_token_is_required() {
    let evil = [
        ("host", "evil.example:8080"),
        ("origin", "http://evil.example:8080"),
        ("sec-fetch-site", "same-origin"),
    ];
    let at = async |api: &Api, headers: &[(&str, &str)]| {
        let mut seen = Vec::new();
        for (name, method, path, guarded) in
            operations().into_iter().filter(|(.., guarded)| *guarded)
        {
            let answer = api.ask(method, &path, headers, "").await;
            assert!(
                guarded
                    && (answer.status == 421) == (answer.text().contains("misdirected_request")),
                "{name}"
            );
            seen.push(answer.status == 421);
        }
        assert!(
            seen.len() > 20 && seen.iter().all(|refused| *refused == seen[0]),
            "every operation alike"
        );
        seen[0]
    };
    let open = api(|_| ()).await;
    assert!(at(&open, &evil).await);
    assert_eq!(
        open.get("/runs").await.status,
        200,
        "clients other than browsers may omit the \
        host"
    );
    let pages = open.ask(Method::GET, "/", &evil, "").await;
    assert!(
        pages.status == 421
            && pages.text().starts_with("<!doctype html>")
            && pages.text().contains("server.hosts")
    );
    let two = [("host", "localhost:8080"), ("host", "evil.example")];
    for path in ["/runs", "/healthz", "/"] {
        let answer = open.ask(Method::GET, path, &two, "").await;
        assert!(answer.status == 400 && answer.text().contains("2 Host headers"), "{path}");
    }
    for own in ["localhost:8080", "127.0.0.1:18080", "[::1]:8080"] {
        assert!(!at(&open, &[("host", own)]).await, "{own}");
    }
    assert_eq!(
        open.ask(Method::GET, "/healthz", &[("host", "10.0.0.7:8080")], "").await.status,
        200,
        "health checks are open"
    );

    let listed = Api::configured(|config| config.server.hosts = vec!["gpu7.example".into()]).await;
    assert!(!at(&listed, &[("host", "gpu7.example:8080")]).await && at(&listed, &evil).await);
    // A browser's token is bound to the host at which it was entered; proxies check hosts.
    let required = api(|access| access.tokens = config::TokenPolicy::Required).await;
    assert!(!at(&required, &[("host", "gpu7.example:8080")]).await);
    let off = config::AccessSettings { tokens: config::TokenPolicy::Off, ..Default::default() };
    let behind = Api::with(Arc::new(http::AccessControl::new(&off, false, true, None))).await;
    assert!(!at(&behind, &[("host", "gpu7.example")]).await);
}

#[tokio::test]
async fn the_audit_log_names_callers_and_contains_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let settings = config::AccessSettings::default();
    let log = AuditLog::open(dir.path()).unwrap();
    let api =
        Api::with(Arc::new(http::AccessControl::new(&settings, false, false, Some(log)))).await;
    let (ann, root) =
        (token(&api, "ann", Role::Submitter).await, token(&api, "root", Role::Admin).await);
    submit(&api, &ann, "k").await;
    api.get("/runs").await;
    ask(&api, Method::GET, "/runs", &ann).await;
    let entries = ask(&api, Method::GET, "/audit", &root).await.json()["entries"].clone();
    let recorded: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["who"].clone(), it["action"].clone(), it["status"].clone()))
        .collect();
    assert_eq!(
        recorded,
        [
            (Value::Null, json!("GET /runs"), json!(401)),
            (json!("ann"), json!("POST /runs"), json!(202))
        ]
    );
    assert_eq!(
        ask(&api, Method::GET, "/audit?limit=1", &root).await.json()["entries"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let text = std::fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    assert!(!text.contains("llmprof_"), "{text}");
}
