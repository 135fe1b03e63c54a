//! Runs from submission to report, and their failures, with real processes and signals.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::{
    extent,
    service::{self, Service, Setup, processes_of, script},
};

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_log(event: &Value, text: &str) -> bool {
    event["event"] == "log" && event["line"].as_str().unwrap().contains(text)
}

pub fn step<'a>(run: &'a Value, name: &str) -> &'a Value {
    run["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["step"] == name)
        .unwrap_or_else(|| panic!("no step {name} in {run}"))
}

/// Downloads the bundle of a run and unpacks it below `dir`; returns the run's folder.
async fn unpack_bundle(service: &Service, id: &str, dir: &Path) -> PathBuf {
    let bundle = dir.join("bundle.tar.zst");
    fs::write(&bundle, service.get(&format!("/runs/{id}/bundle")).await.bytes().await.unwrap())
        .unwrap();
    let unpacked = dir.join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    let mut decoder = zstd::Decoder::new(fs::File::open(&bundle).unwrap()).unwrap();
    let mut tar = Vec::new();
    decoder.read_to_end(&mut tar).unwrap();
    tar::Archive::new(tar.as_slice()).unpack(&unpacked).unwrap();
    [unpacked.join(id), unpacked]
        .into_iter()
        .find(|folder| folder.join("manifest.json").exists())
        .unwrap()
}

/// The unpacked timeline of a run's folder.
fn timeline(folder: &Path) -> Vec<u8> {
    let mut content = Vec::new();
    let packed = fs::File::open(folder.join("timeline.perfetto-trace.gz")).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut content).unwrap();
    content
}

/// Analyzes the folder `root` into `again` and compares the timelines.
fn check_timeline_of_folder(root: &Path, again: &Path) {
    let out = Command::new(service::LLMPROF)
        .arg("analyze")
        .arg(root)
        .arg("--out")
        .arg(again)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(timeline(root) == timeline(again));
}

#[tokio::test]
async fn a_run_goes_from_submission_to_report() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "labels": ["first"] })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(run["attempts"], 1);

    let listed = service.json(&format!("/runs/{id}/artifacts")).await;
    let artifacts = listed["artifacts"].as_array().unwrap();
    for artifact in artifacts {
        let path = service.run_dir(&id).join(artifact["path"].as_str().unwrap());
        assert_eq!(artifact["sha256"], sha256(&path), "{}", path.display());
        assert_eq!(artifact["bytes"], fs::metadata(&path).unwrap().len());
    }
    let has = |path: &str| artifacts.iter().any(|artifact| artifact["path"] == path);
    for path in [
        "report.md",
        "report.html",
        "report.json",
        "stakeholder_summary.md",
        "operators.md",
        "kernels.md",
        "stages.json",
        "env.json",
        "config.yaml",
        "inputs.yaml",
        "predictions.jsonl",
        "manifest.json",
        "baseline/events.jsonl",
        "logs/baseline.stderr.log",
    ] {
        assert!(has(path), "{path} is not among the artifacts");
    }

    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    for stage in ["prefill", "decode_all"] {
        let time = &report["aggregates"]["stage_ms"][stage];
        assert!(
            time["mean"].as_f64().unwrap() > 0.0 && time["std"].as_f64().unwrap() >= 0.0,
            "{stage}: {time}"
        );
    }
    assert!(!report["operators"].as_array().unwrap().is_empty());

    let root = unpack_bundle(&service, &id, data.path()).await;
    for artifact in artifacts {
        assert_eq!(artifact["sha256"], sha256(&root.join(artifact["path"].as_str().unwrap())));
    }

    // The timeline is one of the files and holds the stages of every repeat, and another
    // analysis of the folder creates the same one.
    assert!(
        artifacts.iter().any(|it| it["path"] == "timeline.perfetto-trace.gz"
            && it["media_type"] == "application/gzip")
    );
    check_timeline_of_folder(&root, &data.path().join("again"));
    let slices = crate::parse::perfetto::decode(&timeline(&root)).slices;
    let prefill = slices
        .iter()
        .filter(|it| it.process == "unprofiled pass" && it.kind == "stage" && it.name == "prefill");
    assert!(prefill.count() > 1);

    // The same folder gives the same report again, with neither service nor database.
    drop(service);
    let printed = Command::new(service::LLMPROF).arg("analyze").arg(&root).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    assert_eq!(
        String::from_utf8(printed.stdout).unwrap(),
        fs::read_to_string(root.join("report.md")).unwrap()
    );
}

#[tokio::test]
async fn without_nsys_a_deep_run_is_partial_with_advice_to_install_it() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "mode": "deep" })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    assert_eq!(step(&run, "nsys")["state"], "skipped");
    let report =
        service.get(&format!("/runs/{id}/artifacts/report.md")).await.text().await.unwrap();
    assert!(report.contains("install-nsight.sh"), "{report}");
}

#[tokio::test]
async fn a_deep_run_on_a_cpu_lists_the_passes_that_do_not_apply() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service
        .submit(json!({ "mode": "deep", "profiling": { "nsys": { "enabled": false } } }))
        .await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let finding = run["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["id"] == "passes_not_applicable")
        .unwrap();
    assert!(
        finding["evidence"]["ncu"].is_string() && finding["evidence"]["gemm_log"].is_string(),
        "{finding:#}"
    );
    let report = fs::read_to_string(service.run_dir(&id).join("report.md")).unwrap();
    assert!(
        report.contains(
            "everything that applies was collected; not applicable here: gemm_log, gpu_metrics, ncu"
        ),
        "{report}"
    );
    assert!(!report.contains("everything asked for was collected"));
}

#[tokio::test]
async fn a_running_run_is_cancelled_once_and_leaves_no_process() {
    let data = tempfile::tempdir().unwrap();
    let runner = script(data.path(), "echo up >&2; sleep 600");
    let service = Service::start(data.path(), &Setup { runner, ..Setup::default() });
    let id = service.submit(json!({})).await;
    let waiting = service.submit(json!({})).await;
    service.follow(&id, |event| is_log(event, "up")).await;
    assert_eq!(
        service.post(&format!("/runs/{waiting}/cancel"), &json!({})).await.1["state"],
        "cancelled"
    );
    let (status, _) = service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert!(status == 202 || status == 200, "{status}");
    assert_eq!(service.post(&format!("/runs/{id}/cancel"), &json!({})).await.0, 409);
    let run = service.end(&id).await;
    assert_eq!(run["state"], "cancelled");
    let step = run["steps"].as_array().unwrap().last().unwrap();
    assert_eq!(step["state"], "cancelled", "{step}");
    assert!(step["message"].as_str().unwrap().starts_with("stopped before its end"), "{step}");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn a_run_starts_again_after_its_service_was_killed() {
    let data = tempfile::tempdir().unwrap();
    let marker = data.path().join("was-here");
    let lines = format!(
        "[ -e {0} ] && exec {1} \"$@\"; touch {0}; echo up >&2; setsid sleep 600 & sleep 600",
        marker.display(),
        service::RUNNER
    );
    let setup = Setup { runner: script(data.path(), &lines), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    let id = service.submit(json!({})).await;
    service.follow(&id, |event| is_log(event, "up")).await;
    service.stop(Signal::SIGKILL);

    let service = Service::start(data.path(), &setup);
    let events = service.follow(&id, |_| false).await;
    let attempts: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "attempt")
        .map(|event| &event["attempt"])
        .collect();
    assert_eq!(attempts, [1, 2]);
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(2)), "{run:#}");
    assert_eq!(service.json("/runs").await["runs"].as_array().unwrap().len(), 1);
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn a_stopping_service_requeues_its_run_without_charging_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    let marker = data.path().join("was-here");
    let lines = format!(
        "[ -e {0} ] && exec {1} \"$@\"; touch {0}; echo up >&2; sleep 600",
        marker.display(),
        service::RUNNER
    );
    let setup = Setup { runner: script(data.path(), &lines), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    let id = service.submit(json!({})).await;
    service.follow(&id, |event| is_log(event, "up")).await;
    assert!(service.stop(Signal::SIGTERM).success());
    assert_eq!(processes_of(&id), [""; 0]);

    let service = Service::start(data.path(), &setup);
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
}

#[test]
fn a_service_stopped_right_after_its_start_ends_cleanly() {
    for _ in 0..10 {
        let data = tempfile::tempdir().unwrap();
        let service = Service::start(data.path(), &Setup::default());
        assert!(service.stop(Signal::SIGTERM).success());
    }
}

#[tokio::test]
async fn a_text_only_model_is_profiled_by_its_name_alone() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "model": "llama-tiny" })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    let stages = report["aggregates"]["stage_ms"].as_object().unwrap();
    assert!(
        stages["prefill"]["mean"].as_f64().unwrap() > 0.0 && !stages.contains_key("vision"),
        "{stages:?}"
    );
}

#[tokio::test]
async fn queued_runs_all_succeed_one_at_a_time() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let run = json!({ "model": "llama-tiny", "repeats": 1, "warmup": 0, "max_new_tokens": 1 });
    let mut ids = Vec::new();
    for _ in 0..extent(6, 20) {
        ids.push(service.submit(run.clone()).await);
    }
    let mut times = Vec::new();
    for id in &ids {
        let run = service.end(id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        times.push((
            run["started_at"].as_str().unwrap().to_owned(),
            run["ended_at"].as_str().unwrap().to_owned(),
        ));
    }
    assert!(
        times.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "runs of one device overlap: {times:?}"
    );
}

#[test]
fn a_configured_tool_that_does_not_exist_is_refused_at_start() {
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { nsys: "/nonexistent/nsys".into(), ..Setup::default() };
    let refused = service::command(data.path(), &setup).output().unwrap();
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr)
            .contains("tools.nsys: /nonexistent/nsys is not a program")
    );
}

#[test]
fn a_second_service_on_the_same_folder_refuses() {
    let data = tempfile::tempdir().unwrap();
    let _first = Service::start(data.path(), &Setup::default());
    let second = service::command(data.path(), &Setup::default()).output().unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another llmprof"));
}

#[tokio::test]
async fn a_service_starts_with_an_unusable_model_and_lists_it_with_the_reason() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    fs::create_dir_all(models.join("mistral")).unwrap();
    let config = r#"{"model_type": "mistral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "vocab_size": 300, "num_attention_heads": 4,
        "max_position_embeddings": 128, "sliding_window": 64}"#;
    fs::write(models.join("mistral/config.json"), config).unwrap();
    let mut command = service::command(data.path(), &Setup::default());
    let service = Service::spawn(command.env("LLMPROF__SERVER__MODELS", &models), data.path());
    let listed = service.json("/models").await;
    let why = "the model has a sliding_window of 64 in a context of 128, which is not supported";
    assert_eq!(listed["refused"], json!([{ "name": "mistral", "reason": why }]));
    assert!(listed["models"].as_array().unwrap().iter().any(|model| model["name"] == "llama-tiny"));
    let (status, refused) = service.post("/runs", &json!({ "model": "mistral" })).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("model_not_found")));
    assert!(refused["error"]["message"].as_str().unwrap().contains(why), "{refused}");

    let mut doctor = Command::new(env!("CARGO_BIN_EXE_llmprof"));
    let doctor = doctor
        .args(["doctor", "--format", "json"])
        .current_dir(data.path())
        .env("LLMPROF__SERVER__MODELS", &models);
    let checkup: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
    let check =
        checkup["checks"].as_array().unwrap().iter().find(|check| check["id"] == "models").unwrap();
    assert!(
        check["state"] == "warning" && check["message"].as_str().unwrap().contains(why),
        "{check}"
    );
}
