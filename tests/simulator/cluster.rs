//! A simulated cluster: jobs wait, run, are lost and start again; answers come late or not at all.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use llmprof_core::domain::ids::RunId;

use super::world::World;

/// Jobs by number.
#[derive(Default)]
pub struct Cluster {
    jobs: BTreeMap<u64, ClusterJob>,
    submitted: u64,
    /// Next submissions that are done and not answered.
    pub lost_submissions: u32,
}

struct ClusterJob {
    run: RunId,
    state: &'static str,
    cancelled: bool,
}

/// Executes a command of the cluster.
pub async fn command(world: World, program: String, args: Vec<String>) -> Result<String, String> {
    world.pause(if world.fault(|it| it.slow) { 8_000 } else { 100 }).await;
    if world.fault(|it| it.answer) {
        return Err("Unable to contact slurm controller (connect failure)".into());
    }
    let output = match program.as_str() {
        "sbatch" => submit(&world, &args),
        "squeue" => Ok(list(&world, &args)),
        "scancel" => {
            cancel(&world, &args);
            Ok(String::new())
        }
        _ => Err("unknown command".into()),
    };
    world.pause(100).await;
    let is_lost = {
        let lost = &mut world.state().cluster.lost_submissions;
        let is_lost = program == "sbatch" && *lost > 0;
        *lost -= u32::from(is_lost);
        is_lost
    };
    if is_lost || world.fault(|it| it.answer) {
        return Err("Socket timed out on send/recv operation".into());
    }
    output
}

fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
}

fn submit(world: &World, args: &[String]) -> Result<String, String> {
    let (Some(name), Some(dir)) = (option(args, "--job-name"), option(args, "--chdir")) else {
        return Err("invalid arguments".into());
    };
    let run: RunId = name.parse().map_err(|_| "invalid job name".to_owned())?;
    let number = {
        let cluster = &mut world.state().cluster;
        cluster.submitted += 1;
        let job = ClusterJob { run, state: "PENDING", cancelled: false };
        cluster.jobs.insert(cluster.submitted, job);
        cluster.submitted
    };
    world.log(format!("cluster job {number} of run {run} is queued"));
    tokio::spawn(lead(world.clone(), number, run, PathBuf::from(dir)));
    Ok(number.to_string())
}

fn list(world: &World, args: &[String]) -> String {
    let names = option(args, "--name").map(|names| names.split(',').collect::<Vec<_>>());
    let state = world.state();
    let mut text = String::new();
    for (number, job) in &state.cluster.jobs {
        let name = job.run.to_string();
        if names.as_ref().is_none_or(|names| names.contains(&name.as_str())) {
            text += &format!("{number}|{name}|{}|None\n", job.state);
        }
    }
    text
}

fn cancel(world: &World, args: &[String]) {
    for number in args.iter().filter_map(|arg| arg.parse::<u64>().ok()) {
        if let Some(job) = world.state().cluster.jobs.get_mut(&number) {
            job.cancelled = true;
        }
    }
}

/// Leads a job of the cluster from the queue to its end.
async fn lead(world: World, number: u64, run: RunId, dir: PathBuf) {
    let host = 1000 + number as u32 * 10;
    let mut starts = 0;
    loop {
        world.pause(10_000).await;
        if is_cancelled(&world, number) {
            break;
        }
        starts += 1;
        set(&world, number, "RUNNING");
        let mut job = world.start_process(&dir, run, host + starts);
        let limit = if world.fault(|it| it.requeue) { 10_000 } else { 1_000_000 };
        let lost_after = Duration::from_millis(world.below(limit));
        let ended = tokio::select! {
            biased;
            _ = job.wait() => true,
            () = cancelled(&world, number) => {
                job.stop.cancel();
                let _ = tokio::time::timeout(Duration::from_secs(30), job.wait()).await;
                true
            }
            () = tokio::time::sleep(lost_after), if limit == 10_000 => false,
        };
        let host = host + starts;
        if ended {
            world.kill(|job| job.host == host);
            break;
        }
        // The node is lost: its process may continue for a while.
        world.log(format!("cluster job {number} is requeued"));
        set(&world, number, "PENDING");
        if world.below(2) == 0 {
            world.kill(|job| job.host == host);
        } else {
            let world = world.clone();
            tokio::spawn(async move {
                world.pause(30_000).await;
                world.kill(|job| job.host == host);
            });
        }
    }
    set(&world, number, "COMPLETING");
    world.pause(3_000).await;
    world.state().cluster.jobs.remove(&number);
    world.log(format!("cluster job {number} is gone"));
}

fn set(world: &World, number: u64, to: &'static str) {
    if let Some(job) = world.state().cluster.jobs.get_mut(&number) {
        job.state = to;
    }
}

fn is_cancelled(world: &World, number: u64) -> bool {
    world.state().cluster.jobs.get(&number).is_none_or(|job| job.cancelled)
}

async fn cancelled(world: &World, number: u64) {
    while !is_cancelled(world, number) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
