//! Runs as jobs of a real Slurm with two nodes, through the HTTP API of a real service, while parts
//! of both are killed.
//!
//! Skipped if Slurm is not installed, unless LLMPROF_REQUIRE_SLURM=1. They run one after another.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    slurm::{
        bench::{Bench, attempts},
        cluster::{PATIENCE, wait},
    },
    support::service::{self, Service, script},
};

const SMALL: &str =
    r#"{ "repeats": 1, "warmup": 0, "max_new_tokens": 2, "inputs_manifest": "inputs-small.yaml" }"#;

pub fn small() -> Value {
    serde_json::from_str(SMALL).unwrap()
}

fn is_up(event: &Value) -> bool {
    event["event"] == "log" && event["line"] == "up"
}

/// Lines of a runner that prints `up` and hangs the first time, and works the next.
fn hangs_once(bench: &Bench) -> String {
    let marker = bench.data.path().join("was-here");
    format!(
        "if [ -e {0} ]; then {1}; fi; touch {0}; echo up >&2; sleep 600",
        marker.display(),
        bench.counted()
    )
}

#[tokio::test]
async fn twenty_runs_share_two_gpus_and_each_succeeds_once() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner(&bench.counted());
    let service = bench.serve();
    let (mut ids, begin) = (Vec::new(), Instant::now());
    for _ in 0..20 {
        let run = json!({ "model": "llama-tiny", "repeats": 1, "warmup": 0, "max_new_tokens": 2 });
        ids.push(service.submit(run).await);
    }
    let mut reasons = std::collections::BTreeSet::new();
    loop {
        let last = service.json(&format!("/runs/{}", ids[19])).await;
        reasons.extend(last["scheduled"]["reason"].as_str().map(str::to_owned));
        if last["ended_at"].is_string() {
            break;
        }
        assert!(begin.elapsed() < 3 * PATIENCE, "the runs do not end: {last:#}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for id in &ids {
        bench.assert_succeeded_once(&service, id).await;
    }
    assert_eq!(bench.ledger(), (2, 20));
    assert!(reasons.contains("Resources") || reasons.contains("Priority"), "{reasons:?}");
}

#[tokio::test]
async fn an_analysis_in_a_separate_job_gives_the_same_run() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.separate_analysis = true;
    let service = bench.serve();
    let id = service.submit(small()).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let steps: Vec<_> =
        run["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["preflight", "baseline", "analyze", "report"]);
    assert_eq!(
        (bench.cluster.jobs_of(&id).len(), bench.cluster.jobs_of(&format!("{id}.analyze")).len()),
        (1, 1)
    );
}

#[tokio::test]
async fn a_command_is_a_job_like_any_other_and_needs_no_settings_on_its_node() {
    let Some(bench) = Bench::new().await else { return };
    let targets = bench.data.path().join("targets.toml");
    let example = include_str!("../../../conf/targets.toml")
        .replace("\"model-runner\"", &format!("{:?}", service::RUNNER));
    fs::write(&targets, example).unwrap();
    let service =
        Service::spawn(bench.command().env("LLMPROF__SERVER__TARGETS", targets), bench.data.path());
    let target = json!({ "command": "tiny-generate", "params": { "tokens": 2 } });
    let body = json!({ "target": target, "mode": "basic", "repeats": 2, "warmup": 0 });
    let (status, answer) = service.post("/runs", &body).await;
    assert_eq!(status, 202, "{answer}");
    let id = answer["run_id"].as_str().unwrap();
    bench.assert_succeeded_once(&service, id).await;
    let report: Value =
        serde_json::from_slice(&fs::read(service.run_dir(id).join("report.json")).unwrap())
            .unwrap();
    assert_eq!(report["aggregates"]["command"]["plain_ms"]["n"], 2, "{report:#}");
}

#[tokio::test]
async fn a_failed_job_reports_its_reason_and_a_long_one_ends_at_its_limit() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner("sleep 600");
    bench.separate_analysis = true;
    let service = bench.serve();
    let slow = service.submit(json!({ "timeout_s": 4 })).await;
    let run = service.end(&slow).await;
    assert_eq!(
        (&run["state"], &run["failed_step"]),
        (&json!("failed"), &json!("baseline")),
        "{run:#}"
    );
    assert!(
        run["findings"].as_array().unwrap().iter().any(|it| it["id"] == "run_out_of_time"),
        "{run:#}"
    );
    let (status, refused) =
        service.post("/runs", &json!({ "model": "llama-tiny", "device": "a100" })).await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!("device_not_found")), "{refused}");
}

#[tokio::test]
async fn pending_and_running_jobs_are_cancelled() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner("echo up >&2; sleep 600");
    let service = bench.serve();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(service.submit(json!({})).await);
    }
    for id in &ids[..2] {
        service.follow(id, is_up).await;
    }
    for id in [&ids[2], &ids[0]] {
        service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
        assert_eq!(service.end(id).await["state"], "cancelled");
        wait("the job's end", || {
            bench.cluster.output("squeue", &["--noheader", &format!("--name={id}")]).is_empty()
        });
    }
    // The collected files are kept.
    let files = service.json(&format!("/runs/{}/artifacts", ids[0])).await;
    assert!(
        files["artifacts"].as_array().unwrap().iter().any(|it| it["path"] == "spec.json"),
        "{files:#}"
    );
    assert_eq!(service.json(&format!("/runs/{}", ids[1])).await["state"], "running");
}

#[tokio::test]
async fn a_service_that_was_killed_finds_its_jobs_again_and_those_that_ended_meanwhile() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    let service = bench.serve();
    let (first, second) = (service.submit(small()).await, service.submit(small()).await);
    let third = service.submit(small()).await;
    for id in [&first, &second] {
        service.follow(id, is_up).await;
    }
    service.stop(Signal::SIGKILL);
    bench.open();
    let results =
        [&first, &second].map(|id| bench.data.path().join("runs").join(id).join("result.json"));
    wait("uncollected results", || results.iter().all(|path| path.exists()));

    let service = bench.serve();
    for id in [&first, &second, &third] {
        bench.assert_succeeded_once(&service, id).await;
    }
    assert_eq!(bench.ledger().1, 3);
}

#[tokio::test]
async fn a_controller_that_restarts_loses_no_run() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    let service = bench.serve();
    let ids = [
        service.submit(small()).await,
        service.submit(small()).await,
        service.submit(small()).await,
    ];
    for id in &ids[..2] {
        service.follow(id, is_up).await;
    }
    bench.cluster.stop_controller(Signal::SIGTERM);
    bench.cluster.start_controller();
    bench.open();
    for id in &ids {
        bench.assert_succeeded_once(&service, id).await;
    }
    assert_eq!(bench.ledger().1, 3);
}

#[tokio::test]
async fn a_killed_controller_loses_no_run_and_none_is_executed_or_stored_twice() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    let service = bench.serve();
    let ids = [
        service.submit(small()).await,
        service.submit(small()).await,
        service.submit(small()).await,
    ];
    for id in &ids[..2] {
        service.follow(id, is_up).await;
    }
    // The controller has not saved all of its jobs. Forgotten jobs end, or are ended when nodes
    // register. Their numbers are assigned again, and nodes that know a number refuse the job and
    // are drained.
    bench.cluster.stop_controller(Signal::SIGKILL);
    bench.cluster.start_controller();
    bench.open();
    let ends = async {
        for id in &ids {
            let run = service.end(id).await;
            assert_eq!(run["state"], "succeeded", "{run:#}");
            // The stored files are of the last attempt.
            let result: Value =
                serde_json::from_slice(&fs::read(service.run_dir(id).join("result.json")).unwrap())
                    .unwrap();
            assert_eq!(
                (&result["attempt"], &result["interrupted"]),
                (&run["attempts"], &json!(false)),
                "{run:#}"
            );
            assert!(service.get(&format!("/runs/{id}/report")).await.status().is_success());
        }
    };
    tokio::select! {
        () = ends => {}
        () = bench.cluster.administer() => {}
    }
    wait("the end of all processes of the jobs", || {
        ids.iter().all(|id| service::processes_of(id).is_empty())
    });
    for id in &ids {
        let log = fs::read_to_string(service.run_dir(id).join("scheduler.log")).unwrap();
        assert_eq!(log.matches("the run has ended").count(), 1, "{log}");
    }
}

#[tokio::test]
async fn a_job_of_a_lost_node_is_executed_again_elsewhere_and_stored_once() {
    let Some(mut bench) = Bench::new().await else { return };
    let lines = hangs_once(&bench);
    bench.runner(&lines);
    let service = bench.serve();
    let id = service.submit(small()).await;
    service.follow(&id, is_up).await;
    let node = usize::from(bench.cluster.jobs_of(&id)[0].ends_with("n2"));
    bench.cluster.lose_node(node);
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!((attempts(&service, &id), bench.ledger().1), (2, 1));
    // The job that the cluster lost sight of has been ended, or ends without a result.
    let result: Value =
        serde_json::from_slice(&fs::read(service.run_dir(&id).join("result.json")).unwrap())
            .unwrap();
    assert_eq!(
        (&result["outcome"]["state"], &result["interrupted"]),
        (&json!("succeeded"), &json!(false))
    );
}

#[tokio::test]
async fn a_job_that_the_cluster_requeues_continues_with_the_pass_that_was_cut_off() {
    let Some(mut bench) = Bench::new().await else { return };
    let (tools, data) = (tempfile::tempdir().unwrap(), bench.data.path().to_owned());
    let once = format!(
        "if [ $1 = profile ] && [ ! -e {0} ]; then touch {0}; echo up >&2; exec sleep 600; fi\n{1}",
        data.join("was-here").display(),
        service::FAKE_NSYS
    );
    bench.runner(&bench.counted());
    bench.setup.nsys = script(tools.path(), &once);
    bench.separate_analysis = true;
    let service = bench.serve();
    let mut light = small();
    light["mode"] = json!("light");
    let id = service.submit(light).await;
    service.follow(&id, is_up).await;
    let listed = bench.cluster.output("squeue", &["--noheader", "--format=%i", "--name", &id]);
    let job = listed.trim();
    assert!(bench.cluster.run("scontrol", &["requeue", job]).status.success(), "{listed}");
    // Slurm delays a requeued job by minutes.
    let soon = ["update", &format!("JobId={job}"), "StartTime=now"];
    wait("a start without delay", || bench.cluster.run("scontrol", &soon).status.success());
    let run = service.end(&id).await;
    assert_eq!((&run["state"], &run["attempts"]), (&json!("partial"), &json!(1)), "{run:#}");
    assert_eq!((attempts(&service, &id), bench.ledger().1), (2, 2), "{run:#}");
    let reused = |it: &&Value| it["id"] == "passes_reused";
    let findings = run["findings"].as_array().unwrap();
    assert!(findings.iter().find(reused).unwrap()["evidence"]["baseline"].is_string());
}

#[tokio::test]
async fn runs_stay_queued_while_nodes_are_drained() {
    let Some(bench) = Bench::new().await else { return };
    let service = bench.serve();
    assert!(
        bench
            .cluster
            .run("scontrol", &["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test"])
            .status
            .success()
    );
    let id = service.submit(small()).await;
    let begin = Instant::now();
    loop {
        let run = service.json(&format!("/runs/{id}")).await;
        if run["scheduled"]["state"] == "PENDING" && run["scheduled"]["reason"].is_string() {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{run:#}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(
        bench
            .cluster
            .run("scontrol", &["update", "NodeName=n[1-2]", "State=RESUME"])
            .status
            .success()
    );
    assert_eq!(service.end(&id).await["state"], "succeeded");
}

/// A measurement for bench/README.md: `cargo test --features simulation --test it -- --ignored
/// --nocapture --exact slurm::jobs::cost_of_a_submission`.
#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn cost_of_a_submission() {
    const RUNS: u32 = 60;
    let Some(mut bench) = Bench::new().await else { return };
    assert!(
        bench
            .cluster
            .run("scontrol", &["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test"])
            .status
            .success()
    );
    let jobs =
        |bench: &Bench| bench.cluster.output("squeue", &["--noheader"]).lines().count() as u32;
    let begin = Instant::now();
    for _ in 0..RUNS {
        assert!(bench.cluster.run("sbatch", &["--gres=gpu:1", "--wrap=true"]).status.success());
    }
    eprintln!("sbatch by hand: {:?} each", begin.elapsed() / RUNS);
    for separate in [false, true] {
        bench.cluster.run("scancel", &["--me"]);
        wait("an empty queue", || jobs(&bench) == 0);
        bench.separate_analysis = separate;
        let service = bench.serve();
        let begin = Instant::now();
        for _ in 0..RUNS {
            service.submit(small()).await;
        }
        let answered = begin.elapsed();
        let all = if separate { 2 * RUNS } else { RUNS };
        wait("all jobs", || jobs(&bench) == all);
        eprintln!(
            "{} jobs a run: answered in {:?}, in the queue in {:?} each",
            all / RUNS,
            answered / RUNS,
            begin.elapsed() / RUNS
        );
        service.stop(Signal::SIGKILL);
        fs::remove_dir_all(bench.data.path().join("runs")).unwrap();
        fs::remove_file(bench.data.path().join("llmprof.db")).unwrap();
    }
}
