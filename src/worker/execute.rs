//! A run carried out from its folder alone: `llmprof execute`. Knows neither the database nor the service that ordered it.
//!
//! A scheduler may start a job again while an older one still runs on a node that it lost sight of. The folder belongs to the last that
//! began: the older one sees that and ends, and its result is not kept.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    job::{self, Host},
    order::{self, Gathered, JobResult, Order, OrderedSubject},
};
use crate::{
    analyze::device::Devices,
    artifact::{layout, manifest},
    collect::{Collector, sweep},
    run::RunState,
    store::Outcome,
    trace::device::{CPU, Device},
};

/// How often a job looks whether the folder is still its own.
const WATCH: Duration = Duration::from_millis(500);

/// Which steps a job takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of them.
    Whole,
    /// Those that need the device.
    Gather,
    /// Those that need none, after the others.
    Conclude,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    #[error("cannot read the order {}", layout::JOB)]
    Order { source: io::Error },
    #[error("there is no {} in the folder: it is no run that was ordered", layout::JOB)]
    NoOrder,
    #[error("cannot use the run's folder")]
    Folder { source: io::Error },
    #[error("another job has taken the run's folder over")]
    Replaced,
}

/// Reads the order in the run's folder `dir`.
pub fn order(dir: &Path) -> Result<Order, ExecuteError> {
    order::read(dir, layout::JOB).map_err(|source| ExecuteError::Order { source })?.ok_or(ExecuteError::NoOrder)
}

/// Carries the ordered run out in its folder and leaves the result there. `stop` is told when the job is to end early.
pub async fn execute(
    order: &Order,
    dir: &Path,
    part: Part,
    collector: Collector,
    devices: Devices,
    stop: &CancellationToken,
) -> Result<u8, ExecuteError> {
    let failed = |source| ExecuteError::Folder { source };
    // The name first: a job that ends from now on sees it, and one that ended before has left its result.
    let owner = uuid::Uuid::now_v7().to_string();
    manifest::write_whole(&dir.join(layout::OWNER), owner.as_bytes()).map_err(failed)?;
    if let Some(done) = order::read(dir, layout::RESULT).map_err(failed)?.filter(|done| counts(order, done)) {
        // A job that had ended was begun again, or the one of an earlier attempt that was given up for lost came to its end.
        tracing::info!(attempt = done.attempt, "the run's end is known: nothing is done again");
        let done = JobResult { attempt: order.attempt, ..done };
        order::write(dir, layout::RESULT, &done).map_err(failed)?;
        return Ok(done.exit_code);
    }
    let id = order.id;
    tokio::task::spawn_blocking(move || sweep(id)).await.ok(); // what an older job left on this host
    remove(&dir.join(layout::RESULT)).map_err(failed)?;

    let halt = stop.child_token();
    let host = Host { collector: Arc::new(collector), devices: Arc::new(devices) };
    let told = tokio::select! {
        told = carry(order, dir, part, &host, &halt) => told,
        () = replaced(dir, &owner, &halt) => unreachable!("it only ends the job"),
    };
    if !is_owner(dir, &owner) {
        return Err(ExecuteError::Replaced);
    }
    let interrupted = stop.is_cancelled() || matches!(told, Told::Nothing);
    let outcome = match told {
        Told::Nothing => job::lost("the job that was to collect ended without a word".into()),
        Told::Outcome(outcome) => outcome,
        Told::Gathered(gathered) if !interrupted => {
            order::write(dir, layout::GATHERED, &gathered).map_err(failed)?;
            return Ok(u8::from(gathered.stopped.is_some()));
        }
        Told::Gathered(gathered) => job::lost(gathered.stopped.and_then(|ended| ended.message).unwrap_or_default()),
    };
    let ended_well = matches!(outcome.state, RunState::Succeeded | RunState::Partial);
    let interrupted = interrupted && !ended_well;
    let result = JobResult { attempt: order.attempt, interrupted, exit_code: u8::from(!ended_well), outcome };
    order::write(dir, layout::RESULT, &result).map_err(failed)?;
    if !interrupted {
        tracing::info!(attempt = result.attempt, state = %result.outcome.state, "the run has come to its end");
    }
    Ok(result.exit_code)
}

/// Says whether the run needs not be carried out again. What an earlier attempt failed in may succeed now.
fn counts(order: &Order, done: &JobResult) -> bool {
    !done.interrupted && (done.attempt == order.attempt || done.attempt < order.attempt && done.exit_code == 0)
}

enum Told {
    Outcome(Outcome),
    Gathered(Gathered),
    /// There was nothing to go on from.
    Nothing,
}

async fn carry(order: &Order, dir: &Path, part: Part, host: &Host, halt: &CancellationToken) -> Told {
    if part == Part::Conclude {
        let gathered = order::read(dir, layout::GATHERED).ok().flatten().filter(|it: &Gathered| it.attempt == order.attempt);
        return match gathered {
            Some(gathered) => Told::Outcome(job::conclude(order, gathered, dir, host, halt).await),
            None => Told::Nothing,
        };
    }
    let (device, beside) = match devices(order, host).await {
        Ok(devices) => devices,
        Err(message) => return Told::Outcome(job::lost(message)),
    };
    let order = &Order { beside, ..order.clone() };
    if part == Part::Whole {
        return Told::Outcome(job::execute(order, dir, &device, host, halt).await);
    }
    match job::gather(order, dir, &device, host, halt).await {
        Ok(gathered) => Told::Gathered(gathered),
        Err(message) => Told::Outcome(job::lost(message)),
    }
}

/// The device of this job, and those beside it that its command wants: what the scheduler gave it is all that it sees.
async fn devices(order: &Order, host: &Host) -> Result<(Device, Vec<Device>), String> {
    if order.spec.device() == Some(CPU) || matches!(&order.subject, OrderedSubject::Command { plan, .. } if plan.gpus == 0) {
        return Ok((Device::cpu(), Vec::new()));
    }
    let chosen = host.collector.devices(&order.devices).await;
    let mut devices = chosen.devices.into_iter();
    let device = devices.next().unwrap_or_else(Device::cpu);
    if order.gpus > 0 && order.devices.is_empty() && device.is_cpu() {
        let why = if chosen.notes.is_empty() { "the driver shows none".to_owned() } else { chosen.notes.join("; ") };
        return Err(format!("the job asked for a GPU and has none that it can use: {why}"));
    }
    let wanted = order.spec.gpus() as usize - 1;
    let beside: Vec<Device> = devices.filter(|it| !it.is_cpu()).take(wanted).collect();
    if beside.len() < wanted && !device.is_cpu() {
        return Err(format!("the command wants {} GPUs at once, and the job has {}", wanted + 1, beside.len() + 1));
    }
    Ok((device, beside))
}

/// Ends the job when another one has begun in its folder; never returns.
async fn replaced(dir: &Path, owner: &str, halt: &CancellationToken) {
    loop {
        tokio::time::sleep(WATCH).await;
        if !is_owner(dir, owner) {
            halt.cancel();
        }
    }
}

/// A folder whose owner cannot be read is still ours: only another name in it takes it away.
fn is_owner(dir: &Path, owner: &str) -> bool {
    fs::read(dir.join(layout::OWNER)).map_or(true, |found| found == owner.as_bytes())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
