//! The ncu step: one pass per stage, over the kernels selected from the timeline.

use std::fs;

use super::{
    RunningJob,
    folder::{blocking, json, reject},
    step_runner::{JobStep, StepOutcome, share_of_time},
};
use crate::{
    analyze::{kernels::kernel_selection::StageSelection, stages::DECODE},
    artifact::layout,
    collect::{
        CollectError, CommandRun, ExitReason, Pass, ProcessLimits, process::argv::Argv,
        tools::ncu::LaunchSelection,
    },
    domain::{
        finding::{Finding, Severity},
        profiling::Profiling,
        runner::RunnerRequest,
        state::Step,
    },
    job::step_journal::StepResult,
    parse::{self, ncu::CounterPage},
};

const NO_KERNELS: &str = "the run's timeline contains no kernels to select from; see the nsys step";
const NO_STAGES: &str = "kernels are selected by stage, and no stage of the timeline has kernels; \
                         see the command's stages";

/// Program that ncu profiles.
#[derive(Debug, Clone, Copy)]
pub(super) enum CounterTarget<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a CommandRun),
}

/// The passes under Nsight Compute.
pub(super) struct CountersStep<'a> {
    pub target: CounterTarget<'a>,
    /// Stages with the kernels selected in each.
    pub stages: &'a [StageSelection],
    pub settings: &'a Profiling,
}

/// Program that a pass starts.
#[derive(Clone, Copy)]
enum CountedProgram<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a Argv),
}

/// Reason why a stage has no counters.
#[derive(Debug, thiserror::Error)]
enum MissingCounters {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error("{0}")]
    Page(String),
}

impl MissingCounters {
    fn of_step(result: StepResult) -> Self {
        Self::Page(result.message.unwrap_or_default())
    }

    /// Returns true if later stages would fail, too.
    fn is_final(&self) -> bool {
        let ended = match self {
            Self::Collect(error) => error.ended(),
            Self::Page(_) => None,
        };
        matches!(ended, Some(ExitReason::DeadlinePassed | ExitReason::Stopped))
    }
}

impl JobStep for CountersStep<'_> {
    const STEP: Step = Step::Ncu;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        StepOutcome::Settled(match self.target {
            CounterTarget::Runner(it) => {
                self.profile_stages(CountedProgram::Runner(it), NO_KERNELS, job, limits).await
            }
            CounterTarget::Command(it) => match job.host.collector.counter_command(job.dir, it) {
                Ok(argv) => {
                    self.profile_stages(CountedProgram::Command(&argv), NO_STAGES, job, limits)
                        .await
                }
                Err(error) => job.settle(Err(error)),
            },
        })
    }

    async fn verify(&mut self, _: &mut RunningJob<'_>) -> Result<(), String> {
        Ok(())
    }
}

impl CountersStep<'_> {
    async fn profile_stages(
        &self,
        program: CountedProgram<'_>,
        nothing_selected: &str,
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> StepResult {
        let collector = &job.host.collector;
        if self.stages.is_empty() && collector.ncu.is_some() {
            return StepResult::skipped(nothing_selected);
        }
        let wanted = &self.settings.ncu.metrics;
        let metrics = match collector.ncu_metrics(job.dir, wanted, limits).await {
            Ok((metrics, finding)) => {
                job.add_findings(finding);
                metrics
            }
            Err(error) => return job.settle(Err(error)),
        };
        let (mut failures, mut code) = (Vec::new(), Some(0));
        for (at, stage) in self.stages.iter().enumerate() {
            // A pass that hangs leaves time for the stages after it, and for the step after this.
            let share = share_of_time(limits, self.stages.len() - at + 1);
            let error = match self.profile_stage(program, stage, &metrics, job, &share).await {
                Ok(findings) => {
                    job.add_findings(findings);
                    continue;
                }
                Err(error) => error,
            };
            for page in [layout::NCU_RAW, layout::NCU_DETAILS] {
                reject(&job.dir.join(layout::NCU).join(&stage.stage).join(page));
            }
            if let MissingCounters::Collect(error) = &error {
                job.add_findings(error.finding());
                code = error.ended().and_then(ExitReason::exit_code);
            }
            failures.push(format!("{}: {}", stage.stage, crate::chain(&error)));
            if error.is_final() {
                break;
            }
        }
        if failures.is_empty() {
            StepResult::succeeded()
        } else {
            StepResult::failed(failures.join("; "))
        }
        .with_exit_code(code)
    }

    /// Profiles one stage and reads its counters back.
    async fn profile_stage(
        &self,
        program: CountedProgram<'_>,
        stage: &StageSelection,
        metrics: &[String],
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> Result<Vec<Finding>, MissingCounters> {
        let selection = self.launches(program, stage);
        let name = format!("{}/{}", layout::NCU, stage.stage);
        let finished = job.finished_pass(&name).await.map_err(MissingCounters::of_step)?;
        let (is_new, started_at) = (finished.is_none(), job.journal.now());
        let pass = match finished {
            Some(pass) => Ok(pass.findings),
            None => {
                let ran = self.run_ncu(program, &selection, metrics, job, limits).await;
                ran.map(|pass| pass.findings)
            }
        };
        let folder = job.dir.join(&name);
        if let Ok(text) = json(stage) {
            // Evidence only; a full disk fails the step elsewhere.
            fs::write(folder.join(layout::NCU_CHOICE), text).ok();
        }
        let of_pass = pass?;
        let page = job.read_counters(stage, &selection.kernels).await?;
        if let CountedProgram::Runner(_) = program {
            job.compare_tokens(&name).await.map_err(MissingCounters::Page)?;
        }
        if is_new {
            job.finish_pass(&name, started_at, of_pass.clone()).await;
        }
        let mut findings = of_pass;
        findings.extend(page.findings(&stage.stage, &selection.kernels));
        findings.extend(stage.finding(self.settings.ncu.min_share_pct));
        Ok(findings)
    }

    /// Runs ncu for one stage.
    async fn run_ncu(
        &self,
        program: CountedProgram<'_>,
        selection: &LaunchSelection,
        metrics: &[String],
        job: &RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> Result<Pass, CollectError> {
        let (collector, ncu) = (&job.host.collector, &self.settings.ncu);
        match program {
            CountedProgram::Runner(request) => {
                collector.ncu(job.dir, request, selection, ncu, metrics, limits).await
            }
            CountedProgram::Command(argv) => {
                collector.ncu_command(job.dir, argv, selection, ncu, metrics, limits).await
            }
        }
    }

    /// The launches of `stage` that ncu profiles.
    fn launches(&self, program: CountedProgram<'_>, stage: &StageSelection) -> LaunchSelection {
        let window = stage.window;
        let max_new_tokens = match program {
            CountedProgram::Runner(request) if stage.stage == DECODE => {
                let traced = request.max_new_tokens.min(self.settings.nsys.max_new_tokens);
                traced.div_ceil(window.part)
            }
            _ => 0,
        };
        LaunchSelection {
            stage: stage.stage.clone(),
            range: stage.range.clone(),
            kernels: stage.names(),
            skip: window.skip,
            count: window.count,
            max_new_tokens,
        }
    }
}

impl RunningJob<'_> {
    /// Reads the counters of `stage`, which must be of `kernels`.
    async fn read_counters(
        &mut self,
        stage: &StageSelection,
        kernels: &[String],
    ) -> Result<CounterPage, MissingCounters> {
        let (dir, name) = (self.dir.to_owned(), stage.stage.clone());
        let page = blocking(move || parse::ncu::read(&dir, &name)).await;
        let page = page.map_err(MissingCounters::Page)?.unwrap_or_default();
        let Some(failure) = page.failure(kernels) else { return Ok(page) };
        let message = format!("{}: {failure}", stage.stage);
        let advice = "read the stage's ncu log and pages; another version of ncu may write pages \
                      that can be read";
        let finding = Finding::new("counters_unusable", Severity::Warning, message);
        self.add_finding(finding.advise(advice));
        Err(MissingCounters::Page(failure))
    }
}

#[cfg(test)]
mod tests;
