//! Rules on the parts that take most of the time: stages, operators, and the time between them.

use llmprof_core::{
    domain::{
        digits::multiple,
        finding::{Finding, catalogue},
        units::capitalised,
    },
    trace::Trace,
};

use super::{
    Rule,
    saving::{stage_saving, traced_repeats},
};
use crate::{
    Analysis,
    stages::{DECODE, PREFILL, STAGES, in_sentence},
};

/// One part dominates another from this multiple of its time.
const DOMINANCE: f64 = 1.2;
/// Operators should cover at least this share of a stage, percent.
const LOW_COVERAGE_PCT: f64 = 90.0;
/// A dominant operator takes at least this share of its stage, percent.
const DOMINANT_SHARE_PCT: f64 = 20.0;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::STAGE_DOMINATES, find: stage_dominates },
    Rule { id: catalogue::OPERATOR_DOMINATES, find: operator_dominates },
    Rule { id: catalogue::TIME_BETWEEN_OPERATORS, find: time_between_operators },
];

fn stage_dominates(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let (Some(prefill), Some(decode)) = (analysis.stages.row(PREFILL), analysis.stages.row(DECODE))
    else {
        return vec![];
    };
    let (longer, shorter, advice) = if decode.ms.total() >= prefill.ms.total() {
        (decode, prefill, "Reduce the time per output token first: every decode step takes it.")
    } else {
        let advice = match analysis.stages.note("vision") {
            Some(_) => {
                "Reduce the time to first token first: it depends on vision and on the prompt's \
                 length."
            }
            None => "Reduce the time to first token first: it depends on the prompt's length.",
        };
        (prefill, decode, advice)
    };
    let times = longer.ms.total() / shorter.ms.total();
    if !times.is_finite() || times < DOMINANCE {
        return vec![];
    }
    let unequal = longer.ms.n != shorter.ms.n;
    let of_all = if unequal { " over all measured instances" } else { "" };
    let message = format!(
        "{} takes {} times as long as {}{of_all}.",
        capitalised(in_sentence(&longer.stage)),
        multiple(times),
        in_sentence(&shorter.stage)
    );
    let mut found = Finding::new(catalogue::STAGE_DOMINATES, message).with("stage", &longer.stage);
    for row in [longer, shorter] {
        found = found.with(&format!("{} ms", row.stage), format!("{:.3}", row.ms.mean));
        if unequal {
            found = found.with(&format!("{} instances", row.stage), row.ms.n);
        }
    }
    if let Some(vision) = analysis.stages.note("vision").filter(|_| longer.stage == PREFILL) {
        found = found.with("vision inside prefill ms", format!("{:.3}", vision.ms.mean));
    }
    vec![found.advise(advice)]
}

fn operator_dominates(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let dominant = |stage: &str| {
        let ranked = analysis.operators.ranked(stage);
        let ((first, longest), (second, next)) = (ranked.first()?, ranked.get(1)?);
        let share = longest.share_pct.filter(|share| *share >= DOMINANT_SHARE_PCT)?;
        if longest.ms < DOMINANCE * next.ms {
            return None;
        }
        let time = if longest.on_device { "kernel time" } else { "time" };
        let message = format!(
            "{} takes {share:.0} % of the {time} of {stage}.",
            first.path,
            stage = in_sentence(stage)
        );
        // Host times are of the timed repeats, device times of the traced pass's repeats.
        let timed = f64::from(analysis.stages.repeats.max(1));
        let repeats = if longest.on_device { traced_repeats(analysis, stage) } else { Some(timed) };
        let saving =
            repeats.and_then(|repeats| stage_saving(analysis, stage, longest.ms / repeats));
        Some(
            Finding::new(catalogue::OPERATOR_DOMINATES, message)
                .with("operator", &first.path)
                .with("share of stage", format!("{share:.1} %"))
                .with("calls", first.calls)
                .with("next", format!("{} ({:.1} %)", second.path, next.share_pct.unwrap_or(0.0)))
                .saves(saving),
        )
    };
    STAGES.into_iter().filter_map(dominant).collect()
}

fn time_between_operators(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // On a GPU an operator's host time is the time of its launches, and the rest of a stage is
    // mostly the host waiting for the GPU. Ranges of other programs need not cover their modules:
    // only a runner's records are known to cover every operator.
    let on_cpu = analysis.is_on_cpu();
    if !on_cpu || !analysis.subject.has_runner() {
        return Vec::new();
    }
    let uncovered = |stage: &str| {
        let covered = analysis.operators.work.get(stage)?.covered_pct;
        let covered = covered.filter(|covered| *covered < LOW_COVERAGE_PCT)?;
        let outside_pct = 100.0 - covered;
        let saving = analysis
            .stages
            .row(stage)
            .and_then(|row| stage_saving(analysis, stage, row.ms.mean * outside_pct / 100.0));
        let message = format!(
            "{outside_pct:.0} % of {stage} is outside operators, in host code.",
            stage = in_sentence(stage)
        );
        Some(
            Finding::new(catalogue::TIME_BETWEEN_OPERATORS, message)
                .with("stage", stage)
                .with("inside operators", format!("{covered:.1} %"))
                .saves(saving),
        )
    };
    STAGES.into_iter().filter_map(uncovered).collect()
}
