//! A run of a model: unprofiled pass, timeline, counters and GEMM log of our runner.

use std::{fs, io};

use llmprof_analyze::kernels::kernel_selection::CounterPlan;
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        model::ModelSpec,
        part::PartPath,
        profiling::{Profiling, RunnerPass},
        runner::{self, RunnerRequest},
        state::Step,
        subject::{Passes, Workload},
    },
    layout,
};

use super::{
    RunningJob, StoppedBy,
    counters::{CounterTarget, CountersStep},
    gemm_log::{GemmLogStep, GemmLogTarget},
    gpu_metrics::GpuMetricsStep,
    preflight::RunnerPreflight,
    step_runner::{JobStep, StepOutcome},
    timeline::{TimelineStep, TimelineTarget},
};
use crate::collect::{Preflight, ProcessLimits};

/// The unprofiled pass: the only source of reported timings.
struct BaselineStep<'a> {
    request: &'a RunnerRequest,
    settings: &'a Profiling,
}

impl JobStep for BaselineStep<'_> {
    const STEP: Step = Step::Baseline;
    type Output = ();

    fn pass(&self) -> Option<&'static str> {
        Some(layout::BASELINE)
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let (collector, nvml) = (&job.host.collector, &self.settings.nvml);
        StepOutcome::Pass(collector.baseline(job.dir, self.request, nvml, limits).await)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        job.check_events(layout::BASELINE).await?;
        if self.request.predictions { job.publish_predictions() } else { Ok(()) }
    }
}

impl RunningJob<'_> {
    /// Executes all steps of a model, up to the analysis.
    pub(super) async fn run_model(
        &mut self,
        workload: &Workload,
        passes: &Passes,
        model: &ModelSpec,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        let request = self.preflight(workload, passes, model, None, settings).await?;
        self.run_passes(&request, settings).await
    }

    /// Executes the preflight of our runner; returns its request.
    pub(super) async fn preflight(
        &mut self,
        workload: &Workload,
        passes: &Passes,
        model: &ModelSpec,
        part: Option<&PartPath>,
        settings: &Profiling,
    ) -> Result<RunnerRequest, StoppedBy> {
        let host = Preflight::default();
        self.require(RunnerPreflight { workload, passes, model, part, settings, host }).await
    }

    /// Executes the passes of our runner.
    pub(super) async fn run_passes(
        &mut self,
        request: &RunnerRequest,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        self.reuse_passes(TimelineTarget::Runner(request), settings).await?;
        let of = |pass| request.of_pass(pass, settings);
        self.require(BaselineStep { request: &of(RunnerPass::Baseline), settings }).await?;
        let mut selected = CounterPlan::default();
        if settings.nsys.enabled {
            let request = &of(RunnerPass::Nsys);
            let step = TimelineStep { target: TimelineTarget::Runner(request), settings };
            selected = self.run_step(step).await?.unwrap_or_default();
        }
        self.list_not_applicable(settings);
        if settings.gpu_metrics.enabled && !self.device.is_cpu() {
            let target = TimelineTarget::Runner(&of(RunnerPass::GpuMetrics));
            self.run_step(GpuMetricsStep { target, settings }).await?;
        }
        if settings.ncu.enabled && !self.device.is_cpu() {
            let target = CounterTarget::Runner(&of(RunnerPass::Ncu));
            self.run_step(CountersStep { target, plan: &selected, settings }).await?;
        }
        if settings.gemm_log.enabled && !self.device.is_cpu() {
            let target = GemmLogTarget::Runner(&of(RunnerPass::GemmLog));
            self.run_step(GemmLogStep { target, settings }).await?;
        }
        Ok(())
    }

    /// Moves the generated tokens to the top of the folder, where users look for them.
    fn publish_predictions(&self) -> Result<(), String> {
        let from = self.dir.join(layout::BASELINE).join(runner::PREDICTIONS);
        let to = self.dir.join(layout::PREDICTIONS);
        match fs::rename(from, &to) {
            // An earlier attempt moved them.
            Err(error) if error.kind() == io::ErrorKind::NotFound && to.exists() => Ok(()),
            moved => moved.map_err(|error| format!("the runner left no predictions: {error}")),
        }
    }

    /// Lists the passes of the mode that need a GPU, if the run has none.
    pub(super) fn list_not_applicable(&mut self, settings: &Profiling) {
        let passes = [
            (Step::GpuMetrics, settings.gpu_metrics.enabled, "nsys samples metrics of GPUs only"),
            (Step::Ncu, settings.ncu.enabled, "ncu reads counters of GPU kernels only"),
            (
                Step::GemmLog,
                settings.gemm_log.enabled,
                "cuBLAS, which logs GEMMs, runs on GPUs only",
            ),
        ];
        let missing: Vec<_> =
            passes.into_iter().filter(|(_, enabled, _)| *enabled && self.device.is_cpu()).collect();
        if missing.is_empty() {
            return;
        }
        let names: Vec<&str> = missing.iter().map(|(step, ..)| step.as_str()).collect();
        let message = format!("Not applicable on the CPU: {}.", names.join(", "));
        let finding = Finding::new(catalogue::PASSES_NOT_APPLICABLE, message)
            .advise("Run on a GPU to collect them");
        let add = |finding: Finding, (step, _, why): &(Step, bool, &str)| {
            finding.with(step.as_str(), why)
        };
        self.add_finding(missing.iter().fold(finding, add));
    }
}
