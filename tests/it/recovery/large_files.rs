//! Sparse files of terabytes in the folders of runs: they are dropped, and nothing waits for them.

use std::{
    fs::{self, File},
    path::Path,
    time::Instant,
};

use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::{
    recovery::survive::{assert_in_order, quick},
    support::service::{PATIENCE, Service, Setup, command, script},
};

/// A runner that fails after it wrote sparse files below its own folder and the run's.
const SPARSE: &str = r#"while [ $# -gt 0 ]; do case $1 in --out) out=$2; shift;; esac; shift; done
mkdir -p "$out/out/deep"; truncate -s 4T "$out/out/deep/map.mdb" "$out/../stray"
seq 1000 > "$out/out/small"; exit 3"#;

fn paths(run: &Value) -> Vec<&str> {
    let artifacts = run["artifacts"].as_array().unwrap();
    artifacts.iter().map(|it| it["path"].as_str().unwrap()).collect()
}

async fn artifacts(service: &Service, id: &str) -> Value {
    service.json(&format!("/runs/{id}/artifacts")).await
}

fn finding<'a>(run: &'a Value, id: &str) -> Option<&'a Value> {
    run["findings"].as_array().unwrap().iter().find(|it| it["id"] == id)
}

#[tokio::test]
async fn sparse_files_that_a_pass_wrote_are_dropped_in_any_folder_and_the_others_are_kept() {
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { runner: script(data.path(), SPARSE), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    let id = service.submit(quick()).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let found = finding(&run, "run_too_large").unwrap_or_else(|| panic!("{run:#}"));
    let findings = run["findings"].as_array().unwrap().iter();
    assert_eq!(findings.filter(|it| it["id"] == "run_too_large").count(), 1, "{run:#}");
    for path in ["baseline/out/deep/map.mdb", "stray"] {
        assert_eq!(found["evidence"][path], "4398046511104 bytes, dropped", "{found:#}");
    }
    let listed = artifacts(&service, &id).await;
    let paths = paths(&listed);
    assert!(paths.contains(&"baseline/out/small"), "{paths:?}");
    assert!(!paths.iter().any(|path| path.contains("map.mdb") || path.contains("stray")));
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

/// Leaves the run as a service that was killed before it sealed the run's folder, which has a
/// sparse file of 50 GiB in a folder of `{out}`.
fn unseal(data: &Path, id: &str) {
    let database = Connection::open(data.join("llmprof.db")).unwrap();
    database.execute("delete from artifacts", []).unwrap();
    let dir = data.join("runs").join(id);
    fs::remove_file(dir.join("manifest.json")).unwrap();
    fs::create_dir_all(dir.join("baseline/out")).unwrap();
    File::create(dir.join("baseline/out/map.mdb")).unwrap().set_len(50 << 30).unwrap();
}

/// A service that recovers a run whose sparse file is within its limit: the hash takes minutes.
async fn recovering(data: &Path) -> (Service, String) {
    let id = failed_run(data).await;
    unseal(data, &id);
    let mut command = command(data, &Setup::default());
    command.env("LLMPROF__LIMITS__RUN_BYTES", (100_u64 << 30).to_string());
    (Service::spawn_recovering(&mut command, data), id)
}

async fn failed_run(data: &Path) -> String {
    let setup = Setup { runner: script(data, "exit 3"), ..Setup::default() };
    let service = Service::start(data, &setup);
    let id = service.submit(quick()).await;
    assert_eq!(service.end(&id).await["state"], "failed");
    service.stop(Signal::SIGKILL);
    id
}

#[tokio::test]
async fn a_service_answers_while_it_recovers_and_a_stop_ends_that_inside_a_file() {
    let data = tempfile::tempdir().unwrap();
    let (service, id) = recovering(data.path()).await;
    let ready = service.get("/readyz").await;
    assert_eq!(ready.status(), 503);
    let body: Value = ready.json().await.unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("recovering the runs of the last service"), "{message}");
    assert_eq!(service.get("/healthz").await.status(), 200);
    assert_eq!(service.json(&format!("/runs/{id}")).await["state"], "failed");
    assert_eq!(artifacts(&service, &id).await["artifacts"], json!([]));
    let stopped = Instant::now();
    assert!(service.stop(Signal::SIGTERM).success());
    assert!(stopped.elapsed() < PATIENCE / 10, "{:?}", stopped.elapsed());
    assert!(!data.path().join("runs").join(&id).join("manifest.json").exists());
}

#[tokio::test]
async fn the_start_after_a_kill_drops_a_file_over_the_limit_and_seals_the_others() {
    let data = tempfile::tempdir().unwrap();
    let id = failed_run(data.path()).await;
    unseal(data.path(), &id);
    let service = Service::start(data.path(), &Setup::default());
    assert_eq!(service.get("/readyz").await.status(), 200);
    let run = service.json(&format!("/runs/{id}")).await;
    let found = finding(&run, "run_too_large").unwrap_or_else(|| panic!("{run:#}"));
    assert_eq!(found["evidence"]["baseline/out/map.mdb"], "53687091200 bytes (0 on disk)");
    let listed = artifacts(&service, &id).await;
    let paths = paths(&listed);
    assert!(paths.contains(&"dropped.txt") && paths.contains(&"manifest.json"), "{paths:?}");
    assert!(!paths.contains(&"baseline/out/map.mdb"), "{paths:?}");
    // Runs are executed after the recovery.
    let next = service.submit(quick()).await;
    assert_eq!(service.end(&next).await["state"], "succeeded");
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}

#[tokio::test]
async fn a_run_that_is_deleted_while_it_is_recovered_does_not_break_the_recovery() {
    let data = tempfile::tempdir().unwrap();
    let (service, id) = recovering(data.path()).await;
    assert_eq!(service.delete(&format!("/runs/{id}")).await, 204);
    assert_eq!(service.get(&format!("/runs/{id}")).await.status(), 404);
    assert!(!service.run_dir(&id).exists());
    assert!(service.stop(Signal::SIGTERM).success());
    assert_in_order(data.path());
}
