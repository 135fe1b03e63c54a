//! The step under the profiler of PyTorch, which a command asks for by `torch_profiler = true`.

use std::time::Duration;

use llmprof_analyze::{
    parse::{self, ParseError},
    stats::median_of,
};
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        profiling::NsysSettings,
        state::Step,
        units::Nanos,
    },
    layout,
};

use super::{
    RunningJob,
    folder::{blocking, reject},
    step_runner::{JobStep, StepOutcome},
};
use crate::collect::{CommandRun, ProcessLimits};

/// Overhead from which the pass has a finding, percent.
const HIGH_OVERHEAD: f64 = 25.0;

/// The pass under the profiler of PyTorch.
pub(super) struct TorchProfilerStep<'a> {
    pub run: &'a CommandRun,
    pub settings: &'a NsysSettings,
}

/// Results of the pass.
struct ReadTraces {
    operators: usize,
    /// Wall times of the pass and, as a median, of the unprofiled one, nanoseconds.
    wall_ns: Option<(i64, i64)>,
}

impl JobStep for TorchProfilerStep<'_> {
    const STEP: Step = Step::TorchProfiler;
    type Output = ();

    fn pass(&self) -> Option<&'static str> {
        Some(layout::TORCH_PROFILER)
    }

    async fn run(&mut self, job: &mut RunningJob<'_>, limits: &ProcessLimits) -> StepOutcome {
        let window = self.settings.delay_s.saturating_add(self.settings.duration_s);
        let window = Duration::from_secs(window.into());
        let collector = &job.host.collector;
        StepOutcome::Pass(collector.torch_profiled_command(job.dir, self.run, window, limits).await)
    }

    async fn verify(&mut self, job: &mut RunningJob<'_>) -> Result<(), String> {
        let dir = job.dir.to_owned();
        let read = blocking(move || -> Result<ReadTraces, ParseError> {
            let traces = parse::torch_traces(&dir)?;
            let operators = match traces.is_empty() {
                true => 0,
                false => parse::kineto::read(&traces)?.framework.len(),
            };
            let median = |folder: &str| -> Result<Option<i64>, ParseError> {
                let times = parse::command::times(&dir, folder)?.map(|it| it.wall_ns);
                Ok(median_of(times.unwrap_or_default()))
            };
            let wall_ns = median(layout::TORCH_PROFILER)?.zip(median(layout::BASELINE)?);
            Ok(ReadTraces { operators, wall_ns })
        });
        let ReadTraces { operators, wall_ns } = read.await?;
        if operators == 0 {
            return Err("no process of the command recorded an operator of PyTorch: it does not \
                        import torch, starts its own profiler, ignores PYTHONPATH (python -E, -I \
                        or -S), or was killed before its end"
                .into());
        }
        job.add_findings(wall_ns.and_then(|(profiled, plain)| overhead(profiled, plain)));
        Ok(())
    }

    fn set_aside(&self, job: &RunningJob<'_>) {
        parse::torch_traces(job.dir).unwrap_or_default().iter().for_each(|it| reject(it));
    }
}

/// States an overhead that is high.
fn overhead(profiled_ns: i64, plain_ns: i64) -> Option<Finding> {
    let percent = (profiled_ns as f64 / plain_ns as f64 - 1.0) * 100.0;
    if !percent.is_finite() || percent < HIGH_OVERHEAD {
        return None;
    }
    let ms = |ns: i64| format!("{:.1}", Nanos(ns).as_ms());
    let message = format!(
        "The pass under the profiler of PyTorch took {percent:.0} % longer than the unprofiled one."
    );
    Some(
        Finding::new(catalogue::TORCH_PROFILER_OVERHEAD, message)
            .with("pass torch_profiler, ms", ms(profiled_ns))
            .with("unprofiled, ms", ms(plain_ns))
            .advise("Use the proportions of its operators, not their times"),
    )
}
