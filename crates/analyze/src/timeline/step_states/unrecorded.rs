//! Steps that the recording has no range of: between two steps of an engine, or of a decode, a
//! process launches the kernels of a step.

use std::collections::BTreeMap;

use foldhash::HashSet;
use llmprof_core::trace::{
    timeline::{ApiCall, Timeline, process_of},
    unclosed::UnclosedOutcome,
};

use super::compared::{ComparedStep, StepGroup};
use crate::{
    stages::DECODE,
    stats::lower_median_of,
    timeline::{
        capture::{Capture, Join},
        interval::{Interval, extended},
        open_ranges::{NONE, StepInside, place},
        steps_at::StepsAt,
    },
};

/// A kernel by its name, or a graph that was traced as a whole by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WorkName {
    Kernel(u32),
    Graph(Option<u64>),
}

/// One kernel or graph.
#[derive(Debug, Clone, Copy)]
struct Work {
    name: WorkName,
    ns: i64,
    end_ns: i64,
    /// A replayed graph launched it.
    is_replayed: bool,
}

/// Work of a step, or of a gap between steps.
#[derive(Debug, Clone, Copy, Default)]
struct WorkSum {
    count: i64,
    ns: i64,
    /// Last end.
    end_ns: i64,
    is_replayed: bool,
}

impl WorkSum {
    fn add(&mut self, work: Work) {
        self.count += 1;
        self.ns = self.ns.saturating_add(work.ns);
        self.end_ns = self.end_ns.max(work.end_ns);
        self.is_replayed |= work.is_replayed;
    }
}

/// Steps of one process, class and mode: the names of their work, and how much one of them runs.
#[derive(Debug, Default)]
struct StepKind {
    names: HashSet<WorkName>,
    usual: WorkSum,
}

impl StepKind {
    /// Sets the usual work, from the work of its steps.
    fn set_usual(&mut self, steps: &[WorkSum]) {
        let steps = || steps.iter().filter(|it| it.count > 0);
        let median = |of: fn(&WorkSum) -> i64| lower_median_of(steps().map(of)).unwrap_or_default();
        let replayed = steps().filter(|it| it.is_replayed).count();
        self.usual = WorkSum {
            count: median(|it| it.count),
            ns: median(|it| it.ns),
            end_ns: 0,
            is_replayed: 2 * replayed > steps().count(),
        };
    }

    /// True if a gap has the work of such a step: at least half as many launches and half as much
    /// time on a device, and a graph if most of these steps launch one.
    fn is_in(&self, gap: WorkSum) -> bool {
        let is_enough = |part: i64, usual: i64| part.saturating_mul(2) >= usual;
        self.usual.count > 0
            && is_enough(gap.count, self.usual.count)
            && is_enough(gap.ns, self.usual.ns)
            && (gap.is_replayed || !self.usual.is_replayed)
    }
}

/// By process, number of steps before the gap, and kind of steps: the work in the gap that such
/// steps run, and the time of its calls.
type GapWork = BTreeMap<(i64, usize, usize), (WorkSum, Interval)>;

/// By process: the calls of steps without a range. Work between two steps is a step if it is the
/// work of a usual step of one kind ([`StepKind::is_in`]): sampling after each step is not.
pub fn unrecorded(capture: &Capture) -> Vec<(i64, Interval)> {
    let scheduled = || capture.stages.steps.iter().filter(|it| it.is_scheduled);
    let steps: Vec<(i64, Interval)> =
        scheduled().map(|it| (it.place, (it.start_ns, it.end_ns))).collect();
    if steps.len() < 2 || capture.trace.cuda_calls.is_empty() {
        return vec![];
    }
    let mut numbers: BTreeMap<_, usize> = BTreeMap::new();
    let mut kind_of = Vec::with_capacity(steps.len());
    for it in scheduled() {
        let next = numbers.len();
        let kind = (process_of(it.place), it.class, it.mode.as_deref());
        kind_of.push(*numbers.entry(kind).or_insert(next));
    }
    let kinds = kinds(capture, &steps, &kind_of);
    let mut of_process: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for ((process, ..), number) in &numbers {
        of_process.entry(*process).or_default().push(*number);
    }
    let mut found: BTreeMap<(i64, usize), Interval> = BTreeMap::new();
    let gaps = gaps(capture, &steps, (&of_process, &kinds), |instance| instance == NONE);
    for ((process, before, kind), (work, times)) in gaps {
        if kinds[kind].is_in(work) {
            let all = found.entry((process, before)).or_insert(times);
            *all = extended(Some(*all), times);
        }
    }
    found.into_iter().map(|((process, _), times)| (process, times)).collect()
}

/// The steps without a range between two steps of one decode. If most gaps have such work, it is a
/// part of each step, and none is such a step.
pub fn in_decodes(capture: &Capture, compared: &[ComparedStep]) -> Vec<StepInside> {
    let all = &capture.stages;
    let of_decodes = || compared.iter().filter(|it| it.group == StepGroup::DecodeSteps);
    let steps: Vec<(i64, Interval)> = of_decodes().map(|it| (it.place, it.range)).collect();
    let mut of_process: BTreeMap<i64, Vec<&ComparedStep>> = BTreeMap::new();
    for it in of_decodes() {
        of_process.entry(process_of(it.place)).or_default().push(it);
    }
    let numbers: BTreeMap<i64, Vec<usize>> =
        of_process.keys().enumerate().map(|(at, process)| (*process, vec![at])).collect();
    let kind_of: Vec<usize> = steps.iter().map(|it| numbers[&process_of(it.0)][0]).collect();
    if steps.len() < 2 {
        return vec![];
    }
    let kinds = kinds(capture, &steps, &kind_of);
    let is_decode =
        |at: u32| all.instances.get(at as usize).is_some_and(|it| all.labels[it.label] == DECODE);
    let gaps = gaps(capture, &steps, (&numbers, &kinds), is_decode);
    let step =
        |((process, before, kind), (work, _)): ((i64, usize, usize), (WorkSum, Interval))| {
            let of_process = &of_process[&process];
            let (last, next) = (of_process[before - 1], of_process[before]);
            let decode = |it: &ComparedStep| all.at(it.place, it.range.0);
            let is_one = last.place == next.place && decode(last) == decode(next);
            let range = (last.range.1, next.range.0);
            let span = (last.span.1, range.1.max(work.end_ns));
            let is_step = is_one && range.0 < range.1 && span.0 < span.1 && kinds[kind].is_in(work);
            is_step.then_some(StepInside { range, place: last.place, span })
        };
    let found: Vec<StepInside> = gaps.into_iter().filter_map(step).collect();
    if 2 * found.len() < steps.len() { found } else { vec![] }
}

/// The kinds of steps by their numbers; `kind_of` has the number of each step's kind.
fn kinds(capture: &Capture, steps: &[(i64, Interval)], kind_of: &[usize]) -> Vec<StepKind> {
    let count = kind_of.iter().max().map_or(0, |last| last + 1);
    let mut kinds: Vec<StepKind> = Vec::new();
    kinds.resize_with(count, StepKind::default);
    let mut sums = vec![WorkSum::default(); steps.len()];
    each_launched(capture, steps, |step, work, _, _| {
        if let Some(at) = step {
            kinds[kind_of[at]].names.insert(work.name);
            sums[at].add(work);
        }
    });
    let mut of_kind: Vec<Vec<WorkSum>> = vec![vec![]; count];
    for (at, sum) in sums.into_iter().enumerate() {
        of_kind[kind_of[at]].push(sum);
    }
    kinds.iter_mut().zip(&of_kind).for_each(|(kind, sums)| kind.set_usual(sums));
    kinds
}

/// The work in the gaps between steps, by the kinds of steps that run it. `kinds_of`: numbers of
/// the kinds of a process; `is_between`: stage instances in which no step launches.
fn gaps(
    capture: &Capture,
    steps: &[(i64, Interval)],
    (kinds_of, kinds): (&BTreeMap<i64, Vec<usize>>, &[StepKind]),
    is_between: impl Fn(u32) -> bool,
) -> GapWork {
    let mut starts: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (place, range) in steps {
        starts.entry(process_of(*place)).or_default().push(range.0);
    }
    let mut found = GapWork::new();
    each_launched(capture, steps, |step, work, call, instance| {
        let process = process_of(call.global_tid);
        let of_process = starts.get(&process).filter(|_| step.is_none() && is_between(instance));
        let Some(starts) = of_process else { return };
        let before = starts.partition_point(|start| *start <= call.start_ns);
        if !(1..starts.len()).contains(&before) {
            return;
        }
        let times = (call.start_ns, call.end_ns);
        for kind in kinds_of.get(&process).into_iter().flatten() {
            if kinds[*kind].names.contains(&work.name) {
                let key = (process, before, *kind);
                let (sum, all) = found.entry(key).or_insert((WorkSum::default(), times));
                sum.add(work);
                *all = extended(Some(*all), times);
            }
        }
    });
    found
}

/// Reads all work with its call and stage instance, and the index of the step that launched it.
fn each_launched(
    capture: &Capture,
    steps: &[(i64, Interval)],
    mut read: impl FnMut(Option<usize>, Work, &ApiCall, u32),
) {
    let steps_at = StepsAt::of(steps);
    let (mut open, mut calls) = (steps_at.lookup(), capture.trace.cuda_calls.reader());
    let mut add = |join: Join, work: Work| {
        if !join.has_call() {
            return;
        }
        let call = calls.get(join.call);
        let step = open.at(call.global_tid, call.start_ns);
        read(step, work, &call, join.instance);
    };
    for (it, join) in capture.kernels() {
        let (name, is_replayed) = (WorkName::Kernel(it.full_name), it.graph_node.is_some());
        add(join, Work { name, ns: it.ns(), end_ns: it.end_ns, is_replayed });
    }
    for (it, join) in capture.graphs() {
        let (name, ns) = (WorkName::Graph(it.graph), it.end_ns - it.start_ns);
        add(join, Work { name, ns, end_ns: it.end_ns, is_replayed: true });
    }
}

/// Process and start of each step whose end the recording lacks.
pub fn without_end(trace: &Timeline) -> impl Iterator<Item = (i64, i64)> {
    let dropped = trace.unclosed.iter().filter(|it| it.outcome == UnclosedOutcome::Dropped);
    let steps = dropped.filter(|it| trace.rules.step(&it.range.name).is_some());
    steps.map(|it| (process_of(place(&it.range)), it.range.start_ns))
}

#[cfg(test)]
mod tests;
