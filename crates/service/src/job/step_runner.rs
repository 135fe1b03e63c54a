//! Executes one step of a job: records its start, streams the output of its processes, runs it,
//! verifies its files, and records its result.

use std::time::Duration;

use llmprof_core::domain::{finding::catalogue, state::Step};
use nix::sys::signal::Signal;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use super::{RunningJob, StoppedBy, resume};
use crate::{
    artifact::{finished_passes::FinishedPass, folder::without_path, journal::JournalEvent},
    collect::{
        ChildLine, CollectError, ExitReason, Pass, ProcessLimits, process::disk_quota::DiskQuota,
    },
    job::step_journal::StepResult,
};

/// End of a step's work.
#[derive(Debug)]
pub(super) enum StepOutcome {
    /// The step is one pass.
    Pass(Result<Pass, CollectError>),
    /// The step is something else, and has its result.
    Settled(StepResult),
}

/// One step of a job.
pub(super) trait JobStep: Send {
    const STEP: Step;
    /// Values that later steps need.
    type Output: Send;

    /// Folder of the step's pass, if it has only one: finished in an earlier attempt, it is not
    /// repeated.
    fn pass(&self) -> Option<&'static str> {
        None
    }

    /// Limits of the step's processes, within the run's limits.
    fn limits(&self, _job: &RunningJob<'_>, of_run: ProcessLimits) -> ProcessLimits {
        of_run
    }

    /// Does the work. Lines that its processes print go to the journal meanwhile.
    fn run(
        &mut self,
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> impl Future<Output = StepOutcome> + Send;

    /// Reads back the files of a step that ran; an error fails it.
    fn verify(
        &mut self,
        job: &mut RunningJob<'_>,
    ) -> impl Future<Output = Result<Self::Output, String>> + Send;

    /// Sets aside files of a step that failed.
    fn set_aside(&self, _job: &RunningJob<'_>) {}
}

impl RunningJob<'_> {
    /// Executes a step whose failure leaves the run partial: `None` then. A step that fails after
    /// the run was stopped, by a cancel or a drain, stops the run.
    pub(super) async fn run_step<S: JobStep>(
        &mut self,
        step: S,
    ) -> Result<Option<S::Output>, StoppedBy> {
        match self.execute_step(step).await {
            Ok(output) => Ok(Some(output)),
            Err(result) if self.stop.is_cancelled() => Err(StoppedBy(result)),
            Err(_) => Ok(None),
        }
    }

    /// Executes a step whose failure stops the run.
    pub(super) async fn require<S: JobStep>(&mut self, step: S) -> Result<S::Output, StoppedBy> {
        self.execute_step(step).await.map_err(StoppedBy)
    }

    /// Executes a step whose failure stops the run, unless its files exceeded the maximum size of a
    /// run: they were dropped, and later steps do not need them.
    pub(super) async fn require_within_size<S: JobStep>(
        &mut self,
        step: S,
    ) -> Result<Option<S::Output>, StoppedBy> {
        let before = self.findings.len();
        let result = self.execute_step(step).await;
        let is_too_large =
            self.findings[before..].iter().any(|it| it.id == catalogue::RUN_TOO_LARGE);
        match result {
            Ok(output) => Ok(Some(output)),
            Err(_) if is_too_large && !self.stop.is_cancelled() => Ok(None),
            Err(result) => Err(StoppedBy(result)),
        }
    }

    async fn execute_step<S: JobStep>(&mut self, mut step: S) -> Result<S::Output, StepResult> {
        if self.stop.is_cancelled() {
            return Err(StepResult::failed(format!("the run was stopped before {}", S::STEP)));
        }
        let finished = match step.pass() {
            Some(name) => self.finished_pass(name).await,
            None => Ok(None),
        };
        if let Ok(Some(pass)) = finished {
            return self.use_pass(step, pass).await;
        }
        let (started_at, before) = (self.journal.start(S::STEP), self.findings.len());
        let result = match finished {
            Ok(_) => self.run_processes(&mut step).await,
            Err(result) => result,
        };
        let findings = self.findings[before..].to_vec();
        let verified = if result.is_success() {
            let verified = step.verify(self).await;
            verified.map_err(|message| StepResult::failed(message).with_exit_code(result.exit_code))
        } else {
            Err(result.clone())
        };
        let is_stopped = self.stop.is_cancelled();
        let verified =
            verified.map_err(|result| if is_stopped { StepResult::stopped() } else { result });
        if verified.is_err() {
            step.set_aside(self);
        }
        self.journal.end(verified.as_ref().err().unwrap_or(&result));
        if let (Ok(_), Some(name)) = (&verified, step.pass()) {
            self.finish_pass(name, started_at, findings).await;
        }
        verified
    }

    /// Runs the processes of a step, whose lines go to the journal.
    async fn run_processes<S: JobStep>(&mut self, step: &mut S) -> StepResult {
        let (limits, lines) = self.process_limits(S::STEP);
        let limits = step.limits(self, limits);
        let outcome = step.run(self, &limits).await;
        drop(limits);
        lines.await.ok();
        match outcome {
            StepOutcome::Pass(pass) => self.settle(pass),
            StepOutcome::Settled(result) => result,
        }
    }

    /// Reads back the files of a pass that finished in an earlier attempt.
    async fn use_pass<S: JobStep>(
        &mut self,
        mut step: S,
        pass: FinishedPass,
    ) -> Result<S::Output, StepResult> {
        self.journal.keep(resume::step_of(S::STEP, &pass));
        self.add_findings(pass.findings);
        let verified = step.verify(self).await.map_err(StepResult::failed);
        if let Err(result) = &verified {
            step.set_aside(self);
            self.journal.end(result);
        }
        verified
    }

    /// The result of a pass. A tool that is not installed skips its step, with the remedy that
    /// preflight found.
    pub(super) fn settle(&mut self, pass: Result<Pass, CollectError>) -> StepResult {
        match pass {
            Ok(pass) => {
                self.add_findings(pass.findings);
                StepResult::succeeded().with_exit_code(Some(0))
            }
            Err(error @ CollectError::NotInstalled { tool }) => {
                let id = format!("{tool}_missing");
                let missing = self.findings.iter().find(|finding| finding.id == id);
                let remedy = missing.and_then(|finding| finding.advice.clone());
                StepResult::skipped(
                    remedy.map_or_else(|| error.to_string(), |remedy| format!("{error}: {remedy}")),
                )
            }
            Err(error) => {
                self.note_exhaustion(&error);
                self.add_findings(error.finding());
                let code = match error.ended() {
                    Some(ExitReason::Exited(code)) => Some(code),
                    _ => None,
                };
                StepResult::failed(llmprof_core::chain(&error)).with_exit_code(code)
            }
        }
    }

    /// Limits of the processes of `step`, and the task that writes their lines to the journal until
    /// the limits are dropped.
    pub(super) fn process_limits(&self, step: Step) -> (ProcessLimits, JoinHandle<()>) {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (journal, dir) = (self.journal.events(), self.dir.to_owned());
        let lines = tokio::spawn(async move {
            while let Some(line) = receiver.recv().await {
                match line {
                    ChildLine::Log(line) => journal.log(step, &without_path(&line, &dir)),
                    ChildLine::Progress(it) => journal.write(&JournalEvent::Progress {
                        step,
                        phase: it.phase,
                        done: it.done,
                        total: it.total,
                        sample: it.sample,
                    }),
                }
            }
        });
        let bounds = &self.spec.limits;
        let quota = DiskQuota {
            dir: self.dir.to_owned(),
            max_bytes: bounds.run_bytes,
            free_bytes: bounds.free_bytes,
        };
        let limits = ProcessLimits {
            run: self.spec.mark(),
            deadline: self.deadline,
            grace: Duration::from_secs(self.spec.grace_s.into()),
            target_first: false,
            stop: self.stop.clone(),
            lines: Some(sender),
            quota: Some(quota),
            resources: None,
            death_signal: Signal::SIGTERM,
        };
        (limits, lines)
    }
}

/// The same limits with one part of `parts` of the remaining time.
pub(super) fn share_of_time(limits: &ProcessLimits, parts: usize) -> ProcessLimits {
    let left = limits.deadline.saturating_duration_since(Instant::now());
    let share = left / u32::try_from(parts).unwrap_or(u32::MAX).max(1);
    let deadline = Instant::now() + share.max(Duration::from_millis(1));
    ProcessLimits { deadline, ..limits.clone() }
}
