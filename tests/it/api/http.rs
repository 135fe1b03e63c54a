//! Responses of the API through the router: valid requests, and invalid ones by error code.

use axum::{
    body::Body,
    http::{Method, header},
};
use llmprof_core::domain::state::{RunState, Step};
use serde_json::{Value, json};

use crate::api::router::{Api, MODEL};

const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

#[tokio::test]
async fn pages_of_the_list_contain_every_run_once_newest_first() {
    let api = Api::new().await;
    let mut submitted = Vec::new();
    for n in 0..5 {
        submitted
            .push(api.submit(json!({ "labels": [if n % 2 == 0 { "even" } else { "odd" }] })).await);
    }
    let (mut listed, mut path) = (Vec::new(), "/runs?limit=2".to_owned());
    loop {
        let page = api.get(&path).await.json();
        listed.extend(
            page["runs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|run| run["run_id"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/runs?limit=2&cursor={cursor}");
    }
    submitted.reverse();
    assert_eq!(listed, submitted);
    let count = async |query: &str| {
        api.get(&format!("/runs?{query}")).await.json()["runs"].as_array().unwrap().len()
    };
    assert_eq!(count("label=even").await, 3);
    assert_eq!(count("label=even&state=running").await, 0);
    assert_eq!(count(&format!("model={MODEL}&state=queued")).await, 5);
    assert_eq!(count("model=other").await, 0);
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let api = Api::new().await;
    for query in [
        "limit=0",
        "limit=201",
        "limit=-1",
        "limit=x",
        "limit=",
        "state=done",
        "cursor=7",
        "colour=red",
        "limit=1&limit=2",
    ] {
        assert_eq!(
            api.get(&format!("/runs?{query}")).await.error(),
            (400, "invalid_parameter".to_owned()),
            "{query}"
        );
    }
    let compact = UNKNOWN.replace('-', "");
    for id in ["7", "%00", "%ff", &compact, &format!("{UNKNOWN}0")] {
        for part in ["", "/events", "/artifacts", "/artifacts/report.md", "/bundle", "/report"] {
            assert_eq!(
                api.get(&format!("/runs/{id}{part}")).await.error(),
                (400, "invalid_parameter".to_owned()),
                "{id}{part}"
            );
        }
    }
    let id = api.submit(json!({})).await;
    for last in ["x", "-1", "1.5", "9007199254740992"] {
        let answer = api
            .ask(
                Method::GET,
                &format!("/runs/{id}/events"),
                &[("last-event-id", last)],
                Body::empty(),
            )
            .await;
        assert_eq!(answer.error(), (400, "invalid_parameter".to_owned()), "{last}");
    }
}

#[tokio::test]
async fn an_unknown_run_is_a_404_everywhere() {
    let api = Api::new().await;
    for part in ["", "/events", "/artifacts", "/artifacts/report.md", "/bundle", "/report"] {
        assert_eq!(
            api.get(&format!("/runs/{UNKNOWN}{part}")).await.error(),
            (404, "run_not_found".to_owned()),
            "{part}"
        );
    }
    for (method, part) in [(Method::POST, "/cancel"), (Method::DELETE, "")] {
        let answer = api.ask(method, &format!("/runs/{UNKNOWN}{part}"), &[], Body::empty()).await;
        assert_eq!(answer.error(), (404, "run_not_found".to_owned()));
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_have_error_codes() {
    let api = Api::new().await;
    assert_eq!(api.get("/run").await.error(), (404, "route_not_found".to_owned()));
    let answer = api.ask(Method::PUT, "/runs", &[], Body::empty()).await;
    assert_eq!(answer.error(), (405, "method_not_allowed".to_owned()));
    assert!(
        answer.text().contains("not allowed for /runs (allowed: GET, HEAD, POST)"),
        "{}",
        answer.text()
    );
    let mut allowed: Vec<_> = answer.header(header::ALLOW).split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
}

#[tokio::test]
async fn queued_and_running_runs_are_cancelled_once() {
    let api = Api::new().await;
    let cancel = async |id: &str| {
        api.ask(Method::POST, &format!("/runs/{id}/cancel"), &[], Body::empty()).await
    };
    let queued = api.submit(json!({})).await;
    let answer = cancel(&queued).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["state"]), (200, &json!("cancelled")));
    assert_eq!(cancel(&queued).await.error(), (409, "run_not_cancellable".to_owned()));

    let running = api.submit(json!({})).await;
    let run = api.start().await;
    let answer = cancel(&running).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["cancel_requested"]), (202, &json!(true)));
    assert_eq!(cancel(&running).await.error(), (409, "run_not_cancellable".to_owned()));
    api.end(&run, RunState::Cancelled, &[]).await;
    assert_eq!(cancel(&running).await.error(), (409, "run_not_cancellable".to_owned()));
}

#[tokio::test]
async fn only_an_ended_run_is_deleted_with_its_files() {
    let api = Api::new().await;
    let delete =
        async |id: &str| api.ask(Method::DELETE, &format!("/runs/{id}"), &[], Body::empty()).await;
    let ended = api.ended().await;
    let active = api.submit(json!({})).await;
    assert_eq!(delete(&active).await.error(), (409, "run_active".to_owned()));
    assert!(api.folder(&ended).exists());
    assert_eq!(delete(&ended).await.status, 204);
    assert!(!api.folder(&ended).exists());
    for part in ["", "/artifacts/report.md", "/bundle"] {
        assert_eq!(
            api.get(&format!("/runs/{ended}{part}")).await.error(),
            (404, "run_not_found".to_owned())
        );
    }
    assert_eq!(delete(&ended).await.error(), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn an_active_run_has_no_files_bundle_or_report() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    assert_eq!(api.get(&format!("/runs/{id}/artifacts")).await.json(), json!({ "artifacts": [] }));
    assert_eq!(
        api.get(&format!("/runs/{id}/artifacts/report.md")).await.error(),
        (404, "artifact_not_found".to_owned())
    );
    for part in ["bundle", "report"] {
        assert_eq!(
            api.get(&format!("/runs/{id}/{part}")).await.error(),
            (409, "run_not_finished".to_owned())
        );
    }
    let run = api.start().await;
    api.end(&run, RunState::Failed, &[("logs/baseline.stderr.log", "broke")]).await;
    assert_eq!(
        api.get(&format!("/runs/{id}/report")).await.error(),
        (409, "report_unavailable".to_owned())
    );
    assert_eq!(
        api.get(&format!("/runs/{id}/artifacts/logs/baseline.stderr.log")).await.text(),
        "broke"
    );
}

/// The stream of a run as pairs of id and data.
fn events(stream: &str) -> Vec<(Option<String>, Value)> {
    let field = |block: &str, name: &str| {
        block.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned())
    };
    stream
        .split("\n\n")
        .filter_map(|block| {
            let data: Value = serde_json::from_str(&field(block, "data:")?).unwrap();
            assert_eq!(field(block, "event:").as_deref(), data["event"].as_str(), "{block}");
            Some((field(block, "id:"), data))
        })
        .collect()
}

#[tokio::test]
async fn events_are_ordered_resumable_and_end_with_the_run() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let path = format!("/runs/{id}/events");
    // A client that follows from the start.
    let (followed, ()) = tokio::join!(api.get(&path), async {
        for line in ["<b>one</b>", "two"] {
            api.journal(run.id).log(Step::Baseline, line);
        }
        api.end(&run, RunState::Succeeded, &[]).await;
    });
    assert_eq!(followed.header(header::CONTENT_TYPE), "text/event-stream");
    let received = events(&followed.text());
    let numbered: Vec<_> = received
        .iter()
        .filter_map(|(id, data)| Some((id.as_deref()?, data["event"].as_str()?)))
        .collect();
    assert_eq!(numbered, [("1", "attempt"), ("2", "log"), ("3", "log")]);
    assert_eq!(
        received.last().unwrap().1,
        json!({ "event": "end", "state": "succeeded", "message": null })
    );

    let resumed = api.ask(Method::GET, &path, &[("last-event-id", "2")], Body::empty()).await;
    let received = events(&resumed.text());
    assert_eq!((received.len(), &received[0].1["line"]), (2, &json!("two")), "{received:?}");
    let beyond = api.ask(Method::GET, &path, &[("last-event-id", "99")], Body::empty()).await;
    assert_eq!(events(&beyond.text()).len(), 1, "after the last event there is only the end");
}

#[tokio::test]
async fn a_stopping_service_ends_its_streams() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let path = format!("/runs/{id}/events");
    let (followed, ()) = tokio::join!(api.get(&path), async { api.closing.cancel() });
    assert_eq!(followed.status, 200);
}

#[tokio::test]
async fn a_request_id_is_kept_if_well_formed() {
    let api = Api::new().await;
    let id_of = async |given: &str| {
        let answer =
            api.ask(Method::GET, "/nowhere", &[("x-request-id", given)], Body::empty()).await;
        answer.error();
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id_of("build-42.a_b").await, "build-42.a_b");
    for given in ["", "a b", "<script>", &"x".repeat(65)] {
        assert_eq!(id_of(given).await.len(), 36, "{given:?}");
    }
}

#[tokio::test]
async fn health_version_models_and_docs_are_served() {
    let api = Api::new().await;
    assert_eq!(api.get("/healthz").await.json(), json!({ "status": "ok" }));
    assert_eq!(api.get("/readyz").await.json(), json!({ "status": "ok" }));
    assert_eq!(api.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let models = api.get("/models").await.json();
    let named: Vec<_> = models["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(named, ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b"]);
    let docs = api.get("/docs/").await;
    assert_eq!(docs.status, 200);
    assert!(
        docs.text().contains("swagger-ui-bundle.js") && !docs.text().contains("https://"),
        "{}",
        docs.text()
    );
    assert!(api.get("/docs/swagger-ui-bundle.js").await.body.len() > 100_000);
    for path in ["/healthz", "/docs/"] {
        let answer = api.get(path).await;
        assert_eq!(answer.header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert!(!answer.header(header::CONTENT_SECURITY_POLICY).is_empty(), "{path}");
    }
}

#[tokio::test]
async fn devices_are_listed_with_their_current_run() {
    let api = Api::new().await;
    assert_eq!(
        api.get("/devices").await.json()["devices"][0],
        json!({ "name": "cpu", "uuid": null, "product": null, "memory_bytes": null,
            "run_id": null })
    );
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    assert_eq!(api.get("/devices").await.json()["devices"][0]["run_id"], json!(id));
    api.end(&run, RunState::Succeeded, &[]).await;
    assert_eq!(api.get("/devices").await.json()["devices"][0]["run_id"], json!(null));
}

#[tokio::test]
async fn the_doctor_returns_its_checks() {
    let answer = Api::new().await.get("/doctor").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["checks"][0]["state"]), (200, &json!("ok")));
}

#[tokio::test]
async fn a_refused_value_is_stated_with_the_accepted_ones() {
    let api = Api::new().await;
    for (path, message) in [
        ("/runs?kind=zzz", r#"invalid kind "zzz"; expected one of model, part, command, import"#),
        ("/runs?limit=x", r#"invalid limit "x"; expected an integer"#),
        ("/runs?colour=x", "unknown parameter `colour`; expected one of `state`, `kind`, "),
        ("/runs?limit=1&limit=2", "`limit` is given more than once"),
        ("/deliveries?state=x", r#"invalid state "x"; expected one of pending, delivered, failed"#),
        ("/alignments?state=x", r#"invalid state "x"; expected one of queued, running, "#),
        ("/audit?since=x", "unknown parameter `since`; expected `limit`"),
    ] {
        let answer = api.get(path).await.json();
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.starts_with(message), "{path}: {text}");
    }
    let docs = "; /docs has the fields with an example";
    for (path, body, message) in [
        ("/runs", json!({}), r#"missing field `model` (see GET /models) or `target` (a command"#),
        ("/runs", json!({"mode": "light"}), "missing field `model` (see GET /models) or `target`"),
        ("/runs", json!({"target": "decoder"}), "missing field `model`: a `target` that is a text"),
        ("/runs", json!({"model": MODEL, "dtype": "f8"}), r#"invalid dtype "f8"; expected one of"#),
        ("/runs", json!({"model": MODEL, "dtype": 4}), "invalid dtype 4; expected a string"),
        ("/runs", json!({"model": MODEL, "repeats": "3"}), r#"invalid repeats "3"; expected an "#),
        ("/runs", json!({"model": MODEL, "labels": {}}), "invalid labels (object); expected a "),
        ("/runs", json!({"model": MODEL, "inputs": 4}), "invalid inputs 4; expected the id of "),
        ("/runs", json!({"target": {"cmd": 1}}), "target: unknown field `cmd`; expected one of `"),
        ("/runs", json!([]), "the body is not a JSON object"),
        ("/alignments", json!({}), &format!("missing field `mock`{docs}")),
        ("/alignments", json!({"mock": "x"}), r#"invalid mock "x"; expected a UUID"#),
        ("/baselines", json!({}), &format!("missing field `name`{docs}")),
    ] {
        let json = [("content-type", "application/json")];
        let answer = api.ask(Method::POST, path, &json, body.to_string()).await.json();
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(text.starts_with(message), "{path} {body}: {text}");
    }
}
