//! Times of an engine's steps by their class, requests and context: a step serves many requests at
//! once, and a mean over all steps is the time of none.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::engine_steps::StepClass;
use serde::{Deserialize, Serialize};

use crate::{
    stages::step_times::{LEAST_MEDIAN, TYPICAL_PART},
    stats::{Spread, lower_median, median, ratio},
    timeline::{
        engine_steps::{EngineStepRecord, StepPhase},
        step_states::StepState,
    },
};

/// Steps of one class with equally many requests and a similar context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepBatch {
    /// `other` also for steps without a known class.
    pub class: StepClass,
    /// The engine's own word for the class, if it has one.
    #[cfg_attr(feature = "schema", schema(example = "DECODE"))]
    pub mode: Option<String>,
    /// Requests of each step; `null` if unknown, as the counts below.
    #[cfg_attr(feature = "schema", schema(example = 32))]
    pub requests: Option<u64>,
    /// Least and most requests that graphs of a fixed size computed for.
    pub padded_min: Option<u64>,
    pub padded_max: Option<u64>,
    /// Least and most context: key lengths per request, mean of a step. Steps of one row differ by
    /// less than a factor of two.
    pub context_min: Option<u64>,
    pub context_max: Option<u64>,
    /// Sum of the key lengths of all steps over their requests, rounded.
    #[serde(default)]
    pub context_mean: Option<u64>,
    /// Steps of all processes: ranks that run one step together have one each.
    pub steps: u64,
    /// Processes with such steps.
    #[serde(default)]
    pub processes: u64,
    /// Milliseconds of a step, from its start to the end of its work.
    pub ms: Spread,
    /// Its median, the time of a measured step: of an even number, the shorter of the two in the
    /// middle.
    pub p50_ms: f64,
    /// Median of `period_ms` of its steps, milliseconds: in decode, the time between two tokens of
    /// a request. `null` if fewer than three of these follow on such a step: an engine without
    /// requests waits.
    #[serde(default)]
    pub period_ms: Option<f64>,
    /// Mean and spread of the same times.
    #[serde(default)]
    pub periods_ms: Option<Spread>,
    /// Part of that time in which the device ran its work, percent, mean.
    pub busy_pct: Option<f64>,
    /// Tokens that a step computed or generated, of all requests, over `period_ms`, or over its own
    /// time if that is `null`: the rate within a step. `null` if the tokens are unknown or the time
    /// is not its own.
    pub tokens_per_s: Option<f64>,
    /// Passes of the draft model in a decode step by speculation, mean; `null` for other steps.
    #[serde(default)]
    pub drafts: Option<f64>,
    /// Length of these passes on the host, milliseconds per step, mean.
    #[serde(default)]
    pub draft_ms: Option<f64>,
    /// Length of the verification on the host, milliseconds per step, mean.
    #[serde(default)]
    pub verify_ms: Option<f64>,
    /// True if unrecorded waits are a part of the times, which have no others.
    #[serde(default)]
    pub has_unrecorded_waits: bool,
    /// Floor of a decode step of these requests with `context_mean`, milliseconds, if the model is
    /// stated: the sum over its operators, as `floor_ns` of a stage. If the context is unknown, the
    /// floor has no cache: a step needs at least this time. `null` if it is longer than the median
    /// step, as all floors of other classes.
    #[serde(default)]
    pub floor_ms: Option<f64>,
    /// `p50_ms / floor_ms`; `null` if the context is unknown.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 2.4))]
    pub times_floor: Option<f64>,
    /// Reason why one of the two is `null`.
    #[serde(default)]
    pub floor_missing: Option<String>,
}

/// The only row, or the one with the most steps if it has several: no figure stands for steps of
/// different requests, nor for two steps that differ.
pub fn common_batch<'a>(rows: impl IntoIterator<Item = &'a StepBatch>) -> Option<&'a StepBatch> {
    let rows: Vec<&StepBatch> = rows.into_iter().collect();
    let most = rows.iter().max_by_key(|it| it.steps)?;
    let has_median = most.steps >= LEAST_MEDIAN as u64 || most.is_typical();
    (has_median && (rows.len() == 1 || most.steps > 1)).then_some(*most)
}

impl StepBatch {
    /// The word for its class; the engine's own word for a class that is not known.
    pub fn class_word(&self) -> String {
        match (self.class, &self.mode) {
            (StepClass::Other, Some(mode)) => format!("{mode:?}"),
            (StepClass::Other, None) => "unclassified".into(),
            (class, _) => class.to_string(),
        }
    }

    /// Tokens per second, if the mean of the steps stands for their median.
    pub fn typical_tokens_per_s(&self) -> Option<f64> {
        self.tokens_per_s.filter(|_| self.is_typical())
    }

    /// The time from one step to the next, if it is not the time of a step.
    pub fn apart_period_ms(&self) -> Option<f64> {
        self.period_ms.filter(|ms| (ms - self.p50_ms).abs() > TYPICAL_PART * self.p50_ms)
    }

    fn is_typical(&self) -> bool {
        (self.ms.mean - self.p50_ms).abs() <= TYPICAL_PART * self.p50_ms
    }
}

/// Rows of the steps that count in times, by class, requests and context. Steps of the warm-up
/// count if the capture has no other steps, and steps with a wait that is not their own if their
/// class has no other steps. Steps without work count if no step has work.
pub fn step_batches(steps: &[EngineStepRecord]) -> Vec<StepBatch> {
    type Key<'a> = (StepClass, Option<&'a str>, Option<u64>, Option<u32>);
    let mut groups: BTreeMap<Key, Vec<&EngineStepRecord>> = BTreeMap::new();
    let is_only_warmup = steps.iter().all(|it| it.state == StepState::Warmup);
    let whole = steps.iter().filter(|it| it.state.counts());
    let whole: BTreeSet<Option<StepClass>> = whole.map(|it| it.class).collect();
    let counts = |it: &&EngineStepRecord| match it.state {
        StepState::Waited => !whole.contains(&it.class),
        StepState::Warmup => is_only_warmup,
        state => state.counts(),
    };
    let has_work = steps.iter().filter(counts).any(EngineStepRecord::has_work);
    for it in steps.iter().filter(counts).filter(|it| it.has_work() || !has_work) {
        let class = it.class.unwrap_or(StepClass::Other);
        let octave = context(it).map(u64::ilog2);
        groups.entry((class, it.mode.as_deref(), it.requests, octave)).or_default().push(it);
    }
    groups.into_iter().filter_map(|(key, steps)| batch((key.0, key.1, key.2), &steps)).collect()
}

/// Mean key length of the requests of a step, rounded.
fn context(it: &EngineStepRecord) -> Option<u64> {
    mean_context(std::iter::once(it))
}

/// Mean key length of the requests of all steps, rounded; `None` if one is unknown.
fn mean_context<'a>(steps: impl Iterator<Item = &'a EngineStepRecord>) -> Option<u64> {
    let (mut keys, mut requests) = (0_u128, 0_u128);
    for it in steps {
        let known = [it.prefill_keys, it.decode_keys].into_iter().flatten();
        keys += known.map(u128::from).reduce(|sum, more| sum + more)?;
        requests += u128::from(it.requests?);
    }
    let mean = (keys + requests / 2).checked_div(requests)?;
    u64::try_from(mean).ok().filter(|it| *it > 0)
}

fn batch(
    (class, mode, requests): (StepClass, Option<&str>, Option<u64>),
    steps: &[&EngineStepRecord],
) -> Option<StepBatch> {
    let all = || steps.iter().copied();
    let times: Vec<f64> = all().map(|it| it.step_ms).collect();
    let made = |it: &EngineStepRecord| {
        tokens(it).filter(|_| !it.has_unrecorded_wait()).map(|made| made as f64)
    };
    let made: Option<f64> = all().map(made).sum();
    let busy =
        all().map(|it| ratio(100.0 * (it.device_ms? - it.gap_ms.unwrap_or(0.0)), it.step_ms));
    let busy: Option<Vec<f64>> = busy.collect();
    let contexts = || all().filter_map(context);
    let padded = || all().filter_map(|it| it.padded_requests);
    let periods: Vec<f64> = all().filter_map(|it| it.period_ms).collect();
    let periods = Some(periods).filter(|it| it.len() >= LEAST_MEDIAN);
    let period_ms = periods.as_ref().and_then(|it| median(it.iter().copied()));
    let mean_ms = times.iter().sum::<f64>() / times.len() as f64;
    let phases = |class: StepClass, of: fn(&StepPhase) -> f64| {
        let phases = all().filter_map(|it| it.phases.as_ref()).flatten();
        let sum = phases.filter(|it| it.phase == class).map(of).reduce(|sum, it| sum + it);
        ratio(sum?, steps.len() as f64)
    };
    let each = made.and_then(|made| ratio(made, steps.len() as f64));
    Some(StepBatch {
        class,
        mode: mode.map(str::to_owned),
        requests,
        padded_min: padded().min(),
        padded_max: padded().max(),
        context_min: contexts().min(),
        context_max: contexts().max(),
        context_mean: mean_context(all()),
        steps: steps.len() as u64,
        processes: all().map(|it| it.process).collect::<BTreeSet<u32>>().len() as u64,
        ms: Spread::of(times.iter().copied())?,
        p50_ms: lower_median(times)?,
        period_ms,
        periods_ms: periods.and_then(Spread::of),
        busy_pct: busy.and_then(|it| Some(Spread::of(it)?.mean)),
        tokens_per_s: each.and_then(|each| ratio(each * 1e3, period_ms.unwrap_or(mean_ms))),
        drafts: phases(StepClass::Draft, |it| it.times as f64),
        draft_ms: phases(StepClass::Draft, |it| it.host_ms),
        verify_ms: phases(StepClass::Verify, |it| it.host_ms),
        has_unrecorded_waits: all().any(EngineStepRecord::has_unrecorded_wait),
        floor_ms: None,
        times_floor: None,
        floor_missing: None,
    })
}

/// Tokens that a step read of prompts and generated.
fn tokens(it: &EngineStepRecord) -> Option<u64> {
    match it.class? {
        StepClass::Prefill => it.prefill_tokens,
        StepClass::Decode => it.generated,
        StepClass::Mixed => Some(it.prefill_tokens?.saturating_add(it.generated?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernels::tests::{capture, launching},
        timeline::{capture::Capture, engine_steps::engine_steps},
    };

    fn rows(sketch: &str) -> Vec<StepBatch> {
        let trace = capture(sketch);
        step_batches(&engine_steps(&Capture::of(&trace)))
    }

    #[test]
    fn steps_of_as_many_requests_with_a_similar_context_are_one_row() {
        let step = |at: i64, requests: u64, keys: u64| {
            let name = format!(
                "execute_{requests}_context_0(sq0sk0sqsq0sqsk0)\
                 _generation_{requests}(sq{requests}sk{keys}sqsq{requests}sqsk{keys})"
            );
            let times = [(0, 900_000), (0, 10), (100, 500_000)];
            let start = 1_000_000 * at;
            launching(&name, at + 1, times.map(|it| (start + it.0, start + it.1)))
        };
        let sketch = [
            step(0, 4, 4_000),
            step(1, 4, 4_040),
            step(2, 4, 4_080),
            step(3, 4, 4_082),
            step(4, 4, 40_000),
            step(5, 2, 2_000),
        ];
        let rows = rows(&sketch.join("\n"));
        let short: Vec<_> =
            rows.iter().map(|it| (it.requests, it.steps, it.context_min, it.context_max)).collect();
        assert_eq!(
            short,
            [
                (Some(2), 1, Some(1_000), Some(1_000)),
                (Some(4), 4, Some(1_000), Some(1_021)),
                (Some(4), 1, Some(10_000), Some(10_000)),
            ]
        );
        assert_eq!(rows[1].context_mean, Some(1_013), "16,202 keys of 16 requests");
        assert_eq!((rows[1].p50_ms, rows[1].period_ms), (0.9, Some(1.0)));
        let rate = |row: usize| rows[row].tokens_per_s.unwrap();
        assert!((rate(1) - 4.0 / 1e-3).abs() < 1e-6, "tokens come at the ends of steps");
        assert_eq!((rows[0].period_ms, rows[2].period_ms), (None, None), "one step of each");
        assert!((rate(0) - 2.0 / 0.9e-3).abs() < 1e-6);
        assert!((rate(2) - 4.0 / 0.9e-3).abs() < 1e-6, "idle time may follow one step");
    }

    #[test]
    fn tokens_come_at_the_ends_of_steps_that_the_host_starts_early() {
        // Steps start every 100 ns, and their work takes 1,000 ns each, one after another.
        let step = |at: i64| {
            let (host, work) = (100 * at, 1_000 * at + 50);
            let times = [(host, host + 90), (host + 10, host + 20), (work, work + 1_000)];
            launching("execute_context_0(0)_generation_8(8)", at + 1, times)
        };
        let steps: Vec<String> = (0..6).map(step).collect();
        let row = &rows(&steps.join("\n"))[0];
        assert_eq!((row.steps, row.period_ms), (6, Some(1e-3)));
        assert!((row.tokens_per_s.unwrap() - 8.0 / 1e-6).abs() < 1.0);
    }

    #[test]
    fn phases_that_no_step_of_a_row_has_are_unknown() {
        let range =
            |mode: &str, from: i64, to: i64| format!("range 1 step[{mode}~bs=2] {from}..{to}");
        let round = |at: i64| {
            let (drafts, verified) =
                (range("DECODE", at, at + 3), range("TARGET_VERIFY", at + 4, at + 9));
            format!("{drafts}\n{verified}")
        };
        let of = |lines: &[String]| {
            let mut trace = capture(&lines.join("\n"));
            trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
            let rows = step_batches(&engine_steps(&Capture::of(&trace)));
            let row = |it: &StepBatch| (it.class, it.drafts, it.verify_ms.map(|ms| ms * 1e6));
            rows.iter().map(row).collect::<Vec<_>>()
        };
        let whole = (StepClass::Decode, Some(1.0), Some(5.0));
        assert_eq!(of(&[round(0), round(20), round(40)]), [whole]);
        // The recording ends after a draft.
        let cut = of(&[round(0), round(20), round(40), range("DECODE", 60, 63)]);
        assert_eq!(cut, [whole, (StepClass::Other, Some(1.0), None)]);
    }

    #[test]
    fn steps_of_a_warm_up_and_of_a_cold_first_instance_count_in_no_time() {
        let step = |at: i64, ns: i64| {
            let times = [(at, at + ns), (at + 10, at + 20), (at + 20, at + 60)];
            launching("execute_context_0(0)_generation_2(2)", at, times)
        };
        let steps = [1_000, 2_000, 3_000].map(|at| step(at, 100)).join("\n");
        let all = rows(&format!("range 1 warmup 10..900\n{}\n{steps}", step(20, 800)));
        assert_eq!((all[0].steps, all[0].ms.max), (3, 1e-4));
        // The first call of a kernel.
        let mut trace = capture(&format!("{}\n{steps}", step(20, 800)));
        let of = |trace: &_| {
            let mut capture = Capture::of(trace);
            let cold = crate::stages::cold::mark(&mut capture).len();
            (cold, step_batches(&engine_steps(&capture))[0].steps)
        };
        assert_eq!(of(&trace), (1, 3));
        trace.ranges.retain(|it| it.start_ns == 20);
        assert_eq!(of(&trace), (0, 1));
    }

    #[test]
    fn a_step_without_work_counts_in_no_time_unless_the_capture_has_no_work() {
        let range = "range 1 execute_context_0(0)_generation_2(2) 0..100
            range 1 execute_context_0(0)_generation_2(2) 200..900";
        let work = "call 1 1 10..11\nkernel 1 k 20..60 7";
        assert_eq!(rows(&format!("{range}\n{work}"))[0].steps, 1);
        assert_eq!(rows(range)[0].steps, 2);
    }
}
