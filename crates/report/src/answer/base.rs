//! The mean time of a stage, to which shares of causes and savings refer. It is named if the page
//! states another time.

use llmprof_analyze::{
    ledger::{Ledger, LedgerCause, LedgerRow, LedgerStage},
    stages::{DECODE, NO_STAGE, in_sentence},
};
use llmprof_core::domain::units::Nanos;

use super::{
    AnswerRecords,
    cited::{Cited, Figure},
    stage_time::is_mean_stated,
    times::{named_wait, row_of},
};
use crate::format::figure;

/// The mean time of a stage.
pub struct Base {
    /// Without an unrecorded wait that a sentence names.
    pub whole: Figure,
    name: Cited,
    /// Decode steps of the stage, if their number is known.
    steps: Option<Figure>,
    /// The unit of a mean, after milliseconds.
    unit: &'static str,
    /// The same of the whole: it may contain the time between steps, unlike the time of a step.
    unit_of_whole: &'static str,
    /// Several steps, instances or GPUs have this mean.
    is_mean: bool,
    /// The page states it as the time of the stage.
    is_stated: bool,
    /// The mean of the windows of several GPUs, in a recording as a whole.
    is_of_gpus: bool,
}

impl Base {
    pub fn of(records: &AnswerRecords, stage: &LedgerStage) -> Self {
        let cells = row_of(stage);
        let measured = cells.ns("measured_ns", stage.measured_ns);
        let steps = stage.steps.filter(|it| *it > 0 && stage.stage == DECODE);
        let steps = steps.map(|it| cells.count("steps", it));
        // A recording as a whole is one window of each GPU.
        let devices = records.device_totals.map(|it| it.devices);
        let is_of_gpus = stage.stage == NO_STAGE && devices.is_some_and(|it| it > 1);
        let unit = match &steps {
            Some(_) => " per step",
            None if is_of_gpus => " per GPU",
            None => "",
        };
        let is_several = stage.instances.is_some_and(|it| it > 1);
        let is_mean = is_of_gpus || is_several || stage.steps.is_some_and(|it| it > 1);
        let is_stated =
            !is_of_gpus && is_mean_stated(records, &stage.stage, &per(&measured, steps.as_ref()));
        let unit_of_whole = match has_between(records, &stage.stage, &measured, steps.as_ref()) {
            true => " per step with the time after it,",
            false => unit,
        };
        let name = Cited::name(in_sentence(&stage.stage));
        let (whole, name) = match named_wait(records.ledger, &stage.stage) {
            Some(wait) => {
                (measured.minus(&wait), Cited::of("{} without its unrecorded wait", [name]))
            }
            None => (measured, name),
        };
        Self { whole, name, steps, unit, unit_of_whole, is_mean, is_stated, is_of_gpus }
    }

    /// The stage, as the end of a share.
    pub fn name(&self) -> Cited {
        if self.is_stated {
            return self.name.clone();
        }
        let unit = Cited::words(self.unit_of_whole);
        let window = match self.is_of_gpus {
            true => ", from its first recorded work to its last",
            false => "",
        };
        Cited::of(
            "{} ({} ms{} on average{})",
            [self.name.clone(), self.each(&self.whole), unit, Cited::words(window)],
        )
    }

    /// A part of the stage's time with its unit.
    pub fn part(&self, ns: i64) -> String {
        let ms = Nanos(ns).as_ms() / self.steps.as_ref().map_or(1.0, Figure::value);
        let average = if self.is_mean { " on average" } else { "" };
        format!("{} ms{}{average}", figure(ms), self.unit)
    }

    /// The upper bound of a saving of a cause, as the end of a sentence.
    pub fn saves(&self, ledger: &Ledger, saving: &Figure, row: &LedgerRow) -> Cited {
        let name = match self.steps {
            Some(_) if !self.is_stated && self.unit_of_whole != self.unit => {
                Cited::words("a decode step with the time after it")
            }
            Some(_) => Cited::words("a decode step"),
            None => self.name.clone(),
        };
        let average = Cited::words(if self.is_stated { "" } else { ", on average" });
        let rank = match (row.cause, row.saving_rank) {
            // Waiting ranks save the time that the last one does.
            (LedgerCause::CollectiveWait, _) => {
                Cited::words("; removing the causes on the last rank saves the same time")
            }
            (_, Some(rank)) => Cited::name(format!(", on rank {rank}, for which others wait")),
            // The share of the cause is of a mean over the GPUs.
            (_, None) if ledger.is_of_busiest(row) => Cited::words(", on the busiest GPU"),
            (_, None) => Cited::default(),
        };
        let parts = [self.each(saving), self.each(&self.whole), name, average, rank];
        Cited::of("saves at most {} of {} ms of {}{}{}.", parts)
    }

    /// A time in the unit of the page.
    fn each(&self, time: &Figure) -> Cited {
        per(time, self.steps.as_ref()).short()
    }
}

/// True if the time between the steps is a part of the time of their stage.
pub fn has_between(
    records: &AnswerRecords,
    stage: &str,
    measured: &Figure,
    steps: Option<&Figure>,
) -> bool {
    let Some(number) = steps.map(Figure::value) else { return false };
    let each = per(measured, steps).value();
    let row = records.stages.iter().find(|it| it.stage == stage);
    let mut times = records.step_times.iter().filter(|it| it.stage == stage && it.are_steps());
    times.any(|it| it.steps_beyond(row, Some(number)).abs() < 0.5 && it.between_pct(each).is_some())
}

/// A time per step, if the number of steps is known.
pub fn per(time: &Figure, steps: Option<&Figure>) -> Figure {
    steps.and_then(|steps| time.over(steps)).unwrap_or_else(|| time.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::{Answer, stored_answer, unfounded};
    use crate::format::figure;

    /// Mean milliseconds of a step, of ten of this length.
    fn mean_ms(step_us: u32) -> f64 {
        f64::from(step_us) * 1e4 * 1e-6 / 10.0
    }

    /// A page on a decode of ten steps of this mean and median.
    fn page(step_us: u32, p50_ms: f64, by_batches: bool) -> Answer {
        let mean_ns = 10_000 * u64::from(step_us);
        let ms = json!({"mean": mean_ms(step_us), "std": null, "min": 0.001, "max": 1e4, "n": 10});
        let batches = by_batches.then(|| {
            json!({
                "class": "decode", "mode": null, "requests": null, "padded_min": null,
                "padded_max": null, "context_min": null, "context_max": null, "steps": 10,
                "ms": ms, "p50_ms": p50_ms, "period_ms": null, "busy_pct": null,
                "tokens_per_s": null
            })
        });
        let row = |cause: &str| {
            json!({
                "stage": "decode_all", "cause": cause, "ns": mean_ns * 2 / 5, "share_pct": 40.0,
                "members": 1, "pass": "nsys", "counter": "", "samples": 1,
                "max_saving_ns": mean_ns * 2 / 5
            })
        };
        let report = json!({
            "only_traced": true,
            "ledger_stages": [{
                "stage": "decode_all", "measured_ns": mean_ns, "steps": 10, "floor_of": "model",
                "floor_ns": mean_ns / 2, "times_floor": 2.0, "capped_operators": 0,
                "capped_ns": 0, "overlap_ns": 0, "missing": []
            }],
            "ledger": [row("gap_host"), row("gap_launch")], "ledger_members": [],
            "step_batches": batches.into_iter().collect::<Vec<_>>(),
            "step_times": [{
                "stage": "decode_all", "p50_ms": p50_ms, "outliers": 0, "excess_ms": 0.0,
                "ms": ms, "longest": []
            }]
        });
        let report = serde_json::to_vec(&report).unwrap();
        assert_eq!(unfounded(&report).unwrap(), [""; 0]);
        stored_answer(&report).unwrap().remove(0)
    }

    /// Sentence on the floor.
    fn floor(answer: &Answer) -> &str {
        let mut sentences = answer.sentences.iter().map(|it| it.as_str());
        sentences.find(|it| it.contains("its floor")).unwrap()
    }

    #[test]
    fn shares_and_savings_name_their_mean_where_the_page_states_a_median() {
        let answer = page(10_600, mean_ms(10_600), false);
        let text = answer.reasons[0].text.as_str();
        assert!(text.starts_with("40 % of decode: "), "{text}");
        for by_batches in [false, true] {
            let answer = page(10_600, 3.0, by_batches);
            let text = answer.reasons[0].text.as_str();
            let named = "40 % of decode (10.6 ms per step on average): ";
            assert!(text.starts_with(named), "{text}");
            let advice = answer.reasons[0].advice.as_str();
            let saved = "saves at most 4.24 of 10.6 ms of a decode step, on average.";
            assert!(advice.ends_with(saved), "{advice}");
            assert_eq!(
                floor(&answer),
                "A decode step takes 10.6 ms on average and could take 5.30 ms on this GPU: it \
                 takes 2.0 times its floor."
            );
        }
    }

    #[test]
    fn a_mean_with_the_time_between_steps_names_it() {
        let text = |mean_ms: f64| {
            let report = json!({
                "only_traced": true,
                "ledger_stages": [{
                    "stage": "decode_all", "measured_ns": 42_900_000, "steps": 10,
                    "floor_of": "model", "floor_ns": 21_000_000, "times_floor": 2.0,
                    "capped_operators": 0, "capped_ns": 0, "overlap_ns": 0, "missing": []
                }],
                "ledger": [{
                    "stage": "decode_all", "cause": "gap_host", "ns": 17_160_000,
                    "share_pct": 40.0, "members": 1, "pass": "nsys", "counter": "", "samples": 1,
                    "max_saving_ns": 17_160_000
                }],
                "ledger_members": [],
                "step_times": [{
                    "stage": "decode_all", "p50_ms": 2.33, "outliers": 0, "excess_ms": 0.0,
                    "ms": {"mean": mean_ms, "std": null, "min": 2.0, "max": 9.0, "n": 10},
                    "longest": []
                }]
            });
            let report = serde_json::to_vec(&report).unwrap();
            assert_eq!(unfounded(&report).unwrap(), [""; 0]);
            let answer = stored_answer(&report).unwrap().remove(0);
            let reason = &answer.reasons[0];
            let floor = floor(&answer).to_owned();
            (reason.text.to_string(), reason.advice.to_string(), floor)
        };
        let (between, advice, floor_between) = text(2.33);
        let named = "40 % of decode (4.29 ms per step with the time after it, on average): ";
        assert!(between.starts_with(named), "{between}");
        let saved = "of 4.29 ms of a decode step with the time after it, on average.";
        assert!(advice.ends_with(saved), "{advice}");
        let start = "A decode step takes 4.29 ms with the time after it, on average, and could";
        assert!(floor_between.starts_with(start), "{floor_between}");
        let (within, advice, _) = text(4.28);
        assert!(within.starts_with("40 % of decode (4.29 ms per step on average): "), "{within}");
        assert!(advice.ends_with("of 4.29 ms of a decode step, on average."), "{advice}");
    }

    proptest! {
        #[test]
        fn a_share_a_floor_and_a_saving_are_of_a_time_that_the_page_states(
            step_us in 10u32..2_000_000,
            p50_ms in prop::option::of(0.01f64..2e3),
            by_batches in any::<bool>(),
        ) {
            let mean = figure(mean_ms(step_us));
            let p50_ms = p50_ms.unwrap_or(mean_ms(step_us));
            let answer = page(step_us, p50_ms, by_batches);
            let is_named = |it: &str| it.contains(&format!("{mean} ms"));
            let is_stated = figure(p50_ms) == mean;
            prop_assert_eq!(is_named(floor(&answer)), !is_stated);
            for reason in &answer.reasons {
                prop_assert_eq!(is_named(reason.text.as_str()), !is_stated, "{:?}", reason);
                prop_assert!(is_named(reason.advice.as_str()), "{:?}", reason);
            }
        }
    }
}
