//! The last steps of every run: analysis and report.

use llmprof_core::domain::state::Step;
use llmprof_report::pipeline::{self, Analyzed};

use super::{
    RunningJob, StoppedBy,
    step_runner::{JobStep, StepOutcome},
};
use crate::{collect::ProcessLimits, job::step_journal::StepResult};

/// Analyses the files of the passes.
struct AnalyzeStep;

impl JobStep for AnalyzeStep {
    const STEP: Step = Step::Analyze;
    type Output = Analyzed;

    async fn run(&mut self, _: &mut RunningJob<'_>, _: &ProcessLimits) -> StepOutcome {
        StepOutcome::Settled(StepResult::succeeded())
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<Analyzed, String> {
        let (dir, devices) = (job.dir.to_owned(), job.host.devices.clone());
        let timeline = job.timeline.take();
        job.blocking(move || pipeline::analyze(&dir, timeline, &devices)).await
    }
}

/// Writes tables and reports.
struct ReportStep(Option<Analyzed>);

impl JobStep for ReportStep {
    const STEP: Step = Step::Report;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, _: &ProcessLimits) -> StepOutcome {
        let Some(analyzed) = self.0.take() else {
            return StepOutcome::Settled(StepResult::succeeded());
        };
        let (dir, id) = (job.dir.to_owned(), job.spec.id);
        let write = move || analyzed.with_latest_steps(&dir)?.write(id, &dir);
        let written = job.blocking(write).await;
        StepOutcome::Settled(written.map_or_else(StepResult::failed, |_| StepResult::succeeded()))
    }

    async fn verify(&mut self, _: &mut RunningJob<'_>) -> Result<(), String> {
        Ok(())
    }
}

impl RunningJob<'_> {
    /// Analyses the captures and writes the report.
    pub(super) async fn analyze(&mut self) -> Result<(), StoppedBy> {
        let analyzed = self.require(AnalyzeStep).await?;
        self.findings = analyzed.findings(self.spec.id);
        self.lost_records = analyzed.lost_records();
        let point = analyzed.series_point(self.spec.id);
        self.require(ReportStep(Some(analyzed))).await?;
        self.series = Some(point);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
