//! A run of a command: unprofiled, under nsys, and on a GPU under ncu.
//!
//! A command has no runner events, so its stages come from its settings; the analysis reports
//! unknown values.

use llmprof_analyze::{kernels::kernel_selection::CounterPlan, parse};
use llmprof_core::{
    domain::{
        command::{CommandKind, CommandPlan, GateSettings, ReadyCheck},
        device::Device,
        finding::{Finding, catalogue},
        profiling::Profiling,
        state::Step,
        subject::Passes,
    },
    layout,
};

use super::{
    RunningJob, StoppedBy,
    counters::{CounterTarget, CountersStep},
    folder::{blocking, reject},
    gemm_log::{GemmLogStep, GemmLogTarget},
    gpu_metrics::GpuMetricsStep,
    preflight::CommandPreflight,
    step_journal::StepResult,
    step_runner::{JobStep, StepOutcome},
    timeline::{TimelineStep, TimelineTarget},
    torch_profiler::TorchProfilerStep,
};
use crate::collect::{CommandRun, Preflight, ProcessLimits};

/// The unprofiled pass of a command.
struct CommandBaselineStep<'a> {
    run: &'a CommandRun,
    settings: &'a Profiling,
}

impl JobStep for CommandBaselineStep<'_> {
    const STEP: Step = Step::Baseline;
    type Output = ();

    fn pass(&self) -> Option<&'static str> {
        Some(layout::BASELINE)
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let (collector, nvml) = (&job.host.collector, &self.settings.nvml);
        StepOutcome::Pass(collector.unprofiled_command(job.dir, self.run, nvml, limits).await)
    }

    async fn verify(&mut self, _: &mut RunningJob<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// A window by the server's own profiler, in place of the pass of nsys.
struct GateStep<'a> {
    run: &'a CommandRun,
    ready: &'a ReadyCheck,
    gate: &'a GateSettings,
}

impl JobStep for GateStep<'_> {
    const STEP: Step = Step::Nsys;
    type Output = ();

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let collector = &job.host.collector;
        let gate = (self.ready, self.gate);
        StepOutcome::Pass(collector.gated_command(job.dir, self.run, gate, limits).await)
    }

    /// Checks that the traces are readable; unreadable ones are set aside.
    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        let traces: Vec<_> = (1..)
            .map(|number| job.dir.join(layout::imported_trace(number)))
            .take_while(|path| path.exists())
            .collect();
        let read = traces.clone();
        match blocking(move || parse::own_timeline(&read)).await {
            Ok(timeline) => {
                job.timeline = job.keeps_timeline.then_some(timeline);
                Ok(())
            }
            Err(why) => {
                traces.iter().for_each(|path| reject(path));
                Err(format!("cannot read the traces of the server's profiler: {why}"))
            }
        }
    }
}

impl RunningJob<'_> {
    /// Executes all steps of a command, up to the analysis.
    pub(super) async fn run_command(
        &mut self,
        plan: &CommandPlan,
        passes: &Passes,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        if self.spec.spec.session().is_some() && self.spec.session.is_none() {
            let message = "the run needs the server of its session: only the service executes it";
            return Err(StoppedBy(StepResult::failed(message)));
        }
        let host = Preflight::default();
        self.require(CommandPreflight { plan, settings, host }).await?;
        let run = self.command_run(plan, passes);
        self.reuse_passes(TimelineTarget::Command(&run), settings).await?;
        let baseline = CommandBaselineStep { run: &run, settings };
        match plan.ready {
            // The events of a server's load would cover only a part of it.
            Some(_) => self.require(baseline).await?,
            None => self.require_within_size(baseline).await?.unwrap_or_default(),
        }
        let mut selected = CounterPlan::default();
        if let (Some(ready), Some(gate), true) = (&plan.ready, &plan.gate, settings.nsys.enabled) {
            self.run_step(GateStep { run: &run, ready, gate }).await?;
        } else if settings.nsys.enabled {
            let step = TimelineStep { target: TimelineTarget::Command(&run), settings };
            selected = self.run_step(step).await?.unwrap_or_default();
        }
        self.list_not_applicable(settings);
        if !self.device.is_cpu() {
            self.run_gpu_passes(&run, &selected, settings).await?;
        }
        if run.session.is_some() {
            self.list_not_on_session(plan, settings);
        } else if plan.torch_profiler && settings.nsys.enabled {
            self.run_step(TorchProfilerStep { run: &run, settings: &settings.nsys }).await?;
        }
        Ok(())
    }

    /// Executes the passes that read counters, or logs of the GPU's libraries.
    async fn run_gpu_passes(
        &mut self,
        run: &CommandRun,
        selected: &CounterPlan,
        settings: &Profiling,
    ) -> Result<(), StoppedBy> {
        let plan = &run.plan;
        if settings.gpu_metrics.enabled && plan.gate.is_none() {
            let target = TimelineTarget::Command(run);
            self.run_step(GpuMetricsStep { target, settings }).await?;
        }
        if settings.ncu.enabled && plan.kind == CommandKind::Program {
            let target = CounterTarget::Command(run);
            self.run_step(CountersStep { target, plan: selected, settings }).await?;
        }
        if settings.gemm_log.enabled && run.session.is_none() {
            let target = GemmLogTarget::Command(run);
            self.run_step(GemmLogStep { target, settings }).await?;
        }
        self.list_not_collected(plan, settings);
        Ok(())
    }

    fn command_run(&self, plan: &CommandPlan, passes: &Passes) -> CommandRun {
        let gpus = visible_gpus(std::iter::once(self.device).chain(&self.spec.other_gpus));
        CommandRun {
            plan: plan.clone(),
            warmup: passes.warmup,
            repeats: passes.repeats,
            gpus,
            session: self.spec.session.clone(),
        }
    }

    /// Lists the passes that a run of a model has in this mode, and a command has not.
    fn list_not_collected(&mut self, plan: &CommandPlan, settings: &Profiling) {
        if settings.ncu.enabled && plan.kind == CommandKind::Server && self.spec.session.is_none() {
            let message = "Not collected of a command: counters, which need a program that ends \
                           by itself.";
            self.add_finding(Finding::new(catalogue::LEFT_OUT_OF_COMMANDS, message));
        }
    }

    /// Lists the passes that need a server started for them.
    fn list_not_on_session(&mut self, plan: &CommandPlan, settings: &Profiling) {
        let on_gpu = !self.device.is_cpu();
        let left_out: Vec<&str> = [
            (settings.ncu.enabled && on_gpu, "ncu"),
            (settings.gemm_log.enabled && on_gpu, "gemm_log"),
            (plan.torch_profiler && settings.nsys.enabled, "torch_profiler"),
        ]
        .into_iter()
        .filter_map(|(is_wanted, pass)| is_wanted.then_some(pass))
        .collect();
        if left_out.is_empty() {
            return;
        }
        let message = "Not collected on a session: passes that need a server started for them.";
        let finding = Finding::new(catalogue::LEFT_OUT_OF_SESSIONS, message)
            .with("passes", left_out.join(", "))
            .advise("Run the command without a session for these passes");
        self.add_finding(finding);
    }
}

/// The GPUs among `devices` as in `CUDA_VISIBLE_DEVICES`.
pub fn visible_gpus<'a>(devices: impl Iterator<Item = &'a Device>) -> Vec<String> {
    let mut devices: Vec<&Device> = devices.filter(|it| !it.is_cpu()).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices.into_iter().map(visible_name).collect()
}

/// Name of the GPU in `CUDA_VISIBLE_DEVICES`.
fn visible_name(device: &Device) -> String {
    let index = || device.name.strip_prefix("cuda:").unwrap_or(&device.name).to_owned();
    device.uuid.clone().unwrap_or_else(index)
}
