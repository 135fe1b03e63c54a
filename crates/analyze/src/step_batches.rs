//! Times of an engine's steps by their class, requests and context: a step serves many requests at
//! once, and a mean over all steps is the time of none.

mod by_process;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{collectives::Collectives, engine_steps::StepClass, timeline::pid_of};
use serde::{Deserialize, Serialize};

use self::by_process::by_process;
pub use self::by_process::{do_differ, process_and_rank, process_name};
use crate::{
    stages::{
        repeat_medians::statistic,
        step_times::{LEAST_MEDIAN, TYPICAL_PART},
    },
    stats::{Spread, has_two_halves, median, ratio, stated_median},
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
    /// The process of all steps, if the times of the processes differ: each has a row then. `null`
    /// for steps of one process, or of several that agree.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: Option<u32>,
    /// The rank of that process, if it is recorded.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub rank: Option<u32>,
    /// Milliseconds of a step, from its start to the end of its work.
    pub ms: Spread,
    /// Its median, the time of a measured step: of an even number, the shorter of the two in the
    /// middle. Two steps have none: their mean.
    pub p50_ms: f64,
    /// True if the two in the middle of at least four differ by more than 5 %: `p50_ms` is called
    /// the lower median.
    #[serde(default)]
    pub has_two_halves: bool,
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
    /// Tokens that a step computed or generated, of all requests, over `period_ms`, or over
    /// `p50_ms` if that is `null`: the rate within a step. `null` if the tokens are unknown or the
    /// time is not its own.
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
    /// Tokens that a decode step computes, of all requests, mean, if a step computes several of a
    /// request: speculation may keep fewer. `null` for other steps.
    #[serde(default)]
    pub computed_tokens: Option<f64>,
    /// True if unrecorded waits are a part of the times, which have no others.
    #[serde(default)]
    pub has_unrecorded_waits: bool,
    /// Least time of a decode step of these requests with `context_mean`, milliseconds: the sum
    /// over its operators, as `floor_ns` of a stage. If the context is unknown, it leaves out the
    /// cache.
    /// `null` for other classes, and if `floor_missing` has a reason other than the context.
    #[serde(default)]
    pub floor_ms: Option<f64>,
    /// `p50_ms / floor_ms`; `null` if the context is unknown.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 2.4))]
    pub times_floor: Option<f64>,
    /// Reason why a row of decode lacks the floor or the ratio; `null` for other classes.
    #[serde(default)]
    pub floor_missing: Option<String>,
}

/// The only row, or the one with the most steps if it has several: no figure stands for steps of
/// different requests, nor for two steps that differ. The slowest of processes that differ.
pub fn common_batch<'a>(rows: impl IntoIterator<Item = &'a StepBatch>) -> Option<&'a StepBatch> {
    let rows = of_slowest(rows);
    let most = rows.iter().max_by_key(|it| it.steps)?;
    let has_median = most.steps >= LEAST_MEDIAN as u64 || most.is_typical();
    (has_median && (rows.len() == 1 || most.steps > 1)).then_some(*most)
}

/// One row for the same steps in several processes: the slowest process's. A process with few
/// steps is not the slowest.
pub fn of_slowest<'a>(rows: impl IntoIterator<Item = &'a StepBatch>) -> Vec<&'a StepBatch> {
    let is_slower = |one: &StepBatch, other: &StepBatch| {
        let has_median = |it: &StepBatch| it.steps >= LEAST_MEDIAN as u64;
        match (has_median(one), has_median(other)) {
            (true, false) => true,
            (false, true) => false,
            _ => one.pace_ms() > other.pace_ms(),
        }
    };
    let mut slowest: Vec<&StepBatch> = Vec::new();
    for it in rows {
        match slowest.iter_mut().find(|known| known.is_in_other_process(it)) {
            Some(known) if is_slower(it, known) => *known = it,
            Some(_) => {}
            None => slowest.push(it),
        }
    }
    slowest
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

    /// True for the row of the same requests and a similar context in another process.
    pub fn is_in_other_process(&self, other: &Self) -> bool {
        let octave = |it: &Self| it.context_min.and_then(u64::checked_ilog2);
        self.process.is_some()
            && other.process.is_some()
            && self.process != other.process
            && (self.class, &self.mode) == (other.class, &other.mode)
            && (self.requests, octave(self)) == (other.requests, octave(other))
    }

    /// True for decode steps by speculation: the capture does not record how many tokens they keep.
    pub const fn is_speculative(&self) -> bool {
        self.drafts.is_some() || self.verify_ms.is_some() || self.computed_tokens.is_some()
    }

    /// The name of `p50_ms`.
    pub fn median_word(&self) -> &'static str {
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        statistic(steps, self.has_two_halves)
    }

    /// The time from one step to the next, or of a step.
    pub fn pace_ms(&self) -> f64 {
        self.period_ms.unwrap_or(self.p50_ms)
    }

    /// The process of the row by its rank, or by its number.
    pub fn process_name(&self) -> Option<String> {
        Some(process_name(self.process?, self.rank))
    }

    /// The words after its tokens per second: the time to the next step may be unknown.
    pub const fn rate_scope(&self) -> &'static str {
        if self.period_ms.is_none() { " within a step" } else { "" }
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
        // The mean of two is also their `p50_ms`.
        let typical = if self.steps == 2 { self.ms.min } else { self.p50_ms };
        (self.ms.mean - typical).abs() <= TYPICAL_PART * typical
    }
}

/// Rows of the steps that count in times, by class, requests and context. Steps of the warm-up
/// count if the capture has no other steps, and steps with a wait that is not their own if their
/// class has no other steps. Steps without work count if no step has work. Processes whose times
/// differ have rows of their own, with their ranks.
pub fn step_batches(steps: &[EngineStepRecord], ranks: &Collectives) -> Vec<StepBatch> {
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
    let ranks = ranks.processes.iter();
    let ranks = ranks.filter_map(|(process, it)| Some((pid_of(*process), it.rank?)));
    let ranks: BTreeMap<u32, u32> = ranks.collect();
    let rows = groups.into_iter().flat_map(|((class, mode, requests, _), steps)| {
        by_process(steps).into_iter().filter_map(move |(process, processes, steps)| {
            let of_steps = batch((class, mode, requests), &steps)?;
            Some(StepBatch { process, processes, ..of_steps })
        })
    });
    let rank_of = |it: &StepBatch| ranks.get(&it.process?).copied();
    rows.map(|it| StepBatch { rank: rank_of(&it), ..it }).collect()
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
    let busy = all().map(|it| ratio(100.0 * busy_ms(it)?, it.step_ms));
    let busy: Option<Vec<f64>> = busy.collect();
    let contexts = || all().filter_map(context);
    let padded = || all().filter_map(|it| it.padded_requests);
    let periods: Vec<f64> = all().filter_map(|it| it.period_ms).collect();
    let periods = Some(periods).filter(|it| it.len() >= LEAST_MEDIAN);
    let p50_ms = stated_median(times.iter().copied())?;
    let period_ms = periods.as_ref().and_then(|it| median(it.iter().copied()));
    let phases = |class: StepClass, of: fn(&StepPhase) -> f64| {
        let phases = all().filter_map(|it| it.phases.as_ref()).flatten();
        let sum = phases.filter(|it| it.phase == class).map(of).reduce(|sum, it| sum + it);
        ratio(sum?, steps.len() as f64)
    };
    let computes_several = |it: &EngineStepRecord| {
        let counts = it.decode_tokens.zip(it.decode_requests);
        class == StepClass::Decode && counts.is_some_and(|(tokens, requests)| tokens > requests)
    };
    let computed: Option<f64> = all().map(|it| Some(it.decode_tokens? as f64)).sum();
    let computed = computed.filter(|_| all().any(computes_several));
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
        processes: 1,
        process: None,
        rank: None,
        ms: Spread::of(times.iter().copied())?,
        has_two_halves: has_two_halves(times),
        p50_ms,
        period_ms,
        periods_ms: periods.and_then(Spread::of),
        busy_pct: busy.and_then(|it| Some(Spread::of(it)?.mean)),
        tokens_per_s: each.and_then(|each| ratio(each * 1e3, period_ms.unwrap_or(p50_ms))),
        drafts: phases(StepClass::Draft, |it| it.times as f64),
        draft_ms: phases(StepClass::Draft, |it| it.host_ms),
        verify_ms: phases(StepClass::Verify, |it| it.host_ms),
        computed_tokens: computed.and_then(|sum| ratio(sum, steps.len() as f64)),
        has_unrecorded_waits: all().any(EngineStepRecord::has_unrecorded_wait),
        floor_ms: None,
        times_floor: None,
        floor_missing: None,
    })
}

/// Time in which the device ran work of a step, within the step: its copies may run during the
/// step before.
fn busy_ms(it: &EngineStepRecord) -> Option<f64> {
    Some((it.device_ms? - it.gap_ms.unwrap_or(0.0)).min(it.step_ms))
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
mod tests;
