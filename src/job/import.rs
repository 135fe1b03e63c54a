//! A run of an import: lays out the imported files as a run's own captures, so that the analysis
//! reads both in one way.
//!
//! Measures nothing and records nothing of this host. The only program it starts is nsys, to export
//! a report.

use super::{
    RunningJob, StoppedBy,
    folder::{json, yaml},
    step_runner::{JobStep, StepOutcome},
};
use crate::{
    artifact::layout,
    collect::ProcessLimits,
    domain::{
        import::{CaptureKind, Import},
        run_files::InputFile,
        state::Step,
    },
    job::step_journal::StepResult,
    parse,
    trace::environment::Environment,
};

/// Writes the files that every run has; an import leaves them empty.
struct LayoutStep;

impl JobStep for LayoutStep {
    const STEP: Step = Step::Preflight;
    type Output = ();

    async fn run(&mut self, _: &mut RunningJob<'_>, _: &ProcessLimits) -> StepOutcome {
        StepOutcome::Settled(StepResult::succeeded())
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        let environment =
            Environment { llmprof: env!("CARGO_PKG_VERSION").into(), ..Environment::default() };
        job.write(layout::ENV, &json(&environment)?)?;
        job.write(layout::INPUTS, &yaml(&Vec::<InputFile>::new())?)
    }
}

/// Exports the imported report with the nsys of this host. It is as untrusted as the report.
struct ExportStep;

impl JobStep for ExportStep {
    const STEP: Step = Step::Nsys;
    type Output = ();

    fn limits(&self, job: &RunningJob<'_>, mut of_run: ProcessLimits) -> ProcessLimits {
        if let Some(quota) = &mut of_run.quota {
            let export = job.spec.limits.capture_bytes.saturating_mul(2);
            quota.max_bytes = quota.max_bytes.max(export);
        }
        of_run
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        StepOutcome::Pass(job.host.collector.export(job.dir, limits).await)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        parse::nsys::check(&job.dir.join(layout::NSYS_EXPORT)).map_err(|error| crate::chain(&error))
    }
}

impl RunningJob<'_> {
    /// Executes all steps of an import, up to the analysis.
    pub(super) async fn run_import(&mut self, import: &Import) -> Result<(), StoppedBy> {
        self.require(LayoutStep).await?;
        if import.files.iter().any(|file| file.kind == CaptureKind::Report) {
            self.require(ExportStep).await?;
        }
        Ok(())
    }
}
