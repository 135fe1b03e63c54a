//! Executes a run from only its folder: `llmprof execute`. Knows neither the database nor the
//! service that submitted it.
//!
//! A scheduler may start a job again while an older one still runs on a node that it lost. The
//! folder belongs to the job that started last: the older one ends, and its result is dropped.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use llmprof_core::{
    domain::{
        device::{CPU, Device},
        device_peaks::Devices,
        outcome::Outcome,
    },
    layout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::packed::read_own,
    collect::{Collector, end_orphans},
    job::{
        self, JobHost,
        job_spec::{self, GatheredSteps, JobResult, JobSpec, JobSubject},
    },
    runtime,
};

/// Period of the check that the folder still belongs to this job.
const OWNER_CHECK: Duration = Duration::from_millis(500);

/// Steps that a job executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPart {
    Whole,
    /// The steps that need the device.
    Gather,
    /// The steps after [`JobPart::Gather`], which need none.
    Conclude,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    #[error("cannot read the job spec {}", layout::JOB)]
    Spec { source: io::Error },
    #[error("there is no {} in the folder; give the folder of a submitted run", layout::JOB)]
    NoSpec,
    #[error("cannot use the run's folder")]
    Folder { source: io::Error },
    #[error("another job took over the run's folder, or the run was removed")]
    Replaced,
}

/// Reads the job spec in the run's folder `dir`.
pub fn read_spec(dir: &Path) -> Result<JobSpec, ExecuteError> {
    job_spec::read(dir, layout::JOB)
        .map_err(|source| ExecuteError::Spec { source })?
        .ok_or(ExecuteError::NoSpec)
}

/// Executes the job in its folder, leaves the result there and returns the exit code. `stop` ends
/// the job early.
#[tracing::instrument(name = "job", skip_all, fields(run = %spec.id, attempt = spec.attempt))]
pub async fn execute(
    spec: &JobSpec,
    dir: &Path,
    part: JobPart,
    collector: Collector,
    devices: Devices,
    stop: &CancellationToken,
) -> Result<u8, ExecuteError> {
    let host = JobHost { collector: Arc::new(collector), devices: Arc::new(devices) };
    let steps = async |stop| execute_part(spec, dir, part, &host, &stop).await;
    execute_steps(spec, dir, steps, stop).await
}

/// The same with these `steps`, which end early when their token fires.
pub async fn execute_steps<E: Future<Output = JobEnd>>(
    spec: &JobSpec,
    dir: &Path,
    steps: impl FnOnce(CancellationToken) -> E,
    stop: &CancellationToken,
) -> Result<u8, ExecuteError> {
    let failed = |source| ExecuteError::Folder { source };
    let owner = FolderOwner::take(dir).await.map_err(failed)?;
    if !owner.is_current() {
        return Err(ExecuteError::Replaced);
    }
    let earlier: Option<JobResult> = job_spec::read(dir, layout::RESULT).map_err(failed)?;
    if let Some(done) = earlier.filter(|result| is_done(spec, result)) {
        tracing::info!(attempt = done.attempt, "the run has a result: nothing is executed again");
        let done = JobResult { attempt: spec.attempt, ..done };
        job_spec::write(dir, layout::RESULT, &done).map_err(failed)?;
        return Ok(done.exit_code);
    }
    if spec.subject != JobSubject::Import {
        let mark = spec.mark();
        // Processes of an older job on this host. The service has ended an import's processes.
        runtime::blocking(move || end_orphans(mark)).await.ok();
    }
    remove(&dir.join(layout::RESULT)).map_err(failed)?;

    let end = tokio::select! {
        biased;
        end = steps(stop.clone()) => Some(end),
        // Its steps are dropped where they are: the files are the other job's now.
        () = owner.replaced() => None,
    };
    let Some(end) = end.filter(|_| owner.is_current()) else {
        return Err(ExecuteError::Replaced);
    };
    let stopped = stop.is_cancelled();
    let (outcome, interrupted) = match end {
        JobEnd::Finished(outcome) => (outcome, stopped),
        JobEnd::Gathered(gathered) if !stopped => {
            job_spec::write(dir, layout::GATHERED, &gathered).map_err(failed)?;
            return Ok(u8::from(gathered.stopped.is_some()));
        }
        JobEnd::Gathered(gathered) => {
            let message = gathered.stopped.and_then(|result| result.message);
            (job::failed(message.unwrap_or_default()), true)
        }
        JobEnd::NothingGathered => {
            (job::failed("the collecting job ended without a result".into()), true)
        }
    };
    let result = JobResult::new(spec.attempt, outcome, interrupted);
    job_spec::write(dir, layout::RESULT, &result).map_err(failed)?;
    if !result.interrupted {
        let (attempt, state) = (result.attempt, result.outcome.state);
        tracing::info!(attempt, %state, "the run has ended");
    }
    Ok(result.exit_code)
}

/// Returns true if the run needs no further execution. An earlier attempt's failure may not recur.
fn is_done(spec: &JobSpec, result: &JobResult) -> bool {
    let is_earlier_success = result.attempt < spec.attempt && result.exit_code == 0;
    !result.interrupted && (result.attempt == spec.attempt || is_earlier_success)
}

/// End of a job's part.
pub enum JobEnd {
    Finished(Outcome),
    Gathered(GatheredSteps),
    /// The collecting job of this attempt left no state to continue from.
    NothingGathered,
}

async fn execute_part(
    spec: &JobSpec,
    dir: &Path,
    part: JobPart,
    host: &JobHost,
    stop: &CancellationToken,
) -> JobEnd {
    if part == JobPart::Conclude {
        let gathered: Option<GatheredSteps> =
            job_spec::read(dir, layout::GATHERED).unwrap_or_default();
        return match gathered.filter(|it| it.attempt == spec.attempt) {
            Some(gathered) => {
                JobEnd::Finished(job::conclude(spec, gathered, dir, host, stop).await)
            }
            None => JobEnd::NothingGathered,
        };
    }
    let (device, other_gpus) = match devices(spec, host).await {
        Ok(devices) => devices,
        Err(message) => return JobEnd::Finished(job::failed(message)),
    };
    let spec = &JobSpec { other_gpus, ..spec.clone() };
    if part == JobPart::Whole {
        return JobEnd::Finished(job::execute(spec, dir, &device, host, stop).await);
    }
    match job::gather(spec, dir, &device, host, stop).await {
        Ok(gathered) => JobEnd::Gathered(gathered),
        Err(outcome) => JobEnd::Finished(outcome),
    }
}

/// The device of this job and the other GPUs of its command, among those that the scheduler shows.
async fn devices(spec: &JobSpec, host: &JobHost) -> Result<(Device, Vec<Device>), String> {
    if let Some(device) = &spec.device {
        return Ok((device.clone(), spec.other_gpus.clone()));
    }
    let no_gpu = matches!(&spec.subject, JobSubject::Command { plan, .. } if plan.gpus == 0);
    if no_gpu || spec.spec.device() == Some(CPU) {
        return Ok((Device::cpu(), Vec::new()));
    }
    let found = host.collector.devices(&spec.devices).await;
    let mut devices = found.devices.into_iter();
    let device = devices.next().unwrap_or_else(Device::cpu);
    if spec.gpus > 0 && spec.devices.is_empty() && device.is_cpu() {
        let why = if found.notes.is_empty() {
            "the driver shows none".to_owned()
        } else {
            found.notes.join("; ")
        };
        return Err(format!("the job requested a GPU and found none that it can use: {why}"));
    }
    let wanted = spec.spec.gpus() as usize - 1;
    let others: Vec<Device> = devices.filter(|it| !it.is_cpu()).take(wanted).collect();
    if others.len() < wanted && !device.is_cpu() {
        let (wanted, found) = (wanted + 1, others.len() + 1);
        return Err(format!("the command needs {wanted} GPUs, and the job has {found}"));
    }
    Ok((device, others))
}

/// This job's name in the run's folder.
struct FolderOwner<'a> {
    dir: &'a Path,
    name: String,
}

impl<'a> FolderOwner<'a> {
    /// Writes the name, before results are read: a job that ends later sees the name, and one that
    /// ended earlier has left its result. No job outlives a power cut: the name is not synced.
    /// Waits until an earlier owner has seen the name, and writes nothing more.
    async fn take(dir: &'a Path) -> io::Result<Self> {
        let name = uuid::Uuid::now_v7().to_string();
        let (new, owner) = (dir.join(layout::OWNER).with_extension("new"), dir.join(layout::OWNER));
        let had_owner = owner.try_exists()?;
        fs::write(&new, &name)?;
        fs::rename(new, owner)?;
        if had_owner {
            tokio::time::sleep(2 * OWNER_CHECK).await;
        }
        Ok(Self { dir, name })
    }

    /// Returns true if no other job took the folder and its run was not removed. An unreadable name
    /// changes nothing.
    fn is_current(&self) -> bool {
        match read_own(&self.dir.join(layout::OWNER)) {
            Ok(name) => name == self.name.as_bytes(),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Returns when the folder is no longer this job's.
    async fn replaced(&self) {
        while self.is_current() {
            tokio::time::sleep(OWNER_CHECK).await;
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_that_is_removed_while_its_job_waits_for_an_earlier_one_is_not_the_jobs() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("run");
        fs::create_dir(&dir).unwrap();
        let first = FolderOwner::take(&dir).await.unwrap();
        assert!(first.is_current());
        // The job has written its name when it waits.
        let remove = async { fs::remove_dir_all(&dir).unwrap() };
        let (second, ()) = tokio::join!(FolderOwner::take(&dir), remove);
        let second = second.unwrap();
        assert!(!second.is_current() && !first.is_current());
        second.replaced().await;
        assert!(!dir.exists());
    }
}
