//! Times of an engine's steps as a comparison has them: the time from one step to the next, which
//! contains the time between steps.

use std::collections::BTreeMap;

use llmprof_analyze::{stats::Spread, step_batches::StepBatch};
use llmprof_core::{domain::units::quantity, trace::engine_steps::StepClass};

use crate::format::count;

/// Least part of the steps of a class in a compared row: rarer batches depend on the arrival of
/// requests.
const LEAST_PART: f64 = 0.05;

/// The compared rows: name and milliseconds.
pub(super) fn rows(batches: &[StepBatch]) -> Vec<(String, Spread)> {
    let mut of_class: BTreeMap<(StepClass, &Option<String>), u64> = BTreeMap::new();
    for it in batches {
        *of_class.entry((it.class, &it.mode)).or_default() += it.steps;
    }
    let is_common =
        |it: &&StepBatch| it.steps as f64 >= LEAST_PART * of_class[&(it.class, &it.mode)] as f64;
    // Unrecorded waits are a part of the times of the window, not of the engine.
    let is_own = |it: &&StepBatch| !it.has_unrecorded_waits;
    batches.iter().filter(is_common).filter(is_own).map(row).collect()
}

fn row(it: &StepBatch) -> (String, Spread) {
    let class = match (it.class, &it.mode) {
        (StepClass::Other, Some(mode)) => format!("{mode:?}"),
        (class, _) => class.to_string(),
    };
    let requests = it.requests.map(|it| format!(" of {}", quantity(it, "request")));
    // Steps of one row have contexts between two powers of two.
    let context = it.context_min.filter(|it| *it > 0).map(|it| {
        let from = 1u64 << it.ilog2();
        format!(", contexts of {} to {} tokens", count(from), count(2 * from - 1))
    });
    let time = if it.periods_ms.is_some() { "from one {} step to the next" } else { "{} step" };
    let name = time.replace("{}", &class);
    let name = name + &requests.unwrap_or_default() + &context.unwrap_or_default();
    (name, it.periods_ms.unwrap_or(it.ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(requests: u64, steps: u64, periods: &[f64]) -> StepBatch {
        StepBatch {
            class: StepClass::Decode,
            mode: None,
            requests: Some(requests),
            padded_min: None,
            padded_max: None,
            context_min: None,
            context_max: None,
            steps,
            processes: 1,
            ms: Spread::of([2.0, 2.2]).unwrap(),
            p50_ms: 2.0,
            period_ms: None,
            periods_ms: Spread::of(periods.iter().copied()),
            busy_pct: None,
            tokens_per_s: None,
            has_unrecorded_waits: false,
        }
    }

    #[test]
    fn steps_are_compared_by_the_time_to_the_next_and_rare_batches_are_not() {
        let waits = StepBatch { has_unrecorded_waits: true, ..batch(3, 50, &[]) };
        let found =
            rows(&[batch(8, 95, &[3.0, 3.2]), batch(4, 2, &[3.0]), batch(1, 9, &[]), waits]);
        let found: Vec<(&str, f64)> = found.iter().map(|it| (it.0.as_str(), it.1.mean)).collect();
        assert_eq!(
            found,
            [
                ("from one decode step to the next of 8 requests", 3.1),
                ("decode step of 1 request", 2.1)
            ]
        );
    }
}
