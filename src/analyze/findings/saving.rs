//! Upper bounds of savings, and the figures of the traced GPU that they and several rules use.

use crate::{
    analyze::{Analysis, stages::DECODE, stats::percent},
    domain::finding::Saving,
};

/// A saving of `ms` in one repeat of a stage, limited to the stage's time. Every saving of a rule
/// is made here.
pub fn stage_saving(analysis: &Analysis, stage: &str, ms: f64) -> Option<Saving> {
    let mean = analysis.stages.row(stage)?.ms.mean;
    let ms = ms.clamp(0.0, mean);
    Some(Saving { stage: stage.into(), ms: Some(ms), pct: percent(ms, mean)? })
}

/// A saving of the device time of kernels in one repeat of the traced pass, limited to the time in
/// which no other kernel ran.
pub fn kernel_saving(
    analysis: &Analysis,
    stage: &str,
    kernels: &[&str],
    total_ms: f64,
) -> Option<Saving> {
    let busy =
        analysis.kernels.stages.iter().find(|it| it.stage == stage).and_then(|it| it.busy_ms)?;
    let others = analysis
        .alone
        .iter()
        .filter(|((of, name), _)| of == stage && !kernels.contains(&name.as_str()));
    let own = total_ms.min(busy - others.map(|(_, ms)| ms).sum::<f64>());
    stage_saving(analysis, stage, own / traced_repeats(analysis, stage)?)
}

/// The GPU in one repeat of a stage of the traced pass, milliseconds; the mean over several GPUs.
struct TracedGpu {
    repeats: f64,
    window_ms: f64,
    busy_ms: f64,
    /// Recorded kernels of all repeats.
    kernels: u64,
    graph_launches: u64,
}

/// The traced pass's record of the GPU in a stage; `None` if it recorded no GPU work.
fn traced_gpu(analysis: &Analysis, stage: &str) -> Option<TracedGpu> {
    let it = analysis
        .stage_gpu
        .totals
        .iter()
        .find(|it| it.stage == stage && it.instances > 0 && it.devices > 0)?;
    let (repeats, devices) = (it.instances as f64, it.devices as f64);
    let per_repeat = |ms: f64| ms / repeats / devices;
    Some(TracedGpu {
        repeats,
        window_ms: per_repeat(it.window_ms?),
        busy_ms: per_repeat(it.busy_ms.filter(|ms| *ms > 0.0)?),
        kernels: it.launches,
        graph_launches: it.graph_launches.unwrap_or(0),
    })
}

/// Repeats of a stage in the traced pass.
pub fn traced_repeats(analysis: &Analysis, stage: &str) -> Option<f64> {
    traced_gpu(analysis, stage).map(|it| it.repeats)
}

/// Time of a stage in which the GPU is idle.
pub struct Gaps {
    /// Share of the traced stage, percent.
    pub traced_pct: f64,
    /// Share of the unprofiled stage, percent, assuming kernels of the same length; `None` without
    /// an unprofiled pass.
    pub unprofiled_pct: Option<f64>,
    /// Milliseconds in one repeat, of the pass that has fewer.
    pub ms: f64,
    /// Launches of single kernels in one repeat.
    pub launches: f64,
    pub graph_launches: u64,
    /// Kernels of all repeats, and those of them that graphs replayed.
    pub kernels: u64,
    pub replayed: u64,
}

pub fn gaps(analysis: &Analysis, stage: &str) -> Option<Gaps> {
    let gpu = traced_gpu(analysis, stage)?;
    let replayed = analysis.stage_calls.get(stage).map_or(0, |it| it.replayed_kernels);
    let unprofiled =
        analysis.stages.row(stage).filter(|_| !analysis.only_traced).map(|row| row.ms.mean);
    let gap = |stage_ms: f64| (stage_ms - gpu.busy_ms).max(0.0);
    Some(Gaps {
        traced_pct: percent(gap(gpu.window_ms), gpu.window_ms)?,
        unprofiled_pct: unprofiled.and_then(|mean| percent(gap(mean), mean)),
        ms: gap(unprofiled.unwrap_or(gpu.window_ms).min(gpu.window_ms)),
        launches: gpu.kernels.saturating_sub(replayed) as f64 / gpu.repeats,
        graph_launches: gpu.graph_launches,
        kernels: gpu.kernels,
        replayed,
    })
}

/// Returns whether decode replays a CUDA graph, by the runner's events or the capture's calls.
pub fn replays_graph(analysis: &Analysis) -> bool {
    let launched = analysis
        .stage_gpu
        .totals
        .iter()
        .any(|it| it.stage == DECODE && it.graph_launches.is_some_and(|it| it > 0));
    let replayed = analysis.stage_calls.get(DECODE).is_some_and(|it| it.replayed_kernels > 0);
    launched || replayed || analysis.start.as_ref().is_some_and(|start| start.decode_graph)
}
