//! Bundles: without paths of their host, and with inputs that another service accepts.

use std::{fs, path::Path, process::Command};

use llmprof_core::domain::runner::PREDICTIONS;
use serde_json::{Value, json};

use crate::{
    api::{
        imports::FORM,
        inputs::{form, png},
    },
    support::{
        deep::{DeepHost, deep},
        service::{self, RUNNER, Service, Setup, command},
    },
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
    let sent = service::client()
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

/// Fails if a file of a bundle has this path.
#[track_caller]
fn assert_not_named(path: &str, name: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let found = text.lines().find(|line| line.contains(path));
    assert!(found.is_none(), "{name}: {}", found.unwrap_or_default());
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
            assert_not_named(home_path, &name, &bytes);
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

/// A model of one layer with weights of zeros in `folder`.
fn write_model(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let config = r#"{"model_type": "llama", "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32,
        "vocab_size": 300, "max_position_embeddings": 128, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}"#;
    fs::write(folder.join("config.json"), config).unwrap();
    let layer = "model.layers.0";
    let mut shapes = vec![
        ("model.embed_tokens".to_owned(), vec![300, 16]),
        ("model.norm".into(), vec![16]),
        ("lm_head".into(), vec![300, 16]),
        (format!("{layer}.input_layernorm"), vec![16]),
        (format!("{layer}.post_attention_layernorm"), vec![16]),
        (format!("{layer}.mlp.gate_proj"), vec![32, 16]),
        (format!("{layer}.mlp.up_proj"), vec![32, 16]),
        (format!("{layer}.mlp.down_proj"), vec![16, 32]),
    ];
    shapes.extend(["q", "k", "v", "o"].map(|it| {
        let name = format!("{layer}.self_attn.{it}_proj");
        (name, vec![16, 16])
    }));
    let zeros = vec![0u8; 300 * 16 * 4];
    let tensors = shapes.iter().map(|(name, shape): &(String, Vec<usize>)| {
        let bytes = &zeros[..shape.iter().product::<usize>() * 4];
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap();
        (format!("{name}.weight"), view)
    });
    let path = folder.join("model.safetensors");
    safetensors::serialize_to_file(tensors, None, &path).unwrap();
}

#[tokio::test]
async fn a_deep_run_of_loaded_weights_names_no_folder_of_its_host_and_repeats_by_its_commands() {
    let host = DeepHost::new();
    let models = host.folder().join("models");
    write_model(&models.join("loaded"));
    host.put("inputs/text.yaml", "prompt: read");
    let service =
        Service::spawn(host.command().env("LLMPROF__SERVER__MODELS", &models), &host.data);
    let mut settings = deep();
    settings["model"] = json!("loaded");
    settings["inputs_manifest"] = json!("text.yaml");
    let id = service.submit(settings).await;
    let run = service.end(&id).await;
    assert!(run["state"] == "succeeded" || run["state"] == "partial", "{run:#}");
    let files = bundle(&service, &id).await;
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    for name in [
        "config.yaml",
        "runner.yaml",
        "nsys/request.json",
        "logs/nsys.stdout.log",
        "progress.jsonl",
    ] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert!(!names.contains(&"weights"), "the path of the weights is of the host alone");
    let text = |name: &str| {
        let (_, bytes) = files.iter().find(|(other, _)| other == name).unwrap();
        String::from_utf8(bytes.clone()).unwrap()
    };
    let request: Value = serde_json::from_str(&text("baseline/request.json")).unwrap();
    assert_eq!(request["weights"], "../weights");
    assert!(text("logs/nsys.stdout.log").contains("Generated: nsys/run.nsys-rep"));
    let folder = host.folder().to_str().unwrap();
    for (name, bytes) in &files {
        assert_not_named(folder, name, bytes);
    }

    // The command of the pass computes the same tokens again, in the folder of the run.
    let dir = service.run_dir(&id);
    let commands = text("baseline/cmd.txt");
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    fs::remove_file(dir.join("baseline").join(PREDICTIONS)).ok();
    let line = commands.lines().next().unwrap();
    let output = Command::new("sh").args(["-c", line]).current_dir(&dir).env("PATH", path).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let again = fs::read(dir.join("baseline").join(PREDICTIONS)).unwrap();
    assert_eq!(tokens(&[(PREDICTIONS.into(), again)]), tokens(&files));

    // Elsewhere the weights are put next to the passes.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join("baseline")).unwrap();
    fs::write(other.path().join("baseline/request.json"), text("baseline/on-cpu.json")).unwrap();
    let execute = || {
        let arguments = ["run", "--request", "baseline/request.json", "--out", "baseline"];
        Command::new(RUNNER).args(arguments).current_dir(other.path()).output().unwrap()
    };
    let refused = execute();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(why.contains("put the folder of the weights there"), "{why}");
    std::os::unix::fs::symlink(models.join("loaded"), other.path().join("weights")).unwrap();
    let output = execute();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
