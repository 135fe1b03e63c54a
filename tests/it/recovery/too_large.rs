//! Passes that exceed the maximum size of a run: their data is dropped with a note, and the run
//! continues with the others.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    runs::commands::{finding, script, submit},
    support::service::{self, Service, Setup},
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

/// A service of small runs, whose nsys does `more` at the end of a profile.
fn small_runs(data: &Path, commands: &str, more: &str) -> Service {
    let nsys = service::script(data, &NSYS.replace("LARGE", more));
    let fixture = "/tests/fixtures/captures/hf-llama-e2e.sqlite.zst";
    let packed = fs::File::open(format!("{}{fixture}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    fs::write(data.join("run.sqlite"), zstd::stream::decode_all(packed).unwrap()).unwrap();
    fs::write(data.join("targets.toml"), commands).unwrap();
    let mut command = service::command(data, &Setup { nsys, ..Setup::default() });
    command
        .env("LLMPROF__SERVER__TARGETS", data.join("targets.toml"))
        .env("LLMPROF__LIMITS__RUN_BYTES", MAX_BYTES);
    Service::spawn(&mut command, data)
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
    assert!(state == "failed" && message.contains("exceeded the disk quota of a run"), "{message}");
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
