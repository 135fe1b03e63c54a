//! Runs as jobs of a real Slurm of two nodes: through the HTTP API of a real service, while parts of both are killed.
//!
//! Where Slurm is not installed these say that they were skipped, unless LLMPROF_REQUIRE_SLURM=1. They run one after another.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    cluster::{Cluster, PATIENCE, wait},
    service::{self, Service, Setup, script},
};

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

struct Bench {
    cluster: Cluster,
    setup: Setup,
    apart: bool,
    data: tempfile::TempDir,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Bench {
    async fn new() -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().await;
        // Short: sockets are bound in it.
        let folder = tempfile::Builder::new().prefix("slurm-").tempdir_in("/tmp").unwrap();
        let data = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(folder.path(), data.path())?;
        Some(Self { cluster, setup: Setup::default(), apart: false, data, _folder: folder, _turn: turn })
    }

    /// Jobs that run these lines in the place of the model runner.
    fn runner(&mut self, lines: &str) {
        self.setup = Setup { runner: script(self.data.path(), lines), ..Setup::default() };
    }

    /// Jobs that wait for [`Self::open`] before they begin to work, and keep account of it.
    fn gated(&mut self) {
        let gate = self.data.path().join("gate");
        self.runner(&format!("echo up >&2; until [ -e {} ]; do sleep 0.1; done; {}", gate.display(), self.counted()));
    }

    fn open(&self) {
        fs::write(self.data.path().join("gate"), "").unwrap();
    }

    /// Lines that run the model, and write `+` into the ledger before and `-` after it.
    fn counted(&self) -> String {
        let ledger = self.data.path().join("ledger");
        format!("echo + >>{0}; {1} \"$@\"; code=$?; echo - >>{0}; exit $code", ledger.display(), service::RUNNER)
    }

    /// The most that were at work at a time, and how many came to their end.
    fn ledger(&self) -> (usize, usize) {
        let (mut most, mut now, mut ended) = (0_usize, 0_usize, 0);
        for line in fs::read_to_string(self.data.path().join("ledger")).unwrap_or_default().lines() {
            match line {
                "+" => now += 1,
                _ => (now, ended) = (now - 1, ended + 1),
            }
            most = most.max(now);
        }
        (most, ended)
    }

    fn command(&self) -> Command {
        let mut command = service::command(self.data.path(), &self.setup);
        let log = fs::OpenOptions::new().create(true).append(true).open(self.data.path().join("service.log")).unwrap();
        command
            .stderr(log)
            .env("LLMPROF_LOG", "info")
            .env("SLURM_CONF", self.cluster.conf())
            .env("LLMPROF__EXECUTOR__KIND", "slurm")
            .env("LLMPROF__EXECUTOR__SLURM__POLL_S", "1")
            .env("LLMPROF__EXECUTOR__SLURM__LOST_S", "3")
            .env("LLMPROF__EXECUTOR__SLURM__ANALYZE_APART", self.apart.to_string())
            .env("LLMPROF__EXECUTOR__SLURM__TYPES", r#"["h200"]"#);
        command
    }

    fn serve(&self) -> Service {
        Service::spawn(&mut self.command(), self.data.path())
    }

    /// Says of a run that ended well whether it was begun, submitted and kept once.
    async fn ended_well_once(&self, service: &Service, id: &str) {
        let run = service.end(id).await;
        assert_eq!((&run["state"], &run["attempts"]), (&json!("succeeded"), &json!(1)), "{run:#}");
        assert_eq!((begun(service, id), self.cluster.jobs_of(id).len()), (1, 1));
        assert!(service.get(&format!("/runs/{id}/report")).await.status().is_success());
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("-- the service\n{}", fs::read_to_string(self.data.path().join("service.log")).unwrap_or_default());
        }
    }
}

const SMALL: &str = r#"{ "repeats": 1, "warmup": 0, "max_new_tokens": 2, "inputs_manifest": "inputs-small.yaml" }"#;

fn small() -> Value {
    serde_json::from_str(SMALL).unwrap()
}

fn is_up(event: &Value) -> bool {
    event["event"] == "log" && event["line"] == "up"
}

/// Lines of a runner that says `up` and hangs the first time, and works the next.
fn hangs_once(bench: &Bench) -> String {
    let marker = bench.data.path().join("was-here");
    format!("if [ -e {0} ]; then {1}; fi; touch {0}; echo up >&2; sleep 600", marker.display(), bench.counted())
}

/// Attempts that the run's journal tells, each a job that began its steps.
fn begun(service: &Service, id: &str) -> usize {
    let journal = fs::read_to_string(service.run_dir(id).join("progress.jsonl")).unwrap_or_default();
    journal.lines().filter(|line| line.contains(r#""event":"attempt""#)).count()
}

#[tokio::test]
async fn twenty_runs_at_once_take_turns_on_two_gpus_and_all_end_well_once() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner(&bench.counted());
    let service = bench.serve();
    let (mut ids, begin) = (Vec::new(), Instant::now());
    for _ in 0..20 {
        ids.push(service.submit(json!({ "model": "llama-tiny", "repeats": 1, "warmup": 0, "max_new_tokens": 2 })).await);
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
        bench.ended_well_once(&service, id).await;
    }
    assert_eq!(bench.ledger(), (2, 20));
    assert!(reasons.contains("Resources") || reasons.contains("Priority"), "{reasons:?}");
}

#[tokio::test]
async fn the_analysis_is_a_job_of_its_own_and_the_run_the_same() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.apart = true;
    let service = bench.serve();
    let id = service.submit(small()).await;
    let run = service.end(&id).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let steps: Vec<_> = run["steps"].as_array().unwrap().iter().map(|it| it["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["preflight", "baseline", "analyze", "report"]);
    assert_eq!((bench.cluster.jobs_of(&id).len(), bench.cluster.jobs_of(&format!("{id}.analyze")).len()), (1, 1));
}

#[tokio::test]
async fn a_command_is_a_job_like_any_other_and_needs_no_settings_on_its_node() {
    let Some(bench) = Bench::new().await else { return };
    let targets = bench.data.path().join("targets.toml");
    let example = include_str!("../../conf/targets.toml").replace("\"model-runner\"", &format!("{:?}", service::RUNNER));
    fs::write(&targets, example).unwrap();
    let service = Service::spawn(bench.command().env("LLMPROF__SERVER__TARGETS", targets), bench.data.path());
    let target = json!({ "command": "tiny-generate", "params": { "tokens": 2 } });
    let body = json!({ "target": target, "mode": "basic", "repeats": 2, "warmup": 0 });
    let (status, answer) = service.post("/runs", &body).await;
    assert_eq!(status, 202, "{answer}");
    let id = answer["run_id"].as_str().unwrap();
    bench.ended_well_once(&service, id).await;
    let report: Value = serde_json::from_slice(&fs::read(service.run_dir(id).join("report.json")).unwrap()).unwrap();
    assert_eq!(report["aggregates"]["command"]["plain_ms"]["n"], 2, "{report:#}");
}

#[tokio::test]
async fn a_job_that_fails_says_why_and_one_that_takes_too_long_ends_at_its_limit() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner("sleep 600");
    bench.apart = true;
    let service = bench.serve();
    let slow = service.submit(json!({ "timeout_s": 4 })).await;
    let run = service.end(&slow).await;
    assert_eq!((&run["state"], &run["failed_step"]), (&json!("failed"), &json!("baseline")), "{run:#}");
    assert!(run["findings"].as_array().unwrap().iter().any(|it| it["id"] == "run_out_of_time"), "{run:#}");
    let (status, refused) = service.post("/runs", &json!({ "model": "llama-tiny", "device": "a100" })).await;
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
        wait("the job's end", || bench.cluster.says("squeue", &["--noheader", &format!("--name={id}")]).is_empty());
    }
    // What was collected until then is kept.
    let files = service.json(&format!("/runs/{}/artifacts", ids[0])).await;
    assert!(files["artifacts"].as_array().unwrap().iter().any(|it| it["path"] == "spec.json"), "{files:#}");
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
    let results = [&first, &second].map(|id| bench.data.path().join("runs").join(id).join("result.json"));
    wait("results that nobody collects", || results.iter().all(|path| path.exists()));

    let service = bench.serve();
    for id in [&first, &second, &third] {
        bench.ended_well_once(&service, id).await;
    }
    assert_eq!(bench.ledger().1, 3);
}

#[tokio::test]
async fn a_lost_answer_makes_no_second_job() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner(&bench.counted());
    // An sbatch that submits and says that it could not reach the controller.
    let bin = bench.data.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let lost = format!(
        "/usr/bin/sbatch \"$@\" >/dev/null; [ -e {0} ] && exit; touch {0}; echo 'Unable to contact slurm controller' >&2; exit 1",
        bench.data.path().join("lost").display()
    );
    fs::rename(script(&bin, &lost), bin.join("sbatch")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let service = Service::spawn(bench.command().env("PATH", path), bench.data.path());
    let id = service.submit(small()).await;
    bench.ended_well_once(&service, &id).await;
    assert_eq!(bench.ledger().1, 1);
}

#[tokio::test]
async fn a_controller_that_restarts_loses_no_run() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    let service = bench.serve();
    let ids = [service.submit(small()).await, service.submit(small()).await, service.submit(small()).await];
    for id in &ids[..2] {
        service.follow(id, is_up).await;
    }
    bench.cluster.stop_controller(Signal::SIGTERM);
    bench.cluster.start_controller();
    bench.open();
    for id in &ids {
        bench.ended_well_once(&service, id).await;
    }
    assert_eq!(bench.ledger().1, 3);
}

#[tokio::test]
async fn a_controller_that_is_killed_loses_no_run_and_none_is_done_or_kept_twice() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    let service = bench.serve();
    let ids = [service.submit(small()).await, service.submit(small()).await, service.submit(small()).await];
    for id in &ids[..2] {
        service.follow(id, is_up).await;
    }
    // Right now it has not saved all of its jobs. Those that it forgot come to their end, or are ended when their nodes tell of them; it
    // gives their numbers away again, and nodes that know a number already refuse the job and are drained.
    bench.cluster.stop_controller(Signal::SIGKILL);
    bench.cluster.start_controller();
    bench.open();
    let ends = async {
        for id in &ids {
            let run = service.end(id).await;
            assert_eq!(run["state"], "succeeded", "{run:#}");
            // What is kept is of the attempt that was ordered last.
            let result: Value = serde_json::from_slice(&fs::read(service.run_dir(id).join("result.json")).unwrap()).unwrap();
            assert_eq!((&result["attempt"], &result["interrupted"]), (&run["attempts"], &json!(false)), "{run:#}");
            assert!(service.get(&format!("/runs/{id}/report")).await.status().is_success());
        }
    };
    tokio::select! {
        () = ends => {}
        () = bench.cluster.administer() => {}
    }
    wait("the end of all that the jobs began", || ids.iter().all(|id| service::processes_of(id).is_empty()));
    for id in &ids {
        let log = fs::read_to_string(service.run_dir(id).join("scheduler.log")).unwrap();
        assert_eq!(log.matches("the run has come to its end").count(), 1, "{log}");
    }
}

#[tokio::test]
async fn a_job_whose_node_is_lost_is_done_again_elsewhere_and_kept_once() {
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
    assert_eq!((begun(&service, &id), bench.ledger().1), (2, 1));
    // The job that the cluster lost sight of has been ended, or ends without a result.
    let result: Value = serde_json::from_slice(&fs::read(service.run_dir(&id).join("result.json")).unwrap()).unwrap();
    assert_eq!((&result["outcome"]["state"], &result["interrupted"]), (&json!("succeeded"), &json!(false)));
}

#[tokio::test]
async fn drained_nodes_keep_runs_waiting_until_they_are_resumed() {
    let Some(bench) = Bench::new().await else { return };
    let service = bench.serve();
    assert!(bench.cluster.run("scontrol", &["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test"]).status.success());
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
    assert!(bench.cluster.run("scontrol", &["update", "NodeName=n[1-2]", "State=RESUME"]).status.success());
    assert_eq!(service.end(&id).await["state"], "succeeded");
}

/// A measurement for bench/README.md: `cargo test --test it -- --ignored --nocapture --exact slurm::what_a_submission_costs`.
#[tokio::test]
#[ignore = "a measurement, for a machine that does nothing else"]
async fn what_a_submission_costs() {
    const RUNS: u32 = 60;
    let Some(mut bench) = Bench::new().await else { return };
    assert!(bench.cluster.run("scontrol", &["update", "NodeName=n[1-2]", "State=DRAIN", "Reason=test"]).status.success());
    let jobs = |bench: &Bench| bench.cluster.says("squeue", &["--noheader"]).lines().count() as u32;
    let begin = Instant::now();
    for _ in 0..RUNS {
        assert!(bench.cluster.run("sbatch", &["--gres=gpu:1", "--wrap=true"]).status.success());
    }
    eprintln!("sbatch by hand: {:?} each", begin.elapsed() / RUNS);
    for apart in [false, true] {
        bench.cluster.run("scancel", &["--me"]);
        wait("an empty queue", || jobs(&bench) == 0);
        bench.apart = apart;
        let service = bench.serve();
        let begin = Instant::now();
        for _ in 0..RUNS {
            service.submit(small()).await;
        }
        let answered = begin.elapsed();
        let all = if apart { 2 * RUNS } else { RUNS };
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
