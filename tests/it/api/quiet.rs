//! Background work while a pass measures: it waits with a message, and continues afterwards.

use std::{fs, time::Duration};

use llmprof_service::{
    artifact::{
        import_staging::{CapturesInspection, IntakeError, UploadLimits},
        inputs::staging::{InputsInspection, InputsUpload, UploadedSamples},
    },
    config::Config,
    measuring::Measuring,
    scheduler::{
        inspection::{self, ReportTools},
        limited_child::LimitedChildren,
    },
};
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

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

#[tokio::test]
async fn inputs_are_checked_while_more_captures_wait_than_are_inspected_at_a_time() {
    let dir = tempdir().unwrap();
    let end = dir.path().join("end");
    // Stands in for `llmprof inspect --folder DIR`: captures wait for the file `end`.
    let lines = format!(
        "if grep -q '\"Captures\"' \"$3/task.json\"; then
            while [ ! -e {} ]; do sleep 0.02; done
        fi
        echo '{{\"Unfit\":\"inspected\"}}' >\"$3/result.json\"",
        end.display()
    );
    let children = LimitedChildren {
        program: script(dir.path(), &lines),
        limits: Config::default().limits,
        measuring: Measuring::default(),
        max_wait: Duration::ZERO,
    };
    let tools = ReportTools { nsys: false, ncu: false };
    let inspector = inspection::start(children, tools, CancellationToken::new());
    let limits = UploadLimits { max_bytes: 1 << 20, least_free: 0 };
    let rules = json!({ "name": "a", "model": null, "files": [], "stages": [],
        "include_ranges": [], "exclude_ranges": [] });
    let mut waiting = Vec::new();
    for at in 0..20 {
        let (answer, answered) = oneshot::channel();
        let (folder, rules) = (dir.path().join(at.to_string()), rules.clone());
        let rules = serde_json::from_value(rules).unwrap();
        let upload = CapturesInspection { folder, files: vec![], limits, rules, answer };
        inspector.send(upload.into()).await.unwrap();
        waiting.push(answered);
    }
    let (answer, answered) = oneshot::channel();
    let upload = InputsUpload {
        folder: dir.path().join("inputs"),
        files: vec![],
        manifest: None,
        is_archive: false,
        stated: None,
        samples: UploadedSamples::default(),
        limits,
        known: dir.path().join("known"),
    };
    inspector.send(InputsInspection { upload, answer }.into()).await.unwrap();
    assert!(matches!(answered.await.unwrap(), Err(IntakeError::Unfit(why)) if why == "inspected"));
    assert!(waiting.iter_mut().all(|it| it.try_recv().is_err()), "no capture was inspected");
    fs::write(&end, "").unwrap();
    for answered in waiting {
        let inspected = answered.await.unwrap();
        assert!(matches!(inspected, Err(IntakeError::Unfit(why)) if why == "inspected"));
    }
}
