//! Jobs that Slurm could not start and holds, simulated by shell scripts: a real cluster does not
//! fail on demand.

use std::{fs, path::Path, time::Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    slurm::cluster::{PATIENCE, wait},
    support::service::{self, Service, Setup, script},
};

/// Holds every job at once. A released job runs, or is held again if there is a file `broken`.
const SBATCH: &str = r#"for word; do
    case $word in --job-name=*) name=${word#*=};; --wrap=*) body=${word#*=};; esac
done
id=$(($(cat last || echo 0) + 1)); echo $id >last
echo "$id|$name|PENDING|launch failed requeued held" >$id.job; echo "$body" >$id.body
echo $id"#;
const SQUEUE: &str = r#"for word; do
    case $word in --name=*) names=$(echo "${word#*=}" | tr , '|');; esac
done
[ -e silent ] && { [ -z "$names" ] || touch asked; exec sleep 60; }
cat *.job | grep -E "$names" || true"#;
const SCANCEL: &str = r#"for word; do rm -f "$word.job"; done"#;
const SCONTROL: &str = r#"[ "$1" = release ] || exit 1
echo $2 >>released; [ -e broken ] && exit
sed 's/PENDING.*/RUNNING|None/' $2.job >running; mv running $2.job
(sh $2.body; rm -f $2.job) >/dev/null 2>&1 &"#;

fn start(data: &Path) -> Service {
    let bin = data.join("bin");
    fs::create_dir_all(&bin).unwrap();
    for (name, lines) in [
        ("sbatch", SBATCH),
        ("squeue", SQUEUE),
        ("scancel", SCANCEL),
        ("scontrol", SCONTROL),
        ("sacct", "exit 1"),
    ] {
        let quiet = format!("cd {} && exec 2>/dev/null || exit 1\n{lines}", data.display());
        fs::rename(script(&bin, &quiet), bin.join(name)).unwrap();
    }
    let mut command = service::command(data, &Setup::default());
    command
        .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
        .env("LLMPROF__EXECUTOR__KIND", "slurm")
        .env("LLMPROF__EXECUTOR__SLURM__POLL_S", "1")
        .env("LLMPROF__EXECUTOR__SLURM__LOST_AFTER_S", "1")
        .env("LLMPROF__EXECUTOR__SLURM__SEPARATE_ANALYSIS_JOB", "false");
    Service::spawn(&mut command, data)
}

fn released(data: &Path) -> usize {
    fs::read_to_string(data.join("released")).unwrap().lines().count()
}

#[tokio::test]
async fn a_held_job_is_released_and_its_attempt_continues() {
    let data = tempfile::tempdir().unwrap();
    let service = start(data.path());
    let inputs = "inputs-small.yaml";
    let run = json!({ "repeats": 1, "warmup": 0, "max_new_tokens": 2, "inputs_manifest": inputs });
    let id = service.submit(run).await;
    let run = service.end(&id).await;
    assert_eq!(
        (&run["state"], &run["attempts"], released(data.path())),
        (&json!("succeeded"), &json!(1), 1),
        "{run:#}"
    );
}

#[tokio::test]
async fn a_job_that_never_starts_is_cancelled_and_its_reason_is_reported() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("broken"), "").unwrap();
    let service = start(data.path());
    let id = service.submit(json!({})).await;
    let run = service.end(&id).await;
    let why =
        "given up after 3 attempts: Slurm could not start the job: launch failed requeued held";
    assert_eq!((&run["state"], &run["message"]), (&json!("failed"), &json!(why)), "{run:#}");
    assert_eq!(released(data.path()), 9);
    let left = fs::read_dir(data.path())
        .unwrap()
        .flatten()
        .filter(|it| it.path().extension().is_some_and(|it| it == "job"));
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn a_service_stops_without_an_answer_to_a_cancellation_and_the_next_one_cancels_the_job() {
    let data = tempfile::tempdir().unwrap();
    fs::write(data.path().join("broken"), "").unwrap();
    let service = start(data.path());
    let id = service.submit(json!({})).await;
    wait("a job", || data.path().join("released").exists());
    fs::write(data.path().join("silent"), "").unwrap();
    service.post(&format!("/runs/{id}/cancel"), &json!({})).await;
    wait("a question that is not answered", || data.path().join("asked").exists());
    let started = Instant::now();
    assert!(service.stop(Signal::SIGTERM).success() && started.elapsed() < PATIENCE);

    fs::remove_file(data.path().join("silent")).unwrap();
    let service = start(data.path());
    assert_eq!(service.end(&id).await["state"], "cancelled");
}
