//! Plan of a run's steps, from its spec: the result of a submission that is only checked.
//!
//! Plain values. A step that the host cannot execute for lack of a tool is planned.

use serde::{Deserialize, Serialize};

use super::{
    import::CaptureKind,
    profiling::Profiling,
    state::Step,
    subject::{Passes, RunSpec, Subject},
};

/// A step of a run that was not queued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PlannedStep {
    pub step: Step,
    /// Measured or traced repeats; `null` if the step has none or they depend on its results.
    pub repeats: Option<u32>,
    /// Repeats before them.
    pub warmup: Option<u32>,
    /// Tokens to generate in each repeat.
    pub max_new_tokens: Option<u32>,
    /// Reason why the step will not run; `null` if it will.
    #[cfg_attr(feature = "schema", schema(example = "ncu reads counters of GPU kernels only"))]
    pub skipped_because: Option<String>,
}

impl PlannedStep {
    fn of(step: Step) -> Self {
        let (repeats, warmup, max_new_tokens, skipped_because) = (None, None, None, None);
        Self { step, repeats, warmup, max_new_tokens, skipped_because }
    }
}

/// Facts of the service on which a plan depends.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanFacts {
    /// Every device that matches the request is a CPU.
    pub on_cpu: bool,
    /// The command is a server, which does not end by itself.
    pub is_server: bool,
    /// The command has a pass under the profiler of PyTorch.
    pub torch_profiler: bool,
}

/// The steps of `spec`, in order. Steps that its settings disable are left out.
pub fn plan(spec: &RunSpec, facts: PlanFacts) -> Vec<PlannedStep> {
    let mut steps = Vec::new();
    if let Some(passes) = spec.passes() {
        let tokens = spec.workload().map(|it| it.max_new_tokens);
        steps.push(PlannedStep::of(Step::Preflight));
        steps.push(PlannedStep {
            repeats: Some(passes.repeats),
            warmup: Some(passes.warmup),
            max_new_tokens: tokens,
            ..PlannedStep::of(Step::Baseline)
        });
        if let Some(settings) = &passes.profiling {
            steps.extend(profiled(spec, passes, settings, facts));
        }
        if matches!(&spec.subject, Subject::Part(part) if part.align_with.is_some()) {
            steps.push(PlannedStep::of(Step::Align));
        }
    }
    if let Subject::Import(import) = &spec.subject {
        // Files are laid out, and reports are printed by the tools of this host.
        steps.push(PlannedStep::of(Step::Preflight));
        for (kind, step) in
            [(CaptureKind::Report, Step::Nsys), (CaptureKind::CounterReport, Step::Ncu)]
        {
            let is_planned = import.files.iter().any(|file| file.kind == kind);
            steps.extend(is_planned.then(|| PlannedStep::of(step)));
        }
    }
    steps.extend([Step::Analyze, Step::Report].map(PlannedStep::of));
    steps
}

/// The passes under a tool.
fn profiled(
    spec: &RunSpec,
    passes: &Passes,
    settings: &Profiling,
    facts: PlanFacts,
) -> Vec<PlannedStep> {
    let (mut steps, workload) = (Vec::new(), spec.workload());
    let tokens = |max: u32| workload.map(|it| it.max_new_tokens.min(max));
    if settings.nsys.enabled {
        let of_runner = |value: u32, max: u32| workload.map(|_| value.min(max));
        steps.push(PlannedStep {
            // A command is executed once under a tool.
            repeats: of_runner(settings.nsys.repeats, passes.repeats).or(Some(1)),
            warmup: of_runner(settings.nsys.warmup, passes.warmup).or(Some(0)),
            max_new_tokens: tokens(settings.nsys.max_new_tokens),
            ..PlannedStep::of(Step::Nsys)
        });
    }
    if settings.gpu_metrics.enabled {
        let (metrics, nsys) = (&settings.gpu_metrics, &settings.nsys);
        let of_runner = workload.map(|_| (metrics.repeats, passes.warmup.min(nsys.warmup)));
        let skipped = facts.on_cpu.then(|| "nsys samples metrics of GPUs only".to_owned());
        steps.push(PlannedStep {
            repeats: of_runner.map(|it| it.0).or(Some(1)),
            warmup: of_runner.map(|it| it.1).or(Some(0)),
            max_new_tokens: tokens(metrics.max_new_tokens),
            skipped_because: skipped,
            ..PlannedStep::of(Step::GpuMetrics)
        });
    }
    let on_session = spec.session().map(|_| "it needs a server that is started for it");
    if settings.ncu.enabled {
        let skipped = if facts.on_cpu {
            Some("ncu reads counters of GPU kernels only")
        } else if on_session.is_some() {
            on_session
        } else if facts.is_server {
            Some("counters need a program that ends by itself")
        } else {
            None
        };
        let skipped_because = skipped.map(str::to_owned);
        steps.push(PlannedStep { skipped_because, ..PlannedStep::of(Step::Ncu) });
    }
    if settings.gemm_log.enabled {
        let no_gpu = facts.on_cpu.then_some("cuBLAS, which logs GEMMs, runs on GPUs only");
        let skipped = no_gpu.or(on_session);
        steps.push(PlannedStep {
            max_new_tokens: tokens(settings.gemm_log.max_new_tokens),
            skipped_because: skipped.map(str::to_owned),
            ..PlannedStep::of(Step::GemmLog)
        });
    }
    if facts.torch_profiler && settings.nsys.enabled {
        steps.push(PlannedStep {
            repeats: Some(1),
            warmup: Some(0),
            skipped_because: on_session.map(str::to_owned),
            ..PlannedStep::of(Step::TorchProfiler)
        });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{import::ImportedFile, mode::Mode};

    fn names(spec: &RunSpec, facts: PlanFacts) -> Vec<(Step, bool)> {
        let plan = plan(spec, facts);
        plan.iter().map(|it| (it.step, it.skipped_because.is_none())).collect()
    }

    #[test]
    fn a_plan_has_the_steps_of_the_settings_and_a_reason_for_each_that_cannot_run() {
        let mut spec = RunSpec::tiny(Mode::DEEP, 0, &[]);
        let Subject::Model(subject) = &mut spec.subject else { panic!("a model") };
        subject.passes.profiling = Some(Profiling::bundled(&Mode::DEEP).unwrap());
        let on_cpu = PlanFacts { on_cpu: true, ..PlanFacts::default() };
        let expected = |gpu: bool| {
            [
                (Step::Preflight, true),
                (Step::Baseline, true),
                (Step::Nsys, true),
                (Step::GpuMetrics, gpu),
                (Step::Ncu, gpu),
                (Step::GemmLog, gpu),
                (Step::Analyze, true),
                (Step::Report, true),
            ]
        };
        assert_eq!(names(&spec, on_cpu), expected(false));
        assert_eq!(names(&spec, PlanFacts::default()), expected(true));
        let nsys = &plan(&spec, on_cpu)[2];
        assert_eq!((nsys.repeats, nsys.warmup, nsys.max_new_tokens), (Some(1), Some(0), Some(4)));
        let mut import = RunSpec::import_of_nothing();
        let steps = |import: &RunSpec| names(import, on_cpu).into_iter().map(|it| it.0);
        let always = [Step::Preflight, Step::Analyze, Step::Report];
        assert!(steps(&import).eq(always));
        let Subject::Import(subject) = &mut import.subject else { panic!("an import") };
        let kinds = [CaptureKind::CounterReport, CaptureKind::Report, CaptureKind::Counters];
        subject.files = kinds.map(ImportedFile::of_kind).to_vec();
        let printed = [Step::Preflight, Step::Nsys, Step::Ncu, Step::Analyze, Step::Report];
        assert!(steps(&import).eq(printed));
    }
}
