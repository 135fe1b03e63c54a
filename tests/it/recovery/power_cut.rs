//! Power cuts: what a service acknowledged is on the disk. Real services on an ext4 image that
//! loses its power ([`Disk`]); skipped without loop devices, unless LLMPROF_REQUIRE_LOOP=1.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::survive::{assert_in_order, numbers, quick};
use crate::support::{
    deep::{DeepHost, deep},
    disk::Disk,
    extent,
    service::{self, FAKE_NSYS, LLMPROF, POLL, Service, Setup, pause, processes_of, script},
};

/// Latest moment of a cut after the last submission.
const MOMENTS_MS: u64 = 6_000;
/// The same for deep runs.
const DEEP_MOMENTS_MS: u64 = 12_000;

/// Cuts the power under a service, ends it, and restores the power.
fn cut(disk: &Disk, service: Service, runs: &[String]) {
    disk.cut_power();
    service.stop(Signal::SIGKILL);
    while runs.iter().any(|id| !processes_of(id).is_empty()) {
        std::thread::sleep(POLL);
    }
    disk.restore_power();
}

fn check(data: &Path, options: &[&str]) -> (Option<i32>, String) {
    let done =
        Command::new(LLMPROF).arg("check").args(options).arg("--data").arg(data).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    (done.status.code(), format!("{out}{err}"))
}

#[tokio::test]
async fn a_result_that_was_answered_survives_a_power_cut() {
    let Some(disk) = Disk::create() else { return };
    let data = disk.root().join("data");
    for mode in ["light", "basic"] {
        let service = Service::start(&data, &Setup::default());
        let mut settings = quick();
        settings["mode"] = mode.into();
        let id = service.submit(settings).await;
        while service.json(&format!("/runs/{id}")).await["ended_at"].is_null() {
            pause().await;
        }
        cut(&disk, service, &[]);
        assert_in_order(&data);
        let service = Service::start(&data, &Setup::default());
        let run = service.json(&format!("/runs/{id}")).await;
        assert!(run["state"] == "succeeded" || run["state"] == "partial", "{run:#}");
        assert_eq!(service.get(&format!("/runs/{id}/report")).await.status(), 200);
    }
}

/// A service that packs everything at once, whose nsys leaves a report of megabytes.
fn packing(data: &Path, tools: &Path) -> Service {
    let setup = Setup { nsys: script(tools, FAKE_NSYS), ..Setup::default() };
    let mut command = service::command(data, &setup);
    command.env("LLMPROF__RETENTION__KEEP_NEWEST", "0").env("LLMPROF__RETENTION__INTERVAL_S", "1");
    Service::spawn(&mut command, data)
}

async fn import(service: &Service) -> String {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures/hf-llama-attention-mock.sqlite.zst");
    let sent = service::client()
        .post(format!("{}/captures?name=mock.sqlite", service.base))
        .header("content-type", "application/zstd")
        .body(fs::read(capture).unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(sent.status(), 202);
    sent.json::<Value>().await.unwrap()["run_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged() {
    let Some(disk) = Disk::create() else { return };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    println!("seed {seed}");
    let mut number = numbers(seed);
    let (data, tools) = (disk.root().join("data"), tempfile::tempdir().unwrap());
    let mut acknowledged = Vec::new();
    for _ in 0..extent(4, 10) {
        let service = packing(&data, tools.path());
        let mut settings = quick();
        settings["mode"] = "light".into();
        acknowledged.push(service.submit(settings).await);
        acknowledged.push(import(&service).await);
        // The moment is what the test varies.
        tokio::time::sleep(Duration::from_millis(number(MOMENTS_MS))).await;
        cut(&disk, service, &acknowledged);
        let (_, text) = check(&data, &["--repair"]);
        for fault in ["is empty", "is missing", "sealed and", "not what was sealed"] {
            assert!(!text.contains(fault), "{text}");
        }
    }
    let service = packing(&data, tools.path());
    for id in &acknowledged {
        let run = service.end(id).await;
        let message = run["message"].as_str().unwrap_or_default();
        let given_up = run["attempts"] == 3 && message.starts_with("given up");
        let ended_well = run["state"] == "succeeded" || run["state"] == "partial";
        assert!(ended_well || given_up, "{run:#}");
    }
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(&data);
}

#[tokio::test]
async fn a_deep_run_continues_after_a_power_cut_at_any_moment_of_its_passes() {
    let Some(disk) = Disk::create() else { return };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    println!("seed {seed}");
    let (mut number, mut host) = (numbers(seed), DeepHost::new());
    host.data = disk.root().join("data");
    let mut submitted: Vec<String> = Vec::new();
    for _ in 0..extent(4, 10) {
        let service = host.serve();
        let last = match submitted.last() {
            Some(id) => service.json(&format!("/runs/{id}")).await,
            None => json!({ "ended_at": "none" }),
        };
        if last["ended_at"].is_string() {
            submitted.push(service.submit(deep()).await);
        }
        // The moment is what the test varies.
        tokio::time::sleep(Duration::from_millis(number(DEEP_MOMENTS_MS))).await;
        cut(&disk, service, &submitted);
        let (_, text) = check(&host.data, &["--repair"]);
        for fault in ["is empty", "is missing", "sealed and", "not what was sealed"] {
            assert!(!text.contains(fault), "{text}");
        }
    }
    let service = host.serve();
    let mut continued = 0;
    for id in &submitted {
        let run = service.end(id).await;
        let message = run["message"].as_str().unwrap_or_default();
        let given_up = run["attempts"] == 3 && message.starts_with("given up");
        assert!(run["state"] == "succeeded" || given_up, "{run:#}");
        let reused = |it: &Value| it["id"] == "passes_reused";
        continued += usize::from(run["findings"].as_array().unwrap().iter().any(reused));
    }
    println!("{continued} of {} runs used passes of an earlier attempt", submitted.len());
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(&host.data);
}

#[tokio::test]
async fn a_restore_that_ended_survives_a_power_cut() {
    let Some(disk) = Disk::create() else { return };
    let place = tempfile::tempdir().unwrap();
    let (data, backup) = (place.path().join("data"), place.path().join("backup"));
    let service = Service::start(&data, &Setup::default());
    let id = service.submit(quick()).await;
    service.end(&id).await;
    assert!(service.stop(Signal::SIGTERM).success());
    let restored = disk.root().join("restored");
    for arguments in [
        ["backup", backup.to_str().unwrap(), "--data", data.to_str().unwrap()],
        ["restore", backup.to_str().unwrap(), "--data", restored.to_str().unwrap()],
    ] {
        assert!(Command::new(LLMPROF).args(arguments).output().unwrap().status.success());
    }
    disk.cut_power();
    disk.restore_power();
    assert_in_order(&restored);
    let service = Service::start(&restored, &Setup::default());
    assert_eq!(service.json(&format!("/runs/{id}")).await["state"], "succeeded");
}

#[tokio::test]
async fn a_run_whose_files_a_power_cut_emptied_is_requeued_by_a_repair() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let (lost, pinned) = (service.submit(quick()).await, service.submit(quick()).await);
    let imported = import(&service).await;
    let folders = [&lost, &pinned, &imported].map(|id| service.run_dir(id));
    for id in [&lost, &pinned, &imported] {
        assert_eq!(service.end(id).await["state"], "succeeded");
    }
    service.post(&format!("/runs/{pinned}/pin"), &json!({})).await;
    assert!(service.stop(Signal::SIGTERM).success());
    for folder in &folders {
        fs::write(folder.join("report.md"), "").unwrap();
    }
    let events = folders[0].join("baseline/events.jsonl");
    let length = fs::metadata(&events).unwrap().len();
    fs::OpenOptions::new().write(true).open(&events).unwrap().set_len(length / 2).unwrap();

    let (code, text) = check(data.path(), &[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("report.md is empty") && text.contains("is not what was sealed"));
    let (code, text) = check(data.path(), &["--repair"]);
    assert_eq!(code, Some(2), "the pinned run stays as it is: {text}");
    assert!(text.contains("4 faults, 3 repaired"), "{text}");
    let service = Service::start(data.path(), &Setup::default());
    for id in [&lost, &imported] {
        let run = service.end(id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
    }
    assert!(service.stop(Signal::SIGTERM).success());
    let (_, text) = check(data.path(), &[]);
    assert!(text.contains(&pinned) && text.contains("1 faults, 0 repaired"), "{text}");

    // What was imported cannot be collected again.
    fs::write(folders[2].join("nsys/run.sqlite"), "").unwrap();
    let (code, text) = check(data.path(), &["--repair"]);
    assert!(code == Some(2) && text.contains("2 faults, 0 repaired"), "{text}");
}
