//! Answers of Slurm's commands that are lost or late.

use std::fs;

use crate::{
    slurm::{bench::Bench, jobs::small},
    support::service::{Service, script},
};

/// Lines of an sbatch that submits, and reports the first time that it could not reach the
/// controller.
fn answer_lost_once(bench: &Bench) -> String {
    format!(
        "/usr/bin/sbatch \"$@\" >/dev/null; [ -e {0} ] && exit; touch {0}; \
         echo 'Unable to contact slurm controller' >&2; exit 1",
        bench.data.path().join("lost").display()
    )
}

/// A service with scripts in place of commands of Slurm.
fn serve_with(bench: &Bench, commands: &[(&str, String)]) -> Service {
    let bin = bench.data.path().join("bin");
    fs::create_dir(&bin).unwrap();
    for (command, lines) in commands {
        fs::rename(script(&bin, lines), bin.join(command)).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    Service::spawn(bench.command().env("PATH", path), bench.data.path())
}

#[tokio::test]
async fn a_lost_answer_makes_no_second_job() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.runner(&bench.counted());
    let service = serve_with(&bench, &[("sbatch", answer_lost_once(&bench))]);
    let id = service.submit(small()).await;
    bench.assert_succeeded_once(&service, &id).await;
    assert_eq!(bench.ledger().1, 1);
}

#[tokio::test]
async fn a_job_that_ends_while_the_queue_is_read_is_not_submitted_again() {
    let Some(mut bench) = Bench::new().await else { return };
    bench.gated();
    // A squeue that lets the jobs of a run end before it answers.
    let squeue = format!(
        "case \"$*\" in *--name=*) touch {}; \
         while [ -n \"$(/usr/bin/squeue \"$@\")\" ]; do sleep 0.1; done;; esac; \
         exec /usr/bin/squeue \"$@\"",
        bench.data.path().join("gate").display()
    );
    let commands = [("sbatch", answer_lost_once(&bench)), ("squeue", squeue)];
    let service = serve_with(&bench, &commands);
    let id = service.submit(small()).await;
    bench.assert_succeeded_once(&service, &id).await;
    assert_eq!(bench.ledger().1, 1);
}
