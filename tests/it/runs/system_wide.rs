//! System-wide sampling: refused if the operator forbids it, else recorded with its disclosure.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use axum::http::Method;
use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::{
    commands::{finding, nsys, script as command, service, submit},
    lifecycle::step,
};
use crate::{
    api::router::{Api, MODEL},
    support::{
        service::{self as services, Service, Setup, script},
        session::{close, fake_server, start, submit_on, try_submit},
    },
};

/// Setting by which the operator permits or forbids it.
const SETTING: &str = "LLMPROF__TOOLS__SYSTEM_WIDE_SAMPLING";
/// Maximum number of runs: nsys 2022.4 may hang when it stops to sample the CPU, also in a process
/// tree of its own, and one run starts it at most three times.
const MAX_RUNS: u32 = 5;

fn wide(fields: &[&str]) -> Value {
    let nsys: serde_json::Map<String, Value> =
        fields.iter().map(|it| ((*it).to_owned(), json!("system-wide"))).collect();
    json!({ "nsys": nsys })
}

#[tokio::test]
async fn samples_of_all_processes_are_refused_by_field_and_setting_if_the_operator_forbids_them() {
    let api = Api::configured(|config| config.tools.system_wide_sampling = false).await;
    let (model, command) =
        (json!({ "model": MODEL }), json!({ "target": { "command": "tiny-generate" } }));
    for (fields, named) in [
        (&["sample"][..], "profiling.nsys.sample: "),
        (&["cpuctxsw"], "profiling.nsys.cpuctxsw: "),
        (&["sample", "cpuctxsw"], "profiling.nsys.sample, profiling.nsys.cpuctxsw: "),
    ] {
        for (subject, dry_run) in [(&model, false), (&command, false), (&model, true)] {
            let mut body = subject.clone();
            (body["profiling"], body["dry_run"]) = (wide(fields), json!(dry_run));
            let answer = api.post(&body).await;
            assert_eq!(answer.error(), (409, "sampling_forbidden".to_owned()), "{body}");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(message.starts_with(named), "{message}");
            assert!(message.contains("request process-tree"), "{message}");
            assert!(message.contains("tools.system_wide_sampling"), "{message}");
        }
    }
    let base = json!({ "model": "llama-tiny", "mode": "light", "profiling": wide(&["sample"]) });
    let sweep = json!({ "base": base, "axes": { "new_tokens": [1, 2] } }).to_string();
    let headers = [("content-type", "application/json")];
    let answer = api.ask(Method::POST, "/sweeps", &headers, sweep).await;
    assert_eq!(answer.error(), (409, "sampling_forbidden".to_owned()), "{}", answer.text());
    assert_eq!(api.get("/runs").await.json()["runs"], json!([]));
    let tree = json!({ "nsys": { "sample": "process-tree", "cpuctxsw": "process-tree" } });
    api.submit(json!({ "profiling": tree })).await;
}

/// `llmprof serve` with a mode `wide`, whose preset samples all processes.
fn with_mode(data: &Path, setup: &Setup) -> Command {
    let (folder, targets) = (data.join("presets"), data.join("targets.toml"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("wide.toml"), "base = 'light'\n[nsys]\nsample = 'system-wide'\n")
        .unwrap();
    fs::write(&targets, fake_server()).unwrap();
    let mut command = services::command(data, setup);
    command.env("LLMPROF__SERVER__PROFILING", folder).env("LLMPROF__SERVER__TARGETS", targets);
    command
}

/// The same without workers.
fn paused(data: &Path, permitted: bool) -> Service {
    let mut command = with_mode(data, &Setup::default());
    command.env("LLMPROF__WORKER__PAUSED", "true").env(SETTING, permitted.to_string());
    Service::spawn(&mut command, data)
}

#[tokio::test]
async fn a_mode_that_samples_all_processes_is_refused_for_runs_and_sessions_if_forbidden() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path(), false);
    let run = json!({ "model": "llama-tiny", "mode": "wide" });
    let session = json!({ "command": "fake", "mode": "wide" });
    for (path, body) in [("/runs", &run), ("/sessions", &session)] {
        let (status, answer) = service.post(path, body).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("sampling_forbidden")));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("profiling.nsys.sample: "), "{message}");
    }
}

#[tokio::test]
async fn a_run_on_a_session_samples_all_processes_only_if_the_mode_of_the_session_does() {
    let data = tempfile::tempdir().unwrap();
    let service = paused(data.path(), true);
    let requested = json!({ "profiling": wide(&["sample"]), "dry_run": true });
    let by_mode = json!({ "mode": "wide", "dry_run": true });
    let sample = |plan: &Value| plan["spec"]["subject"]["passes"]["profiling"]["nsys"].clone();

    let narrow = start(&service, json!({})).await;
    let (status, answer) = try_submit(&service, &narrow, json!({}), requested.clone()).await;
    assert_eq!(status, 409, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("profiling.nsys.sample: fixed by the session"), "{message}");
    let (_, plan) = try_submit(&service, &narrow, json!({}), by_mode.clone()).await;
    assert_eq!(sample(&plan)["sample"], "process-tree", "{plan}");

    let broad = start(&service, json!({ "mode": "wide" })).await;
    for more in [requested, by_mode] {
        let (status, plan) = try_submit(&service, &broad, json!({}), more).await;
        assert_eq!((status, &sample(&plan)["sample"]), (200, &json!("system-wide")), "{plan}");
    }
}

/// A service with an nsys that records whether it profiled.
fn recording(data: &Path, permitted: bool, is_paused: bool) -> Service {
    let lines = format!(
        "[ \"$1\" != profile ] || touch '{}'\n{}",
        data.join("profiled").display(),
        services::FAKE_NSYS
    );
    let setup = Setup { nsys: script(data, &lines), ..Setup::default() };
    let mut command = services::command(data, &setup);
    command
        .env("LLMPROF__WORKER__PAUSED", is_paused.to_string())
        .env(SETTING, permitted.to_string());
    Service::spawn(&mut command, data)
}

#[tokio::test]
async fn a_run_that_was_queued_before_the_operator_forbade_it_samples_nothing() {
    let data = tempfile::tempdir().unwrap();
    let permitting = recording(data.path(), true, true);
    let body = json!({ "mode": "light", "profiling": wide(&["cpuctxsw"]) });
    let id = permitting.submit(body).await;
    permitting.stop(Signal::SIGTERM);
    let service = recording(data.path(), false, false);
    let run = service.end(&id).await;
    assert_eq!(run["state"], "partial", "{run:#}");
    let failed = step(&run, "nsys");
    let message = failed["message"].as_str().unwrap();
    assert_eq!(failed["state"], "failed", "{failed}");
    assert!(message.contains("tools.system_wide_sampling"), "{message}");
    assert!(!data.path().join("profiled").exists(), "nsys recorded");
}

/// A process that no run started, which wakes up often.
struct Helper(Child);

impl Helper {
    fn start() -> Self {
        let wakes_often = "import time\nwhile True: time.sleep(0.001)";
        let mut python = Command::new("python3");
        python.args(["-c", wakes_often]).stdin(Stdio::null());
        Self(python.spawn().unwrap())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Number of context switches of the process, and its name.
fn switches(export: &Path, pid: u32) -> rusqlite::Result<(i64, String)> {
    let export = Connection::open(export)?;
    let count = "select count(*) from SCHED_EVENTS where globalTid / 0x1000000 % 0x1000000 = ?";
    let name = "select name from PROCESSES where globalPid / 0x1000000 % 0x1000000 = ?";
    let count = export.query_row(count, [pid], |row| row.get(0))?;
    Ok((count, export.query_row(name, [pid], |row| row.get(0))?))
}

/// Runs a sleeping command under nsys; returns its id and record. Again if each start of nsys hung,
/// or if it recorded nothing of the CPU, which nsys 2022.4 does on a busy machine.
async fn sampled_run(service: &Service) -> (String, Value) {
    let more = json!({
        "mode": "light", "repeats": 1, "warmup": 0,
        "profiling": wide(&["sample", "cpuctxsw"]),
    });
    for _ in 0..MAX_RUNS {
        let id = submit(service, "waits", json!({}), more.clone()).await;
        let run = service.end(&id).await;
        assert_eq!(services::processes_of(&id), [""; 0]);
        let is_hung = |message: &str| message.contains("did not finish its report");
        let has_hung = step(&run, "nsys")["message"].as_str().is_some_and(is_hung);
        let has_none = finding(&run, "cpu_samples_missing").is_some();
        let is_denied = finding(&run, "cpu_sampling_denied").is_some();
        if is_denied || !has_hung && !has_none {
            return (id, run);
        }
    }
    panic!("nsys hung or recorded nothing of the CPU in each of {MAX_RUNS} runs");
}

#[tokio::test]
async fn under_the_real_nsys_a_process_that_the_command_did_not_start_is_sampled() {
    let Some(nsys) = nsys() else { return };
    let (data, helper) = (tempfile::tempdir().unwrap(), Helper::start());
    let service = service(data.path(), &command("waits", "exec sleep 2", "", "gpus = 0"), &nsys);
    let (id, run) = sampled_run(&service).await;
    if let Some(denied) = finding(&run, "cpu_sampling_denied") {
        let required = std::env::var_os("LLMPROF_REQUIRE_NSYS").is_some_and(|value| value == "1");
        assert!(!required, "the kernel permits no samples of all processes: {denied}");
        eprintln!("skipped: {denied}");
        return;
    }
    assert_eq!(step(&run, "nsys")["state"], "succeeded", "{run:#}");
    let exposed = finding(&run, "nsys_sees_environments").expect("a disclosure");
    assert!(exposed["message"].as_str().unwrap().contains("samples of all processes"), "{exposed}");
    let export = service.run_dir(&id).join("nsys/run.sqlite");
    let (switches, name) = switches(&export, helper.0.id()).expect("switches of the helper");
    assert!(switches > 10 && name.contains("python3"), "{switches} of {name:?}");
}

#[tokio::test]
async fn under_the_real_nsys_a_session_beyond_its_process_tree_is_disclosed_and_leaves_no_process()
{
    let Some(nsys) = nsys() else { return };
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { nsys: nsys.into(), ..Setup::default() };
    let service = Service::spawn(&mut with_mode(data.path(), &setup), data.path());
    let session = start(&service, json!({ "mode": "wide" })).await;
    let id = submit_on(&service, &session, json!({}), json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert!(finding(&run, "nsys_sees_environments").is_some(), "{:#}", run["findings"]);
    close(&service, &session).await;
    assert_eq!(services::processes_of(&session), [""; 0]);
}
