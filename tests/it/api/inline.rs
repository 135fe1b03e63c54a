//! Submissions with inputs of their own, and submissions that are only checked.

use axum::http::Method;
use base64::{Engine, prelude::BASE64_STANDARD};
use llmprof_core::domain::{ids::InputsId, state::RunState};
use llmprof_service::store::Role;
use serde_json::{Value, json};

use super::{
    access::{self, token},
    inputs::{assert_nothing_left, files, png},
    router::{Api, MODEL},
};

/// Requires that a dry run or a refused submission left nothing.
async fn assert_nothing_stored(api: &Api) {
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
    assert_eq!(api.get("/inputs").await.json()["inputs"], json!([]));
    assert_nothing_left(api, "a submission");
}

pub fn data_url(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes))
}

#[tokio::test]
async fn a_submission_brings_its_own_inputs() {
    let api = Api::new().await;
    let inline = |images: &[&str]| json!({ "prompt": "read", "images": images });
    let body = |inputs: Value| json!({ "model": MODEL, "inputs": inputs });
    let page = data_url(&png(1));
    let large = data_url(&vec![0; (8 << 20) + 1]);
    for (inputs, status, code, reason) in [
        (inline(&["sha256:abc"]), 422, "inputs_invalid", "64 hexadecimal digits"),
        (
            inline(&[&format!("sha256:{}", "0".repeat(64))]),
            422,
            "inputs_invalid",
            "image image-1: the service has no image with the hash 0000",
        ),
        (inline(&["page.png"]), 422, "inputs_invalid", "expected sha256:HASH or data:"),
        (inline(&["data:image/png,x"]), 422, "inputs_invalid", "image-1: expected"),
        (inline(&[&page, "data:image/png;base64,@"]), 422, "inputs_invalid", "image-2: invalid"),
        (inline(&[&page, &data_url(b"x")]), 422, "inputs_invalid", "image image-2: neither"),
        (inline(&vec![page.as_str(); 65]), 422, "inputs_invalid", "at most 64"),
        (json!({ "prompt": "x", "pages": [] }), 422, "invalid_request", "unknown field `pages`"),
        (json!({ "prompt": 5 }), 422, "invalid_request", "inputs.prompt"),
        (json!(7), 422, "invalid_request", "expected the id"),
        (json!("gone.yaml"), 422, "inputs_invalid", "gone.png"),
        (json!(InputsId::now().to_string()), 404, "inputs_not_found", "there are no"),
        (inline(&[&large]), 413, "body_too_large", "more than"),
    ] {
        let text = body(inputs).to_string();
        let length = text.len().to_string();
        let headers = [("content-type", "application/json"), ("content-length", length.as_str())];
        let answer = api.ask(Method::POST, "/runs", &headers, text).await;
        assert_eq!(answer.error(), (status, code.to_owned()), "{reason}: {}", answer.text());
        assert!(answer.text().contains(reason), "{}", answer.text());
        assert_nothing_stored(&api).await;
    }
    let mut both = body(json!("inputs.yaml"));
    both["inputs_manifest"] = json!("inputs.yaml");
    assert_eq!(api.post(&both).await.error(), (409, "request_contradictory".into()));

    let run = api.submit(json!({ "inputs": inline(&[&page]) })).await;
    let list = api.get("/inputs").await.json();
    let id = list["inputs"][0]["inputs_id"].clone();
    let spec = |run: &Value| run["spec"]["subject"]["workload"]["inputs_manifest"].clone();
    assert_eq!(spec(&api.get(&format!("/runs/{run}")).await.json()), id);
    let view = api.get(&format!("/inputs/{}", id.as_str().unwrap())).await.json();
    let hash = format!("sha256:{}", view["images"][0]["sha256"].as_str().unwrap());
    let again = api.submit(json!({ "inputs": inline(&[&hash]) })).await;
    assert_eq!(spec(&api.get(&format!("/runs/{again}")).await.json()), id, "stored once");
    let alone = api.submit(json!({ "inputs": { "prompt": "no image" } })).await;
    assert_ne!(spec(&api.get(&format!("/runs/{alone}")).await.json()), id);
}

#[tokio::test]
async fn an_image_in_a_body_has_its_name_in_errors_and_when_it_is_stored() {
    let api = Api::new().await;
    let named = |name: &str, data: &str| json!({ "name": name, "data": data });
    let body = |images: &[Value]| json!({ "inputs": { "prompt": "read", "images": images } });
    let page = data_url(&png(1));
    let unknown = json!({ "name": "gone.png", "sha256": "0".repeat(64) });
    for (image, reason) in [
        (named("b.png", &data_url(b"x")), "image b.png: neither PNG, JPEG nor WebP"),
        (named("b.png", "data:image/png;base64,@"), "image b.png: invalid base64"),
        (unknown, "image gone.png: the service has no image with the hash 0000"),
        (named("", &page), "invalid name"),
    ] {
        for dry_run in [true, false] {
            let mut body = body(&[named("a.png", &page), image.clone()]);
            body["model"] = json!(MODEL);
            body["dry_run"] = json!(dry_run);
            let answer = api.post(&body).await;
            assert_eq!(answer.error(), (422, "inputs_invalid".into()), "{}", answer.text());
            assert!(answer.text().contains(reason), "{reason}: {}", answer.text());
        }
    }
    assert_nothing_stored(&api).await;
    api.submit(body(&[named("a.png", &page), named("again.png", &page), json!(page)])).await;
    let id = api.get("/inputs").await.json()["inputs"][0]["inputs_id"].clone();
    let view = api.get(&format!("/inputs/{}", id.as_str().unwrap())).await.json();
    let names = [0, 1, 2].map(|at| view["images"][at]["name"].clone());
    assert_eq!(names, ["a.png", "again.png", "image-3"]);
}

#[tokio::test]
async fn inputs_of_a_run_that_is_refused_are_not_kept() {
    let api = access::api(|it| it.queued_runs_per_owner = 1).await;
    let ann = token(&api, "ann", Role::Submitter).await;
    let send = async |shade: u8| {
        let body = json!({ "model": MODEL,
            "inputs": { "prompt": "read", "images": [data_url(&png(shade))] } });
        let headers = [("content-type", "application/json"), ("authorization", ann.as_str())];
        api.ask(Method::POST, "/runs", &headers, body.to_string()).await
    };
    assert_eq!(send(1).await.status, 202);
    let kept = files(&api);
    assert_eq!(send(2).await.error(), (429, "too_many_queued".into()));
    assert_eq!(send(1).await.error(), (429, "too_many_queued".into()));
    assert_eq!(files(&api), kept);
}

#[tokio::test]
async fn a_dry_run_returns_the_plan_and_keeps_nothing() {
    let api = Api::new().await;
    let model = json!({ "model": MODEL, "dry_run": true, "mode": "deep",
        "inputs": { "prompt": "read", "images": [data_url(&png(1))] } });
    let answer = api.post(&model).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let plan = answer.json();
    let steps: Vec<&str> =
        plan["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(
        steps,
        ["preflight", "baseline", "nsys", "gpu_metrics", "ncu", "gemm_log", "analyze", "report"]
    );
    assert_eq!(plan["notes"], json!([]));
    assert_eq!((&plan["steps"][1]["repeats"], &plan["steps"][1]["warmup"]), (&json!(3), &json!(2)));
    assert!(plan["steps"][3]["skipped_because"].as_str().unwrap().contains("GPU"));
    let why = "no estimate: no run of deepseek-ocr-tiny in mode deep has finished on this host";
    let unknown = json!({ "seconds": null, "basis": "none", "runs": 0, "unknown_because": why });
    assert_eq!(plan["duration"], unknown);
    let part = json!({ "model": MODEL, "target": "decoder.layers.1.mlp",
        "align_with": "e2e", "dry_run": true });
    let part = api.post(&part).await.json();
    assert!(part["steps"].as_array().unwrap().iter().any(|it| it["step"] == "align"), "{part:#}");
    let command = json!({ "target": { "command": "tiny-generate" }, "dry_run": true });
    let plan = api.post(&command).await.json();
    let nsys = plan["steps"].as_array().unwrap().iter().find(|it| it["step"] == "nsys").unwrap();
    assert_eq!((&nsys["repeats"], &nsys["warmup"]), (&json!(1), &json!(0)), "one execution");
    let wrong = json!({ "model": MODEL, "repeats": 0, "dry_run": true });
    assert_eq!(api.post(&wrong).await.error(), (422, "invalid_request".into()));
    let unused = json!({ "model": MODEL, "mode": "basic", "dry_run": true,
        "profiling": { "nsys": { "sample": "system-wide" } } });
    let notes = api.post(&unused).await.json()["notes"].clone();
    assert!(notes[0].as_str().unwrap().contains("no effect: profiling.nsys.sample"), "{notes}");
    let late = json!({ "model": MODEL, "mode": "light", "timeout_s": 60, "dry_run": true,
        "profiling": { "nsys": { "delay_s": 60 } } });
    assert_eq!(api.post(&late).await.error(), (422, "invalid_request".into()));
    let capture = super::uploads::send_timeline(&api, "?name=a.sqlite.zst&dry_run=true").await;
    assert_eq!(capture.status, 200, "{}", capture.text());
    assert_eq!(capture.json()["spec"]["subject"]["kind"], "import");
    assert_nothing_stored(&api).await;

    let settings = json!({ "mode": "basic", "repeats": 2 });
    let id = api.submit(settings.clone()).await;
    let run = api.start().await;
    assert_eq!(run.id.to_string(), id);
    api.end(&run, RunState::Succeeded, &[]).await;
    let basis = async |changes: Value| {
        let mut body = json!({ "model": MODEL, "mode": "basic", "repeats": 2,
            "dry_run": true });
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let duration = api.post(&body).await.json()["duration"].clone();
        assert!(duration["seconds"].is_f64() && duration["runs"] == 1, "{duration}");
        duration["basis"].as_str().unwrap().to_owned()
    };
    assert_eq!(basis(json!({})).await, "same_request");
    assert_eq!(basis(json!({ "labels": ["other"] })).await, "same_request");
    assert_eq!(basis(json!({ "repeats": 5 })).await, "same_mode");
}
