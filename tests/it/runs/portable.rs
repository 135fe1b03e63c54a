//! Bundles: without paths of their host, and with inputs that another service accepts.

use std::{fs, path::Path};

use llmprof::domain::runner::PREDICTIONS;
use serde_json::{Value, json};

use crate::{
    api::{
        imports::FORM,
        inputs::{form, png},
    },
    support::service::{Service, Setup, command},
};

/// Starts a service whose home folder contains its data and inputs folders.
fn start(home: &Path) -> Service {
    let inputs = home.join("pages");
    fs::create_dir_all(&inputs).unwrap();
    fs::write(inputs.join("page.png"), png(40)).unwrap();
    fs::write(inputs.join("own.yaml"), "prompt: own\nimages: [{path: page.png}]").unwrap();
    let mut command = command(&home.join("data"), &Setup::default());
    command.arg("--inputs").arg(&inputs).env("HOME", home);
    Service::spawn(&mut command, &home.join("data"))
}

async fn upload(service: &Service, body: Vec<u8>, kind: (&str, &str)) -> String {
    let sent = reqwest::Client::new()
        .post(format!("{}/inputs", service.base))
        .header(kind.0, kind.1)
        .body(body)
        .send()
        .await
        .unwrap();
    let answer: Value = sent.json().await.unwrap();
    answer["inputs_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The files of a run's bundle by name.
async fn bundle(service: &Service, id: &str) -> Vec<(String, Vec<u8>)> {
    let packed = service.get(&format!("/runs/{id}/bundle")).await.bytes().await.unwrap();
    let plain = zstd::decode_all(&*packed).unwrap();
    let mut files = Vec::new();
    for entry in tar::Archive::new(&*plain).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let name = name.split_once('/').unwrap().1.to_owned();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
        files.push((name, bytes));
    }
    files
}

fn tokens(files: &[(String, Vec<u8>)]) -> Vec<Value> {
    let (_, text) = files.iter().find(|(name, _)| name == PREDICTIONS).unwrap();
    let text = String::from_utf8_lossy(text);
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["tokens"].clone())
        .collect()
}

#[tokio::test]
async fn a_bundle_names_no_path_of_its_host_and_its_inputs_run_elsewhere() {
    let home = tempfile::tempdir().unwrap();
    let service = start(home.path());
    let pages = [png(10), png(20)];
    let images: [(&str, &[u8]); 2] = [("first.png", &pages[0]), ("second.png", &pages[1])];
    let stored = upload(&service, form(&images, None, &[("prompt", "read")]), FORM).await;
    let settings = |inputs: &str| json!({ "inputs": inputs, "mode": "light" });
    let id = service.submit(settings(&stored)).await;
    let own = service.submit(settings("own.yaml")).await;
    let home_path = home.path().to_str().unwrap();
    for id in [&id, &own] {
        let run = service.end(id).await;
        assert!(run["ended_at"].is_string() && run["state"] != "failed", "{run:#}");
        for (name, bytes) in bundle(&service, id).await {
            // Logs are what the tools printed.
            let is_written = !name.starts_with("logs/");
            let text = String::from_utf8_lossy(&bytes);
            let found = text.lines().find(|line| line.contains(home_path));
            assert!(found.is_none() || !is_written, "{name}: {}", found.unwrap_or_default());
        }
    }
    let files = bundle(&service, &id).await;
    let copies: Vec<(&str, &[u8])> = files
        .iter()
        .filter(|(name, _)| name.starts_with("inputs/"))
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    assert_eq!(copies.len(), 3, "two images and their manifest");
    drop(service);

    let other = tempfile::tempdir().unwrap();
    let service = start(other.path());
    let tar = ("content-type", "application/x-tar");
    let again = upload(&service, crate::api::inputs::archive(&copies), tar).await;
    let view = service.json(&format!("/inputs/{again}")).await;
    let names: Vec<&Value> =
        view["images"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["first.png", "second.png"]);
    let repeated = service.submit(settings(&again)).await;
    service.end(&repeated).await;
    assert_eq!(tokens(&bundle(&service, &repeated).await), tokens(&files));
}
