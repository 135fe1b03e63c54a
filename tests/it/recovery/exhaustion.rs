//! Runs and imports for which the host has no space: they wait, and no attempt is counted.

use nix::sys::signal::Signal;
use reqwest::Method;
use serde_json::{Value, json};

use super::survive::quick;
use crate::support::{
    disk::{Disk, fill, fill_until},
    service::{self, Service, Setup, script},
};

/// The start of a report of nsys.
const REPORT: &[u8] = b"NVIDIA Tegra Profiler Report 1.\n\x0b\0\0";

#[tokio::test]
async fn an_import_for_which_there_is_no_space_is_requeued_without_counting_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    let export = zstd::decode_all(
        &include_bytes!("../../fixtures/captures/hf-llama-attention-mock.sqlite.zst")[..],
    );
    std::fs::write(data.path().join("export"), export.unwrap()).unwrap();
    for (at, file) in ["manifest.new", "result.new"].into_iter().enumerate() {
        let folder = data.path().join(at.to_string());
        std::fs::create_dir(&folder).unwrap();
        // The first export leaves no space for that file.
        let lines = format!(
            "case $1 in --version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
            export) while [ \"$1\" != --output ]; do shift; done
                [ -e {0}/full ] || {{ touch {0}/full; ln -s /dev/full ${{2%/nsys/*}}/{file}; }}
                cat {1}/export > $2;;
            esac",
            folder.display(),
            data.path().display()
        );
        let setup = Setup { nsys: script(&folder, &lines), ..Setup::default() };
        let service = Service::start(&folder.join("data"), &setup);
        let sent = service::client()
            .post(format!("{}/captures?name=run.nsys-rep", service.base))
            .header("content-type", "application/octet-stream")
            .body(REPORT)
            .send();
        let answer: Value = sent.await.unwrap().json().await.unwrap();
        let id = answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer:#}")).to_owned();
        let run = service.end(&id).await;
        let state = (&run["state"], &run["attempts"]);
        assert_eq!(state, (&json!("succeeded"), &json!(1)), "{file}: {run:#}");
        let events = service.follow(&id, |_| false).await;
        assert_eq!(events.iter().filter(|it| it["event"] == "attempt").count(), 2, "{file}");
    }
}

/// A run without profilers.
fn basic() -> Value {
    let mut body = quick();
    body["mode"] = json!("basic");
    body
}

/// Waits for the end of a run that waited for space: it succeeded in its first attempt.
async fn assert_ran_once(service: &Service, id: &str) {
    let run = service.end(id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
    let events = service.follow(id, |_| false).await;
    assert_eq!(events.iter().filter(|it| it["event"] == "attempt").count(), 1);
}

/// Asserts that a run is queued, and that it and the queue state the reason.
async fn assert_waits(service: &Service, id: &str) {
    let run = service.json(&format!("/runs/{id}")).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("queued"), &json!(0)), "{run:#}");
    let queue = service.json("/queue").await;
    for reason in [&run["message"], &queue["waiting"][0]["unknown_because"]] {
        let reason = reason.as_str().unwrap();
        assert!(reason.contains("low disk space") && reason.contains("delete"), "{reason}");
    }
}

#[tokio::test]
async fn queued_runs_wait_for_space_with_the_reason_and_start_when_there_is_some() {
    let data = tempfile::tempdir().unwrap();
    let start = |name: &str, value: &str| {
        let mut command = service::command(data.path(), &Setup::default());
        Service::spawn(command.env(name, value), data.path())
    };
    let paused = start("LLMPROF__WORKER__PAUSED", "true");
    let id = paused.submit(quick()).await;
    assert!(paused.stop(Signal::SIGTERM).success());
    // More than any disk has.
    let full = start("LLMPROF__LIMITS__FREE_BYTES", "1000000000000000000");
    assert_waits(&full, &id).await;
    let (status, refused) = full.post("/runs", &basic()).await;
    assert_eq!((status, &refused["error"]["code"]), (507, &json!("disk_full")), "{refused}");
    assert_eq!(full.get("/readyz").await.status(), 503);
    assert!(full.stop(Signal::SIGTERM).success());
    assert_ran_once(&start("LLMPROF__WORKER__PAUSED", "false"), &id).await;
}

#[tokio::test]
async fn just_below_the_reserve_runs_are_refused_and_just_above_it_they_wait() {
    const RESERVE: u64 = 1 << 30;
    let Some(disk) = Disk::create() else { return };
    let (service, filler) =
        (Service::start(&disk.root().join("data"), &Setup::default()), disk.root().join("filler"));
    fill_until(&filler, RESERVE - (16 << 20));
    let (status, refused) = service.post("/runs", &basic()).await;
    assert_eq!((status, &refused["error"]["code"]), (507, &json!("disk_full")), "{refused}");
    std::fs::remove_file(&filler).unwrap();
    fill_until(&filler, RESERVE + (16 << 20));
    let (status, answer) = service.post("/runs", &basic()).await;
    assert_eq!(status, 202, "{answer}");
    let id = answer["run_id"].as_str().unwrap().to_owned();
    assert_waits(&service, &id).await;
    std::fs::remove_file(&filler).unwrap();
    assert_ran_once(&service, &id).await;
}

#[tokio::test]
async fn on_a_full_disk_every_route_that_writes_succeeds_or_is_refused_with_the_remedy() {
    let Some(disk) = Disk::create() else { return };
    let data = disk.root().join("data");
    let mut command = service::command(&data, &Setup::default());
    let service = Service::spawn(command.env("LLMPROF__LIMITS__FREE_BYTES", "0"), &data);
    let id = service.submit(quick()).await;
    service.end(&id).await;
    fill(&disk.root().join("filler"));
    let (run, pin) = (format!("/runs/{id}"), format!("/runs/{id}/pin"));
    let sweep = json!({ "name": "s", "base": quick(), "axes": { "max_new_tokens": [1, 2] } });
    let text = |value: Value| ("application/json", value.to_string().into_bytes());
    for (method, path, (kind, body)) in [
        (Method::POST, "/runs", text(quick())),
        (Method::POST, pin.as_str(), text(json!({}))),
        (Method::DELETE, pin.as_str(), text(json!({}))),
        (Method::POST, "/baselines", text(json!({ "name": "main", "label": "x" }))),
        (Method::POST, "/sweeps", text(sweep)),
        (Method::POST, "/gates", text(json!({ "runs": [id], "against": [id] }))),
        (Method::POST, "/sessions", text(json!({ "command": "none" }))),
        (Method::POST, "/captures?name=a.csv", ("application/octet-stream", vec![b'a'; 9000])),
        (Method::POST, "/inputs?prompt=read", ("application/x-tar", vec![0; 1024])),
        (Method::DELETE, run.as_str(), text(json!({}))),
    ] {
        let request = service::client().request(method, format!("{}{path}", service.base));
        let sent = request.header("content-type", kind).body(body).send().await.unwrap();
        let status = sent.status().as_u16();
        let answer = sent.text().await.unwrap();
        assert!(status < 500 || status == 507, "{path}: {status} {answer}");
        assert!(status != 507 || answer.contains("delete"), "{path}: {answer}");
    }
}
