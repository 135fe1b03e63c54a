//! The commands of `specs/quickstart.md`, run as they are written, on the CPU.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::service::{LLMPROF, Service, Setup};

/// Line that names the model and device of a GPU host, and the line in its place.
const GPU: (&str, &str) =
    ("model=deepseek-ocr device=cuda:0\n", "model=deepseek-ocr-tiny device=cpu\n");

/// Shell commands of the steps, without the prerequisites.
fn commands() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/specs/quickstart.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, steps) = text.split_once("\n## 1. ").unwrap();
    let blocks = steps.split("```").skip(1).step_by(2).filter_map(|it| it.strip_prefix("sh\n"));
    let commands: String = blocks.collect();
    assert_eq!(commands.matches(GPU.0).count(), 1, "{commands}");
    commands.replace(GPU.0, GPU.1)
}

/// Runs `commands` in `folder`; returns the commands that failed, each after its exit code.
fn failed(commands: &str, folder: &Path, service: &Service) -> (Vec<String>, String) {
    let programs = Path::new(LLMPROF).parent().unwrap().to_owned();
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([programs].into_iter().chain(env::split_paths(&path))).unwrap();
    let script = format!("set -u\ntrap 'echo \"$? $BASH_COMMAND\" >>failed' ERR\n{commands}");
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder)
        .env_remove("LLMPROF_TOKEN")
        .env("PATH", path)
        .env("LLMPROF_SERVER", &service.base)
        .env("RAYON_NUM_THREADS", "1")
        .output()
        .unwrap();
    let failed = fs::read_to_string(folder.join("failed")).unwrap_or_default();
    (failed.lines().map(str::to_owned).collect(), format!("{output:?}"))
}

#[tokio::test]
async fn every_command_of_the_quickstart_runs_without_a_gpu() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let service = Service::start(data.path(), &Setup::default());
    let samples = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("samples");
    symlink(samples, folder.path().join("samples")).unwrap();

    let (failed, output) = failed(&commands(), folder.path(), &service);

    // Without nsys the deep run is partial.
    assert_eq!(failed, ["2 llmprof watch $id"], "{output}");
    let runs = service.json("/runs").await;
    let runs = runs["runs"].as_array().unwrap();
    let modes: Vec<&Value> = runs.iter().map(|run| &run["mode"]).collect();
    assert_eq!(modes, ["deep", "light", "deep"]);
    let results = folder.path().join(runs[2]["run_id"].as_str().unwrap());
    for name in ["report.md", "stakeholder_summary.md", "operators.md", "kernels.md"] {
        let text = fs::read_to_string(results.join(name)).unwrap();
        assert!(text.starts_with("# "), "{name}: {text}");
    }
    for name in ["env.json", "inputs.yaml", "config.yaml", "kernels.csv", "kernels.json"] {
        assert!(results.join(name).exists(), "{name}");
    }
    let report = fs::read_to_string(folder.path().join("again/report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    let stages = [&report["stages"][0]["stage"], &report["stages"][1]["stage"]];
    assert_eq!((stages[0], stages[1]), (&json!("prefill"), &json!("decode_all")));
    assert!(report["stage_notes"][0]["ms"]["mean"].as_f64().unwrap() > 0.0, "no vision: {report}");
}
