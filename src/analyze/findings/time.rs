//! Rules on where time goes: gaps between kernels, floors that a stage is far from, parts that weigh much.
//!
//! Each fires on figures that analysis made, and says what it would save at most where that follows from them.

use super::{
    super::{
        Analysis,
        events::Events,
        stages::{DECODE, PREFILL, STAGES, VISION_PARTS},
        stats::{Spread, percent, ratio},
    },
    finding,
};
use crate::{
    run::{Finding, Saving},
    trace::{Trace, units::Nanos},
};

/// From this share of a traced stage without a kernel on, percent, launching limits it.
const GAP_PCT: f64 = 30.0;
/// Launches per decode step from which replaying a graph pays.
const EAGER_LAUNCHES: f64 = 50.0;
/// A stage that takes so many times its floor is far from it.
const FAR: f64 = 2.0;
/// Vision dominates prefill from this share on, percent.
const VISION_PCT: f64 = 50.0;
/// Loading is long beside one pass from so many times on, and from so many milliseconds.
const LOAD_TIMES: f64 = 10.0;
const LOAD_MS: f64 = 5_000.0;
/// A first repeat that is so much slower than the slowest of the others was not warm.
const COLD: f64 = 1.2;

/// Saves so many milliseconds of one repeat of a stage; at most all of it. Every saving of a rule comes through here.
pub fn saving(analysis: &Analysis, stage: &str, ms: f64) -> Option<Saving> {
    let whole = analysis.stages.row(stage)?.ms.mean;
    let ms = ms.clamp(0.0, whole);
    Some(Saving { stage: stage.into(), ms: Some(ms), pct: percent(ms, whole)? })
}

/// The GPU in one repeat of a stage of the traced pass, milliseconds; of several GPUs, their mean.
struct TracedGpu {
    repeats: f64,
    window_ms: f64,
    busy_ms: f64,
    /// Kernels that are recorded, in all repeats.
    kernels: u64,
    graph_launches: u64,
}

/// The traced pass's record of the GPU in a stage; `None` where it holds nothing that the GPU did.
fn traced_gpu(analysis: &Analysis, stage: &str) -> Option<TracedGpu> {
    let it = analysis.stage_gpu.totals.iter().find(|it| it.stage == stage && it.instances > 0 && it.devices > 0)?;
    let (repeats, devices) = (it.instances as f64, it.devices as f64);
    let per = |ms: f64| ms / repeats / devices;
    let busy_ms = per(it.busy_ms.filter(|ms| *ms > 0.0)?);
    let graph_launches = it.graph_launches.unwrap_or(0);
    Some(TracedGpu { repeats, window_ms: per(it.window_ms?), busy_ms, kernels: it.launches, graph_launches })
}

/// Repeats of a stage in the traced pass.
pub fn repeats(analysis: &Analysis, stage: &str) -> Option<f64> {
    traced_gpu(analysis, stage).map(|it| it.repeats)
}

/// Saves the device time of kernels in one repeat: of what they took in the traced pass, at most what no other kernel overlapped.
pub fn kernel_saving(analysis: &Analysis, stage: &str, kernels: &[&str], total_ms: f64) -> Option<Saving> {
    let busy = analysis.kernels.stages.iter().find(|it| it.stage == stage).and_then(|it| it.busy_ms)?;
    let others = analysis.alone.iter().filter(|((of, name), _)| of == stage && !kernels.contains(&name.as_str()));
    let own = total_ms.min(busy - others.map(|(_, ms)| ms).sum::<f64>());
    saving(analysis, stage, own / repeats(analysis, stage)?)
}

/// Saves a share of the stage's host time, percent: at most the time in which the GPU was idle.
pub fn call_saving(analysis: &Analysis, stage: &str, share_pct: f64) -> Option<Saving> {
    let (gpu, whole) = (traced_gpu(analysis, stage)?, analysis.stages.row(stage)?.ms.mean);
    saving(analysis, stage, (whole * share_pct / 100.0).min(gpu.window_ms - gpu.busy_ms))
}

/// Time of a stage in which the GPU is idle.
struct Gaps {
    /// Share of the traced stage, percent.
    traced_pct: f64,
    /// Share of the unprofiled stage, percent, taking kernels to last as long there; `None` without an unprofiled pass.
    unprofiled_pct: Option<f64>,
    /// In one repeat, of the pass that has less.
    ms: f64,
    /// Launches of single kernels in one repeat.
    launches: f64,
    graph_launches: u64,
    /// Kernels that the stage ran, and those of them that graphs replayed, in all repeats.
    kernels: u64,
    replayed: u64,
}

fn gaps(analysis: &Analysis, stage: &str) -> Option<Gaps> {
    let gpu = traced_gpu(analysis, stage)?;
    let replayed = analysis.stage_calls.get(stage).map_or(0, |it| it.replayed_kernels);
    let unprofiled = analysis.stages.row(stage).filter(|_| !analysis.only_traced).map(|row| row.ms.mean);
    let gap = |whole: f64| (whole - gpu.busy_ms).max(0.0);
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

/// Whether decode replays a graph already: by its runner, or by the calls of the capture.
pub fn replays(analysis: &Analysis) -> bool {
    let called = analysis.stage_gpu.totals.iter().any(|it| it.stage == DECODE && it.graph_launches.is_some_and(|it| it > 0));
    let replayed = analysis.stage_calls.get(DECODE).is_some_and(|it| it.replayed_kernels > 0);
    called || replayed || analysis.start.as_ref().is_some_and(|start| start.decode_graph)
}

pub fn decode_launch_bound(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // Tracing lengthens gaps: where an unprofiled pass was timed, its gaps decide as well.
    let bound = |it: &Gaps| it.traced_pct >= GAP_PCT && it.unprofiled_pct.is_none_or(|pct| pct >= GAP_PCT);
    let Some(gaps) = gaps(analysis, DECODE).filter(bound) else { return vec![] };
    let message = format!("The GPU is idle during {:.0} % of {DECODE} in the traced pass.", gaps.traced_pct);
    let mut found = finding("decode_launch_bound", message)
        .with("source", "traced pass")
        .with("idle", format!("{:.1} %", gaps.traced_pct))
        .with("launches of single kernels per repeat", format!("{:.0}", gaps.launches));
    if let Some(pct) = gaps.unprofiled_pct {
        found = found.with("idle, unprofiled pass", format!("{pct:.1} %"));
    }
    if replays(analysis) {
        found = found.with("launches of graphs", gaps.graph_launches);
        let replayed = percent(gaps.replayed as f64, gaps.kernels as f64);
        found = found.advise(match replayed.filter(|pct| *pct < 90.0 && gaps.replayed > 0) {
            Some(pct) => format!("Graphs replay {pct:.0} % of the kernels of {DECODE}: capture the rest of a step, too."),
            None => "Launch the next replay before the current one ends, and keep sampled tokens on the device.".to_owned(),
        });
    }
    vec![found.saves(saving(analysis, DECODE, gaps.ms))]
}

pub fn decode_eager(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(gaps), Some(steps)) = (gaps(analysis, DECODE), analysis.stages.decode_steps) else { return vec![] };
    let eager = |each: &f64| *each >= EAGER_LAUNCHES && !replays(analysis);
    let Some(each) = ratio(gaps.launches, steps as f64).filter(eager) else { return vec![] };
    let message = format!("Every decode step launches {each:.0} kernels one by one in the traced pass.");
    let found = finding("decode_eager", message)
        .with("source", "traced pass")
        .with("launches per step", format!("{each:.1}"))
        .with("decode", "eager");
    vec![found.saves(saving(analysis, DECODE, gaps.ms))]
}

/// The least time of a stage by a ceiling: the measured one where there is one.
fn floor_ms(amount: u64, measured: Option<f64>, datasheet: Option<f64>) -> Option<(f64, &'static str)> {
    let (rate, of) = measured.map(|rate| (rate, "measured")).or(datasheet.map(|rate| (rate, "datasheet")))?;
    Some((ratio(amount as f64 * 1e3, rate)?, of))
}

pub fn decode_far_from_bandwidth(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = || {
        let (cost, ceilings, row) = (analysis.cost.as_ref()?, analysis.mfu.ceilings.as_ref()?, analysis.stages.row(DECODE)?);
        let moved = cost.decode.weight_bytes + cost.decode.kv_read_bytes;
        let (floor, of) = floor_ms(moved, ceilings.measured_bytes_per_s, ceilings.datasheet_bytes_per_s)?;
        let times = ratio(row.ms.mean, floor).filter(|times| *times >= FAR)?;
        let message = format!("{DECODE} takes {times:.1} times what reading its weights and keys once per step would.");
        let found = finding("decode_far_from_bandwidth", message)
            .with("floor ms", format!("{floor:.3}"))
            .with("mean ms", format!("{:.3}", row.ms.mean))
            .with("bytes", moved)
            .with("bandwidth", of);
        Some(found.saves(saving(analysis, DECODE, row.ms.mean - floor)))
    };
    found().into_iter().collect()
}

pub fn prefill_far_from_compute(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let found = || {
        let (cost, ceilings, row) = (analysis.cost.as_ref()?, analysis.mfu.ceilings.as_ref()?, analysis.stages.row(PREFILL)?);
        let (compute, of) = floor_ms(cost.prefill_flops, ceilings.measured_flops_per_s, ceilings.datasheet_flops_per_s)?;
        // A short prompt reads all weights for little arithmetic: the higher floor is the true one.
        let read = floor_ms(cost.prefill.weight_bytes, ceilings.measured_bytes_per_s, ceilings.datasheet_bytes_per_s);
        let floor = compute.max(read.map_or(0.0, |(ms, _)| ms));
        let times = ratio(row.ms.mean, floor).filter(|times| *times >= FAR)?;
        let message =
            format!("{PREFILL} takes {times:.1} times what its products, or its weights, need at the device's ceiling.");
        let found = finding("prefill_far_from_compute", message)
            .with("floor ms", format!("{floor:.3}"))
            .with("mean ms", format!("{:.3}", row.ms.mean))
            .with("ceiling", of);
        Some(found.saves(saving(analysis, PREFILL, row.ms.mean - floor)))
    };
    found().into_iter().collect()
}

pub fn vision_dominates_prefill(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let note = analysis.stages.note("vision").and_then(|note| Some((note.ms.mean, note.share_pct?)));
    let Some((ms, share)) = note.filter(|(_, share)| *share >= VISION_PCT) else { return vec![] };
    let mut found = finding("vision_dominates_prefill", format!("Vision takes {share:.0} % of {PREFILL}."));
    for note in analysis.stages.notes.iter().filter(|note| VISION_PARTS.contains(&note.part.as_str())) {
        found = found.with(&format!("{} ms", note.part), format!("{:.3}", note.ms.mean));
    }
    vec![found.saves(saving(analysis, PREFILL, ms))]
}

pub fn load_dominates(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(start), Some(wall)) = (&analysis.start, analysis.stages.wall_ms) else { return vec![] };
    let load = Nanos(start.load_ns).as_ms();
    match ratio(load, wall.mean).filter(|times| *times >= LOAD_TIMES && load >= LOAD_MS) {
        Some(times) => vec![
            finding("load_dominates", format!("Loading the model takes {times:.0} times as long as one pass."))
                .with("load ms", format!("{load:.0}"))
                .with("pass ms", format!("{:.3}", wall.mean)),
        ],
        None => vec![],
    }
}

pub fn warmup_short(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let plain = Events::of(&trace.baseline);
    let cold = |stage: &&str| {
        let mut times: Vec<(u32, f64)> =
            plain.measured(stage).map(|it| (it.repeat, Nanos(it.end_ns - it.start_ns).as_ms())).collect();
        times.sort_by_key(|(repeat, _)| *repeat);
        let (first, others) = times.split_first().filter(|(_, others)| others.len() >= 2)?;
        let others = Spread::of(others.iter().map(|(_, ms)| *ms))?;
        let times = ratio(first.1, others.max).filter(|times| *times >= COLD)?;
        let message = format!("The first repeat of {stage} took {times:.1} times as long as the slowest of the others.");
        let found = finding("warmup_short", message).with("first ms", format!("{:.3}", first.1));
        let found = found.with("slowest other ms", format!("{:.3}", others.max)).with("stage", stage);
        let mean = analysis.stages.row(stage)?.ms.mean;
        Some(found.saves(saving(analysis, stage, mean - others.mean)))
    };
    STAGES.iter().filter_map(cold).collect()
}

pub fn expert_imbalance(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let uneven = |stage: &&str| {
        let mut of: Vec<_> = analysis.experts.iter().filter(|it| it.stage == **stage).collect();
        of.sort_by(|a, b| a.distinct.mean.total_cmp(&b.distinct.mean));
        let (least, middle) = (of.first()?, of.get(of.len() / 2)?);
        let share = percent(least.distinct.mean, middle.distinct.mean).filter(|share| of.len() >= 3 && *share < 70.0)?;
        let message = format!("In {stage}, layer {} hits {share:.0} % as many experts as the layer in the middle.", least.layer);
        let found = finding("expert_imbalance", message).with("layer", least.layer);
        Some(found.with("distinct", format!("{:.1}", least.distinct.mean)).with("middle", format!("{:.1}", middle.distinct.mean)))
    };
    STAGES.iter().filter_map(uneven).collect()
}
