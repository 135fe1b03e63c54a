//! Modes of a host's own, and what the runner records.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{commands::read, lifecycle::step};
use crate::support::service::{self, Service, Setup};

/// A service with the presets of `files`.
fn service(data: &Path, files: &[(&str, &str)]) -> Service {
    let folder = data.join("presets");
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    let mut command = service::command(data, &Setup::default());
    Service::spawn(command.env("LLMPROF__SERVER__PROFILING", folder), data)
}

#[tokio::test]
async fn a_file_in_the_folder_of_presets_is_a_mode_of_the_service() {
    let data = tempfile::tempdir().unwrap();
    let quick = "base = 'basic'\ndescription = 'one look <b>'\n[runner]\npredictions = []\n";
    let service = service(data.path(), &[("quick.toml", quick)]);
    let listed = service.json("/profiling").await;
    let presets = listed["presets"].as_array().unwrap();
    let names: Vec<_> = presets.iter().map(|it| it["mode"].as_str().unwrap()).collect();
    assert_eq!(names, ["deep", "light", "basic", "quick"]);
    assert_eq!(presets[3]["description"], "one look <b>");
    let page = service.get("/").await.text().await.unwrap();
    assert!(page.contains("quick") && page.contains("one look &lt;b&gt;"), "{page}");

    let body = json!({ "model": "deepseek-ocr-tiny", "mode": "quicker" });
    let (status, answer) = service.post("/runs", &body).await;
    let message = "no mode quicker; expected one of deep, light, basic, quick";
    assert_eq!((status, &answer["error"]["message"]), (404, &json!(message)), "{answer}");
    assert_eq!(answer["error"]["code"], "mode_not_found");
    let (status, answer) = service.post("/runs", &json!({ "model": "m", "mode": "../x" })).await;
    assert_eq!(status, 422);
    assert!(answer["error"]["message"].as_str().unwrap().contains("invalid mode"), "{answer}");

    let id = service.submit(json!({ "mode": "quick" })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["spec"]["subject"]["passes"]["mode"], "quick");
    assert_eq!(step(&run, "baseline")["state"], "succeeded");
    assert!(!service.run_dir(&id).join("predictions.jsonl").exists(), "texts are not stored");
    assert!(read(&service, &id, "report.md").contains("quick"));
}

#[tokio::test]
async fn operators_that_are_switched_off_leave_the_timings_and_a_reason() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let settings = json!({ "profiling": { "runner": { "operators": ["nsys"] } } });
    let id = service.submit(settings).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let events = read(&service, &id, "baseline/events.jsonl");
    assert!(!events.contains(r#""kind":"op""#) && events.contains(r#""name":"prefill""#));
    let report: Value = serde_json::from_str(&read(&service, &id, "report.json")).unwrap();
    assert!(report["stages"][0]["ms"]["mean"].as_f64().unwrap() > 0.0);
    assert_eq!(report["operators"], json!([]));
    assert!(report["mfu"][0]["flops_source"] == "modelled", "{}", report["mfu"]);
    assert!(read(&service, &id, "report.md").contains("profiling.runner.operators"));
    assert!(service.run_dir(&id).join("predictions.jsonl").exists());

    let twice = json!({ "model": "deepseek-ocr-tiny",
        "profiling": { "runner": { "operators": ["nsys", "nsys"] } } });
    let (status, answer) = service.post("/runs", &twice).await;
    assert_eq!(status, 422, "{answer}");
    let unknown = json!({ "model": "deepseek-ocr-tiny",
        "profiling": { "runner": { "operators": ["nsight"] } } });
    let (status, answer) = service.post("/runs", &unknown).await;
    assert_eq!(status, 422);
    assert!(answer["error"]["message"].as_str().unwrap().contains("runner.operators[0]"));
}
