//! Uploads that need more memory or time than they may: their process ends, and the service and
//! other runs continue. Imports are cancelled and requeued at once.

use std::{fs, path::Path, time::Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{
    api::imports::{META, PACKED, PLAIN, timeline},
    support::{
        captures::MOCK,
        service::{self, PATIENCE, Service, Setup, command, pause, processes_of},
    },
};

/// An export of `ranges` ranges, compressed.
pub fn ranges(ranges: u32) -> Vec<u8> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("many.sqlite");
    let sql = format!(
        "pragma journal_mode = off; pragma synchronous = off; {META}
         create table StringIds (id integer primary key, value text);
         insert into StringIds values (1, 'prefill');
         create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int,
             textId int, domainId int);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {ranges})
         insert into NVTX_EVENTS select 1, 2, 59, null, 1, 1, 0 from n;"
    );
    Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
    zstd::encode_all(&*fs::read(path).unwrap(), 3).unwrap()
}

async fn upload(service: &Service, name: &str, kind: (&str, &str), body: Vec<u8>) -> (u16, Value) {
    let request = service::client().post(format!("{}/captures?name={name}", service.base));
    let answer = request.header(kind.0, kind.1).body(body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

pub async fn import(service: &Service, body: Vec<u8>) -> String {
    let (status, answer) = upload(service, "many.sqlite", PACKED, body).await;
    assert_eq!(status, 202, "{answer}");
    answer["run_id"].as_str().unwrap().to_owned()
}

/// A service whose imports have these limits.
fn limited(data: &Path, limits: &[(&str, &str)]) -> Service {
    let mut command = command(data, &Setup::default());
    for (name, value) in limits {
        command.env(format!("LLMPROF__LIMITS__{name}"), value);
    }
    Service::spawn(&mut command, data)
}

#[tokio::test]
async fn an_import_beyond_its_memory_or_cpu_time_fails_at_once_and_alone() {
    let (capture, data) = (ranges(1_500_000), tempdir().unwrap());
    assert!(capture.len() < 1_000_000, "{}", capture.len());
    for (limit, value) in [("CAPTURE_MEMORY_BYTES", "120000000"), ("CAPTURE_CPU_S", "1")] {
        let service = limited(data.path(), &[(limit, value)]);
        let run = service.end(&import(&service, capture.clone()).await).await;
        let message = run["message"].as_str().unwrap();
        assert!(message.contains(&format!("limits.{}", limit.to_lowercase())), "{message}");
        assert_eq!(
            (&run["state"], &run["failed_step"], &run["attempts"]),
            (&json!("failed"), &json!("analyze"), &json!(1)),
            "{run:#}"
        );
        let step = &run["steps"].as_array().unwrap()[1];
        assert_eq!((&step["state"], &step["message"]), (&json!("failed"), &run["message"]));
        let id = run["run_id"].as_str().unwrap();
        assert_eq!(processes_of(id), [""; 0]);
        let log = service.get(&format!("/runs/{id}/artifacts/logs/analyze.stderr.log")).await;
        assert_eq!(log.status(), 200);
        // The service and its other imports are not affected.
        assert_eq!(
            service.end(&import(&service, timeline(MOCK)).await).await["state"],
            "succeeded"
        );
        assert!(service.stop(Signal::SIGTERM).success());
    }
}

#[tokio::test]
async fn an_upload_beyond_its_memory_is_refused_when_it_is_inspected() {
    let data = tempdir().unwrap();
    let service = limited(data.path(), &[("CAPTURE_MEMORY_BYTES", "100000000")]);
    let row = "\"0\",\"1\",\"python\",\"host\",\"gemm\",\"1\",\"7\",\"(1, 1, 1)\",\"(1, 1, 1)\"\n";
    let page = format!(
        "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\
         \"Stream\",\"Block Size\",\"Grid Size\"\n{}",
        row.repeat(900_000)
    );
    let (status, answer) = upload(&service, "page.csv", PLAIN, page.into_bytes()).await;
    let error = &answer["error"];
    assert_eq!((status, &error["code"]), (422, &json!("capture_invalid")), "{answer}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("limits.capture_memory_bytes"), "{message}");
    assert_eq!(fs::read_dir(data.path().join("incoming")).unwrap().count(), 0);
    assert_eq!(service.end(&import(&service, timeline(MOCK)).await).await["state"], "succeeded");
}

/// Uploads a capture that takes long, and waits until it is analysed.
pub async fn analysed(service: &Service) -> String {
    let id = import(service, ranges(3_000_000)).await;
    let step = |event: &Value| event["event"] == "step" && event["step"]["step"] == "analyze";
    service.follow(&id, step).await;
    id
}

/// A service whose grace period is longer than a test waits.
fn patient(data: &Path) -> Service {
    let mut command = command(data, &Setup::default());
    Service::spawn(command.env("LLMPROF__WORKER__GRACE_S", "3600"), data)
}

/// Freezes the processes of an import or alignment: they cannot end by themselves, nor at a TERM.
async fn freeze(id: &str) {
    let mut processes = processes_of(id);
    while processes.is_empty() {
        pause().await;
        processes = processes_of(id);
    }
    for process in processes {
        kill(Pid::from_raw(process.parse().unwrap()), Signal::SIGSTOP).unwrap();
    }
}

#[tokio::test]
async fn a_running_import_is_cancelled() {
    let data = tempdir().unwrap();
    let service = patient(data.path());
    let id = analysed(&service).await;
    freeze(&id).await;
    let (status, _) = service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    assert_eq!(status, 202);
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("cancelled"), &json!(1)), "{run:#}");
    assert_eq!(processes_of(&id), [""; 0]);
    let capture = service.get(&format!("/runs/{id}/artifacts/nsys/run.sqlite")).await;
    assert_eq!(capture.status(), 200, "its files stay");
}

#[tokio::test]
async fn a_service_that_stops_requeues_a_running_import_at_once_without_charging_the_attempt() {
    let data = tempdir().unwrap();
    let service = patient(data.path());
    let id = analysed(&service).await;
    freeze(&id).await;
    assert!(service.stop(Signal::SIGTERM).success());
    assert_eq!(processes_of(&id), [""; 0]);
    let mut paused = command(data.path(), &Setup::default());
    paused.env("LLMPROF__WORKER__PAUSED", "true");
    let service = Service::spawn(&mut paused, data.path());
    let run = service.json(&format!("/runs/{id}")).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("queued"), &json!(0)), "{run:#}");
}

#[tokio::test]
async fn a_killed_service_leaves_no_process_of_an_import() {
    let data = tempdir().unwrap();
    let service = Service::start(data.path(), &Setup::default());
    let id = analysed(&service).await;
    freeze(&id).await;
    service.stop(Signal::SIGKILL);
    // The kernel ends them with the service.
    let killed = Instant::now();
    while !processes_of(&id).is_empty() {
        assert!(killed.elapsed() < PATIENCE, "a frozen process is left");
        pause().await;
    }
}

#[tokio::test]
async fn a_running_alignment_is_requeued_by_a_stop_and_fails_beyond_its_memory() {
    let data = tempdir().unwrap();
    let service = patient(data.path());
    let run = import(&service, ranges(1_500_000)).await;
    assert_eq!(service.end(&run).await["state"], "succeeded");
    let (status, queued) = service.post("/alignments", &json!({ "mock": run, "e2e": run })).await;
    assert_eq!(status, 202, "{queued}");
    let alignment = queued["links"]["self"].as_str().unwrap().to_owned();
    freeze(alignment.rsplit('/').next().unwrap()).await;
    assert!(service.stop(Signal::SIGTERM).success());

    let service = limited(data.path(), &[("CAPTURE_MEMORY_BYTES", "80000000")]);
    service.get(&format!("{alignment}/events")).await.text().await.unwrap();
    let view = service.json(&alignment).await;
    assert_eq!((&view["state"], &view["attempts"]), (&json!("failed"), &json!(1)), "{view:#}");
    let message = view["message"].as_str().unwrap();
    assert!(message.contains("limits.capture_memory_bytes"), "{message}");
}
