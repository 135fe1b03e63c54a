//! Sentences on the steps of an engine, and on the time outside all stages.

use std::collections::BTreeMap;

use llmprof_analyze::{
    ledger::Ledger,
    step_batches::{StepBatch, common_batch},
    timeline::{
        step_states::LEFT_OUT,
        time_shares::{OUTSIDE_STAGES, StageShare},
    },
};
use llmprof_core::trace::{engine_steps::StepClass, stage::WARMUP};

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    on_findings::why_unended,
    outliers, step_floors, times,
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
/// Least share of wall time outside the steps of an engine that is stated, percent.
const STATED_WALL_PCT: f64 = 5.0;

/// The steps by class, and the time outside them.
pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let mut all = of_batches(records.step_batches, records.ledger);
    all.extend(step_floors::sentence(records.step_batches));
    all.extend(outliers::of_batches(records));
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

/// The phases of decode steps by speculation.
fn speculation(it: &StepBatch) -> Option<Cited> {
    if it.class != StepClass::Decode {
        return None;
    }
    let row = row_of(it);
    let [drafts, draft_ms, verify_ms] = [
        row.figure("drafts", it.drafts?).decimals(1),
        row.figure("draft_ms", it.draft_ms?).short(),
        row.figure("verify_ms", it.verify_ms?).short(),
    ];
    Some(Cited::of(
        "Decode speculates: on average a step has {} passes of the draft model, which take {} ms \
         on the host, and a verification, which takes {} ms; how many tokens it keeps is not \
         recorded.",
        [drafts, draft_ms, verify_ms],
    ))
}

pub fn row_of(it: &StepBatch) -> Row {
    Row::of("step_batches")
        .with("class", it.class)
        .with("mode", &it.mode)
        .with("requests", it.requests)
        .with("context_min", it.context_min)
        .with("context_max", it.context_max)
}

/// Number of steps of a class, their requests, times and tokens. `waits` are words for waits that
/// are a part of the times.
fn of_steps(rows: &[&StepBatch], waits: &'static str) -> Cited {
    let each = |column: &'static str, of: fn(&StepBatch) -> f64| {
        rows.iter().map(move |it| row_of(it).figure(column, of(it)))
    };
    let steps = Figure::sum(each("steps", |it| it.steps as f64));
    let processes = Figure::most(each("processes", |it| it.processes as f64));
    let ranks = processes.filter(|it| it.value() > 1.0);
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
    let rate = common.filter(|_| waits.is_empty()).and_then(rate).unwrap_or_default();
    let period = common.and_then(period).unwrap_or_default();
    let time = match (steps.value() == 1.0, least.as_str() == most.as_str(), common) {
        (true, ..) => Cited::of("{} ms{}", [most, rate]),
        (_, false, _) if steps.value() == 2.0 => {
            Cited::of("{} and {} ms{}{}", [least, most, period, rate])
        }
        (_, true, _) => Cited::of("{} ms each{}{}", [most, period, rate]),
        (_, _, Some(common)) => {
            let typical = typical(common, rows);
            Cited::of("{}{}{}; all take {} to {} ms", [typical, period, rate, least, most])
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
    let is_alone = rows.iter().filter(|row| row.requests == it.requests).count() == 1;
    let context = it.context_min.zip(it.context_max).filter(|_| !is_alone);
    let context = context.map(|(least, most)| {
        contexts((row.count("context_min", least), row.count("context_max", most)))
    });
    Cited::of(
        "{} ms{}{} (median of {})",
        [
            row.figure("p50_ms", it.p50_ms).short(),
            requests.unwrap_or_default(),
            context.unwrap_or_default(),
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
    let rate = row_of(it).figure("tokens_per_s", it.typical_tokens_per_s()?).decimals(0);
    Some(match it.period_ms {
        Some(_) => Cited::of(", {} tokens per second", [rate]),
        // The time to the next step is unknown.
        None => Cited::of(", {} tokens per second within a step", [rate]),
    })
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
mod tests {
    use llmprof_analyze::stats::Spread;

    use super::*;
    use crate::headline::times::tests::batch;

    fn row(requests: Option<u64>, times: &[f64], tokens_per_s: Option<f64>) -> StepBatch {
        StepBatch {
            requests,
            context_min: requests.map(|it| 100 * it),
            context_max: requests.map(|it| 100 * it),
            steps: times.len() as u64,
            ms: Spread::of(times.iter().copied()).unwrap(),
            p50_ms: times[0],
            period_ms: None,
            tokens_per_s,
            ..batch(StepClass::Decode, 0)
        }
    }

    #[test]
    fn steps_of_several_batches_are_stated_by_the_common_batch_and_never_averaged() {
        let rows = [row(Some(4), &[2.0, 2.0, 2.0], Some(2000.0)), row(Some(8), &[4.0], None)];
        assert_eq!(
            of_batches(&rows, &Ledger::default()),
            ["4 decode steps of 4 to 8 requests with mean contexts of 400 to 800 tokens: 2.00 ms \
                 with 4 requests (median of 3 steps), 2,000 tokens per second within a step; \
                 all take 2.00 to 4.00 ms."]
        );
        let rows = [row(Some(4), &[2.0], Some(2000.0)), row(None, &[4.0], None)];
        let text = of_batches(&rows, &Ledger::default());
        assert_eq!(text, ["2 decode steps: 2.00 and 4.00 ms."]);
    }

    #[test]
    fn two_steps_have_no_median_and_the_time_to_the_next_step_is_stated_where_it_is_longer() {
        let mut rows = [row(Some(1), &[3.5, 40.5], None)];
        let text = of_batches(&rows, &Ledger::default());
        let steps = "2 decode steps of 1 request with a mean context of 100 tokens";
        assert_eq!(text, [format!("{steps}: 3.50 and 40.5 ms.")]);
        rows[0] = StepBatch { period_ms: Some(4.0), ..row(Some(1), &[3.0, 3.0, 3.1], Some(250.0)) };
        let text = of_batches(&rows, &Ledger::default());
        let steps = "3 decode steps of 1 request with a mean context of 100 tokens";
        assert_eq!(
            text,
            [format!(
                "{steps}: 3.00 ms (median of 3 steps), one every 4.00 ms, 250 tokens per second; \
                  all take 3.00 to 3.10 ms."
            )]
        );
        rows[0].period_ms = Some(3.1);
        assert!(!of_batches(&rows, &Ledger::default())[0].as_str().contains("one every"));
    }

    #[test]
    fn a_median_of_one_context_names_it() {
        let rows = [
            row(Some(1), &[2.0, 2.0, 2.0], None),
            StepBatch {
                context_min: Some(800),
                context_max: Some(900),
                ..row(Some(1), &[4.0], None)
            },
        ];
        let text = of_batches(&rows, &Ledger::default());
        assert_eq!(
            text,
            ["4 decode steps of 1 request with mean contexts of 100 to 900 tokens: 2.00 ms with \
              a mean context of 100 tokens (median of 3 steps); all take 2.00 to 4.00 ms."]
        );
    }

    #[test]
    fn time_outside_the_stages_of_an_engine_is_stated_without_work_of_a_gpu_and_has_its_place() {
        let share = |device: f64, before_ms: f64| StageShare {
            stage: OUTSIDE_STAGES.into(),
            instances: None,
            wall_ms: 67.0,
            wall_share_pct: Some(67.0),
            device_ms: Some(device),
            device_share_pct: Some(device),
            before_ms: Some(before_ms),
            after_ms: Some(0.0),
        };
        let text =
            |it: &StageShare, has_steps| Some(outside(it, has_steps, "the stages")?.to_string());
        assert_eq!(
            text(&share(0.0, 1.0), true).as_deref(),
            Some("67 % of all wall time is outside the stages.")
        );
        assert_eq!(text(&share(0.0, 1.0), false), None);
        let named = "67 % of all wall time and 20 % of all GPU time are outside the stages, \
                     60.0 ms of wall time before the first one.";
        assert_eq!(text(&share(20.0, 60.0), false).as_deref(), Some(named));
    }

    #[test]
    fn steps_that_each_rank_has_are_stated_with_the_number_of_processes() {
        let rows = [StepBatch { processes: 2, ..row(None, &[2.0, 2.0], None) }];
        assert_eq!(
            of_batches(&rows, &Ledger::default()),
            ["2 decode steps in 2 processes: 2.00 ms each."]
        );
    }

    #[test]
    fn a_rate_with_an_outlier_is_not_stated() {
        let rows = [row(Some(1), &[2.0, 2.0, 900.0], Some(3.3))];
        assert_eq!(
            of_batches(&rows, &Ledger::default()),
            ["3 decode steps of 1 request with a mean context of 100 tokens: 2.00 ms (median of \
              3 steps); all take 2.00 to 900 ms."]
        );
    }
}
