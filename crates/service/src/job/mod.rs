//! Executes one run, from its preflight to its report.
//!
//! The run's folder is kept after every outcome, with logs, captures, and a manifest of all files.
//! A job needs neither the database nor the service.

mod analysis;
mod command;
mod counters;
pub mod folder;
mod gemm_log;
mod gpu_metrics;
mod import;
pub mod job_spec;
mod model;
mod part;
mod preflight;
mod resume;
pub mod standalone_job;
pub mod step_journal;
mod step_runner;
mod timeline;
mod torch_profiler;

pub use command::visible_gpus;

use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock},
};

use llmprof_core::{
    domain::{
        device::Device,
        device_peaks::Devices,
        finding::Finding,
        headline::SeriesPoint,
        outcome::Outcome,
        state::{RunState, StepRecord},
        subject::Subject,
    },
    trace::{environment::Environment, timeline::Timeline},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::{
        finished_passes::EarlierPasses,
        free_space,
        journal::Journal,
        manifest::{self, SealedFolder},
    },
    collect::{Collector, host::exhaustion},
    job::{
        job_spec::{GatheredSteps, JobSpec, JobSubject},
        resume::ReusablePasses,
        step_journal::{StepJournal, StepReader, StepResult},
    },
    runtime::{self, work::SlicedWork},
};

/// Result of the step that stopped a run.
#[derive(Debug)]
struct StoppedBy(StepResult);

/// Tools of the executing host, and the peaks of known devices.
#[derive(Debug, Clone)]
pub struct JobHost {
    pub collector: Arc<Collector>,
    pub devices: Arc<Devices>,
}

/// Executes all steps of a run in the folder `dir`. `stop` ends it early, in any step.
pub async fn execute(
    spec: &JobSpec,
    dir: &Path,
    device: &Device,
    host: &JobHost,
    stop: &CancellationToken,
) -> Outcome {
    let mut job = match RunningJob::start(spec, dir, device, host, stop).await {
        Ok(job) => job,
        Err(outcome) => return outcome,
    };
    job.keeps_timeline = true;
    let stopped = match job.gather().await {
        Ok(()) => job.analyze().await.err(),
        Err(stop) => Some(stop),
    };
    job.seal(stopped).await
}

/// Executes the steps before the analysis; [`conclude`] continues from their files.
pub async fn gather(
    spec: &JobSpec,
    dir: &Path,
    device: &Device,
    host: &JobHost,
    stop: &CancellationToken,
) -> Result<GatheredSteps, Outcome> {
    let mut job = RunningJob::start(spec, dir, device, host, stop).await?;
    let stopped = job.gather().await.err().map(|StoppedBy(result)| result);
    let exhausted = job.exhausted.into_inner();
    Ok(GatheredSteps { attempt: spec.attempt, stopped, findings: job.findings, exhausted })
}

/// Analyses and reports a run after [`gather`], possibly on another machine. Needs no GPU.
pub async fn conclude(
    spec: &JobSpec,
    gathered: GatheredSteps,
    dir: &Path,
    host: &JobHost,
    stop: &CancellationToken,
) -> Outcome {
    let mut steps = StepReader::default();
    let journal = match steps.read_new(dir).and_then(|_| Journal::open(dir)) {
        Ok(journal) => journal,
        Err(error) => return failed_by("cannot read the run's journal", &error),
    };
    let device = Device::cpu();
    let mut job = RunningJob::new(spec, dir, &device, host, stop, (journal, steps.records));
    job.findings = gathered.findings;
    if let Some(finding) = gathered.exhausted {
        job.exhausted.get_or_init(|| finding);
    }
    let stopped = match gathered.stopped {
        None => job.analyze().await.err(),
        Some(result) => Some(StoppedBy(result)),
    };
    job.seal(stopped).await
}

/// The outcome of a job that failed without a sealed folder.
pub fn failed(message: String) -> Outcome {
    Outcome {
        state: RunState::Failed,
        failed_step: None,
        message: Some(message),
        findings: Vec::new(),
        artifacts: Vec::new(),
        series: None,
    }
}

/// The same for an error, with a finding if it is a failure of the host.
fn failed_by(what: &str, error: &io::Error) -> Outcome {
    let findings = exhaustion::finding(error).into_iter().collect();
    Outcome { findings, ..failed(format!("{what}: {error}")) }
}

/// A run under way.
struct RunningJob<'a> {
    spec: &'a JobSpec,
    device: &'a Device,
    host: &'a JobHost,
    stop: &'a CancellationToken,
    dir: &'a Path,
    deadline: Instant,
    journal: StepJournal,
    findings: Vec<Finding>,
    /// The first failure of the host, for which the run is requeued.
    exhausted: OnceLock<Finding>,
    /// True if the analysis follows in this process, which then does not parse the export again.
    keeps_timeline: bool,
    timeline: Option<Timeline>,
    /// True if the captures lack kernels of a stage, or samples.
    lost_records: bool,
    /// Its point in a series, once the report is written.
    series: Option<SeriesPoint>,
    /// The host, once the preflight has described it.
    environment: Environment,
    /// Finished passes in the folder, until it is decided whether they are used.
    earlier: EarlierPasses,
    passes: ReusablePasses,
}

impl<'a> RunningJob<'a> {
    /// Prepares the run's folder and starts the next attempt in its journal.
    async fn start(
        spec: &'a JobSpec,
        dir: &'a Path,
        device: &'a Device,
        host: &'a JobHost,
        stop: &'a CancellationToken,
    ) -> Result<Self, Outcome> {
        let (path, submitted) = (dir.to_owned(), spec.spec.clone());
        let prepare = move |work: &SlicedWork| {
            Ok((folder::prepare(&path, &submitted, work)?, Journal::open(&path)?))
        };
        let (earlier, journal) = runtime::stoppable(&SlicedWork::new(stop), prepare)
            .await
            .map_err(|error| failed_by("cannot prepare the run's folder", &error))?;
        let mut job = Self::new(spec, dir, device, host, stop, (journal, Vec::new()));
        job.earlier = earlier;
        job.journal.start_attempt(spec.attempt);
        Ok(job)
    }

    fn new(
        spec: &'a JobSpec,
        dir: &'a Path,
        device: &'a Device,
        host: &'a JobHost,
        stop: &'a CancellationToken,
        (journal, records): (Journal, Vec<StepRecord>),
    ) -> Self {
        Self {
            spec,
            device,
            host,
            stop,
            dir,
            deadline: Instant::now() + spec.time_limit(),
            journal: StepJournal::new(journal, records),
            findings: Vec::new(),
            exhausted: OnceLock::new(),
            keeps_timeline: false,
            timeline: None,
            lost_records: false,
            series: None,
            environment: Environment::default(),
            earlier: EarlierPasses::default(),
            passes: ReusablePasses::default(),
        }
    }

    /// Executes the steps that collect.
    async fn gather(&mut self) -> Result<(), StoppedBy> {
        let spec = self.spec;
        match (&spec.spec.subject, &spec.subject) {
            (Subject::Model(it), JobSubject::Model { model, profiling }) => {
                self.run_model(&it.workload, &it.passes, model, profiling).await
            }
            (Subject::Part(it), JobSubject::Model { model, profiling }) => {
                self.run_part(it, model, profiling).await
            }
            (Subject::Command(it), JobSubject::Command { plan, profiling }) => {
                self.run_command(plan, &it.passes, profiling).await
            }
            (Subject::Import(it), JobSubject::Import) => self.run_import(it).await,
            _ => Err(StoppedBy(StepResult::failed("the job's subject is not the run's subject"))),
        }
    }

    /// Seals the folder and returns the run's outcome.
    async fn seal(self, stopped: Option<StoppedBy>) -> Outcome {
        let state = match &stopped {
            Some(_) => RunState::Failed,
            None if self.journal.has_gap() || self.lost_records => RunState::Partial,
            None => RunState::Succeeded,
        };
        let last = self.journal.records().last().map(|record| record.step);
        let failed_step = stopped.as_ref().and(last);
        let message = stopped.and_then(|StoppedBy(result)| result.message);
        let (dir, max_bytes) = (self.dir.to_owned(), self.spec.folder_bytes());
        let work = SlicedWork::new(self.stop).named(format!("sealing run {}", self.spec.id));
        let sealed =
            runtime::stoppable(&work, move |work| manifest::seal(&dir, max_bytes, work)).await;
        let mut findings = self.findings;
        if state == RunState::Failed
            && let Err(low) = free_space::for_start(self.dir, self.spec.limits.free_bytes)
            && let Some(finding) = exhaustion::of_full_disk(&findings, low)
        {
            self.exhausted.get_or_init(|| finding);
        }
        findings.extend(self.exhausted.into_inner());
        match sealed {
            Ok(SealedFolder { artifacts, finding }) => {
                if let Some(finding) = finding {
                    finding.as_sentence().add_to(&mut findings);
                }
                let series = self.series.map(Box::new);
                Outcome { state, failed_step, message, findings, artifacts, series }
            }
            Err(error) => {
                let outcome = failed_by("cannot seal the run's folder", &error);
                findings.extend(outcome.findings);
                Outcome { findings, ..outcome }
            }
        }
    }

    /// Records a failure of the host, if the error is one.
    fn note_exhaustion(&self, error: &(dyn std::error::Error + 'static)) {
        let found = match self.spec.subject {
            // It runs in a process with limits.
            JobSubject::Import => exhaustion::finding_within_limits(error),
            _ => exhaustion::finding(error),
        };
        if let Some(finding) = found {
            self.exhausted.get_or_init(|| finding);
        }
    }

    fn add_finding(&mut self, finding: Finding) {
        let finding = finding.as_sentence();
        self.journal.record_finding(&finding);
        self.findings.push(finding);
    }

    fn add_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        findings.into_iter().for_each(|finding| self.add_finding(finding));
    }
}

#[cfg(test)]
mod tests;
