//! Calls of the runtime in the steps of a stage.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    runtime_call::{CallKind, without_version},
    timeline::{Timeline, process_of},
};

use super::{LEAST_MEDIAN, OUTLIER_MEDIANS, StageSteps};
use crate::{
    stats::lower_median,
    timeline::{gpu::step_idle::LongestGap, interval::Interval},
};

/// A call of the host in the longest gap of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct CallInGap {
    pub name: String,
    /// Part of the gap in it.
    pub ns: i64,
}

/// The steps of a stage by process.
pub struct StepsByProcess(BTreeMap<i64, Vec<(Interval, usize)>>);

impl StepsByProcess {
    pub fn of(stage: &StageSteps) -> Self {
        let mut found: BTreeMap<i64, Vec<(Interval, usize)>> = BTreeMap::new();
        for (at, it) in stage.steps.iter().enumerate() {
            found.entry(it.process.unwrap_or_default()).or_default().push((it.span, at));
        }
        Self(found)
    }

    /// The step of a process at a time.
    fn at(&self, process: i64, time: i64) -> Option<usize> {
        let steps = self.0.get(&process)?;
        let at = steps.partition_point(|it| it.0.0 <= time).checked_sub(1)?;
        (time < steps[at].0.1).then_some(steps[at].1)
    }

    /// The steps of a process that a time lies in, each with the nanoseconds in it.
    pub fn parts(&self, process: i64, time: Interval) -> impl Iterator<Item = (usize, i64)> + '_ {
        let steps = self.0.get(&process).map_or(&[][..], Vec::as_slice);
        let first = steps.partition_point(|it| it.0.1 <= time.0);
        let steps = steps[first..].iter().take_while(move |it| it.0.0 < time.1);
        steps.map(move |(step, at)| (*at, time.1.min(step.1) - time.0.max(step.0)))
    }
}

/// The call of the same thread that takes most of each gap, whatever its kind.
pub fn in_gaps(trace: &Timeline, gaps: &[Option<LongestGap>]) -> Vec<Option<CallInGap>> {
    let mut found: Vec<Option<(u32, i64)>> = vec![None; gaps.len()];
    let threads: Vec<i64> = gaps.iter().flatten().filter_map(|it| it.thread).collect();
    let sites = trace.cuda_calls.sites();
    let is_wanted: Vec<bool> = sites.iter().map(|(_, thread)| threads.contains(thread)).collect();
    for (_, _, call) in trace.cuda_calls.at_sites(&is_wanted) {
        for (gap, found) in gaps.iter().zip(&mut found) {
            let Some(gap) = gap.filter(|it| it.thread == Some(call.global_tid)) else { continue };
            let ns = call.end_ns.min(gap.span.1) - call.start_ns.max(gap.span.0);
            if 2 * ns > gap.span.1 - gap.span.0 && found.is_none_or(|it| it.1 < ns) {
                *found = Some((call.name, ns));
            }
        }
    }
    let named = |(name, ns)| CallInGap { name: without_version(trace.text(name)).to_owned(), ns };
    found.into_iter().map(|it| it.map(named)).collect()
}

/// Milliseconds of the longest call of each name in a step, by name and process: the median over
/// the steps of the process that are not outliers and have one. Absent if fewer than three have.
pub fn usual_ms<'a>(
    trace: &Timeline,
    stage: &StageSteps,
    names: &[&'a str],
) -> BTreeMap<(&'a str, i64), f64> {
    if names.is_empty() {
        return BTreeMap::new();
    }
    let steps = StepsByProcess::of(stage);
    let place_of = |name: u32| {
        let name = without_version(trace.text(name));
        names.iter().position(|it| *it == name)
    };
    let places: Vec<Option<usize>> =
        trace.cuda_calls.sites().iter().map(|(name, _)| place_of(*name)).collect();
    let is_wanted: Vec<bool> = places.iter().map(Option::is_some).collect();
    let mut longest: BTreeMap<(usize, usize), i64> = BTreeMap::new();
    for (_, site, call) in trace.cuda_calls.at_sites(&is_wanted) {
        let step = steps.at(process_of(call.global_tid), call.start_ns);
        let step = step.filter(|it| !stage.steps[*it].is_outlier());
        if let Some((place, step)) = places[site as usize].zip(step) {
            let ns = longest.entry((place, step)).or_default();
            *ns = (*ns).max(call.end_ns - call.start_ns);
        }
    }
    medians(trace, stage, names, longest)
}

/// Milliseconds of each name in a step, by name and process: the median over the steps. Absent if
/// fewer than three steps have one. `ns` has the place of the name and the step.
pub fn medians<'a>(
    trace: &Timeline,
    stage: &StageSteps,
    names: &[&'a str],
    ns: BTreeMap<(usize, usize), i64>,
) -> BTreeMap<(&'a str, i64), f64> {
    let mut each: BTreeMap<(&'a str, i64), Vec<f64>> = BTreeMap::new();
    for ((place, step), ns) in ns {
        let process = stage.steps[step].owner(Some(trace));
        each.entry((names[place], process)).or_default().push(ns as f64 / 1e6);
    }
    each.retain(|_, times| times.len() >= LEAST_MEDIAN);
    each.into_iter().filter_map(|(of, times)| Some((of, lower_median(times)?))).collect()
}

/// Kernels that each outlier launched one by one, if it replayed no graph and most other steps of
/// its process replay one and launch far fewer kernels.
pub fn launched_singly(trace: &Timeline, stage: &StageSteps) -> Vec<Option<u64>> {
    let kinds = trace.call_kinds();
    if !kinds.contains(&CallKind::Graph) {
        return stage.listed().map(|_| None).collect();
    }
    let is_wanted: Vec<bool> = kinds.iter().map(|it| it.is_launch()).collect();
    let steps = StepsByProcess::of(stage);
    let mut launches = vec![(0_u64, 0_u64); stage.steps.len()];
    for (_, site, call) in trace.cuda_calls.at_sites(&is_wanted) {
        let Some(step) = steps.at(process_of(call.global_tid), call.start_ns) else { continue };
        match kinds[site as usize] {
            CallKind::Graph => launches[step].1 += 1,
            _ => launches[step].0 += 1,
        }
    }
    let owner = |at: usize| stage.steps[at].owner(Some(trace));
    let singly = |at: usize| {
        let (kernels, graphs) = launches[at];
        let others = stage.usual().filter(|other| owner(*other) == owner(at));
        let others: Vec<(u64, u64)> = others.map(|other| launches[other]).collect();
        let replaying = others.iter().filter(|it| it.1 > 0).count();
        let usual = lower_median(others.iter().map(|it| it.0 as f64)).unwrap_or(f64::MAX);
        let is_it = graphs == 0
            && 2 * replaying > others.len()
            && kernels > 0
            && kernels as f64 > OUTLIER_MEDIANS * usual;
        is_it.then_some(kernels)
    };
    stage.listed().map(singly).collect()
}

/// Number of graphs that each outlier captures, and milliseconds of that: from the start of each
/// capture to its end, and in calls that make the graph executable. `None` unless that takes at
/// least half of the step's time above the median.
pub fn captured(trace: &Timeline, stage: &StageSteps) -> Vec<Option<(u64, f64)>> {
    let kinds = trace.call_kinds();
    if !kinds.contains(&CallKind::EndCapture) {
        return stage.listed().map(|_| None).collect();
    }
    let is_wanted = |(kind, (name, _)): (&CallKind, &(u32, i64))| {
        kind.bounds_capture() || trace.text(*name).contains("GraphInstantiate")
    };
    let sites = trace.cuda_calls.sites();
    let is_wanted: Vec<bool> = kinds.iter().zip(sites.iter()).map(is_wanted).collect();
    let calls = trace.cuda_calls.at_sites(&is_wanted);
    let mut calls: Vec<_> = calls.map(|(_, site, call)| (call, kinds[site as usize])).collect();
    calls.sort_by_key(|it| it.0.start_ns);
    let steps = StepsByProcess::of(stage);
    let mut found = vec![(0_u64, 0_i64); stage.steps.len()];
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    for (call, kind) in calls {
        let from = match kind {
            CallKind::BeginCapture => {
                open.insert(call.global_tid, call.start_ns);
                None
            }
            CallKind::EndCapture => open.remove(&call.global_tid),
            _ => Some(call.start_ns),
        };
        let Some(from) = from else { continue };
        if let Some(step) = steps.at(process_of(call.global_tid), from) {
            found[step].0 += u64::from(kind == CallKind::EndCapture);
            found[step].1 += call.end_ns - from;
        }
    }
    let named = |at: usize| {
        let (graphs, ms) = (found[at].0, found[at].1 as f64 / 1e6);
        (graphs > 0 && 2.0 * ms >= stage.steps[at].above_ms()).then_some((graphs, ms))
    };
    stage.listed().map(named).collect()
}
