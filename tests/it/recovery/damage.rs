//! Damaged, deleted, replaced and copied data folders: readiness, locks and exit codes.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    process::{Command, Output, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::json;

use super::{survive::quick, upgrade::data_folder};
use crate::support::{
    disk::{Disk, fill},
    service::{self, FAKE_NSYS, LLMPROF, Service, Setup, pause, processes_of, script},
};

fn llmprof(arguments: &[&str], data: &Path) -> Output {
    Command::new(LLMPROF).args(arguments).arg("--data").arg(data).output().unwrap()
}

fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

/// Overwrites every page of the database but the first.
fn overwrite_pages(database: &Path) {
    let length = fs::metadata(database).unwrap().len();
    let mut file = fs::OpenOptions::new().write(true).open(database).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![0xa5; usize::try_from(length).unwrap() - 4096]).unwrap();
}

#[tokio::test]
async fn a_clean_stop_leaves_everything_in_the_database_file() {
    let (data, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(quick()).await;
    service.end(&id).await;
    assert!(service.stop(Signal::SIGTERM).success());
    let log = data.path().join("llmprof.db-wal");
    assert!(!log.exists() || fs::metadata(&log).unwrap().len() == 0);
    fs::copy(data.path().join("llmprof.db"), copy.path().join("llmprof.db")).unwrap();
    let db = rusqlite::Connection::open(copy.path().join("llmprof.db")).unwrap();
    let state: String = db.query_row("select state from runs", [], |row| row.get(0)).unwrap();
    assert_eq!(state, "succeeded");
}

#[tokio::test]
async fn a_damaged_or_deleted_database_is_not_ready_and_a_check_exits_with_2() {
    for damage in ["overwritten", "header", "deleted"] {
        let data = tempfile::tempdir().unwrap();
        let database = data.path().join("llmprof.db");
        let paused = || {
            let mut command = service::command(data.path(), &Setup::default());
            command.env("LLMPROF__WORKER__PAUSED", "true");
            Service::spawn(&mut command, data.path())
        };
        let service = paused();
        service.submit(json!({})).await;
        assert!(service.stop(Signal::SIGTERM).success());
        let service = paused();
        assert_eq!(service.get("/readyz").await.status(), 200);
        match damage {
            "overwritten" => overwrite_pages(&database),
            "header" => fs::write(&database, vec![0xa5; 100_000]).unwrap(),
            _ => fs::remove_file(&database).unwrap(),
        }
        // A probe is valid for a second.
        let started = std::time::Instant::now();
        while service.get("/readyz").await.status() == 200 {
            assert!(started.elapsed().as_secs() < 10, "{damage}");
            pause().await;
        }
        assert_eq!(service.get("/healthz").await.status(), 200);
        if damage == "deleted" {
            continue;
        }
        let checked = llmprof(&["check"], data.path());
        assert_eq!(checked.status.code(), Some(2), "{damage}: {}", printed(&checked));
        assert!(printed(&checked).contains("database: "), "{}", printed(&checked));
    }
}

#[tokio::test]
async fn a_second_service_is_refused_and_a_replaced_folder_is_not_ready() {
    let place = tempfile::tempdir().unwrap();
    let (data, moved) = (place.path().join("data"), place.path().join("moved"));
    let service = Service::start(&data, &Setup::default());
    fs::remove_file(data.join("lock")).unwrap();
    let mut second = service::command(&data, &Setup::default());
    let mut second = second.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut line, mut errors) = (String::new(), String::new());
    BufReader::new(second.stdout.take().unwrap()).read_line(&mut line).unwrap();
    second.kill().unwrap();
    second.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    second.wait().unwrap();
    assert!(line.is_empty() && errors.contains("in use by another llmprof"), "{line}{errors}");
    assert_eq!(service.get("/readyz").await.status(), 200);
    fs::rename(&data, &moved).unwrap();
    assert_eq!(service.get("/readyz").await.status(), 503);
    fs::rename(&moved, &data).unwrap();
    assert_eq!(service.get("/readyz").await.status(), 200);
}

#[tokio::test]
async fn a_check_during_packing_and_removal_finds_no_fault() {
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { nsys: script(data.path(), FAKE_NSYS), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    let mut settings = quick();
    settings["mode"] = "light".into();
    let id = service.submit(settings).await;
    service.end(&id).await;
    // The states between two actions of packing, and of a deletion.
    let report = service.run_dir(&id).join("nsys/run.nsys-rep");
    let packed = report.with_extension("nsys-rep.zst");
    fs::write(&packed, zstd::encode_all(fs::File::open(&report).unwrap(), 3).unwrap()).unwrap();
    let removed = data.path().join("runs/019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10.removed");
    fs::create_dir(&removed).unwrap();
    let checked = llmprof(&["check"], data.path());
    assert_eq!(checked.status.code(), Some(0), "{}", printed(&checked));
    assert!(service.stop(Signal::SIGTERM).success());
    let checked = llmprof(&["check"], data.path());
    assert_eq!(checked.status.code(), Some(2), "{}", printed(&checked));
    let checked = llmprof(&["check", "--repair"], data.path());
    assert_eq!(checked.status.code(), Some(0), "{}", printed(&checked));
    assert!(!packed.exists() && !removed.exists());
}

#[tokio::test]
async fn a_restored_copy_on_the_same_host_does_not_end_the_runs_of_the_original() {
    let place = tempfile::tempdir().unwrap();
    let [data, backup, copy] = ["data", "backup", "copy"].map(|name| place.path().join(name));
    let runner = script(place.path(), "echo up >&2; sleep 600");
    let setup = Setup { runner, ..Setup::default() };
    let service = Service::start(&data, &setup);
    let id = service.submit(quick()).await;
    service.follow(&id, |event| event["event"] == "log" && event["line"] == "up").await;
    let processes = processes_of(&id);
    assert!(!processes.is_empty());
    for (command, data) in [("backup", &data), ("restore", &copy)] {
        let done = llmprof(&[command, backup.to_str().unwrap()], data);
        assert!(done.status.success(), "{}", printed(&done));
    }
    let mut paused = service::command(&copy, &setup);
    let restored = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), &copy);
    assert_eq!(restored.json(&format!("/runs/{id}")).await["state"], "queued");
    assert_eq!(processes_of(&id), processes, "the processes of the original");
    assert_eq!(service.json(&format!("/runs/{id}")).await["state"], "running");
}

#[tokio::test]
async fn a_scrub_finds_a_damaged_file_shows_it_and_forgets_a_restored_one() {
    let data = tempfile::tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(quick()).await;
    assert_eq!(service.end(&id).await["damage"], json!([]));
    let report = service.run_dir(&id).join("report.md");
    assert!(service.stop(Signal::SIGTERM).success());
    let sealed = fs::read(&report).unwrap();
    let mut changed = sealed.clone();
    changed[0] ^= 1;
    // The run was last compared two days ago.
    let age = || {
        let db = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
        let sql = "update runs set scrubbed_at = coalesce(scrubbed_at, ended_at) - 172800000";
        assert_eq!(db.execute(sql, []).unwrap(), 1);
    };
    for (content, damaged) in [(&changed, true), (&sealed, false)] {
        fs::write(&report, content).unwrap();
        age();
        let service = Service::start(data.path(), &Setup::default());
        let started = std::time::Instant::now();
        loop {
            let run = service.json(&format!("/runs/{id}")).await;
            let found = run["damage"].as_array().unwrap();
            if found.is_empty() != damaged {
                break;
            }
            assert!(started.elapsed().as_secs() < 60, "{run:#}");
            pause().await;
        }
        let metrics = service.get("/metrics").await.text().await.unwrap();
        let wanted = format!("llmprof_damaged_files {}\n", u8::from(damaged));
        assert!(metrics.contains(&wanted), "{metrics}");
        assert!(metrics.contains("llmprof_scrub_age_seconds "), "{metrics}");
        let page = service.get(&format!("/ui/runs/{id}")).await.text().await.unwrap();
        assert_eq!(page.contains("Damaged files"), damaged);
        assert!(service.stop(Signal::SIGTERM).success());
    }
}

#[tokio::test]
async fn a_scrub_finds_a_damaged_file_of_an_alignment_and_forgets_a_restored_one() {
    let data = data_folder();
    let service = Service::start(data.path(), &Setup::default());
    let alignments = service.json("/alignments").await;
    let id = alignments["alignments"][0]["alignment_id"].as_str().unwrap().to_owned();
    assert!(service.stop(Signal::SIGTERM).success());
    let report = data.path().join("alignments").join(id).join("alignment.md");
    let sealed = fs::read(&report).unwrap();
    let mut changed = sealed.clone();
    changed[0] ^= 1;
    for (content, damaged) in [(&changed, 1), (&sealed, 0)] {
        fs::write(&report, content).unwrap();
        let db = rusqlite::Connection::open(data.path().join("llmprof.db")).unwrap();
        db.execute("update alignments set scrubbed_at = 1", []).unwrap();
        drop(db);
        let service = Service::start(data.path(), &Setup::default());
        let wanted = format!("llmprof_damaged_files {damaged}\n");
        let started = std::time::Instant::now();
        loop {
            let metrics = service.get("/metrics").await.text().await.unwrap();
            if metrics.contains(&wanted) {
                break;
            }
            assert!(started.elapsed().as_secs() < 60, "{metrics}");
            pause().await;
        }
        assert!(service.stop(Signal::SIGTERM).success());
        let check = Command::new(LLMPROF).args(["check", "--data"]).arg(data.path()).output();
        let text = String::from_utf8(check.unwrap().stdout).unwrap();
        assert_eq!(text.contains("alignment.md is not what was sealed"), damaged == 1, "{text}");
    }
}

#[tokio::test]
async fn a_deletion_that_fails_on_a_full_disk_changes_nothing_and_succeeds_later() {
    let Some(disk) = Disk::create() else { return };
    let data = disk.root().join("data");
    let client = service::client();
    let service = Service::start(&data, &Setup::default());
    let id = service.submit(quick()).await;
    service.end(&id).await;
    assert!(service.stop(Signal::SIGTERM).success());
    let service = Service::start(&data, &Setup::default());
    let run = format!("{}/runs/{id}", service.base);
    let filler = disk.root().join("filler");
    fill(&filler);
    let status = client.delete(&run).send().await.unwrap().status();
    if status != 204 {
        assert_eq!(status, 507);
        assert_eq!(service.get(&format!("/runs/{id}/report")).await.status(), 200);
        fs::remove_file(&filler).unwrap();
        assert_eq!(client.delete(&run).send().await.unwrap().status(), 204);
    }
    assert_eq!(client.get(&run).send().await.unwrap().status(), 404);
    assert!(!service.run_dir(&id).exists());
}
