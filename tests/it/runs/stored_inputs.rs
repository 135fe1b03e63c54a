//! Checks, repairs, backups and restores of stored inputs.

use std::{fs, path::Path, process::Command};

use serde_json::json;

use crate::{
    api::{
        imports::FORM,
        inputs::{files, form, png, upload},
        router::Api,
    },
    support::service::{LLMPROF, Service, Setup},
};

/// Exit code and output of a command on a data folder.
fn llmprof(arguments: &[&str], data: &Path) -> (i32, String) {
    let output = Command::new(LLMPROF).args(arguments).arg("--data").arg(data).output().unwrap();
    let text = [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    (output.status.code().unwrap(), text.concat())
}

/// An API over a data folder as a service leaves it.
async fn stopped() -> Api {
    let api = Api::new().await;
    fs::create_dir(api.data().join("alignments")).unwrap();
    api
}

/// Stores images; returns the id and the hash of the first one.
async fn store(api: &Api, images: &[(&str, &[u8])]) -> (String, String) {
    let view = upload(api, "", FORM, form(images, None, &[("prompt", "read")])).await.json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    (text(&view["inputs_id"]), text(&view["images"][0]["sha256"]))
}

fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn thumbnails_manifests_and_files_without_a_row_are_repaired() {
    let api = stopped().await;
    let [first, second] = [png(1), png(2)];
    let (a, of_a) = store(&api, &[("a.png", &first)]).await;
    let (b, of_b) = store(&api, &[("b.png", &second), ("a.png", &first)]).await;
    let (exit, text) = llmprof(&["check"], api.data());
    assert!(exit == 0 && text.contains("0 faults"), "{text}");
    let sound = files(&api);
    let thumbnails = [&of_a, &of_b].map(|hash| fs::read(api.storage.thumbnail(hash)).unwrap());

    fs::remove_file(api.storage.thumbnail(&of_a)).unwrap();
    replace(&api.storage.thumbnail(&of_b), b"no image");
    replace(&api.storage.root().join(&a), b"prompt: other");
    fs::remove_file(api.storage.root().join(&b)).unwrap();
    let (orphan, unknown) = ("0".repeat(64), "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10");
    fs::write(api.storage.content(&orphan), "left behind").unwrap();
    fs::write(api.storage.root().join(unknown), "prompt: x").unwrap();
    let damaged = files(&api);
    let faults = [
        format!("inputs {a}: the manifest is missing or not that of the database"),
        format!("inputs {b}: the manifest is missing or not that of the database"),
        format!("inputs {b}: \"b.png\": its thumbnail is broken"),
        format!("contents/{orphan} is unknown to the database"),
        format!("{unknown} is unknown to the database"),
    ];
    let (exit, text) = llmprof(&["check"], api.data());
    assert!(exit == 2 && text.contains("5 faults, 0 repaired"), "{text}");
    assert!(text.contains("has no thumbnail; it is made when it is requested"), "{text}");
    for fault in &faults {
        assert!(text.contains(fault), "{fault} is not in {text}");
    }
    assert_eq!(files(&api), damaged, "nothing is changed without --repair");
    let (exit, text) = llmprof(&["check", "--repair"], api.data());
    assert!(exit == 0 && text.contains("5 faults, 5 repaired"), "{text}");
    assert_eq!(files(&api), sound);
    let again = [&of_a, &of_b].map(|hash| fs::read(api.storage.thumbnail(hash)).unwrap());
    assert_eq!(again, thumbnails);
    let (exit, text) = llmprof(&["check"], api.data());
    assert!(exit == 0 && text.contains("0 faults"), "{text}");
}

#[tokio::test]
async fn damaged_contents_are_reported_with_the_run_that_needs_them_and_kept() {
    let api = stopped().await;
    let [first, second] = [png(1), png(2)];
    let (a, of_a) = store(&api, &[("a.png", &first)]).await;
    let (b, of_b) = store(&api, &[("b.png", &second)]).await;
    let run = api.submit(json!({ "inputs_manifest": a })).await;
    let mut changed = first.clone();
    *changed.last_mut().unwrap() ^= 1;
    replace(&api.storage.content(&of_a), &changed);
    fs::remove_file(api.storage.content(&of_b)).unwrap();
    let left = files(&api);
    for arguments in [&["check"][..], &["check", "--repair"]] {
        let (exit, text) = llmprof(arguments, api.data());
        assert!(exit == 2 && text.contains("2 faults, 0 repaired"), "{text}");
        let fault = format!("inputs {a}: \"a.png\" is not what was stored; the run {run} needs it");
        assert!(text.contains(&fault), "{text}");
        assert!(text.contains(&format!("inputs {b}: \"b.png\" is missing")), "{text}");
        assert_eq!(files(&api), left);
    }
    let (_, quick) = llmprof(&["check", "--quick"], api.data());
    assert!(!quick.contains("a.png") && quick.contains("b.png"), "sizes only: {quick}");
}

#[tokio::test]
async fn a_restore_has_the_inputs_and_makes_their_thumbnails() {
    let (api, place) = (stopped().await, tempfile::tempdir().unwrap());
    let (id, hash) = store(&api, &[("a.png", &png(1))]).await;
    let thumbnail = fs::read(api.storage.thumbnail(&hash)).unwrap();
    let [backup, new] = ["backup", "new"].map(|name| place.path().join(name));
    for (command, data) in [("backup", api.data()), ("restore", &new)] {
        let (exit, text) = llmprof(&[command, backup.to_str().unwrap()], data);
        assert_eq!(exit, 0, "{command}: {text}");
    }
    let (exit, text) = llmprof(&["check"], &new);
    assert!(exit == 0 && text.contains("has no thumbnail"), "{text}");
    let service = Service::start(&new, &Setup::default());
    let answer = service.get(&format!("/inputs/{id}/images/0/thumbnail")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.bytes().await.unwrap(), thumbnail);
}
