//! Alignments over HTTP: what is refused, what is computed from two runs' captures, and what a service finds that another left.

use axum::http::Method;
use llmprof::http;
use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    align::{E2E, MOCK, capture},
    api::Api,
    service::{Service, Setup},
};

const NOBODY: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

/// Two ended runs whose folders hold the real pair.
pub async fn pair(api: &Api) -> [String; 2] {
    let ids = [api.ended().await, api.ended().await];
    for (id, name) in ids.iter().zip([MOCK, E2E]) {
        capture(name, &api.folder(id).join("nsys/run.sqlite"), "").unwrap();
    }
    ids
}

/// With the threshold under which the real pair passes in decode: alone, two of its kernels find their data in the cache.
fn attention() -> Value {
    let thresholds = json!({ "kernel_time_pct": 30.0 });
    json!({ "range": "decoder.self_attn", "within": ["measured"], "stage": "decode", "thresholds": thresholds })
}

/// The alignment once it has ended.
async fn ended(service: &Service, id: &str) -> Value {
    let events = service.get(&format!("/alignments/{id}/events")).await.text().await.unwrap();
    assert!(events.contains("event: end"), "{events}");
    service.json(&format!("/alignments/{id}")).await
}

#[tokio::test]
async fn two_runs_are_aligned_and_the_report_comes_in_three_forms() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let queued = api.align(&mock, &e2e, attention()).await;
    assert_eq!(queued.status, 202, "{}", queued.text());
    let id = queued.json()["alignment_id"].as_str().unwrap().to_owned();
    let at = format!("/alignments/{id}");
    assert_eq!(queued.headers["location"].to_str().unwrap(), at);
    assert_eq!((&queued.json()["state"], &queued.json()["verdict"]), (&json!("queued"), &Value::Null));
    assert_eq!(api.get(&format!("{at}/report")).await.error(), (409, "alignment_not_finished".into()));

    // The service that comes next computes what waits.
    let service = Service::start(api.data(), &Setup::default());
    let told = ended(&service, &id).await;
    assert_eq!((&told["state"], &told["verdict"]), (&json!("succeeded"), &json!("pass")), "{told:#}");
    assert!(told["checks"].as_array().unwrap().iter().any(|it| it["id"] == "sequence" && it["verdict"] == "pass"));
    let json = api.ask(Method::GET, &format!("{at}/report"), &[("accept", "application/json")], "").await.json();
    assert_eq!((&json["mock"]["kernels_per_instance"], &json["e2e"]["instances"]), (&json!(18.0), &json!(128)));
    assert_eq!(json["mock"]["name"], mock);
    for (accept, begins) in [("text/markdown", "# "), ("text/html", "<!doctype html>")] {
        let text = api.ask(Method::GET, &format!("{at}/report"), &[("accept", accept)], "").await.text();
        assert!(text.starts_with(begins) && text.contains("latency"), "{text}");
    }
    let listed = api.get(&format!("{at}/artifacts")).await.json();
    let paths: Vec<_> = listed["artifacts"].as_array().unwrap().iter().map(|it| it["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["alignment.html", "alignment.json", "alignment.md", "manifest.json", "progress.jsonl", "spec.json"]);
    for path in paths {
        assert_eq!(api.get(&format!("{at}/artifacts/{path}")).await.status, 200, "{path}");
    }
    assert_eq!(api.get(&format!("{at}/artifacts/nothing.md")).await.error(), (404, "artifact_not_found".into()));

    // A later one of the pair tells what changed since.
    let strict = json!({ "range": "decoder.self_attn", "within": ["measured"], "stage": "decode", "previous": id,
                         "forwards": 17 });
    let (status, later) = service.post("/alignments", &merged(&mock, &e2e, strict)).await;
    assert_eq!(status, 202, "{later}");
    let later = ended(&service, later["alignment_id"].as_str().unwrap()).await;
    assert_eq!(later["verdict"], "inconclusive", "the mock has 16 instances: {later:#}");
    let report = service.json(&format!("{}/artifacts/alignment.json", later["links"]["self"].as_str().unwrap())).await;
    assert!(report["changes"].as_array().unwrap().iter().any(|it| it["what"] == "isolation"), "{:#}", report["changes"]);

    let page = api.get("/alignments?limit=1").await.json();
    assert_eq!(page["alignments"][0]["alignment_id"], later["alignment_id"]);
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = api.get(&format!("/alignments?cursor={cursor}&run={mock}&state=succeeded")).await.json();
    assert_eq!((&rest["alignments"][0]["alignment_id"], &rest["next_cursor"]), (&json!(id), &Value::Null));
    assert_eq!(api.get(&format!("/alignments?run={NOBODY}")).await.json()["alignments"], json!([]));

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
async fn what_a_service_was_computing_when_it_ended_is_computed_again_and_given_up_at_last() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = api.align(&mock, &e2e, attention()).await.json();
        ids.push(answer["alignment_id"].as_str().unwrap().to_owned());
    }
    let left = "update alignments set state = 'running', attempts = ";
    let database = Connection::open(api.data().join("llmprof.db")).unwrap();
    database.execute_batch(&format!("{left} 1; {left} 3 where id = (select max(id) from alignments)")).unwrap();
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
async fn a_capture_that_cannot_be_read_fails_the_alignment_and_tells_nothing_of_the_host() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    std::fs::write(api.folder(&e2e).join("nsys/run.sqlite"), "no database").unwrap();
    let id = api.align(&mock, &e2e, json!({})).await.json()["alignment_id"].as_str().unwrap().to_owned();
    let gone = api.align(&mock, &e2e, json!({})).await.json()["alignment_id"].as_str().unwrap().to_owned();
    let service = Service::start(api.data(), &Setup::default());
    let told = ended(&service, &id).await;
    let message = told["message"].as_str().unwrap();
    assert_eq!((&told["state"], &told["verdict"]), (&json!("failed"), &Value::Null));
    assert!(message.contains(&format!("run {e2e}")) && !message.contains(api.data().to_str().unwrap()), "{message}");
    assert_eq!(api.get(&format!("/alignments/{id}/report")).await.error(), (409, "report_unavailable".into()));
    ended(&service, &gone).await;
}

#[tokio::test]
async fn what_cannot_be_aligned_is_refused_with_the_reason() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let waiver = |day: &str| json!({ "waivers": [{ "pattern": "copy", "reason": "r", "impact": "i", "expires": day }] });
    let cases = [
        (json!({ "range": "a", "operator": "b" }), 409, "only one of range, operator and kernels"),
        (json!({ "range": "*" }), 422, "must name something"),
        (json!({ "stage": "warmup" }), 422, "no stage is called"),
        (json!({ "stage": "=x" }), 422, "is no stage"),
        (waiver("soon"), 422, "YYYY-MM-DD"),
        (json!({ "thresholds": { "latency_pct": -1 } }), 422, "latency_pct"),
        (json!({ "thresholds": { "names": "loose" } }), 422, "names"),
        (json!({ "thresholds": [] }), 422, "thresholds"),
        (json!({ "waivers": [["copy", "r", "i", "2026-12-31"]] }), 422, "waivers[0]"),
        (json!({ "forwards": 0 }), 422, "forwards"),
        (json!({ "kernels": vec!["k"; 33] }), 422, "kernels"),
        (json!({ "kernel": ["k"] }), 422, "kernel"),
        (json!({ "previous": NOBODY }), 404, "there is no alignment"),
        (json!({ "e2e": NOBODY }), 404, "there is no run"),
    ];
    for (more, status, said) in cases {
        let answer = api.align(&mock, &e2e, more.clone()).await;
        assert!(answer.status == status && answer.text().contains(said), "{more}: {} {}", answer.status, answer.text());
    }
    let waiting = api.submit(json!({})).await;
    assert_eq!(api.align(&mock, &waiting, json!({})).await.error(), (409, "run_not_finished".into()));
    let run = api.start().await;
    api.end(&run, llmprof::run::RunState::Partial, &[("report.md", "#")]).await;
    assert_eq!(api.align(&waiting, &e2e, json!({})).await.error(), (409, "capture_unavailable".into()));
    assert_eq!(api.align(&mock, &e2e, waiver("2026-12-31")).await.status, 202);
    assert_eq!(api.get("/alignments?state=partial").await.error(), (400, "invalid_parameter".into()));
    assert_eq!(api.get("/alignments/7").await.error(), (400, "invalid_parameter".into()));
}

#[tokio::test]
async fn the_alignments_that_the_contract_shows_are_accepted() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let examples = http::contract().pointer("/paths/~1alignments/post/requestBody/content/application~1json/examples").unwrap();
    for (name, example) in examples.as_object().unwrap() {
        let mut asked = example["value"].clone();
        asked.as_object_mut().unwrap().retain(|key, _| key != "mock" && key != "e2e");
        let answer = api.align(&mock, &e2e, asked).await;
        assert_eq!(answer.status, 202, "{name}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_key_names_one_alignment() {
    let api = Api::new().await;
    let [mock, e2e] = pair(&api).await;
    let submit = async |key: &str, stage: &str| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        let body = json!({ "mock": mock, "e2e": e2e, "range": "decoder.self_attn", "stage": stage });
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
