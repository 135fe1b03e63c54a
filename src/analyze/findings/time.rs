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

/// Saves part of a stage's mean time.
pub fn saving(analysis: &Analysis, stage: &str, ms: f64) -> Option<Saving> {
    let whole = analysis.stages.row(stage)?.ms.mean;
    let ms = ms.clamp(0.0, whole);
    Some(Saving { stage: stage.into(), ms: Some(ms), pct: percent(ms, whole)? })
}

/// Share of a traced stage in which no kernel ran, percent, and launches per traced repeat.
fn gaps(analysis: &Analysis, trace: &Trace, stage: &str) -> Option<(f64, f64)> {
    let busy = analysis.kernels.stages.iter().find(|it| it.stage == stage).filter(|it| it.launches > 0)?;
    let traced = Events::of(&trace.traced);
    let times: Vec<f64> = traced.measured(stage).map(|it| Nanos(it.end_ns - it.start_ns).as_ms()).collect();
    let idle = 100.0 - percent(busy.busy_ms?, times.iter().sum())?;
    Some((idle.max(0.0), busy.launches as f64 / times.len() as f64))
}

fn replays(analysis: &Analysis) -> bool {
    analysis.start.as_ref().is_some_and(|start| start.decode_graph)
}

pub fn decode_launch_bound(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let Some((idle, launches)) = gaps(analysis, trace, DECODE).filter(|(idle, _)| *idle >= GAP_PCT) else { return vec![] };
    let mean = analysis.stages.row(DECODE).map_or(0.0, |row| row.ms.mean);
    let found = finding("decode_launch_bound", format!("No kernel runs during {idle:.0} % of {DECODE} in the traced pass."))
        .with("without a kernel", format!("{idle:.1} %"))
        .with("launches per repeat", format!("{launches:.0}"));
    vec![found.saves(saving(analysis, DECODE, mean * idle / 100.0))]
}

pub fn decode_eager(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let on_gpu = analysis.start.as_ref().is_some_and(|start| start.device != "cpu");
    let (Some((idle, launches)), Some(steps)) = (gaps(analysis, trace, DECODE), analysis.stages.decode_steps) else {
        return vec![];
    };
    let Some(each) = ratio(launches, steps as f64).filter(|each| *each >= EAGER_LAUNCHES && on_gpu && !replays(analysis)) else {
        return vec![];
    };
    let mean = analysis.stages.row(DECODE).map_or(0.0, |row| row.ms.mean);
    let message = format!("Every decode step launches {each:.0} kernels one by one.");
    let found = finding("decode_eager", message).with("launches per step", format!("{each:.1}")).with("decode", "eager");
    vec![found.saves(saving(analysis, DECODE, mean * idle / 100.0))]
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
