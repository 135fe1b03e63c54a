//! Alignments over HTTP: refusals, results, and recovery after a restart.

use axum::http::Method;
use llmprof_core::domain::state::RunState;
use llmprof_service::http;
use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    api::router::Api,
    support::{
        captures::{E2E, MOCK, capture},
        service::{Service, Setup},
    },
};

const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

/// Two ended runs whose folders hold the real pair.
pub async fn pair(api: &Api) -> [String; 2] {
    let ids = [api.ended().await, api.ended().await];
    for (id, name) in ids.iter().zip([MOCK, E2E]) {
        capture(name, &api.folder(id).join("nsys/run.sqlite"), "").unwrap();
    }
    ids
}

/// A request that the real pair passes: in the separate layer, two kernels find their data in the
/// cache, hence the threshold.
fn attention() -> Value {
    let thresholds = json!({ "kernel_time_pct": 30.0 });
    json!({ "range": "decoder.self_attn", "include_ranges": ["measured"], "stage": "decode",
        "thresholds": thresholds })
}

/// Waits for the end of the alignment and returns it.
async fn ended(service: &Service, id: &str) -> Value {
    let events = service.get(&format!("/alignments/{id}/events")).await.text().await.unwrap();
    assert!(events.contains("event: end"), "{events}");
    service.json(&format!("/alignments/{id}")).await
}

#[tokio::test]
async fn two_runs_are_aligned_and_reported_in_three_formats() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let queued = api.align(&mock, &e2e, attention()).await;
    assert_eq!(queued.status, 202, "{}", queued.text());
    let id = queued.json()["alignment_id"].as_str().unwrap().to_owned();
    let at = format!("/alignments/{id}");
    assert_eq!(queued.headers["location"].to_str().unwrap(), at);
    assert_eq!(
        (&queued.json()["state"], &queued.json()["verdict"]),
        (&json!("queued"), &Value::Null)
    );
    assert_eq!(
        api.get(&format!("{at}/report")).await.error(),
        (409, "alignment_not_finished".into())
    );

    // The next service computes queued alignments.
    let service = Service::start(api.data(), &Setup::default());
    let aligned = ended(&service, &id).await;
    assert_eq!(
        (&aligned["state"], &aligned["verdict"]),
        (&json!("succeeded"), &json!("pass")),
        "{aligned:#}"
    );
    assert!(
        aligned["checks"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["id"] == "sequence" && it["verdict"] == "pass")
    );
    let json = api
        .ask(Method::GET, &format!("{at}/report"), &[("accept", "application/json")], "")
        .await
        .json();
    assert_eq!(
        (&json["mock"]["kernels_per_instance"], &json["e2e"]["instances"]),
        (&json!(18.0), &json!(128))
    );
    assert_eq!(json["mock"]["name"], mock);
    for (accept, start) in [("text/markdown", "# "), ("text/html", "<!doctype html>")] {
        let text =
            api.ask(Method::GET, &format!("{at}/report"), &[("accept", accept)], "").await.text();
        assert!(text.starts_with(start) && text.contains("latency"), "{text}");
    }
    let listed = api.get(&format!("{at}/artifacts")).await.json();
    let paths: Vec<_> = listed["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["path"].as_str().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "alignment.html",
            "alignment.json",
            "alignment.md",
            "manifest.json",
            "progress.jsonl",
            "spec.json"
        ]
    );
    for path in paths {
        assert_eq!(api.get(&format!("{at}/artifacts/{path}")).await.status, 200, "{path}");
    }
    assert_eq!(
        api.get(&format!("{at}/artifacts/nothing.md")).await.error(),
        (404, "artifact_not_found".into())
    );
}

#[tokio::test]
async fn a_later_alignment_lists_the_changes_and_lists_have_pages() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let service = Service::start(api.data(), &Setup::default());
    let first = api.align(&mock, &e2e, attention()).await.json();
    let id = first["alignment_id"].as_str().unwrap().to_owned();
    let at = format!("/alignments/{id}");
    assert_eq!(ended(&service, &id).await["verdict"], "pass");
    let strict = json!({ "range": "decoder.self_attn", "include_ranges": ["measured"],
        "stage": "decode", "previous": id,
                         "forwards": 17 });
    let (status, later) = service.post("/alignments", &merged(&mock, &e2e, strict)).await;
    assert_eq!(status, 202, "{later}");
    let later = ended(&service, later["alignment_id"].as_str().unwrap()).await;
    assert_eq!(later["verdict"], "inconclusive", "the mock has 16 instances: {later:#}");
    let report = service
        .json(&format!("{}/artifacts/alignment.json", later["links"]["self"].as_str().unwrap()))
        .await;
    assert!(
        report["changes"].as_array().unwrap().iter().any(|it| it["what"] == "isolation"),
        "{:#}",
        report["changes"]
    );

    let page = api.get("/alignments?limit=1").await.json();
    assert_eq!(page["alignments"][0]["alignment_id"], later["alignment_id"]);
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest =
        api.get(&format!("/alignments?cursor={cursor}&run={mock}&state=succeeded")).await.json();
    assert_eq!(
        (&rest["alignments"][0]["alignment_id"], &rest["next_cursor"]),
        (&json!(id), &Value::Null)
    );
    assert_eq!(
        api.get(&format!("/alignments?run={UNKNOWN}")).await.json()["alignments"],
        json!([])
    );

    assert_eq!(api.ask(Method::DELETE, &at, &[], "").await.status, 204);
    assert_eq!(api.get(&at).await.error(), (404, "alignment_not_found".into()));
    assert!(!api.data().join("alignments").join(&id).exists());
}

fn merged(mock: &str, e2e: &str, more: Value) -> Value {
    let mut body = json!({ "mock": mock, "e2e": e2e });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn an_interrupted_alignment_is_retried_up_to_its_attempts() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = api.align(&mock, &e2e, attention()).await.json();
        ids.push(answer["alignment_id"].as_str().unwrap().to_owned());
    }
    let left = "update alignments set state = 'running', attempts = ";
    let database = Connection::open(api.data().join("llmprof.db")).unwrap();
    database
        .execute_batch(&format!("{left} 1; {left} 3 where id = (select max(id) from alignments)"))
        .unwrap();
    assert_eq!(
        api.ask(Method::DELETE, &format!("/alignments/{}", ids[0]), &[], "").await.error(),
        (409, "alignment_active".into())
    );
    let service = Service::start(api.data(), &Setup::default());
    let [again, given_up] = [ended(&service, &ids[0]).await, ended(&service, &ids[1]).await];
    assert_eq!((&again["verdict"], &again["attempts"]), (&json!("pass"), &json!(2)));
    assert_eq!(given_up["state"], "failed");
    assert!(given_up["message"].as_str().unwrap().contains("given up"), "{given_up:#}");
    assert!(service.stop(Signal::SIGTERM).success());
}

#[tokio::test]
async fn an_unreadable_capture_fails_the_alignment_without_host_paths() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    std::fs::write(api.folder(&e2e).join("nsys/run.sqlite"), "no database").unwrap();
    let id =
        api.align(&mock, &e2e, json!({})).await.json()["alignment_id"].as_str().unwrap().to_owned();
    let gone =
        api.align(&mock, &e2e, json!({})).await.json()["alignment_id"].as_str().unwrap().to_owned();
    let service = Service::start(api.data(), &Setup::default());
    let aligned = ended(&service, &id).await;
    let message = aligned["message"].as_str().unwrap();
    assert_eq!((&aligned["state"], &aligned["verdict"]), (&json!("failed"), &Value::Null));
    assert!(
        message.contains(&format!("run {e2e}")) && !message.contains(api.data().to_str().unwrap()),
        "{message}"
    );
    assert_eq!(
        api.get(&format!("/alignments/{id}/report")).await.error(),
        (409, "report_unavailable".into())
    );
    ended(&service, &gone).await;
}

#[tokio::test]
async fn invalid_alignments_are_refused_with_the_reason() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let waiver = |day: &str| {
        let waiver = json!({ "pattern": "copy", "reason": "r", "impact": "i", "expires": day });
        json!({ "waivers": [waiver] })
    };
    let cases = [
        (
            json!({ "range": "a", "operator": "b" }),
            409,
            "more than one of range, operator and kernels",
        ),
        (json!({ "range": "*" }), 422, "is empty; give a name"),
        (json!({ "stage": "warmup" }), 422, "unknown stage"),
        (json!({ "stage": "=x" }), 422, "invalid stage"),
        (waiver("soon"), 422, "YYYY-MM-DD"),
        (json!({ "thresholds": { "latency_pct": -1 } }), 422, "latency_pct"),
        (json!({ "thresholds": { "names": "loose" } }), 422, "names"),
        (json!({ "thresholds": [] }), 422, "thresholds"),
        (json!({ "waivers": [["copy", "r", "i", "2026-12-31"]] }), 422, "waivers[0]"),
        (json!({ "forwards": 0 }), 422, "forwards"),
        (json!({ "kernels": vec!["k"; 33] }), 422, "kernels"),
        (json!({ "kernel": ["k"] }), 422, "kernel"),
        (json!({ "previous": UNKNOWN }), 404, "no alignment"),
        (json!({ "e2e": UNKNOWN }), 404, "no run"),
    ];
    for (more, status, message) in cases {
        let answer = api.align(&mock, &e2e, more.clone()).await;
        assert!(
            answer.status == status && answer.text().contains(message),
            "{more}: {} {}",
            answer.status,
            answer.text()
        );
    }
    let waiting = api.submit(json!({})).await;
    assert_eq!(
        api.align(&mock, &waiting, json!({})).await.error(),
        (409, "run_not_finished".into())
    );
    let run = api.start().await;
    api.end(&run, RunState::Partial, &[("report.md", "#")]).await;
    let part = json!({ "target": "decoder.layers.3.self_attn", "align_with": "e2e" });
    let aligned = api.submit(part).await;
    let run = api.start().await;
    api.end(&run, RunState::Succeeded, &[("nsys/run.sqlite", "SQLite")]).await;
    let refused = api.align(&aligned, &e2e, json!({})).await;
    assert_eq!(refused.error(), (409, "capture_unavailable".into()));
    assert!(refused.text().contains("the part without align_with"), "{}", refused.text());
    assert_eq!(
        api.align(&waiting, &e2e, json!({})).await.error(),
        (409, "capture_unavailable".into())
    );
    assert_eq!(api.align(&mock, &e2e, waiver("2026-12-31")).await.status, 202);
    assert_eq!(
        api.get("/alignments?state=partial").await.error(),
        (400, "invalid_parameter".into())
    );
    assert_eq!(api.get("/alignments/7").await.error(), (400, "invalid_parameter".into()));
}

#[tokio::test]
async fn the_example_alignments_of_the_contract_are_accepted() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let examples = http::contract()
        .pointer("/paths/~1alignments/post/requestBody/content/application~1json/examples")
        .unwrap();
    for (name, example) in examples.as_object().unwrap() {
        let mut asked = example["value"].clone();
        asked.as_object_mut().unwrap().retain(|key, _| key != "mock" && key != "e2e");
        let answer = api.align(&mock, &e2e, asked).await;
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn an_idempotency_key_identifies_one_alignment() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let submit = async |key: &str, stage: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let body =
            json!({ "mock": mock, "e2e": e2e, "range": "decoder.self_attn", "stage": stage });
        api.ask(Method::POST, "/alignments", &headers, body.to_string()).await
    };
    let first = submit("a", "decode").await.json();
    let again = submit("a", "decode").await;
    assert_eq!((again.status.as_u16(), again.json()), (202, first.clone()));
    assert_eq!(submit("a", "prefill").await.error(), (409, "idempotency_key_reused".to_owned()));
    assert_ne!(submit("b", "decode").await.json()["alignment_id"], first["alignment_id"]);
    assert_eq!(submit("a b", "decode").await.error(), (400, "invalid_parameter".to_owned()));
    assert_eq!(api.get("/alignments").await.json()["alignments"].as_array().unwrap().len(), 2);
}
