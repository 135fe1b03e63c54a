//! Share of the time of stages in which the GPU is busy.

use llmprof_analyze::{
    stages::{BETWEEN_STEPS, StageTiming, step_times::StepTimes},
    stats::percent,
    timeline::gpu::StageGpu,
};

use crate::waits::Waits;

/// True for a stage that is timed, as a whole or by its steps.
pub(super) fn is_timed(stage: &str, stages: &[StageTiming], steps: &[StepTimes]) -> bool {
    stages.iter().any(|row| row.stage == stage) || steps.iter().any(|row| row.stage == stage)
}

/// GPU activity of the stages that are timed, and of the time between an engine's steps.
pub(super) fn timed_gpus<'a>(
    (stages, steps): (&'a [StageTiming], &'a [StepTimes]),
    gpus: &'a [StageGpu],
) -> impl Iterator<Item = &'a StageGpu> {
    let is_between = |it: &StageGpu| it.stage == BETWEEN_STEPS && it.busy_ms.is_some();
    gpus.iter().filter(move |it| is_timed(&it.stage, stages, steps) || is_between(it))
}

/// Busy time of the timed stages over their windows without named waits, percent; an upper bound if
/// the busy time of a stage is one.
pub fn gpu_busy_pct(
    timed: (&[StageTiming], &[StepTimes]),
    gpus: &[StageGpu],
    waits: Waits,
) -> Option<f64> {
    busy_pct(timed_gpus(timed, gpus), waits)
}

pub(super) fn busy_pct<'a>(gpus: impl Iterator<Item = &'a StageGpu>, waits: Waits) -> Option<f64> {
    let (mut busy_ms, mut window_ms) = (0.0, 0.0);
    for it in gpus {
        busy_ms += it.busy_ms?;
        window_ms += it.window_ms? * (1.0 - waits.part(&it.stage));
    }
    percent(busy_ms, window_ms).map(|pct| pct.min(100.0))
}
