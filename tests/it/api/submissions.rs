//! Submissions of runs: defaults, and refusals by error code.

use axum::{
    body::Body,
    http::{Method, header},
};
use serde_json::{Value, json};

use crate::api::router::{Api, MODEL};

/// Requires an empty list of runs.
async fn assert_nothing_queued(api: &Api) {
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_submission_is_queued_with_its_defaults() {
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
    let workload = json!({ "model": MODEL, "inputs_manifest": "inputs.yaml", "max_new_tokens": 64,
        "batch": 1, "seed": 0, "dtype": null });
    let passes = json!({ "mode": "deep", "repeats": 3, "warmup": 2, "device": "auto",
        "profiling": deep["profiling"] });
    let expected = json!({
        "subject": { "kind": "model", "workload": workload, "passes": passes },
        "common": { "timeout_s": 1800, "labels": [], "priority": 0 },
    });
    assert_eq!(run["spec"], expected);
}

#[tokio::test]
async fn a_text_model_has_text_inputs_by_default_and_refuses_images() {
    let api = Api::new().await;
    let id = api.submit(json!({ "model": "llama-tiny" })).await;
    let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
    assert_eq!(spec["subject"]["workload"]["inputs_manifest"], "inputs-text.yaml");
    let answer =
        api.post(&json!({ "model": "llama-tiny", "inputs_manifest": "inputs.yaml" })).await;
    assert_eq!(answer.error(), (409, "inputs_unfit".to_owned()));
    assert!(answer.text().contains("llama-tiny reads text only"), "{}", answer.text());
}

#[tokio::test]
async fn integers_may_have_a_zero_fraction() {
    let api = Api::new().await;
    let id =
        api.submit(json!({ "repeats": 4.0, "priority": -1.0, "seed": 9007199254740991u64 })).await;
    let spec = &api.get(&format!("/runs/{id}")).await.json()["spec"];
    let (passes, workload) = (&spec["subject"]["passes"], &spec["subject"]["workload"]);
    assert_eq!(
        (&passes["repeats"], &spec["common"]["priority"], &workload["seed"]),
        (&json!(4), &json!(-1), &json!(9007199254740991u64))
    );
}

/// Code of a request that is not valid.
const INVALID: &str = "invalid_request";

#[tokio::test]
async fn the_error_of_an_invalid_body_names_the_field() {
    let api = Api::new().await;
    let cases = [
        (json!({}), 422, INVALID, "model"),
        (json!({ "model": MODEL, "repeat": 1 }), 422, INVALID, "repeat"),
        (json!({ "model": MODEL, "repeats": -1 }), 422, INVALID, "repeats"),
        (json!({ "model": MODEL, "repeats": 0 }), 422, INVALID, "repeats"),
        (json!({ "model": MODEL, "repeats": 1.5 }), 422, INVALID, "repeats"),
        (json!({ "model": MODEL, "repeats": "3" }), 422, INVALID, "repeats"),
        (json!({ "model": MODEL, "repeats": null }), 422, INVALID, "repeats"),
        (
            json!({ "model": MODEL, "max_new_tokens": 18446744073709551615u64 }),
            422,
            INVALID,
            "max_new_tokens",
        ),
        (json!({ "model": MODEL, "seed": 9007199254740992u64 }), 422, INVALID, "seed"),
        (json!({ "model": MODEL, "timeout_s": 1801 }), 422, INVALID, "timeout_s"),
        (json!({ "model": MODEL, "mode": "Quick" }), 422, INVALID, "mode"),
        (json!({ "model": MODEL, "mock": [null, null] }), 422, INVALID, "mock"),
        (json!({ "model": MODEL, "profiling": [] }), 422, INVALID, "profiling"),
        (json!({ "model": MODEL, "device": "cuda:" }), 422, INVALID, "device"),
        (json!({ "model": MODEL, "dtype": "int8" }), 422, INVALID, "dtype"),
        (json!({ "model": MODEL, "dtype": 8 }), 422, INVALID, "invalid dtype 8; expected a string"),
        (json!({ "model": MODEL, "labels": ["a\u{0}"] }), 422, INVALID, "label"),
        (json!({ "model": MODEL, "labels": ["x".repeat(65)] }), 422, INVALID, "label"),
        (json!({ "model": MODEL, "labels": vec!["x"; 17] }), 422, INVALID, "labels"),
        (
            json!({ "model": MODEL, "profiling": { "nsys": { "trac": ["nvtx"] } } }),
            422,
            INVALID,
            "did you mean nsys.trace?",
        ),
        (
            json!({ "model": MODEL, "profiling": { "ncu": { "sections": ["--export"] } } }),
            422,
            INVALID,
            "ncu.sections",
        ),
        (
            json!({ "model": MODEL, "profiling": { "nvml": { "hz": 0 } } }),
            422,
            INVALID,
            "between 1 and 100",
        ),
        (json!({ "model": "" }), 422, INVALID, "model"),
        (json!([MODEL]), 422, INVALID, ""),
        (
            json!({ "model": "deepseek-ocr-tin" }),
            404,
            "model_not_found",
            "did you mean deepseek-ocr-tiny?",
        ),
        (json!({ "model": "gpt" }), 404, "model_not_found", "deepseek-ocr-tiny"),
        (json!({ "model": MODEL, "device": "cuda:7" }), 404, "device_not_found", "cpu"),
        (
            json!({ "model": MODEL, "device": "GPU-6c35a1a0-0c3b-4f6e-9f41-2f1f6f2b1a77" }),
            404,
            "device_not_found",
            "cpu",
        ),
        (json!({ "model": MODEL, "device": "GPU-1" }), 422, INVALID, "UUID"),
        (json!({ "model": MODEL, "dtype": "bf16" }), 409, "dtype_unavailable", "f32"),
    ];
    for (body, status, code, expected) in cases {
        let answer = api.post(&body).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{body}");
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(expected), "{body}: {message}");
    }
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn a_runs_profiling_settings_are_complete_and_can_be_resubmitted() {
    let api = Api::new().await;
    let presets = api.get("/profiling").await.json();
    let preset = |mode: &str| {
        let mut presets = presets["presets"].as_array().unwrap().iter();
        presets.find(|it| it["mode"] == mode).unwrap()["profiling"].clone()
    };
    let change = json!({ "nsys": { "trace": ["cuda", "nvtx", "osrt"], "cuda_graph_trace": "graph",
        "delay_s": 2.0 }, "ncu": { "max_launches": 3 } });
    let mut expected = preset("deep");
    for (part, key) in [("nsys", "trace"), ("nsys", "cuda_graph_trace"), ("ncu", "max_launches")] {
        expected[part][key] = change[part][key].clone();
    }
    expected["nsys"]["delay_s"] = json!(2);
    let stored = async |body: Value| {
        let answer = api.post(&body).await;
        assert_eq!(answer.status, 202, "{}", answer.text());
        let path = format!("/runs/{}", answer.json()["run_id"].as_str().unwrap());
        api.get(&path).await.json()["spec"]["subject"]["passes"]["profiling"].clone()
    };
    assert_eq!(stored(json!({ "model": MODEL, "profiling": change })).await, expected);
    assert_eq!(
        stored(json!({ "model": MODEL, "mode": "basic", "profiling": expected.clone() })).await,
        expected
    );
    assert_eq!(
        stored(json!({ "model": MODEL, "mode": "light", "profiling": null })).await,
        preset("light")
    );
}

#[tokio::test]
async fn unreadable_inputs_are_refused_at_submission() {
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
        assert!(
            !answer.text().contains("secret") || manifest.contains("secret"),
            "{}",
            answer.text()
        );
    }
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn bodies_other_than_json_are_refused() {
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
    let streamed = Body::from_stream(tokio_stream::iter(
        (0..3).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 19])),
    ));
    let answer =
        api.ask(Method::POST, "/runs", &[("content-type", "application/json")], streamed).await;
    assert_eq!(answer.error(), (413, "body_too_large".to_owned()), "a body without a length");
    assert_nothing_queued(&api).await;
}

#[tokio::test]
async fn an_idempotency_key_identifies_one_submission() {
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
    assert_ne!(
        submit("nightly-2", json!({ "model": MODEL })).await.json()["run_id"],
        first["run_id"]
    );
    for key in ["", "with space", &"k".repeat(256)] {
        assert_eq!(
            submit(key, json!({ "model": MODEL })).await.error(),
            (400, "invalid_parameter".to_owned()),
            "{key:?}"
        );
    }
    assert_eq!(api.get("/runs").await.json()["runs"].as_array().unwrap().len(), 2);
}
