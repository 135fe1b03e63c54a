//! Runs whose runner crashes, hangs or takes too long.

use std::time::Duration;

use serde_json::json;

use crate::{
    runs::lifecycle::step,
    support::service::{self, RUNNER, Service, Setup, processes_of, script},
};

#[tokio::test]
async fn a_run_ends_at_the_time_limit_of_the_service() {
    let data = tempfile::tempdir().unwrap();
    let setup = Setup { runner: script(data.path(), "exec sleep 1000"), ..Setup::default() };
    let service = Service::spawn(
        service::command(data.path(), &setup).env("LLMPROF__LIMITS__RUN_S", "1"),
        data.path(),
    );
    let run = service.end(&service.submit(json!({ "timeout_s": 1800 })).await).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert!(
        run["findings"].as_array().unwrap().iter().any(|it| it["id"] == "run_out_of_time"),
        "{run:#}"
    );
}

#[tokio::test]
async fn a_full_disk_requeues_a_run_without_counting_the_attempt() {
    let data = tempfile::tempdir().unwrap();
    // The first attempt finds no space for its manifest.
    let lines = format!(
        "for run in {0}/runs/*-*; do\n[ -d $run ] && mkdir {0}/full && \
         ln -s /dev/full $run/manifest.new\ndone\nexec {RUNNER} \"$@\"",
        data.path().display()
    );
    let setup = Setup { runner: script(data.path(), &lines), ..Setup::default() };
    let service = Service::start(data.path(), &setup);
    assert_eq!(service.get("/readyz").await.status(), 200);
    let id = service.submit(json!({})).await;
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let unready = loop {
        tick.tick().await;
        let answer = service.get("/readyz").await;
        if answer.status() != 200 {
            break answer;
        }
    };
    assert_eq!(unready.status(), 503);
    assert!(unready.text().await.unwrap().contains("no more space on the disk"));
    let queued = service.json(&format!("/runs/{id}")).await;
    assert_eq!((&queued["state"], &queued["attempts"]), (&json!("queued"), &json!(0)));
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
    assert_eq!(service.get("/readyz").await.status(), 200);
}

#[tokio::test]
async fn a_crashing_runner_fails_the_run_with_its_last_lines() {
    let data = tempfile::tempdir().unwrap();
    let runner = script(data.path(), "echo 'a sprocket <b>broke</b>' >&2; exit 7");
    let service = Service::start(data.path(), &Setup { runner, ..Setup::default() });
    let id = service.submit(json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert_eq!(step(&run, "baseline")["exit_code"], 7);
    assert!(run["message"].as_str().unwrap().contains("a sprocket <b>broke</b>"), "{run:#}");
    let log = service
        .get(&format!("/runs/{id}/artifacts/logs/baseline.stderr.log"))
        .await
        .text()
        .await
        .unwrap();
    assert_eq!(log, "a sprocket <b>broke</b>\n");
}

#[tokio::test]
async fn a_runner_killed_by_a_signal_fails_the_run_with_its_name() {
    let data = tempfile::tempdir().unwrap();
    let runner = script(data.path(), "kill -SEGV $$");
    let service = Service::start(data.path(), &Setup { runner, ..Setup::default() });
    let id = service.submit(json!({})).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "failed");
    assert!(run["message"].as_str().unwrap().contains("SIGSEGV"), "{run:#}");
}

#[tokio::test]
async fn a_hanging_runner_that_ignores_term_ends_at_the_time_limit() {
    let data = tempfile::tempdir().unwrap();
    let runner =
        script(data.path(), "trap '' TERM; setsid sleep 600 & while :; do sleep 600; done");
    let service = Service::start(data.path(), &Setup { runner, ..Setup::default() });
    let id = service.submit(json!({ "timeout_s": 2 })).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert!(run["message"].as_str().unwrap().contains("deadline"), "{run:#}");
    assert_eq!(processes_of(&id), [""; 0]);
}
