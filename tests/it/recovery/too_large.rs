//! Passes that exceed the maximum size of a run: their data is dropped with a note, and the other
//! passes stay. The run continues, unless the pass is the unprofiled one of a model or a server.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    runs::commands::{finding, script, submit},
    support::service::{self, RUNNER, Service, Setup},
};

/// Maximum bytes of a run here.
const MAX_BYTES: &str = "30000000";

/// An nsys that records a fixture, of a program that finds `UNDER_NSYS` in its environment.
const NSYS: &str = r#"case $1 in
--version) echo 'NVIDIA Nsight Systems version 2025.3.2.1';;
profile) while [ "$1" != --output ]; do shift; done; stem=$2; shift 2
    UNDER_NSYS=1 "$@" || exit $?
    echo report > "$stem.nsys-rep"; LARGE;;
export) while [ "$1" != --output ]; do shift; done; cat "${0%/*}/run.sqlite" > "$2";;
esac"#;

/// The part of a model whose mock is aligned.
const PART: &str = "decoder.layers.3.self_attn";

/// A service of small runs with the model runner, whose nsys does `more` at the end of a profile.
fn small_runs(data: &Path, commands: &str, more: &str) -> Service {
    small_runs_by(data, RUNNER.into(), commands, more)
}

/// The same with `runner` as the model runner.
fn small_runs_by(data: &Path, runner: PathBuf, commands: &str, more: &str) -> Service {
    let nsys = service::script(data, &NSYS.replace("LARGE", more));
    let fixture = "/tests/fixtures/captures/hf-llama-e2e.sqlite.zst";
    let packed = fs::File::open(format!("{}{fixture}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    fs::write(data.join("run.sqlite"), zstd::stream::decode_all(packed).unwrap()).unwrap();
    fs::write(data.join("targets.toml"), commands).unwrap();
    let mut command = service::command(data, &Setup { runner, nsys });
    command
        .env("LLMPROF__SERVER__TARGETS", data.join("targets.toml"))
        .env("LLMPROF__LIMITS__RUN_BYTES", MAX_BYTES);
    Service::spawn(&mut command, data)
}

/// A model runner whose events exceed the limit in the pass with the folder `pass`.
fn large_in(data: &Path, pass: &str) -> PathBuf {
    let folder = data.join("bin");
    fs::create_dir(&folder).unwrap();
    let lines = format!(
        r#"for argument; do [ "$last" = --out ] && out=$argument; last=$argument; done
case ${{out#*/runs/*/}} in {pass}) truncate -s 40M "$out/events.jsonl"; exec sleep 600;; esac
exec '{RUNNER}' "$@""#
    );
    service::script(&folder, &lines)
}

/// State and message of a step.
fn step<'a>(run: &'a Value, name: &str) -> (&'a Value, &'a str) {
    let steps = run["steps"].as_array().unwrap();
    let step = steps.iter().find(|it| it["step"] == name).unwrap_or_else(|| panic!("{run:#}"));
    (&step["state"], step["message"].as_str().unwrap_or_default())
}

async fn names(service: &Service, id: &str) -> Vec<String> {
    let listed = service.json(&format!("/runs/{id}/artifacts")).await;
    let artifacts = listed["artifacts"].as_array().unwrap().iter();
    artifacts.map(|it| it["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_report_of_nsys_beyond_the_limit_is_dropped_with_a_note_and_the_run_continues() {
    let data = tempfile::tempdir().unwrap();
    let large = "truncate -s 40M \"$stem.nsys-rep\"; exec sleep 600";
    let service = small_runs(data.path(), &script("short", "true", "'x'", ""), large);
    let id = submit(&service, "short", json!({}), json!({ "mode": "light" })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    let (state, message) = step(&run, "nsys");
    assert!(state == "failed" && message.contains("disk quota exceeded (30.0 MB)"), "{message}");
    assert!(message.contains("dropped: nsys/run.nsys-rep (41943040 bytes)"), "{message}");
    assert_eq!(finding(&run, "run_too_large").unwrap()["severity"], "warning");
    let names = names(&service, &id).await;
    for name in ["nsys/dropped.txt", "baseline/times.json", "report.md", "logs/nsys.stderr.log"] {
        assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|it| it.ends_with(".nsys-rep")), "{names:?}");
    let note = fs::read_to_string(service.run_dir(&id).join("nsys/dropped.txt")).unwrap();
    assert!(note.contains("30000000 bytes (limits.run_bytes)"), "{note}");
}

#[tokio::test]
async fn an_unprofiled_pass_beyond_the_limit_leaves_the_timeline_of_a_command() {
    let data = tempfile::tempdir().unwrap();
    let lines = "if [ -z \"$UNDER_NSYS\" ]; then truncate -s 40M dump; exec sleep 600; fi";
    let service = small_runs(data.path(), &script("dumps", lines, "'x'", ""), "true");
    let id = submit(&service, "dumps", json!({}), json!({ "mode": "light", "warmup": 0 })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    let (state, message) = step(&run, "baseline");
    let dropped = "dropped: baseline/out/dump (41943040 bytes)";
    assert!(state == "failed" && message.contains(dropped), "{run:#}");
    assert_eq!(step(&run, "nsys").0, "succeeded", "{run:#}");
    let names = names(&service, &id).await;
    for name in ["baseline/dropped.txt", "nsys/run.sqlite", "kernels.csv", "report.md"] {
        assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
    }
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(report["aggregates"]["command"]["plain_ms"], Value::Null, "no time is invented");
}

#[tokio::test]
async fn an_unprofiled_pass_of_a_model_beyond_the_limit_ends_its_run_which_keeps_the_other_files() {
    let data = tempfile::tempdir().unwrap();
    let service = small_runs_by(data.path(), large_in(data.path(), "baseline"), "", "true");
    let id = service.submit(json!({ "mode": "light" })).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let (state, message) = step(&run, "baseline");
    let dropped = "dropped: baseline/events.jsonl (41943040 bytes)";
    assert!(state == "failed" && message.contains(dropped), "{run:#}");
    let advice = finding(&run, "run_too_large").unwrap()["advice"].as_str().unwrap();
    assert!(advice.contains("fewer repeats or tokens"), "{advice}");
    let names = names(&service, &id).await;
    let kept = ["dropped.txt", "request.json", "cmd.txt"].map(|name| format!("baseline/{name}"));
    let of_run = ["config.yaml", "env.json", "inputs.yaml", "logs/baseline.stderr.log"];
    for name in kept.iter().map(String::as_str).chain(of_run) {
        assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|it| it.starts_with("nsys/")), "nothing to compare it with");
}

#[tokio::test]
async fn a_pass_of_a_mock_or_extracted_part_beyond_the_limit_leaves_the_passes_of_the_others() {
    let model = ["baseline/events.jsonl", "nsys/run.sqlite", "report.md"];
    for (pass, others) in [
        ("mock/baseline", &["extracted/baseline/events.jsonl", "extracted/nsys/run.sqlite"][..]),
        (
            "extracted/nsys",
            &["mock/baseline/events.jsonl", "mock/nsys/run.sqlite", "extracted/baseline/cmd.txt"],
        ),
    ] {
        let data = tempfile::tempdir().unwrap();
        let service = small_runs_by(data.path(), large_in(data.path(), pass), "", "true");
        let part = json!({ "target": PART, "align_with": "e2e", "mode": "light",
            "profiling": { "nsys": { "max_new_tokens": 2, "repeats": 1, "warmup": 0 } } });
        let id = service.submit(part).await;
        let run = service.end(&id).await;
        assert_eq!(run["state"], "partial", "{run:#}");
        let (state, message) = step(&run, "align");
        let dropped = format!("dropped: {pass}/events.jsonl (41943040 bytes)");
        assert!(state == "failed" && message.contains(&dropped), "{run:#}");
        let events = format!("{pass}/events.jsonl");
        let found = finding(&run, "run_too_large").unwrap_or_else(|| panic!("{run:#}"));
        assert_eq!(found["evidence"][&events], "41943040 bytes, dropped", "{found:#}");
        let names = names(&service, &id).await;
        assert!(!names.contains(&events), "{names:?}");
        let note = format!("{pass}/dropped.txt");
        for name in model.iter().chain(others).copied().chain([note.as_str()]) {
            assert!(names.iter().any(|it| it == name), "{name}: {names:?}");
        }
    }
}
