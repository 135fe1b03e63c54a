//! The resolved configuration of a run, `config.yaml`, is a submission that repeats the run.

use std::{fs, process::Command};

use llmprof_core::domain::subject::RunSpec;
use serde_json::{Value, json};

use crate::{
    api::router::{Api, MODEL},
    support::service::{LLMPROF, Service, Setup},
};

#[tokio::test]
async fn the_configuration_of_a_run_is_submitted_again_as_it_is() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let settings = json!({
        "repeats": 1, "warmup": 0, "seed": 7, "labels": ["again"], "revision": "r1",
        "profiling": { "ncu": { "max_launches": 3 } },
    });
    let first = service.submit(settings).await;
    assert_eq!(service.end(&first).await["state"], "succeeded");
    let read = |id: &str| fs::read_to_string(service.run_dir(id).join("config.yaml")).unwrap();
    let text = read(&first);
    let config: Value = yaml_serde::from_str(&text).unwrap();
    for (field, value) in [
        ("mode", json!("basic")),
        ("seed", json!(7)),
        ("timeout_s", json!(1800)),
        ("inputs", json!("inputs-text.yaml")),
    ] {
        assert_eq!(config[field], value, "{field}");
    }
    let resolved = &config["resolved"];
    assert_eq!((&resolved["devices"], &resolved["dtype"]), (&json!(["cpu"]), &json!("f32")));
    assert_eq!(resolved["run_bytes"], 2_000_000_000_u64);
    assert_eq!((&resolved["mode"], &resolved["weights"]), (&json!("basic"), &json!("synthetic")));
    assert!(resolved["model"]["decoder"]["layers"].is_u64(), "{resolved}");
    assert_eq!(config["profiling"]["ncu"]["max_launches"], 3);

    let path = folder.path().join("config.yaml");
    fs::write(&path, &text).unwrap();
    let submitted = Command::new(LLMPROF)
        .args(["submit", "--server", &service.base])
        .arg(&path)
        .env_remove("LLMPROF_TOKEN")
        .output()
        .unwrap();
    let by_file = String::from_utf8(submitted.stdout).unwrap().trim().to_owned();
    assert!(submitted.status.success(), "{}", String::from_utf8_lossy(&submitted.stderr));
    let (status, answer) = service.post("/runs", &config).await;
    assert_eq!(status, 202, "{answer}");
    for again in [by_file.as_str(), answer["run_id"].as_str().unwrap()] {
        assert_eq!(service.end(again).await["state"], "succeeded");
        assert_eq!(read(again), text);
    }

    let mut other = config.clone();
    other["resolved"]["model"]["decoder"]["layers"] = json!(99);
    let (status, answer) = service.post("/runs", &other).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 409 && message.contains("decoder.layers is "), "{answer}");
    assert!(message.contains(", not 99; omit `resolved`"), "{message}");
}

#[tokio::test]
async fn a_submission_of_each_subject_is_accepted_again_with_the_same_spec() {
    let api = Api::new().await;
    for body in [
        json!({ "model": MODEL, "mode": "light", "batch": 2, "priority": -1 }),
        json!({ "model": MODEL, "target": "decoder.layers.1.mlp", "align_with": "e2e",
            "mock": { "dtype": "f32" } }),
        json!({ "target": { "command": "tiny-generate", "params": { "tokens": 8 } },
            "mode": "light", "timeout_s": 60 }),
    ] {
        let spec = async |body: &Value| {
            let answer = api.post(body).await;
            assert_eq!(answer.status, 202, "{}", answer.text());
            let id = answer.json()["run_id"].as_str().unwrap().to_owned();
            let spec = api.get(&format!("/runs/{id}")).await.json()["spec"].clone();
            serde_json::from_value::<RunSpec>(spec).unwrap()
        };
        let first = spec(&body).await;
        let again = Value::from(first.submission().unwrap());
        assert_eq!(spec(&again).await, first);
    }
}

#[tokio::test]
async fn a_configuration_of_another_mode_dtype_or_source_of_weights_is_refused_with_the_remedy() {
    let api = Api::new().await;
    let presets = api.get("/profiling").await.json()["presets"].clone();
    let presets = presets.as_array().unwrap();
    let deep = presets.iter().find(|it| it["mode"] == "deep").unwrap()["profiling"].clone();
    let config = |mode: &str, change: Value| {
        let mut resolved = json!({ "mode": "deep", "run_s": 60, "run_bytes": 1 });
        for (field, value) in change.as_object().unwrap() {
            resolved[field] = value.clone();
        }
        json!({ "model": MODEL, "mode": mode, "profiling": deep, "resolved": resolved })
    };
    let mut single = config("light", json!({}));
    single["profiling"] = json!({ "ncu": { "max_launches": 3 } });
    let mut own_dtype = config("deep", json!({ "dtype": "bf16" }));
    own_dtype["dtype"] = json!("f32");
    for (body, refused) in [
        (config("deep", json!({})), None),
        (config("deep", json!({ "dtype": "f32", "weights": "synthetic" })), None),
        (single, None),
        (own_dtype, None),
        (config("light", json!({})), Some("delete `profiling` to run in mode light")),
        (config("basic", json!({})), Some("has all settings of mode deep (resolved.mode)")),
        (config("deep", json!({ "dtype": "bf16" })), Some("omit resolved.dtype to run in f32")),
        (config("deep", json!({ "weights": "loaded" })), Some("weights is synthetic, not loaded")),
    ] {
        let answer = api.post(&body).await;
        let text = answer.text();
        match refused {
            None => assert_eq!(answer.status, 202, "{body}: {text}"),
            Some(reason) => assert!(answer.status == 409 && text.contains(reason), "{text}"),
        }
    }
}
