//! Rules on the time of a stage: gaps between kernels, heavy parts.

use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::Trace,
};

use super::{
    Rule,
    ledger::advice_on_long_gaps,
    saving::{Gaps, gaps, replays_graph, stage_saving},
};
use crate::{
    Analysis,
    stages::{DECODE, PREFILL, VISION_PARTS, in_sentence},
    stats::{percent, ratio},
};

/// Launching limits a stage from this share without a kernel, percent.
const GAP_PCT: f64 = 30.0;
/// Replaying a graph pays from this number of launches per decode step.
const EAGER_LAUNCHES: f64 = 50.0;
/// Graphs cover decode from this share of its kernels, percent.
const REPLAYED_PCT: f64 = 90.0;
/// Vision dominates prefill from this share, percent.
const VISION_PCT: f64 = 50.0;
/// Loading dominates from this multiple of one repeat, and from this time, milliseconds.
const LOAD_RATIO: f64 = 10.0;
const LOAD_MS: f64 = 5_000.0;
/// The remedy for gaps of a stage that replays graphs.
pub(super) const NEXT_REPLAY: &str = "Launch the next replay before the current one ends, and keep \
                                      sampled tokens on the device.";

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::DECODE_LAUNCH_BOUND, find: decode_launch_bound },
    Rule { id: catalogue::DECODE_EAGER, find: decode_eager },
    Rule { id: catalogue::VISION_DOMINATES_PREFILL, find: vision_dominates_prefill },
    Rule { id: catalogue::LOAD_DOMINATES, find: load_dominates },
];

pub(super) fn decode_launch_bound(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // Tracing lengthens gaps: if an unprofiled pass was timed, its gaps decide as well.
    let bound =
        |it: &Gaps| it.traced_pct >= GAP_PCT && it.unprofiled_pct.is_none_or(|pct| pct >= GAP_PCT);
    let Some(gaps) = gaps(analysis, DECODE).filter(bound) else { return vec![] };
    let (idle, stage) = (gaps.traced_pct, in_sentence(DECODE));
    let without = match (gaps.once_ms > 0.0, gaps.outlier_ms > 0.0) {
        (true, true) => {
            " without its long calls, unrecorded waits and the gaps of its longest steps"
        }
        (true, false) => " without its long calls and unrecorded waits",
        (false, true) => " without the gaps of its longest steps",
        (false, false) => "",
    };
    let gpu = match gaps.busiest {
        Some(gpu) => format!("GPU {gpu}, the busiest,"),
        None => "The GPU".into(),
    };
    let message =
        format!("{gpu} is idle during {idle:.0} % of {stage}{without} in the traced pass.");
    let mut found = Finding::new(catalogue::DECODE_LAUNCH_BOUND, message)
        .with("source", "traced pass")
        .with("idle", format!("{:.1} %", gaps.traced_pct))
        .with("launches of single kernels per repeat", format!("{:.0}", gaps.launches));
    if gaps.profiler_ms > 0.0 {
        found =
            found.with("the profiler's own ms, not counted", format!("{:.3}", gaps.profiler_ms));
    }
    if gaps.once_ms > 0.0 {
        let ms = format!("{:.3}", gaps.once_ms);
        found = found.with("ms of long calls and unrecorded waits, not counted", ms);
    }
    if gaps.outlier_ms > 0.0 {
        let ms = format!("{:.3}", gaps.outlier_ms);
        found = found.with("ms of gaps in outlier steps, not counted", ms);
    }
    if let Some(pct) = gaps.unprofiled_pct {
        found = found.with("idle, unprofiled pass", format!("{pct:.1} %"));
    }
    if replays_graph(analysis) {
        found = found.with("launches of graphs", gaps.graph_launches);
        let replayed = percent(gaps.replayed as f64, gaps.kernels as f64);
        let partly = replayed.filter(|pct| *pct < REPLAYED_PCT && gaps.replayed > 0);
        found = found.advise(match partly {
            Some(pct) => format!(
                "Capture the rest of a decode step: graphs replay {pct:.0} % of the kernels of \
                 {stage}."
            ),
            None => NEXT_REPLAY.to_owned(),
        });
    } else if let Some(advice) = advice_on_long_gaps(analysis, &gaps) {
        found = found.advise(advice);
    }
    vec![found.saves(stage_saving(analysis, DECODE, gaps.ms))]
}

pub(super) fn decode_eager(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(gaps), Some(steps)) = (gaps(analysis, DECODE), analysis.stages.decode_steps) else {
        return vec![];
    };
    let eager = |each: &f64| *each >= EAGER_LAUNCHES && !replays_graph(analysis);
    let Some(each) = ratio(gaps.launches, steps as f64).filter(eager) else { return vec![] };
    let message =
        format!("Each decode step launches {each:.0} kernels one by one in the traced pass.");
    vec![
        Finding::new(catalogue::DECODE_EAGER, message)
            .with("source", "traced pass")
            .with("launches per step", format!("{each:.1}"))
            .with("decode", "eager")
            .saves(stage_saving(analysis, DECODE, gaps.ms)),
    ]
}

fn vision_dominates_prefill(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let note =
        analysis.stages.note("vision").and_then(|note| Some((note.ms.mean, note.share_pct?)));
    let Some((ms, share)) = note.filter(|(_, share)| *share >= VISION_PCT) else { return vec![] };
    let mut found = Finding::new(
        catalogue::VISION_DOMINATES_PREFILL,
        format!("Vision takes {share:.0} % of {PREFILL}."),
    );
    for note in
        analysis.stages.notes.iter().filter(|note| VISION_PARTS.contains(&note.part.as_str()))
    {
        found = found.with(&format!("{} ms", note.part), format!("{:.3}", note.ms.mean));
    }
    vec![found.saves(stage_saving(analysis, PREFILL, ms))]
}

fn load_dominates(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(start), Some(wall)) = (&analysis.start, analysis.stages.wall_ms) else {
        return vec![];
    };
    let load = Nanos(start.load_ns).as_ms();
    match ratio(load, wall.mean).filter(|times| *times >= LOAD_RATIO && load >= LOAD_MS) {
        Some(times) => vec![
            Finding::new(
                catalogue::LOAD_DOMINATES,
                format!("Loading the model takes {times:.0} times as long as one repeat."),
            )
            .with("load ms", format!("{load:.0}"))
            .with("repeat ms", format!("{:.3}", wall.mean)),
        ],
        None => vec![],
    }
}
