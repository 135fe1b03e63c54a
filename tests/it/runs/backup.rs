//! Check, backup and restore of real data folders.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{
    captures::MOCK,
    service::{self, LLMPROF, Service, Setup},
};

fn llmprof(arguments: &[&str], data: &Path) -> Output {
    Command::new(LLMPROF).args(arguments).arg("--data").arg(data).output().unwrap()
}

fn printed(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Responses of a service about a run, and the hash and content of each of its files.
async fn all_of(service: &Service, id: &str) -> BTreeMap<String, Vec<u8>> {
    let listed = service.json(&format!("/runs/{id}/artifacts")).await;
    let mut all = BTreeMap::from([(
        "".to_owned(),
        service.json(&format!("/runs/{id}")).await.to_string().into_bytes(),
    )]);
    for artifact in listed["artifacts"].as_array().unwrap() {
        let path = artifact["path"].as_str().unwrap();
        let answer = service.get(&format!("/runs/{id}/artifacts/{path}")).await;
        all.insert(path.to_owned(), answer.bytes().await.unwrap().to_vec());
    }
    all
}

#[tokio::test]
async fn a_backup_of_a_running_service_restores_to_the_same_responses() {
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (backup, new) = (place.path().join("backup"), place.path().join("new"));
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "labels": ["kept"] })).await;
    service.end(&id).await;
    let before = all_of(&service, &id).await;
    let take = || llmprof(&["backup", backup.to_str().unwrap()], data.path());
    let taken = take();
    assert!(taken.status.success(), "{}", printed(&taken));
    let again = take();
    assert!(printed(&again).contains("0 files with 0 B copied"), "{}", printed(&again));
    let while_serving = llmprof(&["check"], data.path());
    let checked = printed(&while_serving);
    assert!(while_serving.status.success() && checked.contains("B looked at"), "{checked}");
    let repair = llmprof(&["check", "--repair"], data.path());
    assert!(
        !repair.status.success() && printed(&repair).contains("in use by another llmprof"),
        "{}",
        printed(&repair)
    );

    let restored = llmprof(&["restore", backup.to_str().unwrap()], &new);
    assert!(restored.status.success(), "{}", printed(&restored));
    let over = llmprof(&["restore", backup.to_str().unwrap()], &new);
    assert!(
        !over.status.success() && printed(&over).contains("is not empty"),
        "{}",
        printed(&over)
    );
    assert!(llmprof(&["check"], &new).status.success());
    let other = Service::start(&new, &Setup::default());
    assert_eq!(all_of(&other, &id).await, before);
    assert_eq!(other.json("/runs?label=kept").await["runs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_partly_restored_folder_is_not_served() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("restoring"), "").unwrap();
    let refused =
        crate::support::service::command(data.path(), &Setup::default()).output().unwrap();
    assert!(
        !refused.status.success() && printed(&refused).contains("contains an incomplete restore"),
        "{}",
        printed(&refused)
    );
}

#[tokio::test]
async fn a_check_exits_with_2_on_damage_and_repairs_repairable_faults() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let (first, second) =
        (service.submit(json!({})).await, service.submit(json!({ "labels": ["night"] })).await);
    service.end(&first).await;
    service.end(&second).await;
    let (dir, lost) = (service.run_dir(&first), service.json(&format!("/runs/{second}")).await);
    assert!(service.stop(Signal::SIGTERM).success());
    let code = |arguments: &[&str]| {
        let output = llmprof(arguments, data.path());
        (output.status.code().unwrap(), printed(&output))
    };
    assert_eq!(code(&["check"]).0, 0, "{}", code(&["check"]).1);

    // The database lost a run and a file; a kill left an incomplete file and a stray folder.
    let db = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
    db.execute_batch("pragma foreign_keys = on").unwrap();
    let id: uuid::Uuid = second.parse().unwrap();
    assert_eq!(db.execute("delete from runs where id = ?", [id.as_bytes().as_slice()]).unwrap(), 1);
    assert_eq!(db.execute("delete from artifacts where path = 'stages.json'", []).unwrap(), 1);
    drop(db);
    fs::write(dir.join("logs/baseline.stderr.log.zst.tmp"), "half").unwrap();
    let unknown = data.path().join("runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10");
    fs::create_dir(&unknown).unwrap();
    let (exit, text) = code(&["check"]);
    assert_eq!(exit, 2, "{text}");
    for fault in [
        "is incomplete",
        "database and manifest disagree",
        "the database does not know it",
        "is unknown to the database and not sealed",
    ] {
        assert!(text.contains(fault), "{fault} is not in {text}");
    }
    assert!(text.contains("4 faults, 0 repaired"), "{text}");
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 0, "{text}");
    assert_eq!(code(&["check"]).0, 0);
    assert!(!unknown.exists());
    let service = Service::start(data.path(), &Setup::default());
    let found = service.json(&format!("/runs/{second}")).await;
    assert_eq!((&found["state"], &found["spec"]), (&lost["state"], &lost["spec"]));
    // The time is the one in the run's id, which is made right before the submission's.
    let at =
        |run: &Value| -> jiff::Timestamp { run["queued_at"].as_str().unwrap().parse().unwrap() };
    let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
    let of_id = jiff::Timestamp::new(seconds as i64, nanos as i32).unwrap();
    assert_eq!(at(&found), of_id);
    let later_ms = at(&lost).as_millisecond() - of_id.as_millisecond();
    assert!((0..1000).contains(&later_ms), "{later_ms} ms");
    assert_eq!(service.json("/runs?label=night").await["runs"].as_array().unwrap().len(), 1);
    assert!(service.stop(Signal::SIGTERM).success());

    // Lost contents are reported and not repaired.
    fs::write(dir.join("report.md"), "# another").unwrap();
    fs::remove_file(dir.join("report.html")).unwrap();
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 2, "{text}");
    assert!(
        text.contains("report.md is not what was sealed")
            && text.contains("report.html is missing"),
        "{text}"
    );
}

/// Fills a data folder with an import and two alignments of it, all ended; returns their ids.
async fn imported_and_aligned(data: &Path) -> [String; 3] {
    let service = Service::start(data, &Setup::default());
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("{MOCK}.sqlite.zst"));
    let sent =
        service::client().post(format!("{}/captures?name=mock.sqlite&label=night", service.base));
    let sent = sent
        .header("content-type", "application/zstd")
        .body(fs::read(path).unwrap())
        .send()
        .await
        .unwrap();
    let import = sent.json::<Value>().await.unwrap()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(service.end(&import).await["state"], "succeeded");
    let asked = json!({
        "mock": import, "e2e": import, "range": "decoder.self_attn", "stage": "decode",
        "include_ranges": ["measured"],
    });
    let mut aligned = Vec::new();
    for _ in 0..2 {
        let (status, queued) = service.post("/alignments", &asked).await;
        assert_eq!(status, 202, "{queued}");
        let id = queued["alignment_id"].as_str().unwrap().to_owned();
        service.get(&format!("/alignments/{id}/events")).await.text().await.unwrap();
        assert_eq!(service.json(&format!("/alignments/{id}")).await["state"], "succeeded");
        aligned.push(id);
    }
    assert!(service.stop(Signal::SIGTERM).success());
    let [first, second] = aligned.try_into().unwrap();
    [import, first, second]
}

/// An alignment in the API, without the fields that no folder has.
async fn alignment(service: &Service, id: &str) -> Value {
    let mut alignment = service.json(&format!("/alignments/{id}")).await;
    alignment
        .as_object_mut()
        .unwrap()
        .retain(|key, _| !["started_at", "ended_at"].contains(&key.as_str()));
    alignment
}

/// Damages a data folder: the database loses an import, an alignment and a file of another; kills
/// leave an incomplete file, a stray folder and one set aside. Returns both folders.
fn damage(data: &Path, import: &str, first: &str, second: &str) -> [std::path::PathBuf; 2] {
    let dir = |id: &str| data.join("alignments").join(id);
    let db = rusqlite::Connection::open(data.join("llmprof.db")).unwrap();
    db.execute_batch("pragma foreign_keys = on").unwrap();
    let bytes = |id: &str| id.parse::<uuid::Uuid>().unwrap().into_bytes();
    assert_eq!(db.execute("delete from runs where id = ?", [bytes(import)]).unwrap(), 1);
    assert_eq!(db.execute("delete from alignments where id = ?", [bytes(second)]).unwrap(), 1);
    assert_eq!(
        db.execute("delete from alignment_artifacts where path = 'alignment.md'", []).unwrap(),
        1
    );
    drop(db);
    fs::write(dir(first).join("manifest.new"), "half").unwrap();
    let [stray, aside] =
        ["019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11.removed"]
            .map(dir);
    fs::create_dir(&stray).unwrap();
    fs::create_dir(&aside).unwrap();
    [stray, aside]
}

#[tokio::test]
async fn imports_and_alignments_are_checked_repaired_backed_up_and_restored() {
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (backup, new) = (place.path().join("backup"), place.path().join("new"));
    let [import, first, second] = imported_and_aligned(data.path()).await;
    let dir = |id: &str| data.path().join("alignments").join(id);
    let code = |arguments: &[&str]| {
        let output = llmprof(arguments, data.path());
        (output.status.code().unwrap(), printed(&output))
    };
    let (exit, text) = code(&["check"]);
    assert!(exit == 0 && text.contains("0 faults"), "{text}");
    let taken = llmprof(&["backup", backup.to_str().unwrap(), "--prune"], data.path());
    assert!(taken.status.success(), "{}", printed(&taken));
    let service = Service::start(data.path(), &Setup::default());
    let (run, aligned) = (all_of(&service, &import).await, alignment(&service, &second).await);
    assert!(service.stop(Signal::SIGTERM).success());

    let [stray, aside] = damage(data.path(), &import, &first, &second);
    let (exit, text) = code(&["check"]);
    assert_eq!(exit, 2, "{text}");
    for fault in [
        format!("run {import}: its folder is sealed and the database does not know it"),
        format!("alignment {second}: its folder is sealed and the database does not know it"),
        format!("alignment {first}: database and manifest disagree"),
        format!("alignment {first}: manifest.new is incomplete"),
        "7d10: its folder is unknown to the database and not sealed".to_owned(),
        "7d11.removed is being removed".to_owned(),
    ] {
        assert!(text.contains(&fault), "{fault} is not in {text}");
    }
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 0, "{text}");
    let (exit, text) = code(&["check"]);
    assert!(exit == 0 && !stray.exists() && !aside.exists(), "{text}");
    let service = Service::start(data.path(), &Setup::default());
    assert_eq!(alignment(&service, &second).await, aligned);
    let files = service.json(&format!("/alignments/{first}/artifacts")).await;
    assert_eq!(files["artifacts"].as_array().unwrap().len(), 6);
    let imports = service.json("/runs?kind=import&label=night").await;
    assert_eq!(
        (&imports["runs"][0]["run_id"], &imports["runs"][0]["state"]),
        (&json!(import), &json!("succeeded"))
    );
    assert!(service.stop(Signal::SIGTERM).success());

    // Lost contents are reported and not repaired; the backup has them.
    fs::write(dir(&first).join("alignment.html"), "<p>pass").unwrap();
    fs::remove_file(dir(&second).join("alignment.json")).unwrap();
    fs::write(data.path().join("runs").join(&import).join("nsys/run.sqlite"), "another capture")
        .unwrap();
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 2, "{text}");
    for fault in [
        format!("alignment {first}: alignment.html is not what was sealed"),
        format!("alignment {second}: alignment.json is missing"),
        format!("run {import}: nsys/run.sqlite is not what was sealed"),
    ] {
        assert!(text.contains(&fault), "{fault} is not in {text}");
    }
    let restored = llmprof(&["restore", backup.to_str().unwrap()], &new);
    assert!(restored.status.success(), "{}", printed(&restored));
    assert!(llmprof(&["check"], &new).status.success());
    let service = Service::start(&new, &Setup::default());
    assert_eq!(
        (all_of(&service, &import).await, alignment(&service, &second).await),
        (run, aligned)
    );
}

#[test]
fn a_folder_without_a_database_is_neither_checked_nor_backed_up() {
    let data = tempfile::tempdir().unwrap();
    let backup = data.path().join("backup");
    for arguments in [vec!["check"], vec!["backup", backup.to_str().unwrap()]] {
        let output = llmprof(&arguments, data.path());
        assert_eq!(
            (output.status.code(), printed(&output).lines().count()),
            (Some(1), 1),
            "{}",
            printed(&output)
        );
    }
    let restore = llmprof(&["restore", data.path().to_str().unwrap()], &data.path().join("new"));
    assert!(printed(&restore).contains("is not a backup"), "{}", printed(&restore));
}
