//! Sentences on the steps of an engine, and on the time outside all stages.

use std::collections::BTreeMap;

use llmprof_analyze::{
    ledger::Ledger,
    step_batches::StepBatch,
    timeline::time_shares::{OUTSIDE_STAGES, StageShare},
};
use llmprof_core::trace::engine_steps::StepClass;

use super::{
    AnswerRecords,
    cited::{Cited, Figure, Row},
    times,
};
use crate::format::{count, pct};

/// Least share of device time outside all stages that is stated, percent.
const STATED_PCT: f64 = 1.0;

/// The steps by class, and the time outside them.
pub fn sentences(records: &AnswerRecords) -> Vec<Cited> {
    let mut all = of_batches(records.step_batches, records.ledger);
    all.extend(records.stage_shares.iter().find_map(outside));
    all
}

fn of_batches(batches: &[StepBatch], ledger: &Ledger) -> Vec<Cited> {
    let mut of_class: BTreeMap<(StepClass, Option<&str>), Vec<&StepBatch>> = BTreeMap::new();
    for it in batches {
        // The word of a known class adds nothing to it.
        let mode = it.mode.as_deref().filter(|_| it.class == StepClass::Other);
        of_class.entry((it.class, mode)).or_default().push(it);
    }
    let of_class = of_class.iter().map(|((class, mode), rows)| {
        let stage = class.stage();
        let waits = stage.is_some_and(|it| times::has_unrecorded_wait(ledger, it));
        of_steps(*class, *mode, rows, waits)
    });
    of_class.collect()
}

fn row_of(it: &StepBatch) -> Row {
    Row::of("step_batches")
        .with("class", it.class)
        .with("mode", &it.mode)
        .with("requests", it.requests)
        .with("context_min", it.context_min)
        .with("context_max", it.context_max)
}

/// Number of steps of a class, their requests, times and tokens.
fn of_steps(class: StepClass, mode: Option<&str>, rows: &[&StepBatch], waits: bool) -> Cited {
    let each = |column: &'static str, of: fn(&StepBatch) -> f64| {
        rows.iter().map(move |it| row_of(it).figure(column, of(it)))
    };
    let steps = Figure::sum(each("steps", |it| it.steps as f64));
    let name = mode.map_or_else(|| class.to_string(), |mode| format!("{mode:?}"));
    let requests: Column = ("requests", |it| it.requests);
    let requests =
        range(rows, requests, requests).map(|(least, most)| match least.value() == most.value() {
            true => Cited::of(" of {}", [least.quantity("request")]),
            false => Cited::of(" of {} to {}", [counted(least), most.quantity("request")]),
        });
    let least: Column = ("context_min", |it| it.context_min);
    let context = range(rows, least, ("context_max", |it| it.context_max));
    let context = context.map(|(least, most)| match least.value() == most.value() {
        true => Cited::of(" with a context of {}", [least.quantity("token")]),
        false => Cited::of(" with contexts of {} to {}", [counted(least), most.quantity("token")]),
    });
    let least = Figure::least(each("ms.min", |it| it.ms.min)).map(Figure::short);
    let most = Figure::most(each("ms.max", |it| it.ms.max)).map(Figure::short);
    let (least, most) = (least.unwrap_or_default(), most.unwrap_or_default());
    let time = match (steps.value() == 1.0, least.as_str() == most.as_str()) {
        (true, _) => Cited::of("{} ms", [most]),
        (_, true) => Cited::of("{} ms each", [most]),
        (_, false) => Cited::of("{} to {} ms each{}", [least, most, typical(rows)]),
    };
    let rate = rate(rows).map(|it| Cited::of(", {} tokens per second", [it.decimals(0)]));
    Cited::of(
        "{}{}{}: {}{}{}.",
        [
            steps.quantity(&format!("{name} step")),
            requests.unwrap_or_default(),
            context.unwrap_or_default(),
            time,
            Cited::words(if waits { times::WITH_WAIT } else { "" }),
            rate.unwrap_or_default(),
        ],
    )
}

fn counted(figure: Figure) -> Cited {
    figure.shown(|it| count(it as u64))
}

/// The median of the row with the most steps: no median stands for steps of different requests.
fn typical(rows: &[&StepBatch]) -> Cited {
    let Some(it) = rows.iter().max_by_key(|it| it.steps).filter(|it| it.steps > 1) else {
        return Cited::default();
    };
    let row = row_of(it);
    let steps = || row.count("steps", it.steps).shown(|it| count(it as u64));
    let of = match (rows.len(), it.requests) {
        (1, _) => Cited::default(),
        (_, Some(requests)) => {
            let requests = row.count("requests", requests).quantity("request");
            Cited::of(" of the {} with {}", [steps(), requests])
        }
        (_, None) => Cited::of(" of {} of them", [steps()]),
    };
    Cited::of(" (median{}: {} ms)", [of, row.figure("p50_ms", it.p50_ms).short()])
}

type Column = (&'static str, fn(&StepBatch) -> Option<u64>);

/// The least of one column and the most of another; `None` where a row has none.
fn range(rows: &[&StepBatch], least: Column, most: Column) -> Option<(Figure, Figure)> {
    let all = |(column, of): Column| -> Option<Vec<Figure>> {
        rows.iter().map(|it| Some(row_of(it).count(column, of(it)?))).collect()
    };
    Figure::least(all(least)?).zip(Figure::most(all(most)?))
}

/// Tokens of all rows over their time, per second.
fn rate(rows: &[&StepBatch]) -> Option<Figure> {
    let time = |it: &StepBatch| {
        let row = row_of(it);
        row.figure("ms.mean", it.ms.mean).times(&row.count("steps", it.steps))
    };
    let made =
        |it: &StepBatch| Some(row_of(it).figure("tokens_per_s", it.tokens_per_s?).times(&time(it)));
    let made: Option<Vec<Figure>> = rows.iter().map(|it| made(it)).collect();
    Figure::sum(made?).over(&Figure::sum(rows.iter().map(|it| time(it))))
}

/// The time outside all stages, where some work ran in it.
fn outside(it: &StageShare) -> Option<Cited> {
    let device = it.device_share_pct.filter(|share| *share >= STATED_PCT)?;
    let row = Row::of("stage_shares").with("stage", &it.stage);
    let device = row.figure("device_share_pct", device).shown(pct);
    let wall = it.wall_share_pct.map(|wall| row.figure("wall_share_pct", wall).shown(pct));
    (it.stage == OUTSIDE_STAGES).then(|| match wall {
        Some(wall) => Cited::of(
            "{} of all device time and {} of all wall time are outside the stages.",
            [device, wall],
        ),
        None => Cited::of("{} of all device time is outside the stages.", [device]),
    })
}

#[cfg(test)]
mod tests {
    use llmprof_analyze::stats::Spread;

    use super::*;

    fn row(requests: Option<u64>, times: &[f64], tokens_per_s: Option<f64>) -> StepBatch {
        StepBatch {
            class: StepClass::Decode,
            mode: None,
            requests,
            padded_min: None,
            padded_max: None,
            context_min: requests.map(|it| 100 * it),
            context_max: requests.map(|it| 100 * it),
            steps: times.len() as u64,
            ms: Spread::of(times.iter().copied()).unwrap(),
            p50_ms: times[0],
            busy_pct: None,
            tokens_per_s,
        }
    }

    #[test]
    fn steps_of_several_batches_are_stated_by_their_ends_and_never_averaged() {
        let rows = [row(Some(4), &[2.0, 2.0], Some(2000.0)), row(Some(8), &[4.0], Some(2000.0))];
        assert_eq!(
            of_batches(&rows, &Ledger::default()),
            ["3 decode steps of 4 to 8 requests with contexts of 400 to 800 tokens: 2.00 to 4.00 \
                 ms each (median of the 2 with 4 requests: 2.00 ms), 2,000 tokens per second."]
        );
        let rows = [row(Some(4), &[2.0], Some(2000.0)), row(None, &[4.0], None)];
        assert_eq!(
            of_batches(&rows, &Ledger::default()),
            ["2 decode steps: 2.00 to 4.00 ms each."]
        );
    }
}
