//! Background work while a pass measures: it waits with a message, and continues afterwards.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{
    api::{
        hostile::analysed,
        imports::{PACKED, timeline},
        router::Api,
    },
    support::{
        captures::MOCK,
        service::{self, Service, Setup, command, pause, processes_of, script},
    },
};

const WAITING: &str = "waiting: a pass is measuring";

/// Submits the capture of the mock to a service; returns its run, and the reason of a late answer.
async fn import(service: &Service) -> (String, Value) {
    let request = service::client().post(format!("{}/captures?name=mock.zst", service.base));
    let answer = request.header(PACKED.0, PACKED.1).body(timeline(MOCK)).send().await.unwrap();
    let answer: Value = answer.json().await.unwrap();
    let run = answer["run_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    (run, answer["waited"].clone())
}

#[tokio::test]
async fn an_import_and_an_alignment_wait_while_a_pass_measures() {
    let data = tempdir().unwrap();
    let end = data.path().join("end");
    let lines = format!("while [ ! -e {} ]; do sleep 0.02; done", end.display());
    let setup = Setup { runner: script(data.path(), &lines), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    let (run, waited) = import(&service).await;
    assert_eq!(waited, Value::Null);
    assert_eq!(service.end(&run).await["state"], "succeeded");

    let pass = service.submit(json!({})).await;
    // Background work waits as soon as the run shows a step.
    while service.json(&format!("/runs/{pass}")).await["steps"] == json!([]) {
        pause().await;
    }
    let (waits, _) = import(&service).await;
    let (status, queued) = service.post("/alignments", &json!({ "mock": run, "e2e": run })).await;
    assert_eq!(status, 202, "{queued}");
    let alignment = queued["links"]["self"].as_str().unwrap();
    for path in [&format!("/runs/{waits}"), alignment] {
        let view = service.json(path).await;
        assert_eq!((&view["state"], &view["message"]), (&json!("queued"), &json!(WAITING)));
    }

    fs::write(&end, "").unwrap();
    assert_eq!(service.end(&waits).await["state"], "succeeded");
    service.get(&format!("{alignment}/events")).await.text().await.unwrap();
    let pass = service.json(&format!("/runs/{pass}")).await;
    let import = service.json(&format!("/runs/{waits}")).await;
    let baseline = &pass["steps"].as_array().unwrap()[1];
    assert_eq!(baseline["step"], "baseline");
    assert!(import["started_at"].as_str() >= baseline["ended_at"].as_str(), "{import:#}{pass:#}");
    assert_eq!(import["message"], Value::Null);
}

/// A value of `/proc/PID/stat` after the name, counted from the state, of each process of a run.
fn values(id: &str, place: usize) -> Vec<String> {
    let value = |pid: String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.split(' ').nth(place)?.to_owned())
    };
    processes_of(id).into_iter().filter_map(value).collect()
}

fn states(id: &str) -> Vec<String> {
    values(id, 0)
}

/// Nice values of the processes of a run.
fn priorities(id: &str) -> Vec<String> {
    values(id, 16)
}

#[tokio::test]
async fn a_running_import_is_stopped_while_a_pass_measures_and_for_a_bounded_time() {
    let data = tempdir().unwrap();
    let setup = Setup { runner: script(data.path(), "echo up >&2; sleep 600"), ..Setup::default() };
    let mut impatient = command(data.path(), &setup);
    impatient.env("LLMPROF__WORKER__BACKGROUND_WAIT_S", "2");
    let service = Service::spawn(&mut impatient, data.path());
    let run = analysed(&service).await;
    service.submit(json!({})).await;
    let stopped = |states: &[String]| !states.is_empty() && states.iter().all(|it| it == "T");
    while !stopped(&states(&run)) {
        pause().await;
    }
    let view = service.json(&format!("/runs/{run}")).await;
    assert_eq!((&view["state"], &view["message"]), (&json!("running"), &json!(WAITING)));
    assert!(priorities(&run).iter().all(|it| it == "5"), "{:?}", priorities(&run));
    // The pass does not end; the import continues, on idle CPUs.
    while stopped(&states(&run)) || !priorities(&run).iter().all(|it| it == "19") {
        pause().await;
    }
    service.post(&format!("/runs/{run}/cancel"), &json!({})).await;
    assert_eq!(service.end(&run).await["state"], "cancelled");

    // Nor does the client of an upload wait longer, and it learns the reason.
    let form = service.get("/ui/import").await.text().await.unwrap();
    assert!(form.contains("The check of the files waits for it, at most 2 s."), "{form}");
    let (_, waited) = import(&service).await;
    let waited = waited.as_str().unwrap();
    assert!(waited.ends_with(" s: it waits while a pass measures, up to 2 s"), "{waited}");
}

#[tokio::test]
async fn a_bundle_is_complete_although_a_pass_measures() {
    let api = Api::new().await;
    let id = api.ended().await;
    let quiet = api.get(&format!("/runs/{id}/bundle")).await;
    let _pass = api.measuring.start();
    let slow = api.get(&format!("/runs/{id}/bundle")).await;
    assert_eq!((slow.status.as_u16(), &slow.body), (200, &quiet.body));
}

#[tokio::test]
async fn the_unprofiled_pass_records_the_load_of_the_host() {
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = service.submit(json!({ "repeats": 1, "warmup": 0 })).await;
    assert_eq!(service.end(&id).await["state"], "succeeded");
    let load = service.json(&format!("/runs/{id}/artifacts/baseline/host.json")).await;
    assert_eq!(load["busy_pct"], 20, "{load:#}");
    assert!(load["cpu_wait_pct"].is_number() && load["load_start"].is_number(), "{load:#}");
    let report = service.json(&format!("/runs/{id}/artifacts/report.json")).await;
    assert_eq!(report["environment"]["load"], load);
    let text = service.get(&format!("/runs/{id}/artifacts/report.md")).await.text().await.unwrap();
    assert!(text.contains("| Host load | tasks waited for a CPU during"), "{text}");
}
