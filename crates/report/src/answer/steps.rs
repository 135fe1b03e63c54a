//! Sentences on the steps of an engine, and on the time outside all stages.

use std::collections::BTreeMap;

use llmprof_analyze::{
    ledger::{Ledger, LedgerCause, LedgerRow},
    step_batches::{StepBatch, common_batch, of_slowest},
    timeline::{
        step_states::LEFT_OUT,
        time_shares::{OUTSIDE_STAGES, StageShare},
    },
};
use llmprof_core::trace::{engine_steps::StepClass, stage::WARMUP};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    on_findings::{on_ranks, why_unended},
    outliers, shared_gpus, step_floors, times,
};
use crate::{
    format::{count, share as short_share},
    waits::Waits,
};

/// Least share of wall time of the warm-up that is stated, percent.
const STATED_WARMUP_PCT: f64 = 5.0;
/// Least share of GPU time outside all stages that is stated, percent.
const STATED_PCT: f64 = 1.0;

/// Least part of the time outside all stages that is stated to lie before the first or after the
/// last of them.
const PLACED_PART: f64 = 0.5;
/// Min share of a stage, percent, of waits for a rank that is named.
const RANK_WAIT_PCT: f64 = 5.0;
/// Processes of different times in one sentence.
pub const PROCESSES: usize = 3;
/// Least share of wall time outside the steps of an engine that is stated, percent.
const STATED_WALL_PCT: f64 = 5.0;

/// The steps by class, and the time outside them.
pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let mut all = of_batches(records.step_batches, records.ledger);
    all.extend(step_floors::sentence(records.step_batches));
    all.extend(outliers::of_batches(records));
    let is_long_wait = |it: &LedgerRow| {
        it.cause == LedgerCause::CollectiveWait
            && it.share_pct.is_some_and(|pct| pct >= RANK_WAIT_PCT)
    };
    if records.ledger.rows.iter().any(is_long_wait) {
        all.extend(on_ranks(records.findings));
    }
    if records.ledger.rows.iter().any(|it| it.cause == LedgerCause::OtherStages) {
        all.extend(shared_gpus::sentences(records.processes));
    }
    let has_steps = !records.step_batches.is_empty();
    let stages = match why_unended(records.findings) {
        Some(_) => "the stages that the recording has whole",
        None => "the stages",
    };
    all.extend(records.stage_shares.iter().find_map(|it| outside(it, has_steps, stages)));
    all.extend(records.stage_shares.iter().filter_map(warmup));
    all
}

fn of_batches(batches: &[StepBatch], ledger: &Ledger) -> Vec<Cited> {
    let mut of_class: BTreeMap<(StepClass, Option<&str>), Vec<&StepBatch>> = BTreeMap::new();
    for it in batches {
        // The word of a known class adds nothing to it.
        let mode = it.mode.as_deref().filter(|_| it.class == StepClass::Other);
        of_class.entry((it.class, mode)).or_default().push(it);
    }
    let of_class = of_class.iter().flat_map(|((class, _), rows)| {
        let is_named = class.stage().is_some_and(|it| Waits::of(ledger).has(it));
        let waits = match rows.iter().any(|it| it.has_unrecorded_waits) {
            true if is_named => times::WITH_WAIT,
            true => times::WITH_UNNAMED_WAIT,
            false => "",
        };
        let common = common_batch(rows.iter().copied());
        std::iter::once(of_steps(rows, waits)).chain(common.and_then(speculation))
    });
    of_class.collect()
}

/// The phases of decode steps by speculation, or the tokens that a step computes.
fn speculation(it: &StepBatch) -> Option<Cited> {
    if it.class != StepClass::Decode {
        return None;
    }
    let row = row_of(it);
    let drafts = it.drafts.zip(it.draft_ms).map(|(drafts, ms)| {
        [row.figure("drafts", drafts).decimals(1), row.figure("draft_ms", ms).short()]
    });
    let verify = it.verify_ms.map(|ms| row.figure("verify_ms", ms).short());
    match (drafts, verify) {
        (Some([drafts, draft_ms]), Some(verify_ms)) => Some(Cited::of(
            "Decode speculates: on average a step has {} passes of the draft model, which take {} \
             ms on the host, and a verification, which takes {} ms; how many tokens it keeps is \
             not recorded.",
            [drafts, draft_ms, verify_ms],
        )),
        (Some(drafts), None) => Some(Cited::of(
            "Decode speculates: on average a step has {} passes of the draft model, which take {} \
             ms on the host; how many tokens it keeps is not recorded.",
            drafts,
        )),
        (None, verify_ms) => without_drafts(it, &row, verify_ms),
    }
}

/// The same without passes of a draft model: n-grams are proposed by the host, and a draft model
/// may have no ranges.
fn without_drafts(it: &StepBatch, row: &Row, verify_ms: Option<Cited>) -> Option<Cited> {
    let Some(tokens) = it.computed_tokens else {
        return Some(Cited::of(
            "Decode speculates: a step verifies proposed tokens, which takes {} ms on the host; no \
             pass of a draft model is recorded, nor how many tokens a step keeps.",
            [verify_ms?],
        ));
    };
    let tokens = row.figure("computed_tokens", tokens).short();
    let requests =
        it.requests.map(|it| Cited::of(" of {}", [row.count("requests", it).quantity("request")]));
    Some(Cited::of(
        "Decode speculates: a step computes {} tokens{} on average; how many it keeps is not \
         recorded.",
        [tokens, requests.unwrap_or_default()],
    ))
}

pub fn row_of(it: &StepBatch) -> Row {
    Row::of("step_batches")
        .with("class", it.class)
        .with("mode", &it.mode)
        .with("requests", it.requests)
        .with("context_min", it.context_min)
        .with("context_max", it.context_max)
        .with("process", it.process)
}

/// Number of steps of a class, their requests, times and tokens. `waits` are words for waits that
/// are a part of the times.
fn of_steps(rows: &[&StepBatch], waits: &'static str) -> Cited {
    let each = |column: &'static str, of: fn(&StepBatch) -> f64| {
        rows.iter().map(move |it| row_of(it).figure(column, of(it)))
    };
    let steps = Figure::sum(each("steps", |it| it.steps as f64));
    let ranks = processes(rows).filter(|it| it.value() > 1.0);
    let ranks = ranks.map(|it| Cited::of(" in {}", [it.quantity("process")])).unwrap_or_default();
    let name = rows.first().map(|it| it.class_word()).unwrap_or_default();
    let requests: Column = ("requests", |it| it.requests);
    let requests =
        range(rows, requests, requests).map(|(least, most)| match least.value() == most.value() {
            true => Cited::of(" of {}", [least.quantity("request")]),
            false => Cited::of(" of {} to {}", [counted(least), most.quantity("request")]),
        });
    let least: Column = ("context_min", |it| it.context_min);
    let context = range(rows, least, ("context_max", |it| it.context_max)).map(contexts);
    let least = Figure::least(each("ms.min", |it| it.ms.min)).map(Figure::short);
    let most = Figure::most(each("ms.max", |it| it.ms.max)).map(Figure::short);
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    // A mean rate over different requests, or with an outlier, describes no step.
    let common = common_batch(rows.iter().copied());
    let rate = |it: &StepBatch| Some(it).filter(|_| waits.is_empty()).and_then(rate);
    let pace = |it: &StepBatch| {
        Cited::of("{}{}", [period(it).unwrap_or_default(), rate(it).unwrap_or_default()])
    };
    let of_common = common.map(pace).unwrap_or_default();
    let time = match (steps.value() == 1.0, least.as_str() == most.as_str(), common) {
        (true, ..) => Cited::of("{} ms{}", [most, common.and_then(rate).unwrap_or_default()]),
        (_, false, _) if steps.value() == 2.0 => {
            Cited::of("{} and {} ms{}", [least, most, of_common])
        }
        (_, true, _) if common.is_none_or(|it| it.process.is_none()) => {
            Cited::of("{} ms each{}", [most, of_common])
        }
        (_, _, Some(common)) => {
            let (listed, others) = by_process(common, rows);
            let listed = listed.iter().map(|it| Cited::of("{}{}", [typical(it, rows), pace(it)]));
            let listed = Cited::list(listed, "; ");
            let all = match least.as_str() == most.as_str() {
                true => Cited::default(),
                false => Cited::of("; all take {} to {} ms", [least, most]),
            };
            Cited::of("{}{}{}", [listed, others, all])
        }
        (_, _, None) => Cited::of("{} to {} ms each", [least, most]),
    };
    Cited::of(
        "{}{}{}{}: {}{}.",
        [
            steps.quantity(&format!("{name} step")),
            requests.unwrap_or_default(),
            context.unwrap_or_default(),
            ranks,
            time,
            Cited::words(waits),
        ],
    )
}

/// The number of processes with steps.
fn processes(rows: &[&StepBatch]) -> Option<Figure> {
    let most = rows.iter().map(|it| row_of(it).count("processes", it.processes));
    let by_process: BTreeMap<u32, Figure> = rows
        .iter()
        .filter_map(|it| Some((it.process?, row_of(it).count("process", it.process?.into()))))
        .collect();
    Figure::most(most.chain([Figure::number(by_process.into_values())]))
}

/// The rows of processes that differ in the same steps, slowest first, and the number of processes
/// not listed.
fn by_process<'a>(common: &'a StepBatch, rows: &[&'a StepBatch]) -> (Vec<&'a StepBatch>, Cited) {
    let mut all: Vec<&StepBatch> =
        rows.iter().copied().filter(|it| it.is_in_other_process(common)).collect();
    all.sort_by(|a, b| b.pace_ms().total_cmp(&a.pace_ms()));
    all.insert(0, common);
    let others = all.split_off(all.len().min(PROCESSES));
    let others = (!others.is_empty()).then(|| {
        let each = others.iter().map(|it| row_of(it).figure("p50_ms", it.p50_ms));
        Cited::of("; faster: {}", [Figure::number(each).quantity("other process")])
    });
    (all, others.unwrap_or_default())
}

/// The least and the most context.
fn contexts((least, most): (Figure, Figure)) -> Cited {
    match least.value() == most.value() {
        true => Cited::of(" with a mean context of {}", [least.quantity("token")]),
        false => {
            Cited::of(" with mean contexts of {} to {}", [counted(least), most.quantity("token")])
        }
    }
}

fn counted(figure: Figure) -> Cited {
    figure.shown(|it| count(it as u64))
}

/// The median of the most common steps: none stands for steps of different requests or contexts.
fn typical(it: &StepBatch, rows: &[&StepBatch]) -> Cited {
    let row = row_of(it);
    let differ = |of: fn(&StepBatch) -> Option<u64>| rows.iter().any(|row| of(row) != of(it));
    let requests = it.requests.filter(|_| differ(|it| it.requests)).map(|requests| {
        Cited::of(" with {}", [row.count("requests", requests).quantity("request")])
    });
    let batches = of_slowest(rows.iter().copied());
    let is_alone = batches.iter().filter(|row| row.requests == it.requests).count() == 1;
    let context = it.context_min.zip(it.context_max).filter(|_| !is_alone);
    let context = context.map(|(least, most)| {
        contexts((row.count("context_min", least), row.count("context_max", most)))
    });
    Cited::of(
        "{} ms{}{}{} ({} of {})",
        [
            row.figure("p50_ms", it.p50_ms).short(),
            it.process_name().map_or_else(Cited::default, |it| Cited::name(format!(" in {it}"))),
            requests.unwrap_or_default(),
            context.unwrap_or_default(),
            Cited::words(it.median_word()),
            row.count("steps", it.steps).quantity("step"),
        ],
    )
}

fn period(it: &StepBatch) -> Option<Cited> {
    let ms = row_of(it).figure("period_ms", it.apart_period_ms()?);
    Some(Cited::of(", one every {} ms", [ms.short()]))
}

type Column = (&'static str, fn(&StepBatch) -> Option<u64>);

/// The least of one column and the most of another; `None` if a row has none.
fn range(rows: &[&StepBatch], least: Column, most: Column) -> Option<(Figure, Figure)> {
    let all = |(column, of): Column| -> Option<Vec<Figure>> {
        rows.iter().map(|it| Some(row_of(it).count(column, of(it)?))).collect()
    };
    Figure::least(all(least)?).zip(Figure::most(all(most)?))
}

fn rate(it: &StepBatch) -> Option<Cited> {
    let rate = row_of(it).figure("tokens_per_s", it.typical_tokens_per_s()?).short();
    Some(Cited::of(", {} tokens per second{}", [rate, Cited::words(it.rate_scope())]))
}

/// The time of the warm-up or of steps that are left out, if it is a part that matters.
fn warmup(it: &StageShare) -> Option<Cited> {
    let text = match it.stage.as_str() {
        WARMUP => "{} of all wall time is warm-up, which counts in no stage.",
        LEFT_OUT => "{} of all wall time is of steps that are left out of all stages.",
        _ => return None,
    };
    let share = it.wall_share_pct.filter(|pct| *pct >= STATED_WARMUP_PCT)?;
    let share = Row::of("stage_shares").with("stage", &it.stage).figure("wall_share_pct", share);
    Some(Cited::of(text, [share.shown(short_share)]))
}

/// The time outside all `stages`, if some work ran in it, or much of it lies between the steps of
/// an engine.
fn outside(it: &StageShare, has_steps: bool, stages: &'static str) -> Option<Cited> {
    let is_much = |pct: f64| has_steps && pct >= STATED_WALL_PCT;
    let is_stated = it.device_share_pct.is_some_and(|pct| pct >= STATED_PCT)
        || it.wall_share_pct.is_some_and(is_much);
    if it.stage != OUTSIDE_STAGES || !is_stated {
        return None;
    }
    let (row, stages) = (Row::of("stage_shares").with("stage", &it.stage), Cited::words(stages));
    let share = |column, pct: Option<f64>| Some(row.figure(column, pct?).shown(short_share));
    let device = share("device_share_pct", it.device_share_pct.filter(|pct| *pct > 0.0));
    let place = |(ms, column, place): (Option<f64>, &'static str, &'static str)| {
        let ms = ms.filter(|ms| *ms > PLACED_PART * it.wall_ms)?;
        let text = ", {} ms of wall time {}";
        Some(Cited::of(text, [row.figure(column, ms).short(), Cited::words(place)]))
    };
    let place = place((it.before_ms, "before_ms", "before the first one"))
        .or_else(|| place((it.after_ms, "after_ms", "after the last one")))
        .unwrap_or_default();
    match (share("wall_share_pct", it.wall_share_pct), device) {
        (Some(wall), Some(device)) => Some(Cited::of(
            "{} of all wall time and {} of all GPU time are outside {}{}.",
            [wall, device, stages, place],
        )),
        (Some(wall), None) => {
            Some(Cited::of("{} of all wall time is outside {}{}.", [wall, stages, place]))
        }
        (None, device) => Some(Cited::of("{} of all GPU time is outside {}.", [device?, stages])),
    }
}

#[cfg(test)]
mod tests;
