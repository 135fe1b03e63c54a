//! Upgrade of a data folder that version 0.1 wrote: every run is listed, readable and comparable,
//! the queued one is executed, and no sealed file changes.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use nix::sys::signal::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::service::{LLMPROF, Service, Setup};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/v0_1/data.tar.zst");

/// The folder of version 0.1, unpacked.
pub fn data_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let packed = zstd::Decoder::new(fs::File::open(DATA).unwrap()).unwrap();
    tar::Archive::new(packed).unpack(folder.path()).unwrap();
    folder
}

/// Manifests of ended runs, by the run's id.
fn manifests(data: &Path) -> BTreeMap<String, Vec<u8>> {
    let runs = fs::read_dir(data.join("runs")).unwrap().map(|entry| entry.unwrap());
    runs.filter_map(|run| {
        let manifest = fs::read(run.path().join("manifest.json")).ok()?;
        Some((run.file_name().into_string().unwrap(), manifest))
    })
    .collect()
}

/// Ids of the runs of one kind, oldest first.
async fn of_kind(service: &Service, kind: &str) -> Vec<String> {
    let list = service.json("/runs?limit=50").await;
    let mut ids = Vec::new();
    for run in list["runs"].as_array().unwrap() {
        let id = run["run_id"].as_str().unwrap().to_owned();
        let run = service.json(&format!("/runs/{id}")).await;
        if run["spec"]["subject"]["kind"] == kind {
            ids.push(id);
        }
    }
    ids.reverse();
    ids
}

#[tokio::test]
async fn every_answer_about_an_old_run_still_comes() {
    let data = data_folder();
    let service = Service::start(data.path(), &Setup::default());
    let sealed = manifests(data.path());
    assert_eq!(sealed.len(), 6);
    for (id, manifest) in &sealed {
        let run = service.json(&format!("/runs/{id}")).await;
        assert_eq!(run["state"], "succeeded", "{run}");
        let manifest: Value = serde_json::from_slice(manifest).unwrap();
        for file in manifest["artifacts"].as_array().unwrap() {
            let path = file["path"].as_str().unwrap();
            let answer = service.get(&format!("/runs/{id}/artifacts/{path}")).await;
            let hash = Sha256::digest(answer.bytes().await.unwrap());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hash, file["sha256"].as_str().unwrap(), "{id}: {path}");
        }
        for path in ["report?format=md", "report?format=html", "report?format=json", "bundle"] {
            let answer = service.get(&format!("/runs/{id}/{path}")).await;
            assert_eq!(answer.status(), 200, "{id}: {path}");
        }
        let page = service.get(&format!("/ui/runs/{id}")).await;
        assert_eq!(page.status(), 200);
        if run["spec"]["subject"]["kind"] == "model" {
            let page = page.text().await.unwrap();
            assert!(page.contains("Headline figures"), "{id}: no figures on the page");
        }
    }
    service.stop(Signal::SIGTERM);
    let after = manifests(data.path());
    assert!(sealed.iter().all(|(id, manifest)| after.get(id) == Some(manifest)));
}

#[tokio::test]
async fn tables_of_old_runs_have_the_columns_of_new_ones() {
    let data = data_folder();
    let service = Service::start(data.path(), &Setup::default());
    let old = of_kind(&service, "model").await.remove(0);
    let new = service
        .submit(serde_json::json!({ "model": "llama-tiny", "max_new_tokens": 2, "repeats": 3 }))
        .await;
    service.end(&new).await;
    let names = |list: &Value| -> Vec<String> {
        let tables = list["tables"].as_array().unwrap();
        tables.iter().map(|table| table["name"].as_str().unwrap().to_owned()).collect()
    };
    let (old_list, new_list) = (
        service.json(&format!("/runs/{old}/tables")).await,
        service.json(&format!("/runs/{new}/tables")).await,
    );
    let new_names = names(&new_list);
    for name in names(&old_list) {
        assert!(new_names.contains(&name), "{name} is not a table of new runs");
    }
    for name in names(&old_list) {
        let columns = |table: Value| table["columns"].clone();
        let of = |id: &str| format!("/runs/{id}/tables/{name}");
        let (old_table, new_table) = (service.json(&of(&old)).await, service.json(&of(&new)).await);
        // Version 0.1 stored one column for a group without values: `device`, now `device.calls`.
        for column in columns(old_table).as_array().unwrap() {
            let (column, new) = (column.as_str().unwrap(), columns(new_table.clone()));
            let group = format!("{column}.");
            let mut names = new.as_array().unwrap().iter().filter_map(Value::as_str);
            // Evidence had a column per key; now it is one map.
            let known = column.starts_with("evidence.")
                || names.any(|new| new == column || new.starts_with(&group));
            assert!(known, "{name}: {column} is not a column of new runs");
        }
        let csv = service.get(&format!("{}?format=csv", of(&old))).await;
        assert_eq!(csv.status(), 200, "{name}");
    }
}

#[tokio::test]
async fn old_runs_are_compared_with_old_and_new_ones() {
    let data = data_folder();
    let service = Service::start(data.path(), &Setup::default());
    let models = of_kind(&service, "model").await;
    let imports = of_kind(&service, "import").await;
    let settings = serde_json::json!(
        { "model": "llama-tiny", "max_new_tokens": 2, "repeats": 3, "warmup": 1 });
    let new = service.submit(settings).await;
    service.end(&new).await;
    for (a, b) in [(&models[0], &models[1]), (&models[0], &new), (&imports[0], &imports[1])] {
        let diff = service.json(&format!("/runs/{a}/diff/{b}?format=json")).await;
        assert!(!diff["diff"]["checks"].as_array().unwrap().is_empty(), "{diff}");
        assert!(!diff["diff"]["stages"].is_null(), "{diff}");
        let page = service.get(&format!("/ui/diff?a={a}&b={b}")).await;
        assert_eq!(page.status(), 200);
    }
}

#[tokio::test]
async fn the_queued_run_is_executed_and_pins_and_alignments_stay() {
    let data = data_folder();
    let service = Service::start(data.path(), &Setup::default());
    let models = of_kind(&service, "model").await;
    let executed = service.end(&models[2]).await;
    assert_eq!(executed["state"], "succeeded", "{executed}");
    assert_eq!(service.json(&format!("/runs/{}", models[0])).await["pinned"], true);
    let alignments = service.json("/alignments").await;
    let alignment = &alignments["alignments"][0];
    assert_eq!(alignment["verdict"], "pass", "{alignment}");
    let id = alignment["alignment_id"].as_str().unwrap();
    assert_eq!(service.get(&format!("/alignments/{id}/report")).await.status(), 200);
    assert_eq!(service.get(&format!("/ui/alignments/{id}")).await.status(), 200);
    service.stop(Signal::SIGTERM);
    let check = Command::new(LLMPROF).args(["check", "--data"]).arg(data.path()).output().unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

#[test]
fn an_old_folder_is_analysed_again() {
    let data = data_folder();
    for id in manifests(data.path()).keys() {
        let folder = data.path().join("runs").join(id);
        let out = tempfile::tempdir().unwrap();
        let mut analyze = Command::new(LLMPROF);
        analyze.arg("analyze").arg(&folder).arg("--out").arg(out.path());
        let done = analyze.output().unwrap();
        assert!(done.status.success(), "{id}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(out.path().join("report.md").exists());
    }
}
