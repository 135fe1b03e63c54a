//! Times of stages, their steps and outliers, and their distance from the floor.

use llmprof_analyze::{
    ledger::{FloorOf, Ledger, LedgerCause, LedgerStage},
    stages::{DECODE, PREFILL, StageTiming, step_times::StepTimes},
};
use llmprof_core::{domain::units::Nanos, trace::engine_steps::StepClass};

use super::AnswerRecords;
use crate::format::{decimals, figure, quantity, share};

/// Min share of a stage, percent, of an unrecorded wait that a sentence names.
const NAMED_PCT: f64 = 1.0;
/// Min part of the time of all steps above the median, of outliers without a cause.
const EXCESS_PART: f64 = 0.05;
/// Outliers in one sentence.
const LISTED: usize = 3;

/// Sentences on each stage: in the order of the ledger, then the stages that it lacks.
pub fn sentences(records: &AnswerRecords) -> Vec<String> {
    let mut all = Vec::new();
    for stage in &records.ledger.stages {
        let row = records.stages.iter().find(|row| row.stage == stage.stage);
        let ms = Nanos(stage.measured_ns).as_ms();
        let each = stage.steps.filter(|steps| *steps > 0 && stage.stage == DECODE);
        all.extend(of_stage(records, (&stage.stage, ms, each), row));
        all.extend(floor(stage, each));
    }
    for row in without_ledger(records) {
        let each = records.decode_steps.filter(|steps| *steps > 0 && row.stage == DECODE);
        all.extend(of_stage(records, (&row.stage, row.ms.mean, each), Some(row)));
    }
    all
}

/// The remedy for stages whose floor is unknown, because no timeline of theirs is complete.
pub fn unknown(records: &AnswerRecords) -> Option<String> {
    let stages: Vec<&str> = without_ledger(records).map(|it| it.stage.as_str()).collect();
    let remedy = match records.only_traced {
        true => "read the findings on the capture",
        false => "run it on a host with a GPU, in mode light or deep",
    };
    (!stages.is_empty()).then(|| {
        format!(
            "How fast {} could be is unknown, for there is no complete timeline of a GPU: \
             {remedy}.",
            stages.join(" and ")
        )
    })
}

fn without_ledger<'a>(records: &'a AnswerRecords) -> impl Iterator<Item = &'a StageTiming> {
    let known = |stage: &str| records.ledger.stages.iter().any(|it| it.stage == stage);
    records.stages.iter().filter(move |it| !known(&it.stage))
}

/// A stage in the words of a reader.
fn named(stage: &str) -> &str {
    match stage {
        PREFILL => "Prefill",
        DECODE => "Decode",
        other => other,
    }
}

/// The time of a stage, which has decode steps where their number is given, and its outliers.
fn of_stage(
    records: &AnswerRecords,
    (stage, ms, each): (&str, f64, Option<u64>),
    row: Option<&StageTiming>,
) -> Vec<String> {
    // The sentences on steps have their times.
    let class = match stage {
        PREFILL => Some(StepClass::Prefill),
        DECODE => Some(StepClass::Decode),
        _ => None,
    };
    let has_batches = records.step_batches.iter().any(|it| Some(it.class) == class);
    let steps = records.step_times.iter().find(|it| it.stage == stage);
    let mean_ms = ms / each.unwrap_or(1) as f64;
    let typical = steps.filter(|it| it.typical_ms().is_some());
    let mut all = Vec::new();
    match typical {
        _ if has_batches => {}
        Some(steps) => all.push(median(stage, steps)),
        None => all.push(mean(stage, mean_ms, each, row)),
    }
    let steps = steps.filter(|_| !has_batches);
    let between = each.and(steps).and_then(|it| it.between_pct(mean_ms));
    all.extend(between.map(|pct| between_steps(pct, typical.map(|_| mean_ms))));
    all.extend(steps.and_then(outliers));
    all
}

/// The median of steps that a mean does not stand for.
fn median(stage: &str, steps: &StepTimes) -> String {
    let name = match stage {
        DECODE => "A decode step",
        other => named(other),
    };
    let noun = if stage == DECODE { "step" } else { "instance" };
    format!(
        "{name} takes {} ms: the median of {}, which take {} to {} ms and {} ms on average.",
        figure(steps.p50_ms),
        quantity(u64::from(steps.ms.n), noun),
        figure(steps.ms.min),
        figure(steps.ms.max),
        figure(steps.ms.mean),
    )
}

/// The part of decode between its steps, with the time per step if no other sentence has it.
fn between_steps(pct: f64, per_step_ms: Option<f64>) -> String {
    let per_step = per_step_ms.map(|ms| format!(": decode takes {} ms per step", figure(ms)));
    format!("{} of {DECODE} lies between its steps{}.", share(pct), per_step.unwrap_or_default())
}

fn mean(stage: &str, mean_ms: f64, steps: Option<u64>, row: Option<&StageTiming>) -> String {
    let per = steps.map(|steps| per_step(steps, row)).unwrap_or_default();
    let spread = row.filter(|row| row.ms.n > 1).map(|row| {
        let of = if steps.is_some() { "repeat" } else { "instance" };
        let least = row.ms.min / steps.unwrap_or(1) as f64;
        let most = row.ms.max / steps.unwrap_or(1) as f64;
        let (least, most) = (figure(least), figure(most));
        let range = if least == most { String::new() } else { format!(", {least} to {most} ms") };
        format!(" (mean of {}{range})", quantity(u64::from(row.ms.n), of))
    });
    format!("{} takes {} ms{per}{}.", named(stage), figure(mean_ms), spread.unwrap_or_default())
}

/// The product of a decode step: a token, or one of each of several sequences; without the row of
/// the stage, unknown.
fn per_step(steps: u64, row: Option<&StageTiming>) -> String {
    let made = row.and_then(|row| row.tokens);
    match made.and_then(|made| made.checked_div(steps)) {
        Some(1) => " per token".to_owned(),
        Some(sequences) if sequences > 1 => format!(" per step of {sequences} sequences"),
        _ => " per step".to_owned(),
    }
}

/// Steps that take more than twice the median, and the calls of the host in them.
fn outliers(steps: &StepTimes) -> Option<String> {
    let is_named = steps.longest.iter().any(|it| it.host_call.is_some());
    let all_ms = steps.ms.mean * f64::from(steps.ms.n);
    if steps.outliers == 0 || (!is_named && steps.excess_ms < EXCESS_PART * all_ms) {
        return None;
    }
    let all = match steps.stage.as_str() {
        DECODE => quantity(u64::from(steps.ms.n), "decode step"),
        stage => format!("{} of {stage}", quantity(u64::from(steps.ms.n), "instance")),
    };
    let longest: Vec<String> =
        steps.longest.iter().take(LISTED).map(|it| format!("{} ms", figure(it.ms))).collect();
    let more = steps.outliers.saturating_sub(longest.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let mut calls: Vec<(&str, Vec<String>)> = Vec::new();
    let mut named = 0;
    for it in steps.longest.iter().take(LISTED) {
        let Some((call, ms)) = it.host_call.as_deref().zip(it.host_call_ms) else { continue };
        let ms = format!("{} ms", figure(ms));
        named += 1;
        match calls.iter_mut().find(|known| known.0 == call) {
            Some(known) => known.1.push(ms),
            None => calls.push((call, vec![ms])),
        }
    }
    let cause = match calls.as_slice() {
        [] => " What delayed them is not recorded.".to_owned(),
        calls => {
            let each = calls.iter().map(|(call, ms)| format!("{call} ({})", ms.join(", ")));
            let each: Vec<String> = each.collect();
            format!(
                " In {} the GPU idles while the host is inside one call that launches nothing: \
                 {}.",
                in_which(named, steps.outliers),
                each.join("; ")
            )
        }
    };
    let verb = if steps.outliers == 1 { "takes" } else { "take" };
    Some(format!(
        "{} of {all} {verb} more than twice the median: {}{more}.{cause}",
        steps.outliers,
        longest.join(", "),
    ))
}

/// The outliers whose calls are known.
fn in_which(named: u64, outliers: u64) -> String {
    match (named, outliers) {
        (1, 1) => "it".to_owned(),
        (named, all) if named == all => "them".to_owned(),
        (named, _) => format!("{named} of them"),
    }
}

/// Sentences on waits whose reason lies before the recording, and the time without them.
pub fn unrecorded_waits(ledger: &Ledger) -> Vec<String> {
    let wait = |stage: &LedgerStage| {
        let row =
            ledger.of_stage(&stage.stage).find(|row| row.cause == LedgerCause::UnrecordedWait)?;
        let pct = row.share_pct.filter(|pct| *pct >= NAMED_PCT)?;
        Some(format!(
            "{} of {} is a wait before the first recorded work of a stream: the capture does not \
             record its reason. The rest takes {} ms.",
            share(pct),
            stage.stage,
            figure(Nanos(stage.measured_ns - row.ns).as_ms())
        ))
    };
    ledger.stages.iter().filter_map(wait).collect()
}

/// The floor, if it is of all work of the stage.
fn floor(stage: &LedgerStage, each: Option<u64>) -> Option<String> {
    let (floor, times) = (stage.floor_ns?, stage.times_floor?);
    let floor = figure(Nanos(floor).as_ms() / each.unwrap_or(1) as f64);
    let times = decimals(times, 1);
    let of = if each.is_some() { "A decode step" } else { named(&stage.stage) };
    Some(match stage.floor_of? {
        FloorOf::Model => {
            format!("{of} could take {floor} ms on this GPU: it takes {times} times its floor.")
        }
        FloorOf::Kernels => format!(
            "{of} could take {floor} ms on this GPU with the work that its kernels do: it takes \
             {times} times that floor."
        ),
    })
}
