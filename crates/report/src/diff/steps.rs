//! Times of an engine's steps as a comparison has them: the time from one step to the next, which
//! contains the time between steps.

use std::collections::BTreeMap;

use llmprof_analyze::{
    compare::Measured,
    stats::Spread,
    step_batches::{StepBatch, of_slowest},
};
use llmprof_core::{domain::units::quantity, trace::engine_steps::StepClass};

use crate::{format::count, headline::sample_spread, profile::LLMProfileReport};

/// Least part of the steps of a class in a compared row: rarer batches depend on the arrival of
/// requests.
const LEAST_PART: f64 = 0.05;

/// The measure of a stage's times. An engine or a server under load runs a stage for each of its
/// requests: these are instances of one run, not repeats. Stages of an unprofiled pass have
/// repeats, even if the capture has steps.
pub(super) fn measure_of_stages(
    report: &LLMProfileReport,
) -> impl Fn(&str, &Spread) -> Measured + '_ {
    let has_steps = report.only_traced && !report.step_batches.is_empty();
    let are_repeats = report.request_latency.is_empty() && !has_steps;
    move |stage, ms| match are_repeats {
        true => Measured::over_samples(ms, sample_spread(report, stage)),
        false => Measured::over_instances(ms),
    }
}

/// The time of a whole repeat: of its stages, or the wall time of a command without stages. A load
/// has a schedule of its own, which its wall time contains.
pub(super) fn whole_repeat(report: &LLMProfileReport) -> Option<Spread> {
    let is_whole = report.stages.is_empty() && report.request_latency.is_empty();
    let command = report.aggregates.command.as_ref().filter(|_| is_whole);
    report.aggregates.wall_ms.or_else(|| command?.plain_ms)
}

/// The compared rows: name and milliseconds. If processes differ, the slowest is compared: process
/// numbers change from run to run.
pub(super) fn rows(batches: &[StepBatch]) -> Vec<(String, Spread)> {
    let batches = of_slowest(batches);
    let mut of_class: BTreeMap<(StepClass, &Option<String>), u64> = BTreeMap::new();
    for it in &batches {
        *of_class.entry((it.class, &it.mode)).or_default() += it.steps;
    }
    let is_common =
        |it: &&StepBatch| it.steps as f64 >= LEAST_PART * of_class[&(it.class, &it.mode)] as f64;
    batches.into_iter().filter(is_common).map(row).collect()
}

fn row(it: &StepBatch) -> (String, Spread) {
    let class = it.class_word();
    // The word of a known class distinguishes its modes, unless it repeats the class.
    let mode = it.mode.as_deref().filter(|mode| {
        it.class != StepClass::Other && !mode.eq_ignore_ascii_case(it.class.as_str())
    });
    let class = mode.map_or(class.clone(), |mode| format!("{class} ({mode})"));
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
    use crate::headline::times::tests::batch;

    fn decode(requests: u64, steps: u64, periods: &[f64]) -> StepBatch {
        let periods_ms = Spread::of(periods.iter().copied());
        StepBatch { steps, periods_ms, ..batch(StepClass::Decode, requests) }
    }

    /// Names and means.
    fn found(batches: &[StepBatch]) -> Vec<(String, f64)> {
        rows(batches).into_iter().map(|(name, ms)| (name, ms.mean)).collect()
    }

    #[test]
    fn steps_are_compared_by_the_time_to_the_next_and_rare_batches_are_not() {
        let all = [decode(8, 95, &[3.0, 3.2]), decode(4, 2, &[3.0]), decode(1, 9, &[])];
        assert_eq!(
            found(&all),
            [
                ("from one decode step to the next of 8 requests".to_owned(), 3.1),
                ("decode step of 1 request".to_owned(), 2.0)
            ]
        );
    }

    #[test]
    fn the_slowest_of_processes_that_differ_is_compared() {
        let of = |process: u32, period: f64| StepBatch {
            process: Some(process),
            period_ms: Some(period),
            ..decode(8, 9, &[period])
        };
        let all = [of(3, 3.0), of(4, 5.0), of(5, 4.0)];
        assert_eq!(
            found(&all),
            [("from one decode step to the next of 8 requests".to_owned(), 5.0)]
        );
    }

    #[test]
    fn modes_of_one_class_are_rows_of_their_own_and_unrecorded_waits_stay() {
        let of = |class, mode: Option<&str>| StepBatch {
            mode: mode.map(str::to_owned),
            requests: None,
            has_unrecorded_waits: true,
            ..batch(class, 1)
        };
        let all = [
            of(StepClass::Decode, Some("DECODE")),
            of(StepClass::Prefill, Some("EXTEND")),
            of(StepClass::Other, Some("SPLIT")),
            of(StepClass::Other, None),
        ];
        let names: Vec<String> = found(&all).into_iter().map(|it| it.0).collect();
        let expected =
            ["decode step", "prefill (EXTEND) step", "\"SPLIT\" step", "unclassified step"];
        assert_eq!(names, expected);
    }
}
