//! Kills and stops at any point of a run, and runners that misbehave, with real processes.

use std::{fs, process::Command};

use nix::sys::signal::Signal;
use rusqlite::{Connection, TransactionBehavior};
use serde_json::{Value, json};

use crate::support::{
    extent,
    service::{self, FAKE_NSYS, LLMPROF, MODEL, POLL, Service, Setup, processes_of, script},
};

/// Pseudo-random numbers of a seed.
pub fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// The cheapest run of a model.
pub fn quick() -> Value {
    json!({ "model": MODEL, "repeats": 1, "warmup": 0, "max_new_tokens": 2,
        "inputs_manifest": "inputs-text.yaml" })
}

/// Database, manifests and files of the folder agree, and no incomplete file is left.
pub fn assert_in_order(data: &std::path::Path) {
    let check = Command::new(LLMPROF).args(["check", "--data"]).arg(data).output().unwrap();
    let (out, err) = (&check.stdout, &check.stderr);
    let text = format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(check.status.success(), "{text}");
}

#[tokio::test]
async fn a_kill_at_any_point_of_a_run_loses_doubles_and_blocks_no_run() {
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    println!("seed {seed}");
    let (mut number, data) = (numbers(seed), tempfile::tempdir().unwrap());
    let mut submitted: Vec<String> = Vec::new();
    for _ in 0..extent(10, 30) {
        let service = Service::start(data.path(), &Setup::default());
        let last = match submitted.last() {
            Some(id) => service.json(&format!("/runs/{id}")).await,
            None => Value::Null,
        };
        if last["ended_at"].is_string() || last.is_null() {
            submitted.push(service.submit(quick()).await);
        }
        // A run has some twenty events; the stream ends with the run.
        let (mut left, id) = (number(24), submitted.last().unwrap());
        if left > 0 {
            let counted = std::cell::Cell::new(left);
            service
                .follow(id, |_| {
                    counted.set(counted.get().saturating_sub(1));
                    counted.get() == 0
                })
                .await;
            left = counted.get();
        }
        assert!(left < 24);
        service.stop(Signal::SIGKILL);
    }
    let service = Service::start(data.path(), &Setup::default());
    for id in &submitted {
        let run = service.end(id).await;
        let attempts = run["attempts"].as_u64().unwrap();
        assert!((1..=3).contains(&attempts), "{run:#}");
        let given_up =
            attempts == 3 && run["message"].as_str().is_some_and(|it| it.starts_with("given up"));
        assert!(run["state"] == "succeeded" || given_up, "{run:#}");
        assert_eq!(processes_of(id), [""; 0]);
    }
    let listed = service.json("/runs?limit=200").await;
    assert_eq!(listed["runs"].as_array().unwrap().len(), submitted.len());
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

#[tokio::test]
async fn a_run_that_was_sealed_before_a_kill_ends_with_its_result() {
    let data = tempfile::tempdir().unwrap();
    let paused = Service::spawn(
        service::command(data.path(), &Setup::default()).env("LLMPROF__WORKER__PAUSED", "true"),
        data.path(),
    );
    let id = paused.submit(quick()).await;
    assert!(paused.stop(Signal::SIGTERM).success());
    // The next attempt is the last one.
    let mut db = Connection::open(data.path().join("llmprof.db")).unwrap();
    assert_eq!(db.execute("update runs set attempts = 2", []).unwrap(), 1);

    let service = Service::start(data.path(), &Setup::default());
    service
        .follow(&id, |event| event["event"] == "step" && event["step"]["step"] == "report")
        .await;
    // The outcome cannot be committed while the test holds the write lock.
    let write = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let folder = service.run_dir(&id);
    while !folder.join("manifest.json").exists() {
        std::thread::sleep(POLL);
    }
    let sealed = std::time::Instant::now();
    while !folder.join("result.json").exists() && sealed.elapsed().as_secs() < 5 {
        std::thread::sleep(POLL);
    }
    service.stop(Signal::SIGKILL);
    drop(write);

    let service = Service::start(data.path(), &Setup::default());
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(3)), "{run:#}");
    let steps = run["steps"].as_array().unwrap();
    assert!(steps.len() >= 4 && steps.iter().all(|it| it["ended_at"].is_string()), "{run:#}");
    assert_eq!(service.get(&format!("/runs/{id}/report")).await.status(), 200);
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

#[tokio::test]
async fn a_service_stopped_in_any_step_requeues_the_run_without_charging_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(quick()).await;
    drop(service);
    for step in ["preflight", "baseline", "analyze", "report"] {
        let service = Service::start(data.path(), &Setup::default());
        service
            .follow(&id, |event| event["event"] == "step" && event["step"]["step"] == step)
            .await;
        assert!(service.stop(Signal::SIGTERM).success(), "{step}");
        assert_eq!(processes_of(&id), [""; 0]);
    }
    let service = Service::start(data.path(), &Setup::default());
    let run = service.end(&id).await;
    // The killed service, the first, charges one attempt if the run had started; a stopped service
    // charges none.
    assert!(run["state"] == "succeeded" && run["attempts"].as_u64().unwrap() <= 2, "{run:#}");
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

/// A service whose nsys reports its start and hangs.
fn with_hanging_nsys(data: &std::path::Path) -> Service {
    let lines = "case $1 in profile) echo up >&2; exec sleep 600;; esac";
    let setup = Setup { nsys: script(data, lines), ..Setup::default() };
    Service::start(data, &setup)
}

fn is_up(event: &Value) -> bool {
    event["event"] == "log" && event["line"] == "up"
}

fn light() -> Value {
    let mut settings = quick();
    settings["mode"] = json!("light");
    settings
}

#[tokio::test]
async fn a_service_stopped_during_a_profiled_pass_requeues_the_run_without_charging_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    let service = with_hanging_nsys(data.path());
    let id = service.submit(light()).await;
    service.follow(&id, is_up).await;
    assert!(service.stop(Signal::SIGTERM).success());
    assert_eq!(processes_of(&id), [""; 0]);
    let service = Service::start(data.path(), &Setup::default());
    let events = service.follow(&id, |_| false).await;
    assert_eq!(events.iter().filter(|it| it["event"] == "attempt").count(), 2);
    let run = service.json(&format!("/runs/{id}")).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("partial"), &json!(1)), "{run:#}");
}

#[tokio::test]
async fn a_run_cancelled_during_a_profiled_pass_is_cancelled() {
    let data = tempfile::tempdir().unwrap();
    let service = with_hanging_nsys(data.path());
    let id = service.submit(light()).await;
    service.follow(&id, is_up).await;
    service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert_eq!(service.end(&id).await["state"], "cancelled");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn a_runner_that_prints_a_gigabyte_fails_and_leaves_a_short_log() {
    let data = tempfile::tempdir().unwrap();
    let runner =
        script(data.path(), "head -c 1000000000 /dev/zero; echo 'out of words' >&2; exit 3");
    let setup = Setup { runner, ..Setup::default() };
    let service = Service::spawn(
        service::command(data.path(), &setup).env("LLMPROF__LIMITS__LOG_BYTES", "1000000"),
        data.path(),
    );
    let id = service.submit(quick()).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert!(
        run["message"].as_str().unwrap().contains("exited with code 3: out of words"),
        "{run:#}"
    );
    let log = fs::metadata(service.run_dir(&id).join("logs/baseline.stdout.log")).unwrap().len();
    assert!((1..1_100_000).contains(&log), "{log}");
}

#[tokio::test]
async fn a_runner_that_exits_with_0_and_no_output_fails_the_run() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(
        data.path(),
        &Setup { runner: script(data.path(), "exit 0"), ..Setup::default() },
    );
    let run = service.end(&service.submit(quick()).await).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert!(run["message"].as_str().unwrap().contains("left no"), "{run:#}");
}

#[tokio::test]
async fn children_in_their_own_sessions_that_ignore_signals_end_with_the_run() {
    let data = tempfile::tempdir().unwrap();
    let forks = "trap '' TERM HUP INT; for i in 1 2 3 4 5; do \
                 setsid sh -c \"trap '' TERM HUP; setsid sleep 600 & sleep 600\" & done; \
                 echo up >&2; wait";
    let service = Service::start(
        data.path(),
        &Setup { runner: script(data.path(), forks), ..Setup::default() },
    );
    let id = service.submit(quick()).await;
    service.follow(&id, |event| event["event"] == "log" && event["line"] == "up").await;
    service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert_eq!(service.end(&id).await["state"], "cancelled");
    assert_eq!(processes_of(&id), [""; 0]);
}

#[tokio::test]
async fn a_kill_while_runs_are_packed_and_removed_loses_no_other_run() {
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { nsys: script(data.path(), FAKE_NSYS), ..Setup::default() };
    let plain = Service::start(data.path(), &setup);
    let mut ids = Vec::new();
    for _ in 0..4 {
        let mut asked = quick();
        asked["mode"] = "light".into();
        ids.push(plain.submit(asked).await);
        assert_eq!(plain.end(ids.last().unwrap()).await["state"], "partial");
    }
    let bundle = async |service: &Service, id: &str| {
        service.get(&format!("/runs/{id}/bundle")).await.bytes().await.unwrap()
    };
    let before = bundle(&plain, &ids[2]).await;
    assert!(plain.stop(Signal::SIGTERM).success());
    let mut keeping = service::command(data.path(), &setup);
    keeping.env("LLMPROF__RETENTION__KEEP_NEWEST", "1").env("LLMPROF__RETENTION__INTERVAL_S", "1");
    keeping.env("LLMPROF__RETENTION__MAX_RUNS", "2");
    let done = |folder: &std::path::Path| {
        folder.join("nsys/run.nsys-rep.zst").exists() && !folder.join("nsys/run.nsys-rep").exists()
    };
    let folders: Vec<_> = ids.iter().map(|id| data.path().join("runs").join(id)).collect();
    for round in 0.. {
        assert!(round < 200, "the rounds do not end");
        let service = Service::spawn(&mut keeping, data.path());
        // Each start lets it get a little farther.
        for _ in 0..round {
            service.json("/retention").await;
        }
        let ended = done(&folders[2]) && !folders[0].exists() && !folders[1].exists();
        assert_eq!(bundle(&service, &ids[2]).await, before);
        service.stop(Signal::SIGKILL);
        if ended {
            break;
        }
    }
    // The next start repairs the last kill.
    assert!(Service::spawn(&mut keeping, data.path()).stop(Signal::SIGTERM).success());
    assert!(folders[3].join("nsys/run.nsys-rep").exists(), "the newest stays as it is");
    let check = Command::new(LLMPROF)
        .args(["check", "--repair", "--data"])
        .arg(data.path())
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
    assert_in_order(data.path());
}

#[tokio::test]
async fn a_start_removes_the_temporary_files_of_killed_processes() {
    let (data, temp) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let left = |name: &str| temp.path().join(name);
    fs::write(left("llmprof.unpacked.x"), vec![7; 1 << 20]).unwrap();
    fs::create_dir(left("llmprof.019a9f3e6d1c7c4e9a513a8f0c2b7d10")).unwrap();
    fs::write(left("llmprof.019a9f3e6d1c7c4e9a513a8f0c2b7d10/report.qdstrm"), "half").unwrap();
    fs::write(left("foreign"), "of another program").unwrap();
    fs::create_dir(data.path().join("packing")).unwrap();
    fs::write(data.path().join("packing/.tmp1"), "half").unwrap();
    let lines = "head -c 1000000 /dev/zero >\"$TMPDIR/capture\"; echo up >&2; sleep 600";
    let setup = Setup { runner: script(data.path(), lines), ..Setup::default() };
    let mut command = service::command(data.path(), &setup);
    let service = Service::spawn(command.env("TMPDIR", temp.path()), data.path());
    assert_eq!(fs::read_dir(data.path().join("packing")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "only the foreign file stays");
    let id = service.submit(quick()).await;
    service.follow(&id, |event| event["event"] == "log" && event["line"] == "up").await;
    // A second service on this host leaves what is in use.
    let other = tempfile::tempdir().unwrap();
    let mut second = service::command(other.path(), &setup);
    let second = Service::spawn(second.env("TMPDIR", temp.path()), other.path());
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 2);
    drop(second);
    service.stop(Signal::SIGKILL);
    let mut command = service::command(data.path(), &setup);
    command.env("LLMPROF__WORKER__PAUSED", "true").env("TMPDIR", temp.path());
    let _service = Service::spawn(&mut command, data.path());
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
}
