//! `llmprof submit --inputs` with manifests of this machine.

use std::fs;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use super::{CommandResult, command, run};
use crate::{
    api::router::Api,
    support::service::{Service, Setup, command as serve},
};

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/samples/small.png");

/// A service that queues and does not run, and a folder of a client.
async fn paused() -> (Api, Service, TempDir) {
    let api = Api::new().await;
    let mut paused = serve(api.data(), &Setup::default());
    let service = Service::spawn(paused.env("LLMPROF__WORKER__PAUSED", "true"), api.data());
    let folder = tempdir().unwrap();
    fs::copy(SMALL, folder.path().join("page.png")).unwrap();
    (api, service, folder)
}

fn submit(service: &Service, folder: &TempDir, inputs: &str, more: &[&str]) -> CommandResult {
    let arguments = ["submit", "--model", "deepseek-ocr-tiny", "--inputs", inputs];
    run(&mut command(folder.path(), &service.base, &[&arguments, more].concat()))
}

/// The inputs of a submitted run.
async fn inputs_of(service: &Service, submitted: &CommandResult) -> Value {
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let run = service.json(&format!("/runs/{}", submitted.stdout.trim())).await;
    run["spec"]["subject"]["workload"]["inputs_manifest"].clone()
}

#[tokio::test]
async fn a_manifest_of_this_machine_is_uploaded_with_its_images() {
    let (_api, service, folder) = paused().await;
    let here = folder.path().canonicalize().unwrap();
    fs::create_dir(here.join("set")).unwrap();
    fs::copy(SMALL, here.join("set/page.png")).unwrap();
    let manifest = format!(
        "prompt: read\nseed: 5\nsamples:\n- images: [{{path: ../page.png}}]\n\
         - {{prompt: count, images: [{{path: page.png}}, {{path: {}/page.png, name: other}}]}}\n",
        here.display()
    );
    fs::write(here.join("set/inputs.yaml"), manifest).unwrap();
    let path = here.join("set/inputs.yaml");
    let planned = submit(&service, &folder, path.to_str().unwrap(), &["--dry-run"]);
    assert!(planned.code == 0 && planned.stdout.starts_with("preflight\n"), "{planned:?}");
    assert_eq!(service.json("/inputs").await["inputs"], json!([]), "a dry run stores nothing");

    let submitted = submit(&service, &folder, path.to_str().unwrap(), &[]);
    let id = inputs_of(&service, &submitted).await;
    let id = id.as_str().unwrap();
    assert!(submitted.stderr.contains(&format!("inputs {id}: 3 images")), "{submitted:?}");
    let view = service.json(&format!("/inputs/{id}")).await;
    assert_eq!((&view["name"], &view["seed"]), (&json!("inputs.yaml"), &json!(5)));
    let samples = json!([
        { "prompt": "read", "images": [0] }, { "prompt": "count", "images": [2, 1] },
    ]);
    assert_eq!(view["samples"], samples);
    let names = [0, 1, 2].map(|at| view["images"][at]["name"].clone());
    assert_eq!(names, ["page.png", "other", "page.png"], "each sample has its name of a file");
    let relative = submit(&service, &folder, "./set/inputs.yaml", &[]);
    assert_eq!(inputs_of(&service, &relative).await, id, "stored once");
}

#[tokio::test]
async fn a_name_of_the_service_keeps_its_meaning_next_to_a_file_of_the_same_name() {
    let (_api, service, folder) = paused().await;
    for name in ["inputs-small.yaml", "mine.yaml"] {
        fs::write(folder.path().join(name), "prompt: mine\nimages: [{path: page.png}]").unwrap();
    }
    let of_service = submit(&service, &folder, "inputs-small.yaml", &[]);
    assert_eq!(inputs_of(&service, &of_service).await, "inputs-small.yaml");
    for inputs in ["./inputs-small.yaml", "mine.yaml"] {
        let own = submit(&service, &folder, inputs, &[]);
        let id = inputs_of(&service, &own).await;
        let view = service.json(&format!("/inputs/{}", id.as_str().unwrap())).await;
        assert_eq!(view["samples"][0]["prompt"], "mine", "{inputs}");
    }
}

#[tokio::test]
async fn a_manifest_that_a_file_names_by_a_path_is_relative_to_the_file() {
    let (_api, service, folder) = paused().await;
    let set = folder.path().join("set");
    fs::create_dir(&set).unwrap();
    fs::write(set.join("own.yaml"), "prompt: mine\nimages: [{path: ../page.png}]").unwrap();
    let base = json!({ "model": "deepseek-ocr-tiny", "inputs": "./own.yaml" });
    fs::write(set.join("run.json"), base.to_string()).unwrap();
    let sweep = json!({ "base": base, "axes": { "new_tokens": [1, 2] } });
    fs::write(set.join("sweep.json"), sweep.to_string()).unwrap();
    let send = |arguments: &[&str]| run(&mut command(folder.path(), &service.base, arguments));

    let planned = send(&["submit", "set/run.json", "--dry-run"]);
    assert_eq!(planned.code, 0, "{planned:?}");
    assert_eq!(service.json("/inputs").await["inputs"], json!([]), "a dry run stores nothing");
    let id = inputs_of(&service, &send(&["submit", "set/run.json"])).await;
    let view = service.json(&format!("/inputs/{}", id.as_str().unwrap())).await;
    assert_eq!(view["samples"][0]["prompt"], "mine");
    let other = send(&["submit", "set/run.json", "--inputs", "inputs-small.yaml"]);
    assert_eq!(inputs_of(&service, &other).await, "inputs-small.yaml", "an option replaces it");

    let started = send(&["sweep", "set/sweep.json"]);
    assert_eq!(started.code, 0, "{started:?}");
    let sweep = service.json(&format!("/sweeps/{}", started.stdout.trim())).await;
    assert_eq!(sweep["request"]["base"]["inputs"], id, "{sweep:#}");
    let again = send(&["sweep", "set/sweep.json"]);
    assert!(again.stderr.contains("continuing the sweep"), "{again:?}");
    fs::write(set.join("run.json"), r#"{"model": "llama-tiny", "inputs": "./no.yaml"}"#).unwrap();
    send(&["submit", "set/run.json"]).assert_refused(&["cannot read the manifest set/./no.yaml"]);
}

#[tokio::test]
async fn unusable_manifests_of_this_machine_are_refused_in_one_line_with_a_remedy() {
    let (_api, service, folder) = paused().await;
    let here = folder.path();
    let write = |name: &str, text: &str| fs::write(here.join(name), text).unwrap();
    write("broken.yaml", "prompt: [x");
    write("list.yaml", "- a\n- b\n");
    write("gone.yaml", "prompt: x\nimages: [{path: gone.png}]");
    write("dir.yaml", "prompt: x\nimages: [{path: .}]");
    write("large.yaml", "prompt: x\nimages: [{path: large.png}]");
    write("text.yaml", "prompt: x\nimages: [{path: broken.yaml}]");
    write("hash.yaml", &format!("prompt: x\nimages: [{{sha256: {}}}]", "0".repeat(64)));
    write("huge.yaml", &format!("prompt: {}", "x".repeat(1 << 20)));
    fs::File::create(here.join("large.png")).unwrap().set_len((64 << 20) + 1).unwrap();
    nix::unistd::mkfifo(&here.join("pipe.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for (inputs, texts) in [
        ("/no/such.yaml", &["cannot read the manifest /no/such.yaml", "POST /inputs"][..]),
        ("missing.yaml", &["404", "submit --inputs ./missing.yaml`", "POST /inputs"]),
        ("./", &["./ is a folder; name the manifest in it"]),
        ("./pipe.yaml", &["./pipe.yaml is not a regular file"]),
        ("./broken.yaml", &["./broken.yaml is not a manifest", "line 1"]),
        ("./list.yaml", &["./list.yaml is not a manifest"]),
        ("./page.png", &["./page.png is not a manifest"]),
        ("./gone.yaml", &["image gone.png: cannot read ./gone.png", "No such file"]),
        ("./dir.yaml", &["image ./.: not a regular file"]),
        ("./large.yaml", &["image ./large.png: 67108865 bytes; at most 67108864"]),
        ("./text.yaml", &["422", "image broken.yaml: neither PNG, JPEG nor WebP"]),
        ("./hash.yaml", &["422", "the service has no image with the hash 0000"]),
        ("./huge.yaml", &["./huge.yaml is not a manifest", "at most 1048576"]),
    ] {
        submit(&service, &folder, inputs, &[]).assert_refused(texts);
    }
    for arguments in [
        &["submit", "--model", "deepseek-ocr-tiny", "--prompt", "x", "--image", "/dev/zero"][..],
        &["submit", "--model", "deepseek-ocr-tiny", "--prompt", "x", "--image", "pipe.yaml"],
        &["upload", "pipe.yaml"],
        &["upload", "/dev/zero"],
        &["diff", "--fail-on", "slower=3%", "/dev/zero", "page.png"],
        &["diff", "--fail-on", "slower=3%", "pipe.yaml", "page.png"],
    ] {
        run(&mut command(folder.path(), &service.base, arguments))
            .assert_refused(&["not a regular file"]);
    }
    assert_eq!(service.json("/runs").await["runs"], json!([]));
    assert_eq!(service.json("/inputs").await["inputs"], json!([]));
}

#[tokio::test]
async fn a_dry_run_refuses_the_manifests_that_a_submission_refuses() {
    let (_api, service, folder) = paused().await;
    let here = folder.path();
    let write = |name: &str, text: &str| fs::write(here.join(name), text).unwrap();
    fs::create_dir(here.join("b")).unwrap();
    write("b/page.png", "not an image");
    let zeros = "0".repeat(64);
    write("hash.yaml", &format!("prompt: x\nimages: [{{path: page.png, sha256: {zeros}}}]"));
    write("text.yaml", "prompt: x\nimages: [{path: page.png}, {path: hash.yaml}]");
    write("named.yaml", "prompt: x\nimages: [{path: page.png}, {path: hash.yaml, name: scan}]");
    write("equal.yaml", "prompt: x\nimages: [{path: page.png}, {path: b/page.png}]");
    write("gone.yaml", &format!("prompt: x\nimages: [{{path: gone.png, sha256: {zeros}}}]"));
    write("two.yaml", "prompt: <image><image>\nimages: [{path: page.png}]");
    for (inputs, text) in [
        ("./hash.yaml", format!("and the manifest states {zeros}")),
        ("./text.yaml", "image hash.yaml: neither PNG, JPEG nor WebP".into()),
        ("./named.yaml", "image scan: neither PNG, JPEG nor WebP".into()),
        ("./equal.yaml", "image b/page.png: neither PNG, JPEG nor WebP".into()),
        ("./gone.yaml", format!("image gone.png: the service has no image with the hash {zeros}")),
        ("./two.yaml", "prompt: 2 <image> placeholders, but 1 image".into()),
    ] {
        submit(&service, &folder, inputs, &["--dry-run"]).assert_refused(&[&text]);
        submit(&service, &folder, inputs, &[]).assert_refused(&[&text]);
    }
    let refused = submit(&service, &folder, "./hash.yaml", &["--dry-run"]);
    refused.assert_refused(&["image ./page.png: it has the hash"]);
    assert_eq!(service.json("/inputs").await["inputs"], json!([]));
}

#[tokio::test]
async fn a_dry_run_names_images_beyond_its_limit_by_hash() {
    let (_api, service, folder) = paused().await;
    let mut page = fs::read(SMALL).unwrap();
    // Bytes after the end of an image are not a part of it.
    page.resize(5 << 20, 0);
    fs::write(folder.path().join("a.png"), &page).unwrap();
    page.push(0);
    fs::write(folder.path().join("b.png"), &page).unwrap();
    let manifest = "prompt: x\nimages: [{path: a.png}, {path: b.png}]";
    fs::write(folder.path().join("two.yaml"), manifest).unwrap();
    let unknown = submit(&service, &folder, "./two.yaml", &["--dry-run"]);
    unknown.assert_refused(&["images of at most 8 MiB", "b.png); submit", "without --dry-run"]);
    assert_eq!(service.json("/inputs").await["inputs"], json!([]));
    let stored = submit(&service, &folder, "./two.yaml", &[]);
    assert_eq!(stored.code, 0, "{stored:?}");
    let planned = submit(&service, &folder, "./two.yaml", &["--dry-run"]);
    assert!(planned.code == 0 && planned.stdout.starts_with("preflight\n"), "{planned:?}");
    // A failure for another reason does not mention the limit.
    let mut failed = Vec::new();
    for (base, model, text) in [
        (service.base.as_str(), "no-such-model", "no-such-model"),
        ("http://127.0.0.1:1", "deepseek-ocr-tiny", "no answer from"),
    ] {
        let arguments = ["submit", "--model", model, "--inputs", "./two.yaml", "--dry-run"];
        let refused = run(&mut command(folder.path(), base, &arguments));
        refused.assert_refused(&[text]);
        failed.push(refused);
    }
    assert!(failed.iter().all(|it| !it.stderr.contains("MiB")), "{failed:?}");
}

#[tokio::test]
async fn images_of_options_beyond_the_limit_of_a_body_are_refused_before_they_are_sent() {
    let (_api, service, folder) = paused().await;
    let mut page = fs::read(SMALL).unwrap();
    // Bytes after the end of an image are not a part of it.
    for (name, mebibytes) in [("half.png", 4), ("other.png", 4), ("all.png", 8), ("big.png", 9)] {
        page.resize(mebibytes << 20, 0);
        fs::write(folder.path().join(name), &page).unwrap();
    }
    let submit_images = |base: &str, images: &[&str], more: &[&str]| {
        let mut arguments = vec!["submit", "--model", "deepseek-ocr-tiny", "--prompt", "x"];
        arguments.extend(images.iter().flat_map(|image| ["--image", *image]));
        arguments.extend(more);
        run(&mut command(folder.path(), base, &arguments))
    };
    let options: [&[&str]; 2] = [&[], &["--dry-run"]];
    for (images, refused) in [
        (&["big.png"][..], "image big.png: 9437184 bytes; "),
        (&["page.png", "big.png"], "image big.png: 9437184 bytes; "),
        (&["half.png", "page.png", "other.png"], "image other.png: 4194304 bytes; "),
        (&["all.png", "page.png"], "image page.png: "),
    ] {
        for more in options {
            // No service listens there.
            let answered = submit_images("http://127.0.0.1:1", images, more);
            answered.assert_refused(&[refused, "8 MiB in total", "--inputs FILE", "POST /inputs"]);
        }
    }
    for images in [&["all.png"][..], &["half.png", "other.png"]] {
        let planned = submit_images(&service.base, images, &["--dry-run"]);
        assert!(planned.code == 0 && planned.stdout.starts_with("preflight\n"), "{planned:?}");
    }
    // The remedy.
    fs::write(folder.path().join("big.yaml"), "prompt: x\nimages: [{path: big.png}]").unwrap();
    let stored = submit(&service, &folder, "./big.yaml", &[]);
    assert_eq!(stored.code, 0, "{stored:?}");
}

#[tokio::test]
async fn the_inputs_of_a_run_are_submitted_again_from_its_file_alone() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let first = service
        .submit(json!({ "repeats": 1, "warmup": 0, "inputs": "inputs-small.yaml", "seed": 7 }))
        .await;
    assert_eq!(service.end(&first).await["state"], "succeeded");
    let read = |id: &str| fs::read_to_string(service.run_dir(id).join("inputs.yaml")).unwrap();
    fs::write(folder.path().join("inputs.yaml"), read(&first)).unwrap();
    let settings = ["--mode", "basic", "--repeats", "1", "--warmup", "0", "--max-new-tokens", "4"];
    let again = submit(&service, &folder, "./inputs.yaml", &settings);
    let id = again.stdout.trim();
    assert_eq!(service.end(id).await["state"], "succeeded", "{again:?}");
    assert_eq!(read(id), read(&first), "the same prompt, seed and images");
    let manifest: Value = yaml_serde::from_str(&read(&first)).unwrap();
    assert_eq!(manifest["seed"], 7);
    assert!(manifest["prompt"].is_string() && manifest["images"][0]["sha256"].is_string());
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(report["inputs"][0]["sha256"], manifest["images"][0]["sha256"]);
}
