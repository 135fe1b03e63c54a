//! Runs of a batch: refusals, tokens, rates and costs of all sequences, and a sweep over batches.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    recovery::sweeps,
    support::service::{Service, Setup, command},
};

/// A service with three texts of different lengths.
fn serve(data: &Path) -> Service {
    let inputs = data.join("inputs");
    fs::create_dir(&inputs).unwrap();
    let three = "samples:\n- {prompt: read}\n- {prompt: read the page}\n- {prompt: a}";
    fs::write(inputs.join("three.yaml"), three).unwrap();
    let mut command = command(&data.join("data"), &Setup::default());
    command.arg("--inputs").arg(inputs);
    Service::spawn(&mut command, &data.join("data"))
}

#[tokio::test]
async fn a_batch_that_cannot_run_is_refused_and_nothing_is_queued() {
    let data = tempfile::tempdir().unwrap();
    let service = serve(data.path());
    let inputs = "three.yaml";
    let model = "deepseek-ocr-tiny";
    for (body, status, reason) in [
        (json!({ "model": model, "batch": 0 }), 422, "batch: 0 is not between 1 and 1024"),
        (json!({ "model": model, "batch": 1025 }), 422, "batch"),
        (json!({ "model": model, "batch": "4" }), 422, "batch"),
        (
            json!({ "model": model, "batch": 2, "inputs": inputs }),
            409,
            "the inputs have 3 samples, more than a batch of 2",
        ),
        (
            json!({ "model": model, "batch": 2, "target": "decoder.layers.0.mlp" }),
            409,
            "a part of a model runs one sequence, not a batch of 2",
        ),
    ] {
        let answer = service.post("/runs", &body).await;
        let message = answer.1["error"]["message"].as_str().unwrap_or_default();
        assert!(answer.0 == status && message.contains(reason), "{body}: {answer:?}");
    }
    assert_eq!(service.json("/runs").await["runs"], json!([]));
}

#[tokio::test]
async fn figures_of_a_batch_are_of_all_its_sequences() {
    let data = tempfile::tempdir().unwrap();
    let service = serve(data.path());
    let settings = json!({ "model": "deepseek-ocr-tiny", "inputs": "three.yaml", "batch": 4,
        "mode": "basic", "repeats": 2, "warmup": 1, "max_new_tokens": 5 });
    let id = service.submit(settings).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["spec"]["subject"]["workload"]["batch"], 4);

    let dir = service.run_dir(&id);
    let predictions = fs::read_to_string(dir.join("predictions.jsonl")).unwrap();
    assert_eq!(predictions.lines().count(), 2 * 4, "a line per repeat and sequence");
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    // A byte is a token, after the first of each: 5, 14, 2 and again 5.
    let (model, aggregates) = (&report["model"], &report["aggregates"]);
    assert_eq!((&model["batch"], &model["prompt_tokens"]), (&json!(4), &json!(5 + 14 + 2 + 5)));
    assert_eq!(aggregates["decode_steps"], 5);
    let stages = report["stages"].as_array().unwrap();
    let tokens: Vec<&Value> = stages.iter().map(|it| &it["tokens"]).collect();
    assert_eq!(tokens, [26, 20], "the prompts, and a token of each sequence and step");
    let rate = |stage: &Value| {
        stage["tokens"].as_f64().unwrap() * 1e3 / stage["ms"]["mean"].as_f64().unwrap()
    };
    let decode = &stages[1];
    assert!((decode["tokens_per_s"].as_f64().unwrap() / rate(decode) - 1.0).abs() < 1e-6);
    let (per_token, mean) = (&aggregates["per_token_ms"]["mean"], &decode["ms"]["mean"]);
    let steps = mean.as_f64().unwrap() / per_token.as_f64().unwrap();
    assert!((steps - 5.0).abs() < 1e-6, "time per output token is that of a step: {steps}");

    // What the runner counted of its operators is what the architecture needs.
    let counted = |stage: &str| -> u64 {
        let text = fs::read_to_string(dir.join("baseline/events.jsonl")).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_counted =
            |it: &Value| it["warmup"] == false && it["repeat"] == 0 && it["stage"] == stage;
        events.filter(is_counted).filter_map(|it| it["flops"].as_u64()).sum()
    };
    let cost = &report["costs"];
    assert_eq!(cost["decode_flops"], counted("decode_all"));
    assert_eq!(cost["prefill_flops"], counted("prefill"));
    let text = fs::read_to_string(dir.join("report.md")).unwrap();
    assert!(text.contains("a batch of 4 sequences of 2 to 14: 26 positions"), "{text}");
    // By the mean or, if it does not stand for the steps, by the median.
    assert!(text.contains(" step of 4 sequences"), "{text}");
}

#[tokio::test]
async fn a_sweep_over_batches_measures_each() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let base = json!({ "model": "llama-tiny", "repeats": 1, "warmup": 0, "max_new_tokens": 4 });
    let axes = json!({ "batch": [1, 3, 2000], "prompt_tokens": [16] });
    let (status, sweep) = service.post("/sweeps", &json!({ "base": base, "axes": axes })).await;
    assert_eq!(status, 202, "{sweep}");
    let id = sweep["sweep_id"].as_str().unwrap();
    sweeps::until(&service, id, 2).await;
    let results = service.json(&format!("/sweeps/{id}/results")).await;
    let rows = results["rows"].as_array().unwrap();
    let of = |batch: u64| rows.iter().find(|it| it["axes"]["batch"] == batch).unwrap();
    assert!(of(1)["tokens_per_s"].is_number(), "{results:#}");
    assert!(of(3)["tokens_per_s"].is_number(), "{results:#}");
    let gap = of(2000)["gap"].as_str().unwrap();
    assert!(gap.contains("batch: 2000 is not between 1 and 1024"), "{gap}");
}
