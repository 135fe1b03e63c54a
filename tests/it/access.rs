//! Who may ask for what: tokens, roles, owners, rates, shares and the audit log.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{Method, header};
use llmprof::{
    config, http,
    run::{Step, StepRecord, StepState},
    store::{Role, audit::AuditLog},
    trace::power::{GpuReading, PowerSample},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::api::{Answer, Api, MODEL};

/// An API whose settings of access are the defaults as changed.
async fn api(change: impl FnOnce(&mut config::Access)) -> Api {
    let mut settings = config::Access { requests_per_s_per_address: 0, requests_per_s_per_token: 0, ..Default::default() };
    change(&mut settings);
    Api::with(Arc::new(http::Access::new(&settings, false, false, None))).await
}

async fn token(api: &Api, name: &str, role: Role) -> String {
    let text = format!("llmprof_{name}");
    let hash = Sha256::digest(text.as_bytes()).into();
    assert!(api.store.create_token(name, role, &hash, None).await.unwrap().unwrap().valid);
    format!("Bearer {text}")
}

async fn ask(api: &Api, method: Method, path: &str, token: &str) -> Answer {
    api.ask(method, path, &[("authorization", token)], "").await
}

async fn submit(api: &Api, token: &str, key: &str) -> Answer {
    let headers = [("authorization", token), ("content-type", "application/json"), ("idempotency-key", key)];
    api.ask(Method::POST, "/runs", &headers, json!({ "model": MODEL }).to_string()).await
}

fn id(answer: &Answer) -> String {
    answer.json()["run_id"].as_str().unwrap_or_else(|| panic!("{}", answer.text())).to_owned()
}

/// Every operation of the contract: name, method, a path with an id in it, and whether it asks for a token.
fn operations() -> Vec<(String, Method, String, bool)> {
    let mut found = Vec::new();
    for (path, item) in http::contract()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let Some(name) = operation["operationId"].as_str() else { continue };
            let path = path
                .replace("{run_id}", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
                .replace("{path}", "report.md")
                .replace("{alignment_id}", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10")
                .replace("{name}", "alignment.md");
            let guarded = operation["security"].as_array().is_some_and(|ways| !ways.is_empty());
            found.push((name.to_owned(), method.to_uppercase().parse().unwrap(), path, guarded));
        }
    }
    found
}

#[tokio::test]
async fn every_operation_but_health_and_contract_asks_for_a_token_of_a_fitting_role() {
    let api = api(|access| access.tokens = config::Asked::Required).await;
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
            assert_eq!(ask(&api, method.clone(), &path, wrong).await.status, 401, "{name}: {wrong}");
        }
        let needed = match name.as_str() {
            "list_audit" => Role::Admin,
            "submit_run" | "submit_capture" | "cancel_run" | "delete_run" | "pin_run" | "unpin_run" | "submit_alignment"
            | "delete_alignment" => Role::Submitter,
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
async fn a_service_on_loopback_is_open_until_a_token_is_made_and_stays_closed_when_the_last_one_ends() {
    let before = api(|_| ()).await;
    assert_eq!(before.get("/runs").await.status, 200);
    let api = api(|_| ()).await;
    let ann = token(&api, "ann", Role::Viewer).await;
    assert_eq!((api.get("/runs").await.status.as_u16(), ask(&api, Method::GET, "/runs", &ann).await.status.as_u16()), (401, 200));
    assert_eq!(api.store.revoke_token("ann").await.unwrap().as_deref(), Some("ann"));
    assert_eq!(api.store.revoke_token("ann").await.unwrap(), None);
    assert_eq!((api.get("/runs").await.status.as_u16(), ask(&api, Method::GET, "/runs", &ann).await.status.as_u16()), (401, 401));
}

#[tokio::test]
async fn a_token_past_its_time_opens_nothing_and_a_name_is_given_once() {
    let api = api(|_| ()).await;
    let hash = |text: &str| -> [u8; 32] { Sha256::digest(text.as_bytes()).into() };
    let made = api.store.create_token("old", Role::Admin, &hash("llmprof_old"), Some(std::time::Duration::ZERO)).await.unwrap();
    assert!(!made.unwrap().valid);
    assert_eq!(ask(&api, Method::GET, "/runs", "Bearer llmprof_old").await.status, 401);
    assert_eq!(api.store.create_token("old", Role::Viewer, &hash("llmprof_new"), None).await.unwrap(), None);
}

#[tokio::test]
async fn a_use_is_noted_and_the_text_of_a_token_is_kept_nowhere() {
    let api = api(|_| ()).await;
    let ann = token(&api, "ann", Role::Viewer).await;
    assert_eq!(api.store.tokens().await.unwrap()[0].last_used_at, None);
    ask(&api, Method::GET, "/runs", &ann).await;
    let kept = api.store.tokens().await.unwrap();
    assert!(kept[0].last_used_at.is_some());
    assert!(!format!("{kept:?}").contains("llmprof_ann"));
}

#[tokio::test]
async fn a_run_is_its_submitters_and_an_admins() {
    let api = api(|_| ()).await;
    let (ann, bob) = (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    let root = token(&api, "root", Role::Admin).await;
    let (first, second) = (id(&submit(&api, &ann, "k").await), id(&submit(&api, &ann, "l").await));
    assert_eq!(ask(&api, Method::GET, &format!("/runs/{first}"), &bob).await.json()["owner"], "ann");
    assert_eq!(ask(&api, Method::GET, "/runs", &bob).await.json()["runs"][0]["owner"], "ann");
    let cancel = |id: &str| format!("/runs/{id}/cancel");
    assert_eq!(ask(&api, Method::POST, &cancel(&first), &bob).await.error(), (403, "forbidden".into()));
    assert_eq!(ask(&api, Method::POST, &cancel(&first), &ann).await.status, 200);
    assert_eq!(ask(&api, Method::DELETE, &format!("/runs/{first}"), &bob).await.error(), (403, "forbidden".into()));
    assert_eq!(ask(&api, Method::DELETE, &format!("/runs/{first}"), &ann).await.status, 204);
    assert_eq!(ask(&api, Method::DELETE, &format!("/runs/{first}"), &ann).await.error(), (404, "run_not_found".into()));
    assert_eq!(ask(&api, Method::POST, &cancel(&second), &root).await.status, 200);
}

#[tokio::test]
async fn an_idempotency_key_is_its_owners() {
    let api = api(|_| ()).await;
    let (ann, bob) = (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    let first = id(&submit(&api, &ann, "nightly").await);
    assert_eq!(id(&submit(&api, &ann, "nightly").await), first);
    assert_ne!(id(&submit(&api, &bob, "nightly").await), first);
}

#[tokio::test]
async fn an_owner_with_a_full_share_is_refused_and_others_are_not() {
    let api = api(|access| (access.queued_runs_per_owner, access.disk_bytes_per_owner) = (2, 20)).await;
    let (ann, bob) = (token(&api, "ann", Role::Submitter).await, token(&api, "bob", Role::Submitter).await);
    for key in ["a", "b"] {
        assert_eq!(submit(&api, &ann, key).await.status, 202);
    }
    let refused = submit(&api, &ann, "c").await;
    assert_eq!(refused.error(), (429, "too_many_queued".into()));
    assert_eq!(refused.header(header::RETRY_AFTER), "60");
    assert_eq!(submit(&api, &ann, "a").await.status, 202, "what was queued before is told again");
    assert_eq!(submit(&api, &bob, "a").await.status, 202);
    let run = api.start().await;
    api.end(&run, llmprof::run::RunState::Succeeded, &[("report.md", "more than twenty bytes of report")]).await;
    assert_eq!(submit(&api, &ann, "d").await.error(), (507, "disk_quota".into()));
}

#[tokio::test]
async fn a_token_that_asks_too_often_is_told_when_to_come_again() {
    let api = api(|access| access.requests_per_s_per_token = 1).await;
    let (ann, bob) = (token(&api, "ann", Role::Viewer).await, token(&api, "bob", Role::Viewer).await);
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
async fn a_page_of_another_site_changes_nothing_unless_its_origin_is_listed() {
    let strict = api(|_| ()).await;
    let cancel = "/runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10/cancel";
    let from = |origin: &'static str| [("origin", origin), ("host", "localhost:8080")];
    let refused = strict.ask(Method::POST, cancel, &from("https://evil.example"), "").await;
    assert_eq!(refused.error(), (403, "cross_origin".into()));
    assert!(!refused.headers.contains_key("access-control-allow-origin"));
    assert_eq!(strict.ask(Method::POST, cancel, &from("null"), "").await.status, 403);
    assert_eq!(strict.ask(Method::POST, cancel, &from("http://localhost:8080"), "").await.status, 404);
    let listed = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let answer = listed.ask(Method::POST, cancel, &from("https://tools.example"), "").await;
    assert_eq!((answer.status.as_u16(), answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN)), (404, "https://tools.example"));
    assert_eq!(listed.ask(Method::POST, cancel, &from("https://evil.example"), "").await.status, 403);
}

#[tokio::test]
async fn a_name_that_another_site_gave_this_host_opens_nothing_where_no_token_is_asked_for() {
    let evil = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080"), ("sec-fetch-site", "same-origin")];
    let at = async |api: &Api, headers: &[(&str, &str)]| {
        let mut seen = Vec::new();
        for (name, method, path, guarded) in operations().into_iter().filter(|(.., guarded)| *guarded) {
            let answer = api.ask(method, &path, headers, "").await;
            assert!(guarded && (answer.status == 421) == (answer.text().contains("misdirected_request")), "{name}");
            seen.push(answer.status == 421);
        }
        assert!(seen.len() > 20 && seen.iter().all(|refused| *refused == seen[0]), "one operation as the other");
        seen[0]
    };
    let open = api(|_| ()).await;
    assert!(at(&open, &evil).await);
    assert_eq!(open.get("/runs").await.status, 200, "what is no browser may name no host");
    let pages = open.ask(Method::GET, "/", &evil, "").await;
    assert!(pages.status == 421 && pages.text().starts_with("<!doctype html>") && pages.text().contains("server.hosts"));
    assert!(at(&open, &[("host", "localhost:8080"), ("host", "evil.example")]).await, "not even beside one of ours");
    for own in ["localhost:8080", "127.0.0.1:18080", "[::1]:8080"] {
        assert!(!at(&open, &[("host", own)]).await, "{own}");
    }
    assert_eq!(
        open.ask(Method::GET, "/healthz", &[("host", "10.0.0.7:8080")], "").await.status,
        200,
        "for whoever looks after it"
    );

    let listed = Api::configured(|config| config.server.hosts = vec!["gpu7.example".into()]).await;
    assert!(!at(&listed, &[("host", "gpu7.example:8080")]).await && at(&listed, &evil).await);
    // A browser shows a token to the site alone that it was entered at; so does a proxy that asks who is there.
    let required = api(|access| access.tokens = config::Asked::Required).await;
    assert!(!at(&required, &[("host", "gpu7.example:8080")]).await);
    let off = config::Access { tokens: config::Asked::Off, ..Default::default() };
    let behind = Api::with(Arc::new(http::Access::new(&off, false, true, None))).await;
    assert!(!at(&behind, &[("host", "gpu7.example")]).await);
}

#[tokio::test]
async fn the_audit_log_says_who_did_what_and_holds_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    let settings = config::Access::default();
    let log = AuditLog::open(dir.path()).unwrap();
    let api = Api::with(Arc::new(http::Access::new(&settings, false, false, Some(log)))).await;
    let (ann, root) = (token(&api, "ann", Role::Submitter).await, token(&api, "root", Role::Admin).await);
    submit(&api, &ann, "k").await;
    api.get("/runs").await;
    ask(&api, Method::GET, "/runs", &ann).await;
    let entries = ask(&api, Method::GET, "/audit", &root).await.json()["entries"].clone();
    let told: Vec<_> =
        entries.as_array().unwrap().iter().map(|it| (it["who"].clone(), it["action"].clone(), it["status"].clone())).collect();
    assert_eq!(told, [(Value::Null, json!("GET /runs"), json!(401)), (json!("ann"), json!("POST /runs"), json!(202))]);
    assert_eq!(ask(&api, Method::GET, "/audit?limit=1", &root).await.json()["entries"].as_array().unwrap().len(), 1);
    let text = std::fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    assert!(!text.contains("llmprof_"), "{text}");
}

#[tokio::test]
async fn the_queue_tells_positions_and_expects_starts_from_past_runs_alone() {
    let api = api(|_| ()).await;
    let first = api.submit(json!({ "mode": "basic" })).await;
    let second = api.submit(json!({ "mode": "basic" })).await;
    let queue = api.get("/queue").await.json();
    let of = |queue: &Value| -> Vec<(String, u64, bool, bool)> {
        let waiting = queue["waiting"].as_array().unwrap();
        waiting
            .iter()
            .map(|it| {
                let known = (it["expected_start"].is_string(), it["unknown_because"].is_string());
                (it["run_id"].as_str().unwrap().to_owned(), it["position"].as_u64().unwrap(), known.0, known.1)
            })
            .collect()
    };
    assert_eq!(of(&queue), [(first, 1, true, false), (second.clone(), 2, false, true)]);
    let run = api.start().await;
    api.end(&run, llmprof::run::RunState::Succeeded, &[("report.md", "#")]).await;
    let third = api.submit(json!({ "mode": "basic" })).await;
    assert_eq!(of(&api.get("/queue").await.json()), [(second, 1, true, false), (third, 2, true, false)]);
}

#[tokio::test]
async fn metrics_count_runs_and_answers_by_route() {
    let api = api(|_| ()).await;
    api.submit(json!({})).await;
    let answer = api.get("/metrics").await;
    assert!(answer.header(header::CONTENT_TYPE).starts_with("application/openmetrics-text"));
    let text = answer.text();
    assert!(!text.contains("gpu"), "there is none");
    let route = r#"llmprof_http_request_duration_seconds_count{method="POST",route="/runs",status="202"} 1"#;
    for line in
        [r#"llmprof_runs{state="queued"} 1"#, r#"llmprof_runs{state="failed"} 0"#, route, "llmprof_artifacts_bytes 0", "# EOF"]
    {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn metrics_tell_gpus_and_how_long_steps_took_even_of_runs_that_are_gone() {
    let sample = PowerSample { power_w: Some(321.5), gpu_pct: Some(40), ..PowerSample::default() };
    let api = Api::with_gpus(vec![GpuReading { uuid: "GPU-1".into(), name: "NVIDIA H200".into(), sample }]).await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let step = |ended: Option<&str>, state| StepRecord {
        step: Step::Baseline,
        state,
        started_at: "2026-11-20T09:00:00.000Z".into(),
        ended_at: ended.map(str::to_owned),
        exit_code: None,
        message: None,
    };
    let ended = step(Some("2026-11-20T09:00:07.500Z"), StepState::Succeeded);
    api.store.save_steps(&run, &[step(None, StepState::Running)]).await.unwrap();
    // The clock was set back while the second one ran: it took no time, rather than less than none.
    let back = step(Some("2026-11-20T08:00:00.000Z"), StepState::Succeeded);
    for _ in 0..2 {
        api.store.save_steps(&run, &[ended.clone(), back.clone()]).await.unwrap();
    }
    api.end(&run, llmprof::run::RunState::Succeeded, &[("report.md", "#")]).await;
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{id}"), &[], "").await.status, 204);
    let text = api.get("/metrics").await.text();
    for line in [
        r#"llmprof_gpu_power_watts{uuid="GPU-1",name="NVIDIA H200"} 321.5"#,
        r#"llmprof_gpu_busy_ratio{uuid="GPU-1",name="NVIDIA H200"} 0.4"#,
        r#"llmprof_step_duration_seconds_bucket{le="0.1",step="baseline",state="succeeded"} 1"#,
        r#"llmprof_step_duration_seconds_bucket{le="15.0",step="baseline",state="succeeded"} 2"#,
        r#"llmprof_step_duration_seconds_bucket{le="+Inf",step="baseline",state="succeeded"} 2"#,
        r#"llmprof_step_duration_seconds_count{step="baseline",state="succeeded"} 2"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let sum = text.lines().find_map(|line| line.strip_prefix("llmprof_step_duration_seconds_sum")).unwrap();
    let sum: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((sum - 7.5).abs() < 0.01, "{sum}");
    assert!(!text.contains("gpu_temperature"), "what a GPU does not tell has no line");
}

#[tokio::test]
async fn a_browser_is_told_which_sites_may_ask_as_configured() {
    let listed = api(|access| access.origins = vec!["https://tools.example".into()]).await;
    let ask = async |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let headers = [headers[0], headers[1], ("access-control-request-headers", "authorization,content-type")];
        listed.ask(Method::OPTIONS, "/runs", &headers, "").await
    };
    let answer = ask("https://tools.example").await;
    let allowed = answer.header(header::ACCESS_CONTROL_ALLOW_HEADERS);
    assert_eq!((answer.status.as_u16(), answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN)), (200, "https://tools.example"));
    assert!(allowed.contains("authorization") && allowed.contains("idempotency-key"), "{allowed}");
    assert!(answer.header(header::ACCESS_CONTROL_ALLOW_METHODS).contains("DELETE"));
    assert_eq!(answer.header(header::ACCESS_CONTROL_ALLOW_CREDENTIALS), "");
    assert_eq!(ask("https://evil.example").await.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), "");
    let unlisted = api(|_| ()).await;
    let answer = unlisted.ask(Method::GET, "/runs", &[("origin", "https://tools.example")], "").await;
    assert_eq!(answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), "");
}

#[tokio::test]
async fn beyond_the_requests_that_are_handled_at_a_time_one_is_told_to_come_again_but_health_is_told() {
    let api = api(|access| access.concurrent_requests = 1).await;
    // A submission whose body does not come yet holds the only place.
    let (body, sender) = {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Result<String, std::io::Error>>(1);
        (axum::body::Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receiver)), sender)
    };
    let headers = [("content-type", "application/json")];
    let (held, refused) = tokio::join!(api.ask(Method::POST, "/runs", &headers, body), async {
        let mut refused = api.get("/runs").await;
        while refused.status == 200 {
            tokio::task::yield_now().await;
            refused = api.get("/runs").await;
        }
        assert_eq!(api.get("/healthz").await.status, 200);
        sender.send(Ok(json!({ "model": MODEL }).to_string())).await.unwrap();
        drop(sender);
        refused
    });
    assert_eq!((held.status.as_u16(), refused.error()), (202, (503, "overloaded".into())));
    assert_eq!(refused.header(header::RETRY_AFTER), "1");
    assert_eq!(api.get("/runs").await.status, 200);
}
