//! Steps in which the recording starts or ends.
//!
//! Such a step reaches the bound that the profiler wrote, or lies at the edge of the recording of
//! its process: no call and no work ends before it, or none starts after it. At the edge, it is cut
//! if it launched less than each other step of its kind, and its calls start or end unlike theirs:
//! less work alone is a smaller batch. A step without others of its kind is cut if most of its time
//! has no record, unlike the time of other steps. Any step at the edge is cut if a range or an
//! operator in its time without a record has no call, unlike each other one of its name.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    call_index::LaunchId,
    timeline::{ApiCall, process_of},
};

use super::{ComparedStep, StepGroup, WorkNeed, named_spans::lack_calls};
use crate::timeline::{
    capture::Capture, interval::Interval, recorded::MIN_QUIET_NS, steps::StepSource,
    steps_at::StepsAt,
};

/// Least number of other steps to compare with.
const MIN_OTHERS: usize = 2;
/// Least part of a step that has no record, if the step is cut.
const MIN_PART: f64 = 0.5;
/// Least ratio of the time without a record to the longest one of other steps.
const MIN_RATIO: i64 = 10;
/// Part of the longest time without a call by which the times of whole steps can differ.
const SPREAD_PART: i64 = 10;

/// Other steps of a process, and their longest time without a call: before the first call of a
/// step, and after the end of its last.
type QuietTimes = [(usize, i64); 2];

/// First and last call of a step.
type StepCalls = [ApiCall; 2];

/// The whole steps of one kind that lie at no edge, and the least work of one.
#[derive(Debug)]
struct StepKind {
    steps: Vec<usize>,
    least: u64,
}

/// True for each step that the recording cuts; `work` has what each launched.
pub(super) fn cut(capture: &Capture, steps: &[ComparedStep], work: &[u64]) -> Vec<bool> {
    let records = &capture.stages.records;
    let process = |it: &ComparedStep| process_of(it.place);
    let edges: Vec<[bool; 2]> =
        steps.iter().map(|it| records.edges(process(it), it.range)).collect();
    let is_at_edge = |at: usize| edges[at].contains(&true);
    let is_other = |at: &usize| !is_at_edge(*at) && steps[*at].is_whole() && work[*at] > 0;
    let mut kinds: BTreeMap<(i64, &StepGroup), StepKind> = BTreeMap::new();
    for at in (0..steps.len()).filter(is_other) {
        let none = StepKind { steps: vec![], least: u64::MAX };
        let kind = kinds.entry((process(&steps[at]), &steps[at].group)).or_insert(none);
        kind.steps.push(at);
        kind.least = kind.least.min(work[at]);
    }
    let mut calls: Option<Vec<Option<StepCalls>>> = None;
    let mut quiet: Option<BTreeMap<i64, QuietTimes>> = None;
    // The bounds of an inferred step are launches: nothing of it lies beyond the records.
    let inferred = capture.stages.steps.iter().filter(|it| it.source == StepSource::Inferred);
    let inferred: BTreeSet<(i64, Interval)> =
        inferred.map(|it| (it.place, (it.start_ns, it.end_ns))).collect();
    let is_cut = |at: usize| {
        let it = &steps[at];
        if inferred.contains(&(it.place, it.range)) {
            return false;
        }
        if records.is_at_bound(process(it), it.range) {
            return true;
        }
        // A step that needs no work has no calls in its middle either.
        let needs_none = it.need == WorkNeed::Never && work[at] == 0;
        if needs_none || !is_at_edge(at) {
            return false;
        }
        if lack_calls(capture, it, edges[at]) {
            return true;
        }
        let kind = kinds.get(&(process(it), &it.group));
        let kind = kind.filter(|it| it.steps.len() >= MIN_OTHERS);
        if kind.is_some_and(|it| work[at] >= it.least) {
            return false;
        }
        let calls = calls.get_or_insert_with(|| step_calls(capture, steps));
        if let Some(kind) = kind {
            let of_step = |at: usize| calls[at].map(|it| (&steps[at], it));
            let others: Vec<_> = kind.steps.iter().filter_map(|it| of_step(*it)).collect();
            let is_unlike =
                |own| (0..2).any(|side| edges[at][side] && differs_at(capture, own, &others, side));
            return of_step(at).is_none_or(is_unlike);
        }
        let quiet = quiet.get_or_insert_with(|| quiet_times(steps, calls, &edges));
        let others = quiet.get(&process(it)).copied().unwrap_or_default();
        is_quiet(capture, it, edges[at], &others)
    };
    (0..steps.len()).map(is_cut).collect()
}

/// Times of a step without a call: before its first, and after the end of its last.
fn uncalled(step: &ComparedStep, [first, last]: &StepCalls) -> [i64; 2] {
    [first.start_ns - step.range.0, step.range.1 - last.end_ns]
}

/// True if a step starts (side 0) or ends (side 1) unlike all others of its kind: with another
/// call, before another kernel, or after another time without a call.
fn differs_at(
    capture: &Capture,
    (step, calls): (&ComparedStep, StepCalls),
    others: &[(&ComparedStep, StepCalls)],
    side: usize,
) -> bool {
    let name = |calls: &StepCalls| calls[side].name;
    if others.iter().all(|it| name(&it.1) != name(&calls)) {
        return true;
    }
    let ns = uncalled(step, &calls)[side];
    let times = || others.iter().map(|it| uncalled(it.0, &it.1)[side]);
    let (Some(shortest), Some(longest)) = (times().min(), times().max()) else { return true };
    let spread = (longest - shortest).max(longest / SPREAD_PART);
    if ns > longest + spread || ns < shortest / 2 {
        return true;
    }
    // A whole step can lack its last kernels, such as sampling, but not its first.
    let firsts: Vec<ApiCall> = others.iter().map(|it| it.1[0]).collect();
    side == 0 && launches_another_kernel(capture, &calls[0], &firsts)
}

/// True if a call launched one kernel, and each of some other calls another one.
fn launches_another_kernel(capture: &Capture, own: &ApiCall, others: &[ApiCall]) -> bool {
    let calls = others.iter().chain([own]);
    let mut names: BTreeMap<LaunchId, Vec<u32>> =
        calls.map(|it| (it.launch_id(), vec![])).collect();
    for it in capture.trace.kernels.iter() {
        if let Some(names) = names.get_mut(&it.launch_id()) {
            names.push(it.name);
        }
    }
    // A graph launches several: another batch is another graph.
    let kernel = |it: &ApiCall| match names[&it.launch_id()].as_slice() {
        [name] => Some(*name),
        _ => None,
    };
    let own = kernel(own);
    own.is_some() && others.iter().all(|it| kernel(it).is_some_and(|it| Some(it) != own))
}

/// True if most of a step, from its start or to its end, has no record, unlike other steps.
fn is_quiet(capture: &Capture, step: &ComparedStep, edges: [bool; 2], others: &QuietTimes) -> bool {
    let process = process_of(step.place);
    let Some(record) = capture.stages.records.of_process(process) else { return false };
    let (start, end) = step.range;
    let least = ((MIN_PART * (end - start) as f64) as i64).max(MIN_QUIET_NS);
    let times = [(start, record.times.0.min(end)), (record.times.1.max(start), end)];
    let ns = |side: usize| if edges[side] { (times[side].1 - times[side].0).max(0) } else { 0 };
    // The profiler recorded an operator or a range meanwhile.
    let is_silent = |side: usize| {
        let (from, to) = times[side];
        let far = match side {
            0 => (from, from + ns(side) / 2),
            _ => (from + ns(side) / 2, to),
        };
        ns(side) >= MIN_QUIET_NS && !has_host_record(capture, process, far)
    };
    (0..2).any(|side| {
        let (steps, longest) = others[side];
        let is_long = steps >= MIN_OTHERS
            && ns(side) >= least
            && ns(side) > longest.saturating_mul(MIN_RATIO);
        is_long && is_silent(side)
    })
}

/// True if an operator or a range of a process starts and ends in this time.
fn has_host_record(capture: &Capture, process: i64, (from, to): Interval) -> bool {
    let is_in = |thread: i64, start: i64, end: i64| {
        process_of(thread) == process && from < start && end < to
    };
    let (mut ranges, mut operators) = (capture.trace.ranges.iter(), capture.trace.framework.iter());
    operators.any(|it| is_in(it.global_tid, it.start_ns, it.end_ns))
        || ranges.any(|it| it.end_ns.is_some_and(|end| is_in(it.global_tid, it.start_ns, end)))
}

/// First and last call of each step.
fn step_calls(capture: &Capture, steps: &[ComparedStep]) -> Vec<Option<StepCalls>> {
    let ranges: Vec<(i64, Interval)> = steps.iter().map(|it| (it.place, it.range)).collect();
    let steps_at = StepsAt::of(&ranges);
    let mut open = steps_at.lookup();
    let mut calls: Vec<Option<StepCalls>> = vec![None; steps.len()];
    for it in capture.trace.cuda_calls.iter() {
        if let Some(at) = open.at(it.global_tid, it.start_ns) {
            let [first, last] = calls[at].unwrap_or([it, it]);
            let first = if it.start_ns < first.start_ns { it } else { first };
            let last = if it.end_ns > last.end_ns { it } else { last };
            calls[at] = Some([first, last]);
        }
    }
    calls
}

/// By process, the times without a call at the starts and ends that lie at no edge.
fn quiet_times(
    steps: &[ComparedStep],
    calls: &[Option<StepCalls>],
    edges: &[[bool; 2]],
) -> BTreeMap<i64, QuietTimes> {
    let mut found: BTreeMap<i64, QuietTimes> = BTreeMap::new();
    for ((it, edges), calls) in steps.iter().zip(edges).zip(calls) {
        let Some(calls) = calls else { continue };
        let of_process = found.entry(process_of(it.place)).or_default();
        let times = uncalled(it, calls);
        for side in (0..2).filter(|side| !edges[*side]) {
            let (steps, longest) = &mut of_process[side];
            *steps += 1;
            *longest = times[side].max(*longest);
        }
    }
    found
}
