//! Sentences on the steps of an engine, and on the time outside all stages.

use std::collections::BTreeMap;

use llmprof_analyze::{
    stats::ratio,
    step_batches::StepBatch,
    timeline::time_shares::{OUTSIDE_STAGES, StageShare},
};
use llmprof_core::trace::engine_steps::StepClass;

use crate::format::{count, decimals, figure, pct, quantity};

/// Least share of device time outside all stages that is stated, percent.
const STATED_PCT: f64 = 1.0;

/// The steps by class, and the time outside them.
pub fn sentences(batches: &[StepBatch], shares: &[StageShare]) -> Vec<String> {
    let mut of_class: BTreeMap<(StepClass, Option<&str>), Vec<&StepBatch>> = BTreeMap::new();
    for it in batches {
        // The word of a known class adds nothing to it.
        let mode = it.mode.as_deref().filter(|_| it.class == StepClass::Other);
        of_class.entry((it.class, mode)).or_default().push(it);
    }
    let steps = of_class.iter().map(|((class, mode), rows)| of_steps(*class, *mode, rows));
    steps.chain(shares.iter().find_map(outside)).collect()
}

/// Number of steps of a class, their requests, times and tokens.
fn of_steps(class: StepClass, mode: Option<&str>, rows: &[&StepBatch]) -> String {
    let steps: u64 = rows.iter().map(|it| it.steps).sum();
    let name = mode.map_or_else(|| class.to_string(), |mode| format!("{mode:?}"));
    let requests = range(rows.iter().map(|it| it.requests.zip(it.requests)));
    let of = requests.map(|(least, most)| match least == most {
        true => format!(" of {}", quantity(least, "request")),
        false => format!(" of {least} to {}", quantity(most, "request")),
    });
    let context = range(rows.iter().map(|it| it.context_min.zip(it.context_max)));
    let context = context.map(|(least, most)| match least == most {
        true => format!(" with a context of {}", quantity(least, "token")),
        false => format!(" with contexts of {} to {}", count(least), quantity(most, "token")),
    });
    let least = rows.iter().map(|it| it.ms.min).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|it| it.ms.max).fold(0.0, f64::max);
    let (least, most) = (figure(least), figure(most));
    let time = match (steps, least == most) {
        (1, _) => format!("{most} ms"),
        (_, true) => format!("{most} ms each"),
        (_, false) => format!("{least} to {most} ms each{}", typical(rows)),
    };
    let rate = rate(rows).map(|it| format!(", {} tokens per second", decimals(it, 0)));
    format!(
        "{}{}{}: {time}{}.",
        quantity(steps, &format!("{name} step")),
        of.unwrap_or_default(),
        context.unwrap_or_default(),
        rate.unwrap_or_default(),
    )
}

/// The median of the row with the most steps: no median stands for steps of different requests.
fn typical(rows: &[&StepBatch]) -> String {
    let Some(row) = rows.iter().max_by_key(|it| it.steps).filter(|it| it.steps > 1) else {
        return String::new();
    };
    let of = match (rows.len(), row.requests) {
        (1, _) => String::new(),
        (_, Some(requests)) => {
            format!(" of the {} with {}", count(row.steps), quantity(requests, "request"))
        }
        (_, None) => format!(" of {} of them", count(row.steps)),
    };
    format!(" (median{of}: {} ms)", figure(row.p50_ms))
}

/// Least and most of all rows; `None` where a row has none.
fn range(rows: impl Iterator<Item = Option<(u64, u64)>>) -> Option<(u64, u64)> {
    let rows: Option<Vec<(u64, u64)>> = rows.collect();
    rows?.into_iter().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Tokens of all rows over their time, per second.
fn rate(rows: &[&StepBatch]) -> Option<f64> {
    let time = |it: &StepBatch| it.ms.mean * it.steps as f64;
    let made: Option<f64> = rows.iter().map(|it| Some(it.tokens_per_s? * time(it))).sum();
    ratio(made?, rows.iter().map(|it| time(it)).sum())
}

/// The time outside all stages, where some work ran in it.
fn outside(it: &StageShare) -> Option<String> {
    let device = it.device_share_pct.filter(|share| *share >= STATED_PCT)?;
    (it.stage == OUTSIDE_STAGES).then(|| {
        format!(
            "{} of all device time and {} of all wall time are outside the stages.",
            pct(device),
            pct(it.wall_share_pct.unwrap_or(0.0))
        )
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
            sentences(&rows, &[]),
            ["3 decode steps of 4 to 8 requests with contexts of 400 to 800 tokens: 2.00 to 4.00 \
                 ms each (median of the 2 with 4 requests: 2.00 ms), 2,000 tokens per second."]
        );
        let rows = [row(Some(4), &[2.0], Some(2000.0)), row(None, &[4.0], None)];
        assert_eq!(sentences(&rows, &[]), ["2 decode steps: 2.00 to 4.00 ms each."]);
    }
}
