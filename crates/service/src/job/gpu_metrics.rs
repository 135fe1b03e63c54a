//! The step of sampled metrics: a pass of nsys for each rate, recorded as the timeline is, with
//! samples of the GPU's counters.
//!
//! A pass that fails or hangs leaves time for the next; what each delivered counts.

use std::path::Path;

use llmprof_analyze::{
    parse::{self, ParseError},
    sampled,
    stages::coverage::coverage,
};
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::Profiling,
        state::Step,
    },
    layout,
};

use super::{
    RunningJob,
    counters::MissingCounters,
    folder::{blocking, reject},
    step_runner::{JobStep, StepOutcome, share_of_time},
    timeline::{ExpectedTimeline, TimelineTarget},
};
use crate::{
    collect::{CollectError, ExitReason, NsysPass, ProcessLimits, SampledPass},
    job::step_journal::StepResult,
};

/// The passes that sample metrics.
pub(super) struct GpuMetricsStep<'a> {
    pub target: TimelineTarget<'a>,
    pub settings: &'a Profiling,
}

impl JobStep for GpuMetricsStep<'_> {
    const STEP: Step = Step::GpuMetrics;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        StepOutcome::Settled(self.sample(job, limits).await)
    }

    async fn verify(&mut self, _: &mut RunningJob<'_>) -> Result<(), String> {
        Ok(())
    }
}

impl GpuMetricsStep<'_> {
    async fn sample(&self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepResult {
        let (mut failures, mut code) = (Vec::new(), Some(0));
        let rates = &self.settings.gpu_metrics.rates_hz;
        for (at, rate) in rates.iter().enumerate() {
            // A pass that hangs leaves time for those after it, and for the steps after this.
            let share = share_of_time(limits, rates.len() - at + 1);
            let error = match self.sample_at(*rate, job, &share).await {
                Ok(()) => continue,
                Err(MissingCounters::Collect(error @ CollectError::NotInstalled { .. })) => {
                    return job.settle(Err(error));
                }
                Err(error) => error,
            };
            let pass = layout::metrics_pass(*rate);
            reject(&job.dir.join(&pass).join(layout::NSYS_EXPORT_FILE));
            if let MissingCounters::Collect(error) = &error {
                job.note_exhaustion(error);
                job.add_findings(error.finding());
                code = error.ended().and_then(ExitReason::exit_code);
            }
            failures.push(format!("{pass}: {}", llmprof_core::chain(&error)));
            // A refusal is the same at every rate.
            let is_refused =
                matches!(error, MissingCounters::Collect(CollectError::NoCounters { .. }));
            if error.is_final() || is_refused {
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

    /// Runs the pass of one rate and reads its samples back.
    async fn sample_at(
        &self,
        rate: u32,
        job: &mut RunningJob<'_>,
        limits: &ProcessLimits,
    ) -> Result<(), MissingCounters> {
        let name = layout::metrics_pass(rate);
        let finished = job.finished_pass(&name).await.map_err(MissingCounters::of_step)?;
        let (is_new, started_at) = (finished.is_none(), job.journal.now());
        let of_pass = match finished {
            Some(pass) => pass.findings,
            None => {
                let (settings, metrics) = (&self.settings.nsys, &self.settings.gpu_metrics);
                let (repeats, max_new_tokens) = (metrics.repeats, metrics.max_new_tokens);
                let sampled = SampledPass { rate_hz: rate, repeats, max_new_tokens };
                let pass = NsysPass { settings, metrics: Some(sampled) };
                self.target.record(job, &pass, limits).await?.findings
            }
        };
        self.check(&name, job).await?;
        if is_new {
            job.finish_pass(&name, started_at, of_pass.clone()).await;
        }
        job.add_findings(of_pass);
        Ok(())
    }

    /// Checks that the pass computed the output of the unprofiled one, and has samples.
    async fn check(&self, name: &str, job: &mut RunningJob<'_>) -> Result<(), MissingCounters> {
        if let TimelineTarget::Runner(_) = self.target {
            job.check_output(name).await.map_err(MissingCounters::Unusable)?;
        }
        let expected = self.target.expected(self.settings, job);
        let export = job.dir.join(name).join(layout::NSYS_EXPORT_FILE);
        let problem = blocking(move || problem(&export, expected)).await;
        let problem = problem.unwrap_or_else(|reason| Some(unreadable(&reason)));
        let Some(finding) = problem else { return Ok(()) };
        let message = finding.message.clone();
        job.add_finding(finding.with("pass", name));
        Err(MissingCounters::Unusable(message))
    }
}

/// The reason why a capture has no usable samples.
fn problem(export: &Path, expected: ExpectedTimeline) -> Result<Option<Finding>, ParseError> {
    let trace = parse::nsys::read(export)?.with_rules(expected.rules);
    let incomplete = coverage(&trace, expected.ranges).finding(expected.kernels, &trace, &[]);
    Ok(incomplete.or_else(|| sampled::problem(&trace)))
}

fn unreadable(reason: &str) -> Finding {
    let message = "cannot read the samples that nsys exported";
    Finding::new(catalogue::NSYS_EXPORT_UNREADABLE, message)
        .with("reason", reason)
        .advise("read the log of the gpu_metrics step, and check the free space of its disk")
}

#[cfg(test)]
mod tests;
