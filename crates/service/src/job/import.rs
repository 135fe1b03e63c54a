//! A run of an import: lays out the imported files as a run's own captures, so that the analysis
//! reads both in one way.
//!
//! Measures nothing and records nothing of this host. The only programs it starts are nsys, to
//! export a report, and ncu, to print one.

use llmprof_analyze::parse;
use llmprof_core::{
    domain::{
        import::{CaptureKind, Import},
        state::Step,
    },
    layout,
    trace::environment::Environment,
};

use super::{
    RunningJob, StoppedBy,
    folder::{json, reject},
    step_runner::{JobStep, StepOutcome},
};
use crate::{collect::ProcessLimits, job::step_journal::StepResult};

/// Writes the description of the host, which every run has; an import leaves it empty.
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
        job.write(layout::ENV, &json(&environment)?)
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
        parse::nsys::check(&job.dir.join(layout::NSYS_EXPORT))
            .map_err(|error| llmprof_core::chain(&error))
    }
}

/// Prints the imported reports of counters with the ncu of this host.
struct PrintStep {
    /// Their numbers.
    reports: Vec<usize>,
}

impl JobStep for PrintStep {
    const STEP: Step = Step::Ncu;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        StepOutcome::Pass(job.host.collector.print_counters(job.dir, &self.reports, limits).await)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        for number in &self.reports {
            let page = layout::imported_page(*number);
            parse::ncu::read_file(&job.dir.join(&page))
                .map_err(|error| llmprof_core::chain(&error))?;
        }
        Ok(())
    }

    fn set_aside(&self, job: &RunningJob<'_>) {
        for number in &self.reports {
            reject(&job.dir.join(layout::imported_page(*number)));
        }
    }
}

impl RunningJob<'_> {
    /// Executes all steps of an import, up to the analysis.
    pub(super) async fn run_import(&mut self, import: &Import) -> Result<(), StoppedBy> {
        self.require(LayoutStep).await?;
        if import.files.iter().any(|file| file.kind == CaptureKind::Report) {
            self.require(ExportStep).await?;
        }
        let counters = import.files.iter().map(|file| file.kind).filter(|it| it.has_counters());
        let reports: Vec<usize> = counters
            .zip(1..)
            .filter(|(kind, _)| *kind == CaptureKind::CounterReport)
            .map(|(_, number)| number)
            .collect();
        if reports.is_empty() {
            return Ok(());
        }
        let print = PrintStep { reports };
        if import.files.iter().any(|file| file.kind != CaptureKind::CounterReport) {
            self.run_step(print).await?;
        } else {
            self.require(print).await?;
        }
        Ok(())
    }
}
