//! Rules on repeats: too few, too noisy, or not warm.

use llmprof_core::{
    domain::{
        digits::multiple,
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::Trace,
};

use super::Rule;
use crate::{
    Analysis,
    events::Events,
    ledger::varying,
    stages::{self, DECODE, PREFILL, STAGES, in_sentence},
    stats::{Spread, ratio},
};

/// Fewer measured repeats than this are few.
const ENOUGH_REPEATS: u32 = 3;
/// A mean over repeats is noisy above this coefficient of variation, percent.
const NOISY_CV_PCT: f64 = 10.0;
/// The remedy of a variance that few steps make.
const OF_FEW_STEPS: &str = "Find what differs in the longest steps (table step_times). If they \
                            prepare code or allocate, do that before the recording.";
/// A first repeat was not warm from this multiple of the slowest of the others.
const COLD_RATIO: f64 = 1.2;

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::FEW_REPEATS, find: few_repeats },
    Rule { id: catalogue::FIRST_SAMPLE_ONLY, find: first_sample_only },
    Rule { id: catalogue::HIGH_VARIANCE, find: high_variance },
    Rule { id: catalogue::WARMUP_SHORT, find: warmup_short },
    Rule {
        id: catalogue::COLD_FIRST_INSTANCE,
        find: |analysis, _| stages::cold::findings(&analysis.cold),
    },
];

fn first_sample_only(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let samples = analysis.samples.rows.len();
    let steady =
        analysis.power.iter().flat_map(|it| &it.stages).any(|it| it.back_to_back.is_some());
    let figures = [
        ("the counters of ncu", !analysis.counters.is_empty()),
        ("the GEMM log", !analysis.gemms.records.is_empty()),
        ("the power of executions back to back", steady),
    ];
    let figures: Vec<&str> =
        figures.into_iter().filter_map(|(name, exists)| exists.then_some(name)).collect();
    if samples < 2 || figures.is_empty() {
        return vec![];
    }
    let message = format!("Of sample 0 only, of {samples} samples: {}.", figures.join(", "));
    vec![Finding::new(catalogue::FIRST_SAMPLE_ONLY, message)]
}

fn few_repeats(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let command = analysis.command.as_ref().and_then(|command| command.plain_ms);
    let samples = analysis.samples.rows.len().max(1) as u32;
    let repeats = command.map_or(analysis.stages.repeats / samples, |it| it.n);
    if repeats == 0 || repeats >= ENOUGH_REPEATS {
        return vec![];
    }
    let message = match repeats {
        1 => "Only 1 repeat was measured: the variation between repeats is unknown.".to_owned(),
        _ => format!("Only {repeats} repeats were measured: their deviation is a rough estimate."),
    };
    vec![
        Finding::new(catalogue::FEW_REPEATS, message)
            .with("repeats", repeats)
            .advise(analysis.more_repeats()),
    ]
}

fn high_variance(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let advice = match analysis.subject.runs_here() {
        true => "Raise warmup and repeats, and keep other work off the device.",
        false => "Record more instances after a warm-up, and keep other work off the device.",
    };
    let noisy = |(stage, ms): (String, Spread)| {
        let cv = ms.cv_pct().filter(|cv| *cv > NOISY_CV_PCT)?;
        // The steps of a repeat have a spread of their own.
        let is_of = |of: &Spread| of.n == ms.n && (of.mean - ms.mean).abs() <= 1e-6 * ms.mean;
        let steps = analysis.step_times.iter().find(|it| it.stage == stage && is_of(&it.ms));
        let few = steps.and_then(varying);
        let without = few.as_ref().map(|(few, rest)| format!(", and {rest:.0} % without {few}"));
        let message = format!(
            "Between repeats, {} varies: its standard deviation is {cv:.0} % of its mean{}.",
            in_sentence(&stage),
            without.unwrap_or_default()
        );
        let advice = if few.is_some() { OF_FEW_STEPS } else { advice };
        Some(
            Finding::new(catalogue::HIGH_VARIANCE, message)
                .with("stage", stage)
                .with("mean ms", format!("{:.3}", ms.mean))
                .with("min ms", format!("{:.3}", ms.min))
                .with("max ms", format!("{:.3}", ms.max))
                .advise(advice),
        )
    };
    let command = analysis
        .command
        .as_ref()
        .and_then(|it| Some((it.of.as_str().to_owned(), it.plain_ms?)))
        .into_iter();
    // The spread over several samples is not one over repeats.
    if !analysis.samples.rows.is_empty() {
        let samples = analysis.samples.rows.iter();
        return samples
            .flat_map(|row| {
                let of = |stage: &str, ms: Option<Spread>| {
                    Some((format!("{stage} of sample {}", row.sample), ms?))
                };
                [of(PREFILL, row.prefill_ms), of(DECODE, row.decode_ms)]
            })
            .flatten()
            .filter_map(noisy)
            .collect();
    }
    let stages = analysis.stages.rows.iter().map(|row| (row.stage.clone(), row.ms));
    command.chain(stages).filter_map(noisy).collect()
}

fn warmup_short(_: &Analysis, trace: &Trace) -> Vec<Finding> {
    let baseline = Events::of(&trace.baseline);
    if !baseline.samples.is_empty() {
        return vec![]; // the first sample differs from the others
    }
    let cold = |stage: &&str| {
        let mut times: Vec<(u32, f64)> = baseline
            .measured(stage)
            .map(|it| (it.repeat, Nanos(it.end_ns - it.start_ns).as_ms()))
            .collect();
        times.sort_by_key(|(repeat, _)| *repeat);
        let (first, others) = times.split_first().filter(|(_, others)| others.len() >= 2)?;
        let others = Spread::of(others.iter().map(|(_, ms)| *ms))?;
        let times = ratio(first.1, others.max).filter(|times| *times >= COLD_RATIO)?;
        let message = format!(
            "The first repeat of {stage} took {times} times as long as the slowest of the others.",
            stage = in_sentence(stage),
            times = multiple(times)
        );
        // A longer warm-up changes what is measured, and saves nothing.
        Some(
            Finding::new(catalogue::WARMUP_SHORT, message)
                .with("first ms", format!("{:.3}", first.1))
                .with("slowest other ms", format!("{:.3}", others.max))
                .with("stage", stage),
        )
    };
    STAGES.iter().filter_map(cold).collect()
}
