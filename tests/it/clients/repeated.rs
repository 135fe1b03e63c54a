//! A run repeated from its files, where the inputs that its `config.yaml` names are absent.

use std::fs;

use serde_json::json;
use tempfile::tempdir;

use super::{command, run};
use crate::{
    api::inputs::png,
    support::service::{Service, Setup},
};

#[tokio::test]
async fn a_run_is_repeated_from_its_files_where_its_stored_inputs_are_absent() {
    let (data, other_data, folder) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    fs::write(folder.path().join("page.png"), png(5)).unwrap();
    let text = "prompt: <image> read\nseed: 3\nimages: [{path: page.png, name: cover}]";
    fs::write(folder.path().join("own.yaml"), text).unwrap();
    let send = |base: &str, arguments: &[&str]| run(&mut command(folder.path(), base, arguments));
    let settings = ["--mode", "basic", "--repeats", "1", "--warmup", "0", "--max-new-tokens", "2"];
    let own = ["submit", "--model", "deepseek-ocr-tiny", "--inputs", "./own.yaml"];
    let first = send(&service.base, &[&own[..], &settings].concat());
    let first = first.stdout.trim();
    assert_eq!(service.end(first).await["state"], "succeeded");
    let files = ["fetch", first, "config.yaml", "inputs.yaml", "inputs/*", "--into", "again"];
    assert_eq!(send(&service.base, &files).code, 0);
    let inputs = service.json("/inputs").await["inputs"][0]["inputs_id"].clone();
    let inputs = inputs.as_str().unwrap();
    assert_eq!(service.delete(&format!("/inputs/{inputs}")).await, 204);

    let other = Service::start(other_data.path(), &Setup::default());
    for service in [&service, &other] {
        let refused = send(&service.base, &["submit", "again/config.yaml"]);
        let remedy = "`llmprof submit config.yaml --inputs ./inputs.yaml`";
        refused.assert_refused(&["404", &format!("no stored inputs {inputs}"), remedy]);
        let repeat = ["submit", "again/config.yaml", "--inputs", "./again/inputs.yaml"];
        let planned = send(&service.base, &[&repeat[..], &["--dry-run"]].concat());
        assert_eq!(planned.code, 0, "{planned:?}");
        let again = send(&service.base, &repeat);
        assert_eq!(again.code, 0, "{again:?}");
        let again = again.stdout.trim();
        assert_eq!(service.end(again).await["state"], "succeeded");
        let manifest = fs::read_to_string(service.run_dir(again).join("inputs.yaml")).unwrap();
        let before = fs::read_to_string(folder.path().join("again/inputs.yaml")).unwrap();
        assert_eq!(manifest, before, "the same prompt, seed, images and names");
    }

    // The name of a manifest that this service does not have.
    let named = other.post("/runs", &json!({ "model": "llama-tiny", "inputs": "own.yaml" })).await;
    let message = named.1["error"]["message"].as_str().unwrap();
    assert!(named.0 == 404 && message.contains("send its file inputs.yaml"), "{message}");
}
