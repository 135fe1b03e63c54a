//! The ncu step: a pass over all stages, or several if the symbols of the kernels are too long.
//!
//! A process that fails or hangs leaves time for the next; what each delivered counts.

use std::fs;

use llmprof_analyze::{
    kernels::kernel_selection::{CounterPlan, CounterProcess, SelectedStage},
    parse::{self, ncu::CounterPage},
    stages::DECODE,
};
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::Profiling,
        runner::RunnerRequest,
        state::Step,
    },
    layout,
    trace::counter::LaunchCounters,
};

use super::{
    RunningJob,
    folder::{blocking, json, reject},
    step_runner::{JobStep, StepOutcome, share_of_time},
};
use crate::{
    collect::{
        CollectError, CommandRun, CounterPass, ExitReason, ProcessLimits,
        process::argv::Argv,
        tools::ncu::{self, LaunchSelection},
    },
    job::step_journal::StepResult,
};

const NO_KERNELS: &str = "the run's timeline contains no kernels to select from; see the nsys step";

/// Program that ncu profiles.
#[derive(Debug, Clone, Copy)]
pub(super) enum CounterTarget<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a CommandRun),
}

/// The passes under Nsight Compute.
pub(super) struct CountersStep<'a> {
    pub target: CounterTarget<'a>,
    /// Kernels to profile, by process.
    pub plan: &'a CounterPlan,
    pub settings: &'a Profiling,
}

/// Program that a pass starts.
#[derive(Clone, Copy)]
enum CountedProgram<'a> {
    Runner(&'a RunnerRequest),
    Command(&'a Argv),
}

/// Reason why a process delivered no counters.
#[derive(Debug, thiserror::Error)]
pub(super) enum MissingCounters {
    #[error(transparent)]
    Collect(#[from] CollectError),
    #[error("{0}")]
    Unusable(String),
}

impl MissingCounters {
    pub(super) fn of_step(result: StepResult) -> Self {
        Self::Unusable(result.message.unwrap_or_default())
    }

    /// Returns true if no further process may start.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Collect(error) if error.ended() == Some(ExitReason::Stopped))
    }
}

impl JobStep for CountersStep<'_> {
    const STEP: Step = Step::Ncu;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        StepOutcome::Settled(match self.target {
            CounterTarget::Runner(it) => {
                self.profile(CountedProgram::Runner(it), job, limits).await
            }
            CounterTarget::Command(it) => match job.host.collector.counter_command(job.dir, it) {
                Ok(argv) => self.profile(CountedProgram::Command(&argv), job, limits).await,
                Err(error) => job.settle(Err(error)),
            },
        })
    }

    async fn verify(&mut self, _: &mut RunningJob<'_>) -> Result<(), String> {
        Ok(())
    }
}

impl CountersStep<'_> {
    async fn profile(
        &self,
        program: CountedProgram<'_>,
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> StepResult {
        let (collector, plan) = (&job.host.collector, self.plan);
        if plan.processes.is_empty() && collector.ncu.is_some() {
            return StepResult::skipped(NO_KERNELS);
        }
        let wanted = &self.settings.ncu.metrics;
        let metrics = match collector.ncu_metrics(job.dir, wanted, limits).await {
            Ok((metrics, finding)) => {
                job.add_findings(finding);
                metrics
            }
            Err(error) => return job.settle(Err(error)),
        };
        self.write_plan(job);
        let (mut failures, mut code) = (Vec::new(), Some(0));
        let (mut profiled, mut missing) = (Vec::new(), Vec::new());
        for (at, process) in plan.processes.iter().enumerate() {
            // A process that hangs leaves time for those after it, and for the step after this.
            let share = share_of_time(limits, plan.processes.len() - at + 1);
            let selection = self.launches(program, at, process);
            let error = match self.run_process(program, &selection, &metrics, job, &share).await {
                Ok((launches, cut)) => {
                    let reason = cut.as_ref().map(CollectError::to_string);
                    missing.extend(plan.missing(at, &launches, reason.as_deref()));
                    profiled.extend(launches);
                    code = if cut.is_some() { None } else { code };
                    failures.extend(reason.map(|it| format!("{}: {it}", selection.process)));
                    continue;
                }
                Err(error) => error,
            };
            for page in [layout::NCU_RAW, layout::NCU_DETAILS] {
                reject(&job.dir.join(layout::NCU).join(&selection.process).join(page));
            }
            if let MissingCounters::Collect(error) = &error {
                job.add_findings(error.finding());
                code = error.ended().and_then(ExitReason::exit_code);
            }
            let reason = llmprof_core::chain(&error);
            missing.extend(plan.missing(at, &[], Some(&reason)));
            failures.push(format!("{}: {reason}", selection.process));
            if error.is_final() {
                break;
            }
        }
        if !profiled.is_empty() {
            job.add_findings(missing);
            job.add_findings(plan.coverage_findings(&profiled, &self.settings.ncu));
        }
        if failures.is_empty() {
            StepResult::succeeded()
        } else {
            StepResult::failed(failures.join("; "))
        }
        .with_exit_code(code)
    }

    /// Writes the selection as evidence; a full disk fails the step elsewhere.
    fn write_plan(&self, job: &RunningJob<'_>) {
        let folder = job.dir.join(layout::NCU);
        if let Ok(text) = json(self.plan) {
            let write = || {
                fs::create_dir_all(&folder)?;
                fs::write(folder.join(layout::NCU_CHOICE), text)
            };
            write().ok();
        }
    }

    /// Runs one process and reads its counters back: the launches, and the reason why they are not
    /// all.
    async fn run_process(
        &self,
        program: CountedProgram<'_>,
        selection: &LaunchSelection,
        metrics: &[String],
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> Result<(Vec<LaunchCounters>, Option<CollectError>), MissingCounters> {
        let name = format!("{}/{}", layout::NCU, selection.process);
        let finished = job.finished_pass(&name).await.map_err(MissingCounters::of_step)?;
        let (is_new, started_at) = (finished.is_none(), job.journal.now());
        let (of_pass, cut) = match finished {
            Some(pass) => (pass.findings, None),
            None => {
                let CounterPass { pass, cut } =
                    self.run_ncu(program, selection, metrics, job, limits).await?;
                (pass.findings, cut)
            }
        };
        let page = match (job.read_counters(selection).await, cut.is_some()) {
            (Ok(page), _) => page,
            (Err(error), false) => return Err(error),
            // Nothing was profiled in time.
            (Err(error), true) => return Err(cut.map_or(error, MissingCounters::Collect)),
        };
        let is_compared = match program {
            CountedProgram::Command(_) => true,
            // The runner may have been ended before its output.
            CountedProgram::Runner(_)
                if cut.is_some() && !matches!(job.has_same_tokens(&name).await, Ok(Some(_))) =>
            {
                false
            }
            CountedProgram::Runner(_) => {
                let compared = match &cut {
                    None => job.check_output(&name).await,
                    Some(_) => job.compare_tokens(&name).await,
                };
                compared.map_err(MissingCounters::Unusable)?;
                true
            }
        };
        match &cut {
            None if is_new => job.finish_pass(&name, started_at, of_pass.clone()).await,
            None => {}
            Some(_) => {
                job.add_finding(cut_short(&selection.process, page.launches.len(), is_compared))
            }
        }
        job.add_findings(of_pass);
        job.add_findings(page.gaps(&selection.process));
        Ok((page.launches, cut))
    }

    /// Runs ncu in one process.
    async fn run_ncu(
        &self,
        program: CountedProgram<'_>,
        selection: &LaunchSelection,
        metrics: &[String],
        job: &RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> Result<CounterPass, CollectError> {
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

    /// The launches that the process at index `at` profiles.
    fn launches(
        &self,
        program: CountedProgram<'_>,
        at: usize,
        process: &CounterProcess,
    ) -> LaunchSelection {
        let max_new_tokens = match program {
            CountedProgram::Runner(request) if process.stages.iter().any(|it| it == DECODE) => {
                let traced = request.max_new_tokens.min(self.settings.nsys.max_new_tokens);
                traced.div_ceil(self.plan.part.max(1))
            }
            _ => 0,
        };
        let range = |it: &SelectedStage| match program {
            CountedProgram::Runner(_) => Some(ncu::runner_range(&it.stage)),
            CountedProgram::Command(_) => it.range.clone(),
        };
        // If a stage has no range, kernels are selected in the whole program.
        let ranges: Option<Vec<String>> = self.plan.stages.iter().map(range).collect();
        LaunchSelection {
            process: layout::ncu_process(at + 1),
            ranges: ranges.unwrap_or_default(),
            kernels: process.kernels.clone(),
            symbols: process.symbols.clone(),
            max_new_tokens,
        }
    }
}

/// The finding of a process that was ended at its deadline, whose report was kept.
fn cut_short(process: &str, launches: usize, is_compared: bool) -> Finding {
    let message = format!(
        "ncu reached its deadline in {process}: the {launches} launches that it profiled until \
         then count"
    );
    let finding = Finding::new(catalogue::NCU_CUT, message);
    let output = if is_compared { "compared" } else { "none: the program was ended before it" };
    finding.with("launches", launches).with("output of the program", output).advise(
        "raise timeout_s up to limits.run_s, or profile less: a smaller \
         profiling.ncu.max_launches, fewer sections and metrics",
    )
}

impl RunningJob<'_> {
    /// Reads the counters of a process, which must be of the selected kernels.
    async fn read_counters(
        &mut self,
        selection: &LaunchSelection,
    ) -> Result<CounterPage, MissingCounters> {
        let (dir, name) = (self.dir.to_owned(), selection.process.clone());
        let page = blocking(move || parse::ncu::read(&dir, &name)).await;
        let page = page.map_err(MissingCounters::Unusable)?.unwrap_or_default();
        let Some(failure) = page.failure(&selection.kernels) else { return Ok(page) };
        let message = format!("{}: {failure}", selection.process);
        let advice = "read the process's ncu log and pages; another version of ncu may write pages \
                      that can be read";
        let finding = Finding::new(catalogue::COUNTERS_UNUSABLE, message);
        self.add_finding(finding.advise(advice));
        Err(MissingCounters::Unusable(failure))
    }
}

#[cfg(test)]
mod tests;
