//! What the API answers, through the router: good requests, and every bad one that has a code of its own.

use axum::{
    body::Body,
    http::{Method, header},
};
use llmprof::run::{RunState, Step};
use serde_json::{Value, json};

use crate::api::{Api, MODEL};

const UNKNOWN: &str = "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10";

/// Fails if a refused request queued something.
async fn assert_nothing_queued(api: &Api) {
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_submission_is_queued_with_its_defaults_filled_in() {
    let api = Api::new().await;
    let answer = api.post(&json!({ "model": MODEL })).await;
    let submitted = answer.json();
    let id = submitted["run_id"].as_str().unwrap();
    assert_eq!(answer.status, 202);
    assert_eq!(answer.header(header::LOCATION), format!("/runs/{id}"));
    assert_eq!((&submitted["state"], &submitted["queue_position"]), (&json!("queued"), &json!(1)));
    assert_eq!(submitted["links"]["events"], format!("/runs/{id}/events"));
    let run = api.get(submitted["links"]["self"].as_str().unwrap()).await.json();
    let deep = &api.get("/profiling").await.json()["presets"][0];
    assert_eq!(deep["mode"], "deep");
    let workload = json!({ "model": MODEL, "inputs_manifest": "inputs.yaml", "max_new_tokens": 64, "seed": 0, "dtype": null });
    let passes = json!({ "mode": "deep", "repeats": 3, "warmup": 2, "device": "auto", "profiling": deep["profiling"] });
    let expected = json!({
        "subject": { "kind": "model", "workload": workload, "passes": passes },
        "common": { "timeout_s": 1800, "labels": [], "priority": 0 },
    });
    assert_eq!(run["spec"], expected);
}

#[tokio::test]
async fn a_model_that_reads_text_only_gets_text_by_default_and_no_images() {
    let api = Api::new().await;
    let id = api.submit(json!({ "model": "llama-tiny" })).await;
    assert_eq!(
        api.get(&format!("/runs/{id}")).await.json()["spec"]["subject"]["workload"]["inputs_manifest"],
        "inputs-text.yaml"
    );
    let answer = api.post(&json!({ "model": "llama-tiny", "inputs_manifest": "inputs.yaml" })).await;
    assert_eq!(answer.error(), (409, "inputs_unfit".to_owned()));
    assert!(answer.text().contains("llama-tiny reads text only"), "{}", answer.text());
}

#[tokio::test]
async fn an_integer_may_be_written_with_a_fraction_of_zero() {
    let api = Api::new().await;
    let id = api.submit(json!({ "repeats": 4.0, "priority": -1.0, "seed": 9007199254740991u64 })).await;
    let spec = &api.get(&format!("/runs/{id}")).await.json()["spec"];
    let (passes, workload) = (&spec["subject"]["passes"], &spec["subject"]["workload"]);
    assert_eq!(
        (&passes["repeats"], &spec["common"]["priority"], &workload["seed"]),
        (&json!(4), &json!(-1), &json!(9007199254740991u64))
    );
}

#[tokio::test]
async fn what_is_wrong_in_a_body_is_named_and_nothing_is_queued() {
    let api = Api::new().await;
    let cases = [
        (json!({}), 422, "invalid_request", "model"),
        (json!({ "model": MODEL, "repeat": 1 }), 422, "invalid_request", "repeat"),
        (json!({ "model": MODEL, "repeats": -1 }), 422, "invalid_request", "repeats"),
        (json!({ "model": MODEL, "repeats": 0 }), 422, "invalid_request", "repeats"),
        (json!({ "model": MODEL, "repeats": 1.5 }), 422, "invalid_request", "repeats"),
        (json!({ "model": MODEL, "repeats": "3" }), 422, "invalid_request", "repeats"),
        (json!({ "model": MODEL, "repeats": null }), 422, "invalid_request", "repeats"),
        (json!({ "model": MODEL, "max_new_tokens": 18446744073709551615u64 }), 422, "invalid_request", "max_new_tokens"),
        (json!({ "model": MODEL, "seed": 9007199254740992u64 }), 422, "invalid_request", "seed"),
        (json!({ "model": MODEL, "timeout_s": 1801 }), 422, "invalid_request", "timeout_s"),
        (json!({ "model": MODEL, "mode": "quick" }), 422, "invalid_request", "mode"),
        (json!({ "model": MODEL, "mock": [null, null] }), 422, "invalid_request", "mock"),
        (json!({ "model": MODEL, "profiling": [] }), 422, "invalid_request", "profiling"),
        (json!({ "model": MODEL, "device": "cuda:" }), 422, "invalid_request", "device"),
        (json!({ "model": MODEL, "dtype": "int8" }), 422, "invalid_request", "dtype"),
        (json!({ "model": MODEL, "labels": ["a\u{0}"] }), 422, "invalid_request", "label"),
        (json!({ "model": MODEL, "labels": ["x".repeat(65)] }), 422, "invalid_request", "label"),
        (json!({ "model": MODEL, "labels": vec!["x"; 17] }), 422, "invalid_request", "labels"),
        (
            json!({ "model": MODEL, "profiling": { "nsys": { "trac": ["nvtx"] } } }),
            422,
            "invalid_request",
            "did you mean nsys.trace?",
        ),
        (json!({ "model": MODEL, "profiling": { "ncu": { "sections": ["--export"] } } }), 422, "invalid_request", "ncu.sections"),
        (json!({ "model": MODEL, "profiling": { "nvml": { "hz": 0 } } }), 422, "invalid_request", "between 1 and 100"),
        (json!({ "model": MODEL, "profiling": [] }), 422, "invalid_request", "profiling"),
        (json!({ "model": "" }), 422, "invalid_request", "model"),
        (json!([MODEL]), 422, "invalid_request", ""),
        (json!({ "model": "deepseek-ocr-tin" }), 404, "model_not_found", "did you mean deepseek-ocr-tiny?"),
        (json!({ "model": "gpt" }), 404, "model_not_found", "deepseek-ocr-tiny"),
        (json!({ "model": MODEL, "device": "cuda:7" }), 404, "device_not_found", "cpu"),
        (json!({ "model": MODEL, "device": "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77" }), 404, "device_not_found", "cpu"),
        (json!({ "model": MODEL, "device": "GPU-1" }), 422, "invalid_request", "UUID"),
        (json!({ "model": MODEL, "dtype": "bf16" }), 409, "dtype_unavailable", "f32"),
    ];
    for (body, status, code, told) in cases {
        let answer = api.post(&body).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{body}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(told), "{body}: {message}");
    }
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn a_run_shows_every_setting_of_its_passes_and_can_be_asked_for_again_with_them() {
    let api = Api::new().await;
    let presets = api.get("/profiling").await.json();
    let preset =
        |mode: &str| presets["presets"].as_array().unwrap().iter().find(|it| it["mode"] == mode).unwrap()["profiling"].clone();
    let change = json!({ "nsys": { "trace": ["cuda", "nvtx", "osrt"], "cuda_graph_trace": "graph", "delay_s": 2.0 }, "ncu": { "top_n": 3 } });
    let mut expected = preset("deep");
    for (part, key) in [("nsys", "trace"), ("nsys", "cuda_graph_trace"), ("ncu", "top_n")] {
        expected[part][key] = change[part][key].clone();
    }
    expected["nsys"]["delay_s"] = json!(2);
    let stored = async |body: Value| {
        let answer = api.post(&body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        api.get(&format!("/runs/{}", answer.json()["run_id"].as_str().unwrap())).await.json()["spec"]["subject"]["passes"]["profiling"].clone()
    };
    assert_eq!(stored(json!({ "model": MODEL, "profiling": change })).await, expected);
    assert_eq!(stored(json!({ "model": MODEL, "mode": "basic", "profiling": expected.clone() })).await, expected);
    assert_eq!(stored(json!({ "model": MODEL, "mode": "light", "profiling": null })).await, preset("light"));
}

#[tokio::test]
async fn inputs_that_cannot_be_read_are_refused_at_submission() {
    let api = Api::new().await;
    let cases = [
        ("none.yaml", 404, "inputs_not_found"),
        ("../secret.yaml", 404, "inputs_not_found"),
        ("link.yaml", 404, "inputs_not_found"),
        ("/etc/passwd", 404, "inputs_not_found"),
        ("a\u{0}b", 404, "inputs_not_found"),
        (&"n".repeat(200), 404, "inputs_not_found"),
        ("gone.yaml", 422, "inputs_invalid"),
        ("text.yaml", 422, "inputs_invalid"),
        ("outside.yaml", 422, "inputs_invalid"),
        ("broken.yaml", 422, "inputs_invalid"),
        ("page.png", 422, "inputs_invalid"),
        ("", 422, "invalid_request"),
    ];
    for (manifest, status, code) in cases {
        let answer = api.post(&json!({ "model": MODEL, "inputs_manifest": manifest })).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{manifest:?}");
        assert!(!answer.text().contains("secret") || manifest.contains("secret"), "{}", answer.text());
    }
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn a_body_that_is_no_json_document_is_refused() {
    let api = Api::new().await;
    let json = Some("application/json");
    let long = format!("{{\"model\":\"{}\"}}", "x".repeat(1 << 20));
    let cases = [
        (json, "", 400, "malformed_body"),
        (json, "{\"model\":", 400, "malformed_body"),
        (json, "{\"model\":\"a\"} {}", 400, "malformed_body"),
        (json, "{\"model\":\"\\ud800\"}", 400, "malformed_body"),
        (json, "{\"model\":\"a\",\"model\":\"a\"}", 422, "invalid_request"),
        (json, &long, 413, "body_too_large"),
        (Some("text/plain"), "{}", 415, "unsupported_media_type"),
        (None, "{}", 415, "unsupported_media_type"),
    ];
    for (kind, body, status, code) in cases {
        let headers: Vec<_> = kind.map(|kind| ("content-type", kind)).into_iter().collect();
        let answer = api.ask(Method::POST, "/runs", &headers, body.to_owned()).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{}", &body[..body.len().min(80)]);
    }
    let streamed = Body::from_stream(tokio_stream::iter((0..3).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 19]))));
    let answer = api.ask(Method::POST, "/runs", &[("content-type", "application/json")], streamed).await;
    assert_eq!(answer.error(), (413, "body_too_large".to_owned()), "a body without a length");
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn a_key_names_one_submission() {
    let api = Api::new().await;
    let submit = async |key: &str, body: Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        api.ask(Method::POST, "/runs", &headers, body.to_string()).await
    };
    let first = submit("nightly-1", json!({ "model": MODEL })).await.json();
    let again = submit("nightly-1", json!({ "model": MODEL })).await;
    assert_eq!((again.status.as_u16(), &again.json()["run_id"]), (202, &first["run_id"]));
    let other = submit("nightly-1", json!({ "model": MODEL, "repeats": 5 })).await;
    assert_eq!(other.error(), (409, "idempotency_key_reused".to_owned()));
    assert_ne!(submit("nightly-2", json!({ "model": MODEL })).await.json()["run_id"], first["run_id"]);
    for key in ["", "with space", &"k".repeat(256)] {
        assert_eq!(submit(key, json!({ "model": MODEL })).await.error(), (400, "invalid_parameter".to_owned()), "{key:?}");
    }
    assert_eq!(api.get("/runs").await.json()["runs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn pages_of_the_list_hold_every_run_once_newest_first() {
    let api = Api::new().await;
    let mut submitted = Vec::new();
    for n in 0..5 {
        submitted.push(api.submit(json!({ "labels": [if n % 2 == 0 { "even" } else { "odd" }] })).await);
    }
    let (mut listed, mut path) = (Vec::new(), "/runs?limit=2".to_owned());
    loop {
        let page = api.get(&path).await.json();
        listed.extend(page["runs"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/runs?limit=2&cursor={cursor}");
    }
    submitted.reverse();
    assert_eq!(listed, submitted);
    let count = async |query: &str| api.get(&format!("/runs?{query}")).await.json()["runs"].as_array().unwrap().len();
    assert_eq!(count("label=even").await, 3);
    assert_eq!(count("label=even&state=running").await, 0);
    assert_eq!(count(&format!("model={MODEL}&state=queued")).await, 5);
    assert_eq!(count("model=other").await, 0);
}

#[tokio::test]
async fn a_parameter_that_means_nothing_is_refused() {
    let api = Api::new().await;
    for query in
        ["limit=0", "limit=201", "limit=-1", "limit=x", "limit=", "state=done", "cursor=7", "colour=red", "limit=1&limit=2"]
    {
        assert_eq!(api.get(&format!("/runs?{query}")).await.error(), (400, "invalid_parameter".to_owned()), "{query}");
    }
    let compact = UNKNOWN.replace('-', "");
    for id in ["7", "%00", "%ff", &compact, &format!("{UNKNOWN}0")] {
        for part in ["", "/events", "/artifacts", "/artifacts/report.md", "/bundle", "/report"] {
            assert_eq!(api.get(&format!("/runs/{id}{part}")).await.error(), (400, "invalid_parameter".to_owned()), "{id}{part}");
        }
    }
    let id = api.submit(json!({})).await;
    for last in ["x", "-1", "1.5", "9007199254740992"] {
        let answer = api.ask(Method::GET, &format!("/runs/{id}/events"), &[("last-event-id", last)], Body::empty()).await;
        assert_eq!(answer.error(), (400, "invalid_parameter".to_owned()), "{last}");
    }
}

#[tokio::test]
async fn an_unknown_run_is_a_404_everywhere() {
    let api = Api::new().await;
    for part in ["", "/events", "/artifacts", "/artifacts/report.md", "/bundle", "/report"] {
        assert_eq!(api.get(&format!("/runs/{UNKNOWN}{part}")).await.error(), (404, "run_not_found".to_owned()), "{part}");
    }
    for (method, part) in [(Method::POST, "/cancel"), (Method::DELETE, "")] {
        let answer = api.ask(method, &format!("/runs/{UNKNOWN}{part}"), &[], Body::empty()).await;
        assert_eq!(answer.error(), (404, "run_not_found".to_owned()));
    }
}

#[tokio::test]
async fn an_unknown_route_and_a_wrong_method_say_so() {
    let api = Api::new().await;
    assert_eq!(api.get("/run").await.error(), (404, "route_not_found".to_owned()));
    let answer = api.ask(Method::PUT, "/runs", &[], Body::empty()).await;
    assert_eq!(answer.error(), (405, "method_not_allowed".to_owned()));
    let mut allowed: Vec<_> = answer.header(header::ALLOW).split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
}

#[tokio::test]
async fn a_queued_run_is_cancelled_at_once_a_running_one_soon_and_neither_twice() {
    let api = Api::new().await;
    let cancel = async |id: &str| api.ask(Method::POST, &format!("/runs/{id}/cancel"), &[], Body::empty()).await;
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
async fn only_an_ended_run_is_deleted_and_its_files_go_with_it() {
    let api = Api::new().await;
    let delete = async |id: &str| api.ask(Method::DELETE, &format!("/runs/{id}"), &[], Body::empty()).await;
    let ended = api.ended().await;
    let active = api.submit(json!({})).await;
    assert_eq!(delete(&active).await.error(), (409, "run_active".to_owned()));
    assert!(api.folder(&ended).exists());
    assert_eq!(delete(&ended).await.status, 204);
    assert!(!api.folder(&ended).exists());
    for part in ["", "/artifacts/report.md", "/bundle"] {
        assert_eq!(api.get(&format!("/runs/{ended}{part}")).await.error(), (404, "run_not_found".to_owned()));
    }
    assert_eq!(delete(&ended).await.error(), (404, "run_not_found".to_owned()));
}

#[tokio::test]
async fn before_its_end_a_run_has_no_files_bundle_or_report() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    assert_eq!(api.get(&format!("/runs/{id}/artifacts")).await.json(), json!({ "artifacts": [] }));
    assert_eq!(api.get(&format!("/runs/{id}/artifacts/report.md")).await.error(), (404, "artifact_not_found".to_owned()));
    for part in ["bundle", "report"] {
        assert_eq!(api.get(&format!("/runs/{id}/{part}")).await.error(), (409, "run_not_finished".to_owned()));
    }
    let run = api.start().await;
    api.end(&run, RunState::Failed, &[("logs/baseline.stderr.log", "broke")]).await;
    assert_eq!(api.get(&format!("/runs/{id}/report")).await.error(), (409, "report_unavailable".to_owned()));
    assert_eq!(api.get(&format!("/runs/{id}/artifacts/logs/baseline.stderr.log")).await.text(), "broke");
}

/// The stream of a run as pairs of id and data.
fn events(stream: &str) -> Vec<(Option<String>, Value)> {
    let field =
        |block: &str, name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned());
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
async fn events_are_told_in_order_resumed_by_id_and_end_with_the_run() {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let path = format!("/runs/{id}/events");
    // One who follows from the start, while the run goes on.
    let (followed, ()) = tokio::join!(api.get(&path), async {
        for line in ["<b>one</b>", "two"] {
            api.journal(run.id).log(Step::Baseline, line);
        }
        api.end(&run, RunState::Succeeded, &[]).await;
    });
    assert_eq!(followed.header(header::CONTENT_TYPE), "text/event-stream");
    let told = events(&followed.text());
    let numbered: Vec<_> = told.iter().filter_map(|(id, data)| Some((id.as_deref()?, data["event"].as_str()?))).collect();
    assert_eq!(numbered, [("1", "attempt"), ("2", "log"), ("3", "log")]);
    assert_eq!(told.last().unwrap().1, json!({ "event": "end", "state": "succeeded", "message": null }));

    let resumed = api.ask(Method::GET, &path, &[("last-event-id", "2")], Body::empty()).await;
    let told = events(&resumed.text());
    assert_eq!((told.len(), &told[0].1["line"]), (2, &json!("two")), "{told:?}");
    let beyond = api.ask(Method::GET, &path, &[("last-event-id", "99")], Body::empty()).await;
    assert_eq!(events(&beyond.text()).len(), 1, "a reader ahead of the journal hears only the end");
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
async fn a_request_keeps_its_plain_id_and_loses_another() {
    let api = Api::new().await;
    let id_of = async |given: &str| {
        let answer = api.ask(Method::GET, "/nowhere", &[("x-request-id", given)], Body::empty()).await;
        answer.error();
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id_of("build-42.a_b").await, "build-42.a_b");
    for given in ["", "a b", "<script>", &"x".repeat(65)] {
        assert_eq!(id_of(given).await.len(), 36, "{given:?}");
    }
}

#[tokio::test]
async fn the_service_tells_of_itself() {
    let api = Api::new().await;
    assert_eq!(api.get("/healthz").await.json(), json!({ "status": "ok" }));
    assert_eq!(api.get("/readyz").await.json(), json!({ "status": "ok" }));
    assert_eq!(api.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let models = api.get("/models").await.json();
    let named: Vec<_> = models["models"].as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(named, ["deepseek-ocr", "deepseek-ocr-tiny", "llama-tiny", "qwen3-0.6b"]);
    let docs = api.get("/docs/").await;
    assert_eq!(docs.status, 200);
    assert!(docs.text().contains("swagger-ui-bundle.js") && !docs.text().contains("https://"), "{}", docs.text());
    assert!(api.get("/docs/swagger-ui-bundle.js").await.body.len() > 100_000);
    for path in ["/healthz", "/docs/"] {
        let answer = api.get(path).await;
        assert_eq!(answer.header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
        assert!(!answer.header(header::CONTENT_SECURITY_POLICY).is_empty(), "{path}");
    }
}

#[tokio::test]
async fn devices_are_listed_with_the_run_that_each_is_busy_with() {
    let api = Api::new().await;
    assert_eq!(
        api.get("/devices").await.json()["devices"][0],
        json!({ "name": "cpu", "uuid": null, "product": null, "memory_bytes": null, "run_id": null })
    );
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    assert_eq!(api.get("/devices").await.json()["devices"][0]["run_id"], json!(id));
    api.end(&run, RunState::Succeeded, &[]).await;
    assert_eq!(api.get("/devices").await.json()["devices"][0]["run_id"], json!(null));
}

#[tokio::test]
async fn the_doctor_answers_with_its_checks() {
    let answer = Api::new().await.get("/doctor").await;
    assert_eq!((answer.status.as_u16(), &answer.json()["checks"][0]["state"]), (200, &json!("ok")));
}
