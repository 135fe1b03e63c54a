//! The API of sessions: what is accepted, refused and listed, on a service that executes nothing.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use super::router::Api;
use crate::support::{
    service::{self, Service, Setup},
    session::{end, fake_server, start, submit_on, try_submit},
};

/// A service without workers: sessions wait for a device.
fn paused(data: &std::path::Path) -> Service {
    let targets = data.join("targets.toml");
    let program = "[commands.program]\ndescription = 'x'\nprogram = 'true'\n";
    std::fs::write(&targets, fake_server() + program).unwrap();
    let mut command = service::command(data, &Setup::default());
    command.env("LLMPROF__SERVER__TARGETS", targets).env("LLMPROF__WORKER__PAUSED", "true");
    Service::spawn(&mut command, data)
}

#[tokio::test]
async fn a_session_waits_for_its_device_is_listed_and_ends_on_request() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let more = json!({ "label": "<b>", "lifetime_s": 100, "params": { "requests": 5 } });
    let id = start(&service, more).await;
    let session = service.json(&format!("/sessions/{id}")).await;
    assert_eq!((&session["state"], &session["lifetime_s"]), (&json!("starting"), &json!(100)));
    let params = json!({ "mode": "whole", "requests": 5 });
    assert_eq!((&session["params"], &session["devices"]), (&params, &json!([])));
    assert_eq!(service.json("/sessions").await["sessions"], json!([session]));
    let page = service.get("/ui/sessions").await.text().await.unwrap();
    assert!(page.contains(&id) && page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");

    let run = submit_on(&service, &id, json!({ "requests": 7 }), json!({})).await;
    let queued = service.json(&format!("/runs/{run}")).await;
    let call = &queued["spec"]["subject"]["call"];
    assert_eq!(call["params"], json!({ "mode": "whole", "requests": 7 }));
    let waiting = &service.json("/queue").await["waiting"][0];
    let reason = format!("no estimate: it waits for its session {id}");
    assert_eq!(waiting["unknown_because"], reason, "{waiting:#}");
    let page = service.get(&format!("/ui/runs/{run}")).await.text().await.unwrap();
    assert!(page.contains(&format!("/ui/sessions#s-{id}")), "{page}");

    for _ in 0..2 {
        assert_eq!(end(&service, &id).await, 204);
        let ended = service.json(&format!("/sessions/{id}")).await;
        assert_eq!(ended["state"], "ended", "{ended:#}");
    }
    assert_eq!(end(&service, "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45").await, 404);
    let failed = service.json(&format!("/runs/{run}")).await;
    assert_eq!(failed["state"], "failed", "{failed:#}");
    assert_eq!(failed["findings"][0]["id"], "session_ended");
    let (status, answer) = try_submit(&service, &id, json!({}), json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (409, &json!("session_ended")), "{answer}");
}

#[tokio::test]
async fn a_session_that_cannot_be_is_refused_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let cases = [
        (json!({ "command": "fak" }), 404, "did you mean fake?"),
        (json!({ "command": "program" }), 409, "a session needs a server with a load"),
        (json!({ "command": "fake", "lifetime_s": 9 }), 422, "9 is not between 10 and 28800"),
        (json!({ "command": "fake", "lifetime_s": 99999 }), 422, "between 10 and 28800"),
        (json!({ "command": "fake", "label": "a\u{7}" }), 422, "control character"),
        (json!({ "command": "fake", "params": { "n": 1 } }), 409, "has no parameter n"),
        (json!({ "command": "fake", "device": "cuda:x" }), 422, "invalid device"),
        (json!({ "command": "fake", "mode": "nightly" }), 404, "no mode nightly"),
        (json!({ "command": "fake", "x": 1 }), 422, "unknown field"),
    ];
    for (body, status, reason) in cases {
        let answer = service.post("/sessions", &body).await;
        let message = answer.1["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.0 == status && message.contains(reason), "{body}: {answer:?}");
    }
    for _ in 0..2 {
        start(&service, json!({})).await;
    }
    let (status, answer) = service.post("/sessions", &json!({ "command": "fake" })).await;
    assert_eq!((status, &answer["error"]["code"]), (429, &json!("too_many_sessions")), "{answer}");
}

#[tokio::test]
async fn a_run_that_does_not_fit_its_session_is_refused_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path());
    let id = start(&service, json!({ "device": "cpu" })).await;
    let params = |params: Value| (params, json!({}));
    let more = |more: Value| (json!({}), more);
    let absent = "019aa3b1-5c2e-7f10-8a4d-6e1b3c9d2f45";
    let other = json!({ "target": { "command": "program", "session": id } });
    let unknown = json!({ "target": { "command": "fake", "session": absent } });
    for ((params, more), status, reason) in [
        (params(json!({ "mode": "fails" })), 409, "started with another value"),
        (params(json!({ "requests": 100 })), 409, "100 is not between 1 and 99"),
        (more(other), 409, "the session runs fake, not program"),
        (more(unknown), 404, "no session"),
        (more(json!({ "device": "cuda:0" })), 409, "the session holds cpu"),
        (
            more(json!({ "profiling": { "nsys": { "cuda_graph_trace": "node" } } })),
            409,
            "profiling.nsys.cuda_graph_trace: fixed by the session",
        ),
        (more(json!({ "profiling": { "nsys": { "delay_s": 3 } } })), 409, "nsys.delay_s"),
    ] {
        let answer = try_submit(&service, &id, params, more).await;
        let message = answer.1["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(answer.0 == status && message.contains(reason), "{answer:?}");
    }
    let dry = json!({ "mode": "deep", "dry_run": true });
    let (status, plan) = try_submit(&service, &id, json!({}), dry).await;
    assert_eq!(status, 200, "{plan}");
    assert_eq!(plan["spec"]["subject"]["passes"]["device"], "cpu");
    let nsys = &plan["spec"]["subject"]["passes"]["profiling"]["nsys"];
    assert_eq!(nsys["cuda_graph_trace"], "graph", "the mode of the session: {nsys}");
}

#[tokio::test]
async fn a_cluster_has_no_sessions() {
    let api = Api::configured(|config| {
        config.executor.kind = llmprof_service::config::ExecutorKind::Slurm;
    })
    .await;
    let body = json!({ "command": "static-files" }).to_string();
    let headers = [("content-type", "application/json")];
    let answer = api.ask(Method::POST, "/sessions", &headers, body).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.text());
    assert!(answer.text().contains("no sessions on a cluster"), "{}", answer.text());
}
