//! A step of the traced pass, from the capture.

use std::collections::BTreeSet;

use llmprof_core::trace::{
    clocks::CLOCK_TOLERANCE_NS,
    timeline::{ON_HOST, Timeline, process_of},
};

use super::{
    SliceList, StepTimeline,
    device::{self, StepWork},
    owners::KernelOwners,
    us,
};
use crate::{
    stages::DECODE,
    timeline::{
        activity::used_devices,
        capture::{Capture, Join},
        interval::{Interval, covered_ns, union},
        open_ranges::step_ranges,
    },
};

/// Range and thread of a step in the capture.
pub(super) struct StepPlace {
    pub range: Interval,
    instance: u32,
    pub thread: i64,
    /// True when the range is open on all threads of its process.
    pub everywhere: bool,
}

impl StepPlace {
    /// Returns true when a call that started at `t` on `thread` belongs to the step.
    fn contains(&self, thread: i64, t: i64) -> bool {
        let thread = if self.everywhere { process_of(thread) } else { thread };
        thread == self.thread && (self.range.0..self.range.1).contains(&t)
    }
}

/// The median step of the traced pass; `None` if no step has a kernel or a whole-traced graph, and
/// if the GPU of its graph is unknown.
pub fn traced_step(capture: &Capture) -> Option<StepTimeline> {
    let (place, step, steps) = median_step(capture)?;
    let own = step_work(capture, &place);
    if own.graphs.iter().any(|at| capture.trace.graphs[*at].device == ON_HOST) {
        return None;
    }
    let intervals = work_intervals(capture, &place, &own)?;
    let window = window(capture.trace, &place, &intervals)?;

    let mut slices = SliceList { from: window.0, slices: Vec::new() };
    add_calls(capture.trace, &place, window, &mut slices);
    let owners = KernelOwners::of(capture, &place, &own.kernels);
    owners.add_tracks(&mut slices);
    let all = device::add_device_work(&owners, &own, window, &mut slices);
    let process = process_of(place.thread);
    let used: BTreeSet<u32> = used_devices(capture.trace)
        .range((process, 0)..=(process, u32::MAX))
        .map(|(_, device)| *device)
        .collect();
    let covered = |intervals: &[(u32, Interval)], device: u32| {
        covered_ns(intervals.iter().filter(|(on, _)| *on == device).map(|(_, at)| *at))
    };
    let idle: i64 = used.iter().map(|device| window.1 - window.0 - covered(&all, *device)).sum();
    let (slices, omitted) = slices.limited();
    Some(StepTimeline {
        pass: "traced".into(),
        step,
        steps,
        window_us: us(window.1 - window.0),
        lead_us: us(window.0 - place.range.0.min(window.0)),
        busy_us: us(used.iter().map(|device| covered(&intervals, *device)).sum()),
        idle_us: Some(us(idle)),
        devices: used.len() as u64,
        kernels: own.kernels.len() as u64,
        whole_graphs: own.graphs.len() as u64,
        slices,
        omitted,
    })
}

/// The step of median length, its number from 1, and the count of steps that count in times. It is
/// a measured step: of an even number, the shorter of the two in the middle.
fn median_step(capture: &Capture) -> Option<(StepPlace, u64, u64)> {
    let (stages, rules) = (&capture.stages, &capture.trace.rules);
    let named = step_ranges(capture.trace, |it| rules.is_step_in_decode(&it.name, &it.domain));
    let named = named.iter().flat_map(|(place, all)| all.iter().map(move |range| (*place, *range)));
    let of_engine = stages.steps.iter().filter(|it| it.is_decode());
    let of_engine = of_engine.map(|it| (it.place, (it.start_ns, it.end_ns)));
    let step = |(thread, range): (i64, Interval)| {
        let instance = stages.at(thread, range.0)?;
        let counts = capture.stage(instance) == DECODE && stages.states.of(thread, range).counts();
        let everywhere = process_of(thread) == thread;
        counts.then_some(StepPlace { range, instance, thread, everywhere })
    };
    let mut steps: Vec<StepPlace> = named.chain(of_engine).filter_map(step).collect();
    steps.sort_by_key(|it| it.range.0);
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|at| (steps[*at].range.1 - steps[*at].range.0, *at));
    let at = *order.get(steps.len().saturating_sub(1) / 2)?;
    let count = steps.len() as u64;
    Some((steps.swap_remove(at), at as u64 + 1, count))
}

/// The work launched by calls of the step.
fn step_work(capture: &Capture, place: &StepPlace) -> StepWork {
    let mut calls = capture.trace.cuda_calls.reader();
    let mut is_own = |join: Join| {
        if join.instance != place.instance || !join.has_call() {
            return false;
        }
        let call = calls.get(join.call);
        place.contains(call.global_tid, call.start_ns)
    };
    let mut own = |joins: &mut dyn Iterator<Item = Join>| -> Vec<usize> {
        joins.enumerate().filter(|(_, it)| is_own(*it)).map(|(at, _)| at).collect()
    };
    StepWork {
        kernels: own(&mut capture.kernel_joins()),
        copies: own(&mut capture.copy_joins()),
        graphs: own(&mut capture.graph_joins()),
    }
}

/// Device and interval of a step's work; `None` without a kernel or graph, and when host and device
/// have no common clock.
fn work_intervals(
    capture: &Capture,
    place: &StepPlace,
    own: &StepWork,
) -> Option<Vec<(u32, Interval)>> {
    if own.kernels.is_empty() && own.graphs.is_empty() {
        return None;
    }
    let kernels = own.kernels.iter().map(|at| capture.kernel(*at));
    let mut work: Vec<(u32, u32, Interval)> =
        kernels.map(|(it, join)| (join.call, it.device, (it.start_ns, it.end_ns))).collect();
    let copies = own.copies.iter().map(|at| capture.copy(*at));
    work.extend(copies.map(|(it, join)| (join.call, it.device, (it.start_ns, it.end_ns))));
    let graphs = own.graphs.iter().map(|at| capture.graph(*at));
    work.extend(graphs.map(|(it, join)| (join.call, it.device, (it.start_ns, it.end_ns))));
    let called = |call: u32| capture.trace.cuda_calls.get(call as usize).start_ns;
    let early = |(call, _, at): &(u32, u32, Interval)| {
        called(*call).saturating_sub(at.0) > CLOCK_TOLERANCE_NS
    };
    let process = process_of(place.thread);
    let unequal =
        |(_, device, _): &(u32, u32, Interval)| !capture.trace.has_common_clock(process, *device);
    (!work.iter().any(|it| early(it) || unequal(it)))
        .then(|| work.into_iter().map(|(_, device, at)| (device, at)).collect())
}

/// The window that the timeline shows; `None` when all work has zero length.
fn window(trace: &Timeline, place: &StepPlace, intervals: &[(u32, Interval)]) -> Option<Interval> {
    let merged = union(intervals.iter().map(|(_, at)| *at));
    let (start, end) = (merged.first()?.0, merged.last()?.1);
    let range = place.range;
    let kernels = trace.kernels.iter().map(|it| (it.start_ns, it.end_ns));
    let runs_at = |t: i64| move |(start, end): (i64, i64)| start <= t && end > t;
    let busy_at = |t: i64| {
        kernels.clone().take_while(|it| it.0 <= t).any(runs_at(t))
            || trace.graphs.iter().map(|it| (it.start_ns, it.end_ns)).any(runs_at(t))
    };
    let from = if start > range.0 && busy_at(range.0) { start } else { range.0.min(start) };
    Some((from, end.max(if from == range.0 { range.1 } else { end })))
}

/// Adds the CUDA calls of the step's thread.
fn add_calls(trace: &Timeline, place: &StepPlace, (from, to): Interval, slices: &mut SliceList) {
    let name = |index: u32| trace.text(index);
    let calls = trace.cuda_calls.iter().take_while(|it| it.start_ns < to);
    for call in
        calls.filter(|it| it.end_ns > from && !place.everywhere && it.global_tid == place.thread)
    {
        let own = (place.range.0..place.range.1).contains(&call.start_ns);
        slices.push("calls", name(call.name), (call.start_ns.max(from), call.end_ns.min(to)), own);
    }
}
