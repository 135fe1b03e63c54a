//! The parts of an idle gap by reason, with the long call of the host that a part is named by: the
//! one division of the ledger's causes and of steps that take longer than others.

use std::{cmp::Reverse, collections::BTreeMap};

use foldhash::HashSet;
use llmprof_core::trace::{
    runtime_call::{CallKind, without_version},
    timeline::Timeline,
};

use super::{
    super::{
        activity::{Activity, activities, used_devices},
        capture::Capture,
        interval::{Interval, IntervalSet},
    },
    gap_sums::{GapReason, reasons},
    idle_gap::IdleGap,
    long_calls::{LONG_CALL_NS, LongCalls},
    waits::IdleSplit,
};

/// Least part of a wait, in percent, in which another GPU works for the same process: the wait is
/// for that work.
const OTHER_GPU_PCT: i64 = 10;

/// Work of each GPU of the processes that use several.
type GpuWork = BTreeMap<i64, BTreeMap<u32, IntervalSet>>;

/// Part of a gap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GapPart {
    pub reason: GapReason,
    /// Number of the long call that it is named by.
    pub call: Option<u32>,
    pub ns: i64,
    /// True for one part of each gap: the sums of this part count the gap.
    pub is_counted: bool,
}

/// A gap in parts, one of each reason and long call.
#[derive(Debug, Default)]
pub struct DividedGap {
    pub parts: Vec<GapPart>,
    /// Long calls in which the host was before the launch, each with its part of the gap, in order
    /// of time.
    pub long_calls: Vec<(u32, Interval)>,
}

impl DividedGap {
    fn add(&mut self, reason: GapReason, call: Option<u32>, ns: i64) {
        let same = self.parts.iter_mut().find(|it| (it.reason, it.call) == (reason, call));
        match same {
            Some(part) => part.ns += ns,
            None if ns > 0 => self.parts.push(GapPart { reason, call, ns, is_counted: false }),
            None => {}
        }
    }

    /// Time of a part of the gap in a long call; all of it in the call of a launch.
    pub fn ns_in(&self, call: u32, span: Interval) -> i64 {
        let mut of_call = self.long_calls.iter().filter(|it| it.0 == call).peekable();
        if of_call.peek().is_none() {
            return span.1 - span.0;
        }
        of_call.map(|(_, part)| (part.1.min(span.1) - part.0.max(span.0)).max(0)).sum()
    }

    /// Marks the part that counts the gap: the longest one of the reason with the most time.
    fn mark_counted(&mut self) {
        let time_of = |reason: GapReason| -> i64 {
            self.parts.iter().filter(|it| it.reason == reason).map(|it| it.ns).sum()
        };
        let order = |(at, it): &(usize, &GapPart)| (time_of(it.reason), it.ns, Reverse(*at));
        let counted = self.parts.iter().enumerate().max_by_key(order).map(|it| it.0);
        if let Some(at) = counted {
            self.parts[at].is_counted = true;
        }
    }
}

/// Divides gaps.
pub struct GapNames<'a> {
    trace: &'a Timeline,
    /// Names of calls that launch graphs.
    graph_launches: HashSet<u32>,
    long_calls: LongCalls<'a>,
    gpu_work: GpuWork,
}

impl<'a> GapNames<'a> {
    pub fn of(capture: &'a Capture<'a>) -> Self {
        let trace = capture.trace;
        let sites = trace.cuda_calls.sites().iter().zip(trace.call_kinds());
        let graph_launches =
            sites.filter(|it| it.1 == CallKind::Graph).map(|((name, _), _)| *name).collect();
        let long_calls = LongCalls::of(trace);
        Self { trace, graph_launches, long_calls, gpu_work: gpu_work(capture) }
    }

    /// Divides a gap; `into` has its parts alone afterwards.
    pub fn divide(&mut self, gap: &IdleGap, into: &mut DividedGap) {
        into.parts.clear();
        into.long_calls.clear();
        self.find_long_calls(gap, &mut into.long_calls);
        let launching = self.long_launch(gap);
        let is_graph = gap.reasons.program.launch > 0 && self.launches_graph(gap);
        for (reason, ns) in reasons(gap) {
            let (reason, call) = match reason {
                GapReason::Host => {
                    add_host(gap, ns, into);
                    continue;
                }
                GapReason::Launch if !is_graph && launching.is_some() => {
                    (GapReason::LongCall, launching)
                }
                // A graph that was submitted in the gap starts some time after its call.
                GapReason::Launch | GapReason::Queued if is_graph => (GapReason::GraphLaunch, None),
                // Kernels that follow each other start within microseconds.
                GapReason::InGraph | GapReason::Queued
                    if ns >= LONG_CALL_NS && !self.is_for_other_gpu(gap, ns) =>
                {
                    (GapReason::Wait, None)
                }
                _ => (reason, None),
            };
            into.add(reason, call, ns);
        }
        into.mark_counted();
    }

    /// True if another GPU works for the process in `ns` of the gap, before an unrecorded wait.
    fn is_for_other_gpu(&self, gap: &IdleGap, ns: i64) -> bool {
        let Some(after) = gap.after else { return false };
        let gpus = self.gpu_work.get(&after.process).into_iter().flatten();
        let others = gpus.filter(|it| *it.0 != after.device);
        let to = gap.to - gap.unrecorded_ns;
        let work_ns = others.map(|it| it.1.overlap_ns(to - ns, to)).max();
        work_ns.is_some_and(|work_ns| work_ns >= ns / 100 * OTHER_GPU_PCT)
    }

    /// The call of a launch that takes long in the gap: it loads or compiles the kernel.
    fn long_launch(&mut self, gap: &IdleGap) -> Option<u32> {
        let is_long = gap.reasons.program.launch >= LONG_CALL_NS;
        let after = gap.after.filter(|it| is_long && it.join.has_call())?;
        let trace = self.trace;
        let call = trace.cuda_calls.get(after.join.call as usize);
        let is_it = call.end_ns - call.start_ns >= LONG_CALL_NS;
        is_it.then(|| self.long_calls.number(without_version(trace.text(call.name)).into()))
    }

    /// True if a graph's launch ends the gap.
    fn launches_graph(&self, gap: &IdleGap) -> bool {
        gap.after.filter(|it| it.join.has_call()).is_some_and(|after| {
            let call = self.trace.cuda_calls.get(after.join.call as usize);
            self.graph_launches.contains(&call.name)
        })
    }

    /// The long calls in which the host was until it launched the work that ended the gap.
    fn find_long_calls(&self, gap: &IdleGap, found: &mut Vec<(u32, Interval)>) {
        let IdleSplit { host, launch, .. } = gap.reasons.program;
        let is_long = host - launch >= LONG_CALL_NS;
        if let Some(after) = gap.after.filter(|it| is_long && it.join.has_call()) {
            self.long_calls.before(self.trace, after.join.call, (gap.from, gap.to), found);
        }
    }

    /// Names of the long calls, by their numbers.
    pub fn into_names(self) -> Vec<String> {
        self.long_calls.into_names()
    }
}

/// Adds `ns` of the host before the launch: the time in each long call, and the rest, in which the
/// host is elsewhere.
fn add_host(gap: &IdleGap, ns: i64, into: &mut DividedGap) {
    let mut rest = ns;
    for at in 0..into.long_calls.len() {
        let (call, part) = into.long_calls[at];
        let inside = host_ns(gap, part).min(rest);
        into.add(GapReason::LongCall, Some(call), inside);
        rest -= inside;
    }
    into.add(GapReason::Host, None, rest);
}

/// Time of the host in a part of a gap before its launch.
fn host_ns(gap: &IdleGap, (from, to): Interval) -> i64 {
    let known = (gap.from, gap.to - gap.unrecorded_ns);
    gap.call.map_or(0, |call| gap.waits.host_ns((from, to.min(known.1)), known, call))
}

/// Work of GPUs, empty for processes that use one.
fn gpu_work(capture: &Capture) -> GpuWork {
    let mut spans: BTreeMap<i64, BTreeMap<u32, Vec<Interval>>> = BTreeMap::new();
    for (process, device) in used_devices(capture.trace) {
        spans.entry(process).or_default().entry(device).or_default();
    }
    spans.retain(|_, gpus| gpus.len() > 1);
    if spans.is_empty() {
        return GpuWork::new();
    }
    for Activity { process, device, start_ns, end_ns, .. } in activities(capture) {
        if let Some(of) = spans.get_mut(&process).and_then(|gpus| gpus.get_mut(&device)) {
            of.push((start_ns, end_ns));
        }
    }
    let sets = |gpus: BTreeMap<u32, Vec<Interval>>| {
        gpus.into_iter().map(|(gpu, spans)| (gpu, IntervalSet::new(spans))).collect()
    };
    spans.into_iter().map(|(process, gpus)| (process, sets(gpus))).collect()
}
