//! What is kept: pins and plans over HTTP, packed files served as they were, check, backup and restore of real data folders.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output},
};

use axum::http::{Method, header};
use llmprof::{
    artifact::packed,
    run::{ArtifactRecord, RunState},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    align::MOCK,
    api::Api,
    service::{LLMPROF, Service, Setup},
};

/// An API with one ended run that left an export and a log of some size.
async fn with_raw() -> (Api, String, Vec<ArtifactRecord>) {
    let api = Api::new().await;
    let id = api.submit(json!({})).await;
    let run = api.start().await;
    let rows: String = (0..40_000).map(|row| format!("row {row}\n")).collect();
    let files = [("nsys/run.sqlite", rows.as_str()), ("logs/nsys.stderr.log", &rows[..100_000]), ("report.md", "# report")];
    api.end(&run, RunState::Succeeded, &files).await;
    let artifacts = api.store.artifacts(run.id).await.unwrap();
    (api, id, artifacts)
}

fn pack_all(api: &Api, id: &str, artifacts: &[ArtifactRecord]) {
    let raw: Vec<_> = artifacts.iter().filter(|artifact| packed::is_raw(artifact)).collect();
    assert_eq!(raw.len(), 2);
    for artifact in raw {
        let done = packed::pack(&api.folder(id), artifact, &mut |_| true).unwrap();
        assert!(matches!(done, packed::Packed::Packed(_)), "{done:?}");
        assert!(!api.folder(id).join(&artifact.path).exists());
    }
}

#[tokio::test]
async fn a_packed_file_is_served_as_it_was_whole_in_part_and_in_the_bundle() {
    let (api, id, artifacts) = with_raw().await;
    let path = format!("/runs/{id}/artifacts/nsys/run.sqlite");
    let (whole, bundle) = (api.get(&path).await, api.get(&format!("/runs/{id}/bundle")).await);
    pack_all(&api, &id, &artifacts);
    let again = api.get(&path).await;
    assert_eq!((again.status, again.body == whole.body), (whole.status, true));
    for name in [header::ETAG, header::CONTENT_LENGTH, header::CONTENT_TYPE, header::CONTENT_DISPOSITION] {
        assert_eq!(again.header(name.clone()), whole.header(name.clone()), "{name}");
    }
    assert_eq!(api.get(&format!("/runs/{id}/bundle")).await.body, bundle.body);
    let part = api.ask(Method::GET, &path, &[("range", "bytes=200000-200099")], "").await;
    assert_eq!((part.status.as_u16(), part.body.as_slice()), (206, &whole.body[200_000..200_100]));
    assert_eq!(api.ask(Method::GET, &path, &[("range", "bytes=-7")], "").await.body, whole.body[whole.body.len() - 7..]);
    let head = api.ask(Method::HEAD, &path, &[], "").await;
    assert_eq!((head.status.as_u16(), head.header(header::CONTENT_LENGTH)), (200, whole.body.len().to_string().as_str()));
    assert_eq!(api.ask(Method::GET, &path, &[("if-none-match", again.header(header::ETAG))], "").await.status, 304);
}

#[tokio::test]
async fn a_packed_file_that_was_cut_breaks_off_rather_than_lie() {
    let (api, id, artifacts) = with_raw().await;
    pack_all(&api, &id, &artifacts);
    let packed = api.folder(&id).join("nsys/run.sqlite.zst");
    let bytes = fs::read(&packed).unwrap();
    fs::write(&packed, &bytes[..bytes.len() / 2]).unwrap();
    let get = |path: &str| axum::http::Request::get(format!("/runs/{id}/{path}")).body(axum::body::Body::empty()).unwrap();
    assert!(api.read_all(get("artifacts/nsys/run.sqlite")).await.is_err());
    assert!(api.read_all(get("bundle")).await.is_err());
    // Not even a link that was put in its place is followed.
    fs::remove_file(&packed).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &packed).unwrap();
    assert_eq!(api.read_all(get("artifacts/nsys/run.sqlite")).await.unwrap().error(), (500, "internal".into()));
}

#[tokio::test]
async fn what_will_go_is_told_and_a_pinned_run_stays() {
    let api = Api::configured(|config| (config.retention.as_they_are, config.retention.most_runs) = (1, 1)).await;
    let (old, new) = (api.ended().await, api.ended().await);
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|due| due["run_id"].as_str().unwrap().to_owned()).collect()
    };
    let told = api.get("/retention").await.json();
    assert_eq!((ids(&told["pack"]), ids(&told["remove"])), (vec![old.clone()], vec![old.clone()]));
    assert!(told["remove"][0]["why"].as_str().unwrap().contains("more than 1 runs"), "{told}");
    assert_eq!((&told["runs"], &told["notes"]), (&json!(2), &json!([])));
    let pin = format!("/runs/{old}/pin");
    assert_eq!(api.ask(Method::POST, &pin, &[], "").await.json()["pinned"], true);
    let told = api.get("/retention").await.json();
    assert_eq!((ids(&told["pack"]).len(), ids(&told["remove"]).len(), told["notes"].as_array().unwrap().len()), (0, 0, 1));
    assert_eq!(api.get("/runs").await.json()["runs"][1]["pinned"], true);
    assert_eq!(api.ask(Method::DELETE, &pin, &[], "").await.json()["pinned"], false);
    assert_eq!(ids(&api.get("/retention").await.json()["pack"]), [old]);
    let nobody = "/runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10/pin";
    assert_eq!(api.ask(Method::POST, nobody, &[], "").await.error(), (404, "run_not_found".into()));
    assert_eq!(api.ask(Method::POST, "/runs/7/pin", &[], "").await.error(), (400, "invalid_parameter".into()));
    assert_eq!(api.get(&format!("/runs/{new}")).await.status, 200);
}

#[tokio::test]
async fn a_disk_that_is_nearly_full_takes_no_submission_and_answers_everything_else() {
    let api = Api::configured(|config| config.limits.free_bytes = u64::MAX).await;
    let refused = api.post(&json!({ "model": "deepseek-ocr-tiny" })).await;
    assert_eq!(refused.error(), (507, "disk_full".into()));
    assert!(refused.text().contains("limits.free_bytes"), "{}", refused.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
}

#[tokio::test]
async fn a_deleted_run_leaves_neither_folder_nor_remains() {
    let api = Api::new().await;
    let (id, waiting) = (api.ended().await, api.submit(json!({})).await);
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{id}"), &[], "").await.status, 204);
    assert!(fs::read_dir(api.folder(&id).parent().unwrap()).unwrap().next().is_none());
    assert_eq!(api.ask(Method::DELETE, &format!("/runs/{waiting}"), &[], "").await.error(), (409, "run_active".into()));
}

fn llmprof(arguments: &[&str], data: &Path) -> Output {
    Command::new(LLMPROF).args(arguments).arg("--data").arg(data).output().unwrap()
}

fn told(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What a service answers about a run, and the hash and content of each of its files.
async fn all_of(service: &Service, id: &str) -> BTreeMap<String, Vec<u8>> {
    let listed = service.json(&format!("/runs/{id}/artifacts")).await;
    let mut all = BTreeMap::from([("".to_owned(), service.json(&format!("/runs/{id}")).await.to_string().into_bytes())]);
    for artifact in listed["artifacts"].as_array().unwrap() {
        let path = artifact["path"].as_str().unwrap();
        let answer = service.get(&format!("/runs/{id}/artifacts/{path}")).await;
        all.insert(path.to_owned(), answer.bytes().await.unwrap().to_vec());
    }
    all
}

#[tokio::test]
async fn a_backup_taken_while_the_service_runs_is_restored_to_the_same_answers() {
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (backup, new) = (place.path().join("backup"), place.path().join("new"));
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "labels": ["kept"] })).await;
    service.end(&id).await;
    let before = all_of(&service, &id).await;
    let take = || llmprof(&["backup", backup.to_str().unwrap()], data.path());
    let taken = take();
    assert!(taken.status.success(), "{}", told(&taken));
    let again = take();
    assert!(told(&again).contains("0 files with 0 bytes copied"), "{}", told(&again));
    let beside = llmprof(&["check"], data.path());
    assert!(beside.status.success(), "{}", told(&beside));
    let repair = llmprof(&["check", "--repair"], data.path());
    assert!(!repair.status.success() && told(&repair).contains("in use by another llmprof"), "{}", told(&repair));

    let restored = llmprof(&["restore", backup.to_str().unwrap()], &new);
    assert!(restored.status.success(), "{}", told(&restored));
    let over = llmprof(&["restore", backup.to_str().unwrap()], &new);
    assert!(!over.status.success() && told(&over).contains("is not empty"), "{}", told(&over));
    assert!(llmprof(&["check"], &new).status.success());
    let other = Service::start(&new, &Setup::default());
    assert_eq!(all_of(&other, &id).await, before);
    assert_eq!(other.json("/runs?label=kept").await["runs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_folder_that_is_half_restored_is_served_by_nobody() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("restoring"), "").unwrap();
    let refused = crate::service::command(data.path(), &Setup::default()).output().unwrap();
    assert!(!refused.status.success() && told(&refused).contains("a restore was broken off there"), "{}", told(&refused));
}

#[tokio::test]
async fn a_check_tells_damage_by_its_exit_code_and_repairs_what_can_be() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let (first, second) = (service.submit(json!({})).await, service.submit(json!({ "labels": ["night"] })).await);
    service.end(&first).await;
    service.end(&second).await;
    let (dir, lost) = (service.run_dir(&first), service.json(&format!("/runs/{second}")).await);
    assert!(service.stop(Signal::SIGTERM).success());
    let code = |arguments: &[&str]| {
        let output = llmprof(arguments, data.path());
        (output.status.code().unwrap(), told(&output))
    };
    assert_eq!(code(&["check"]).0, 0, "{}", code(&["check"]).1);

    // The database lost a run and a file; a kill left half a file; a folder belongs to nobody.
    let db = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
    db.execute_batch("pragma foreign_keys = on").unwrap();
    let id: uuid::Uuid = second.parse().unwrap();
    assert_eq!(db.execute("delete from runs where id = ?", [id.as_bytes().as_slice()]).unwrap(), 1);
    assert_eq!(db.execute("delete from artifacts where path = 'stages.json'", []).unwrap(), 1);
    drop(db);
    fs::write(dir.join("logs/baseline.stderr.log.zst.tmp"), "half").unwrap();
    let nobody = data.path().join("runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10");
    fs::create_dir(&nobody).unwrap();
    let (exit, text) = code(&["check"]);
    assert_eq!(exit, 2, "{text}");
    for fault in [
        "is half written",
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
    assert!(!nobody.exists());
    let service = Service::start(data.path(), &Setup::default());
    let found = service.json(&format!("/runs/{second}")).await;
    assert_eq!((&found["state"], &found["spec"], &found["queued_at"]), (&lost["state"], &lost["spec"], &lost["queued_at"]));
    assert_eq!(service.json("/runs?label=night").await["runs"].as_array().unwrap().len(), 1);
    assert!(service.stop(Signal::SIGTERM).success());

    // What is lost is told, and stays so.
    fs::write(dir.join("report.md"), "# another").unwrap();
    fs::remove_file(dir.join("report.html")).unwrap();
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 2, "{text}");
    assert!(text.contains("report.md is not what was sealed") && text.contains("report.html is missing"), "{text}");
}

/// A service's data folder with an import and two alignments of it, all ended; their ids.
async fn imported_and_aligned(data: &Path) -> [String; 3] {
    let service = Service::start(data, &Setup::default());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{MOCK}.sqlite.zst"));
    let sent = reqwest::Client::new().post(format!("{}/captures?name=mock.sqlite&label=night", service.base));
    let sent = sent.header("content-type", "application/zstd").body(fs::read(path).unwrap()).send().await.unwrap();
    let import = sent.json::<Value>().await.unwrap()["run_id"].as_str().unwrap().to_owned();
    assert_eq!(service.end(&import).await["state"], "succeeded");
    let asked = json!({ "mock": import, "e2e": import, "range": "decoder.self_attn", "stage": "decode", "within": ["measured"] });
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

/// What a service tells of an alignment, but for what no folder holds.
async fn alignment(service: &Service, id: &str) -> Value {
    let mut told = service.json(&format!("/alignments/{id}")).await;
    told.as_object_mut().unwrap().retain(|key, _| !["started_at", "ended_at"].contains(&key.as_str()));
    told
}

#[tokio::test]
async fn imports_and_alignments_are_checked_repaired_backed_up_and_restored_as_runs_are() {
    let (data, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (backup, new) = (place.path().join("backup"), place.path().join("new"));
    let [import, first, second] = imported_and_aligned(data.path()).await;
    let dir = |id: &str| data.path().join("alignments").join(id);
    let code = |arguments: &[&str]| {
        let output = llmprof(arguments, data.path());
        (output.status.code().unwrap(), told(&output))
    };
    let (exit, text) = code(&["check"]);
    assert!(exit == 0 && text.contains("0 faults"), "{text}");
    let taken = llmprof(&["backup", backup.to_str().unwrap(), "--prune"], data.path());
    assert!(taken.status.success(), "{}", told(&taken));
    let service = Service::start(data.path(), &Setup::default());
    let (run, aligned) = (all_of(&service, &import).await, alignment(&service, &second).await);
    assert!(service.stop(Signal::SIGTERM).success());

    // The database lost an import, an alignment and a file of another; kills left half a file, a folder of nobody, and one set aside.
    let db = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
    db.execute_batch("pragma foreign_keys = on").unwrap();
    let bytes = |id: &str| id.parse::<uuid::Uuid>().unwrap().into_bytes();
    assert_eq!(db.execute("delete from runs where id = ?", [bytes(&import)]).unwrap(), 1);
    assert_eq!(db.execute("delete from alignments where id = ?", [bytes(&second)]).unwrap(), 1);
    assert_eq!(db.execute("delete from alignment_artifacts where path = 'alignment.md'", []).unwrap(), 1);
    drop(db);
    fs::write(dir(&first).join("manifest.new"), "half").unwrap();
    let [nobody, gone] = ["019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11.removed"].map(dir);
    fs::create_dir(&nobody).unwrap();
    fs::create_dir(&gone).unwrap();
    let (exit, text) = code(&["check"]);
    assert_eq!(exit, 2, "{text}");
    for fault in [
        format!("run {import}: its folder is sealed and the database does not know it"),
        format!("alignment {second}: its folder is sealed and the database does not know it"),
        format!("alignment {first}: database and manifest disagree"),
        format!("alignment {first}: manifest.new is half written"),
        "7d10: its folder is unknown to the database and not sealed".to_owned(),
        "7d11.removed is being removed".to_owned(),
    ] {
        assert!(text.contains(&fault), "{fault} is not in {text}");
    }
    let (exit, text) = code(&["check", "--repair"]);
    assert_eq!(exit, 0, "{text}");
    let (exit, text) = code(&["check"]);
    assert!(exit == 0 && !nobody.exists() && !gone.exists(), "{text}");
    let service = Service::start(data.path(), &Setup::default());
    assert_eq!(alignment(&service, &second).await, aligned);
    let files = service.json(&format!("/alignments/{first}/artifacts")).await;
    assert_eq!(files["artifacts"].as_array().unwrap().len(), 6);
    let imports = service.json("/runs?kind=import&label=night").await;
    assert_eq!((&imports["runs"][0]["run_id"], &imports["runs"][0]["state"]), (&json!(import), &json!("succeeded")));
    assert!(service.stop(Signal::SIGTERM).success());

    // What is lost is told, and stays so; the backup has it.
    fs::write(dir(&first).join("alignment.html"), "<p>pass").unwrap();
    fs::remove_file(dir(&second).join("alignment.json")).unwrap();
    fs::write(data.path().join("runs").join(&import).join("nsys/run.sqlite"), "another capture").unwrap();
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
    assert!(restored.status.success(), "{}", told(&restored));
    assert!(llmprof(&["check"], &new).status.success());
    let service = Service::start(&new, &Setup::default());
    assert_eq!((all_of(&service, &import).await, alignment(&service, &second).await), (run, aligned));
}

#[test]
fn a_folder_without_a_database_can_neither_be_checked_nor_backed_up() {
    let data = tempfile::tempdir().unwrap();
    let backup = data.path().join("backup");
    for arguments in [vec!["check"], vec!["backup", backup.to_str().unwrap()]] {
        let output = llmprof(&arguments, data.path());
        assert_eq!((output.status.code(), told(&output).lines().count()), (Some(1), 1), "{}", told(&output));
    }
    let restore = llmprof(&["restore", data.path().to_str().unwrap()], &data.path().join("new"));
    assert!(told(&restore).contains("is no backup"), "{}", told(&restore));
}
