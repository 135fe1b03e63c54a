//! The parts of an idle gap by reason, with the long call of the host that a part is named by: the
//! one division of the ledger's causes and of steps that take longer than others.

use std::collections::BTreeMap;

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

    /// Calls `take` with each reason of a gap, the number of the long call that it is named by, and
    /// its nanoseconds. Returns the long call in which the host was before the launch, with its
    /// part of the gap.
    pub fn divide(
        &mut self,
        gap: &IdleGap,
        mut take: impl FnMut(GapReason, Option<u32>, i64),
    ) -> Option<(u32, Interval)> {
        let long_call = self.long_call(gap);
        let launching = self.long_launch(gap);
        let is_graph = gap.reasons.program.launch > 0 && self.launches_graph(gap);
        for (reason, ns) in reasons(gap) {
            let (reason, call) = match (reason, long_call) {
                (GapReason::Host, Some((call, part))) => {
                    // The host is elsewhere before and after it.
                    let inside = host_ns(gap, part).min(ns);
                    let in_call = (GapReason::LongCall, Some(call), inside);
                    let parts = [in_call, (GapReason::Host, None, ns - inside)].into_iter();
                    parts.filter(|it| it.2 > 0).for_each(|it| take(it.0, it.1, it.2));
                    continue;
                }
                (GapReason::Launch, _) if !is_graph && launching.is_some() => {
                    (GapReason::LongCall, launching)
                }
                // A graph that was submitted in the gap starts some time after its call.
                (GapReason::Launch | GapReason::Queued, _) if is_graph => {
                    (GapReason::GraphLaunch, None)
                }
                // Kernels that follow each other start within microseconds.
                (GapReason::InGraph | GapReason::Queued, _)
                    if ns >= LONG_CALL_NS && !self.is_for_other_gpu(gap, ns) =>
                {
                    (GapReason::Wait, None)
                }
                _ => (reason, None),
            };
            take(reason, call, ns);
        }
        long_call
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

    /// The long call in which the host was until it launched the work that ended the gap.
    fn long_call(&self, gap: &IdleGap) -> Option<(u32, Interval)> {
        let IdleSplit { host, launch, .. } = gap.reasons.program;
        let after = gap.after.filter(|it| host - launch >= LONG_CALL_NS && it.join.has_call())?;
        self.long_calls.before(self.trace, after.join.call, (gap.from, gap.to))
    }

    /// Names of the long calls, by their numbers.
    pub fn into_names(self) -> Vec<String> {
        self.long_calls.into_names()
    }
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
