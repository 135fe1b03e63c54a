//! Bounds on the offsets of clocks, from the launches and waits of a timeline.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use super::{CLOCK_TOLERANCE_NS, ClockBounds, WaitTarget, bounds::BoundAt};
use crate::trace::{
    call_index::{CallIndex, NO_CALL},
    runtime_call::{Awaited, CallKind},
    timeline::{ApiCall, CopyKind, ON_HOST, Timeline, process_of},
};

/// Windows of time, of whose launches the one with the least bound is kept.
const WINDOWS: usize = 1024;
/// Kernels that start early and are kept: more are not few.
const MAX_EARLY: usize = 100_000;
/// Lanes of a process whose waits for a device count.
const MAX_LANES: usize = 64;

/// A process and a device.
pub type ClockPlace = (i64, u32);

/// Evidence on one clock.
#[derive(Debug, Clone, Default)]
pub struct ClockEvidence {
    /// By window of time: the launch with the least bound.
    upper: BTreeMap<usize, BoundAt>,
    /// Kernels, copies and graphs with their launching call.
    pub launches: usize,
    /// Launches whose work starts before them, beyond the tolerance.
    pub early: usize,
    /// Kernels among them, with the time by which they are early.
    pub early_kernels: BTreeMap<usize, i64>,
    /// Waits with work to wait for.
    pub waits: Vec<WaitEvidence>,
}

/// A wait, and the work that it waited for.
#[derive(Debug, Clone, Copy)]
pub struct WaitEvidence {
    pub bound: BoundAt,
    /// The kernel that ends last, and its duration.
    kernel: Option<(usize, i64)>,
}

impl ClockEvidence {
    /// All bounds on the offset.
    pub fn bounds(&self) -> ClockBounds {
        ClockBounds {
            lower: self.waits.iter().map(|it| it.bound).collect(),
            upper: self.upper.values().copied().collect(),
        }
    }

    fn late(&self) -> impl Iterator<Item = &WaitEvidence> {
        self.waits.iter().filter(|it| it.bound.bound_ns > CLOCK_TOLERANCE_NS)
    }

    /// Waits that return before their work has ended, beyond the tolerance.
    pub fn late_waits(&self) -> usize {
        self.late().count()
    }

    /// The kernels that outlast their waits; `None` if other work does, or a kernel that starts
    /// after the return, so that not only its end is wrong.
    pub fn outlasting_kernels(&self) -> Option<BTreeMap<usize, i64>> {
        let outlasting = |it: &WaitEvidence| {
            let (at, ns) = it.kernel.filter(|(_, ns)| *ns >= it.bound.bound_ns)?;
            (ns > 0).then_some((at, it.bound.bound_ns))
        };
        self.late().map(outlasting).collect()
    }

    fn add_launch(&mut self, window: usize, bound: BoundAt, kernel: Option<usize>) {
        self.launches += 1;
        let least = self.upper.entry(window).or_insert(bound);
        if bound.bound_ns < least.bound_ns {
            *least = bound;
        }
        if bound.bound_ns < -CLOCK_TOLERANCE_NS {
            self.early += 1;
            if let Some(kernel) = kernel.filter(|_| self.early_kernels.len() < MAX_EARLY) {
                self.early_kernels.insert(kernel, -bound.bound_ns);
            }
        }
    }
}

/// A call of the host, waiting for the work of a device or stream.
struct HostWait {
    call: ApiCall,
    device: u32,
    /// True if the stream is unknown: it waited for one of all.
    is_of_any: bool,
    /// Streams with work before the wait.
    lanes: usize,
    found: Option<WaitEvidence>,
}

/// Work of one kind on a stream, in order of start.
#[derive(Default)]
struct Lane {
    /// Indices of waits for it, in order of time.
    waits: Vec<usize>,
    next: usize,
    /// End of the work that ends last, and the kernel with its duration.
    last: Option<(i64, Option<(usize, i64)>)>,
}

impl Lane {
    /// Closes the waits that started before `t`.
    fn close(&mut self, t: i64, waits: &mut [HostWait]) {
        while let Some(at) = self.waits.get(self.next).filter(|at| waits[**at].call.start_ns < t) {
            let wait = &mut waits[*at];
            self.next += 1;
            let Some((end_ns, kernel)) = self.last else { continue };
            let returned = wait.call.end_ns;
            let bound = BoundAt { at_ns: returned, bound_ns: end_ns - returned };
            let here = WaitEvidence { bound, kernel };
            wait.lanes += 1;
            let is_better = |old: &WaitEvidence| match wait.is_of_any {
                true => bound.bound_ns < old.bound.bound_ns,
                false => bound.bound_ns > old.bound.bound_ns,
            };
            if wait.found.as_ref().is_none_or(is_better) {
                wait.found = Some(here);
            }
        }
    }

    fn add(&mut self, end_ns: i64, kernel: Option<(usize, i64)>) {
        if self.last.is_none_or(|(last, _)| last < end_ns) {
            self.last = Some((end_ns, kernel));
        }
    }
}

/// Kind of work, process, device and stream.
type LaneKey = (u8, i64, u32, Option<u32>);

/// A piece of work of a device.
struct LaunchedWork {
    lane: LaneKey,
    correlation: i64,
    times: (i64, i64),
    kernel: Option<usize>,
}

/// The evidence on each pair of a process and a device with work.
pub fn evidence(trace: &Timeline) -> BTreeMap<ClockPlace, ClockEvidence> {
    let index = CallIndex::of(&trace.cuda_calls);
    let (mut lookup, mut calls) = (index.lookup(), trace.cuda_calls.reader());
    let (mut lanes, mut waits) = lanes(trace);
    let mut found: BTreeMap<ClockPlace, ClockEvidence> = BTreeMap::new();
    let windows = LaunchWindows::of(trace);
    let mut add = |it: LaunchedWork| {
        let (_, process, device, _) = it.lane;
        let call = lookup.find(process, it.correlation);
        if call == NO_CALL || device == ON_HOST {
            return;
        }
        let call = calls.get(call);
        let bound = BoundAt { at_ns: call.start_ns, bound_ns: it.times.0 - call.start_ns };
        let evidence = found.entry((process, device)).or_default();
        evidence.add_launch(windows.at(call.start_ns), bound, it.kernel);
        if let Some(lane) = lanes.get_mut(&it.lane) {
            lane.close(call.end_ns, &mut waits);
            lane.add(it.times.1, it.kernel.map(|at| (at, it.times.1 - it.times.0)));
        }
    };
    each_work(trace, &mut add);
    let of_device: HashMap<ClockPlace, usize> =
        lanes.keys().fold(HashMap::default(), |mut count, it| {
            *count.entry((it.1, it.2)).or_default() += 1;
            count
        });
    lanes.values_mut().for_each(|it| it.close(i64::MAX, &mut waits));
    for wait in waits {
        let place = (process_of(wait.call.global_tid), wait.device);
        let is_known = !wait.is_of_any || of_device.get(&place) == Some(&wait.lanes);
        if let Some(it) = wait.found.filter(|_| is_known) {
            found.entry(place).or_default().waits.push(it);
        }
    }
    add_reads(trace, &index, &mut found);
    found
}

/// Calls `take` with all work, in order of start on each lane.
fn each_work(trace: &Timeline, take: &mut dyn FnMut(LaunchedWork)) {
    for (at, it) in trace.kernels.iter().enumerate() {
        take(LaunchedWork {
            lane: (0, process_of(it.global_pid), it.device, Some(it.stream)),
            correlation: it.correlation_id,
            times: (it.start_ns, it.end_ns),
            kernel: Some(at),
        });
    }
    for it in &trace.graphs {
        take(LaunchedWork {
            lane: (1, process_of(it.global_pid), it.device, Some(it.stream)),
            correlation: it.correlation_id,
            times: (it.start_ns, it.end_ns),
            kernel: None,
        });
    }
    for it in &trace.copies {
        take(LaunchedWork {
            lane: (2, process_of(it.global_pid), it.device, it.stream),
            correlation: it.correlation_id,
            times: (it.start_ns, it.end_ns),
            kernel: None,
        });
    }
}

/// All lanes with the waits for their work. If a process uses several devices, the device that a
/// call waited for is known only if it is recorded, or if one device has the recorded stream.
fn lanes(trace: &Timeline) -> (HashMap<LaneKey, Lane>, Vec<HostWait>) {
    let kernels = trace.kernels.kinds().iter();
    let kernels = kernels.map(|it| (0, process_of(it.global_pid), it.device, Some(it.stream)));
    let graphs = trace.graphs.iter();
    let graphs = graphs.map(|it| (1, process_of(it.global_pid), it.device, Some(it.stream)));
    let copies = trace.copies.iter();
    let copies = copies.map(|it| (2, process_of(it.global_pid), it.device, it.stream));
    let all = kernels.chain(graphs).chain(copies).filter(|it| it.2 != ON_HOST);
    let mut lanes: HashMap<LaneKey, Lane> = all.map(|it| (it, Lane::default())).collect();
    let mut processes: HashMap<i64, ProcessLanes> = HashMap::default();
    for key in lanes.keys() {
        processes.entry(key.1).or_default().add(*key);
    }
    let with_devices = with_recorded_devices(&trace.wait_targets, &processes);
    let mut waits = Vec::new();
    let kinds = trace.call_kinds();
    let is_wait: Vec<bool> = kinds
        .iter()
        .map(|it| matches!(it, CallKind::Synchronise(Awaited::Stream | Awaited::Device)))
        .collect();
    for (_, site, call) in trace.cuda_calls.at_sites(&is_wait) {
        let process = process_of(call.global_tid);
        let Some(of_process) = processes.get(&process) else { continue };
        let is_of_stream = kinds[site as usize] == CallKind::Synchronise(Awaited::Stream);
        let (device, stream) = awaited(&trace.wait_targets, &call);
        let device = device.filter(|_| with_devices.contains(&process));
        let stream = stream.filter(|_| is_of_stream);
        let keys = of_process.lanes(device, stream);
        let Some(device) = only_device(keys) else { continue };
        for key in keys {
            lanes.entry(*key).or_default().waits.push(waits.len());
        }
        let is_of_any = is_of_stream && stream.is_none();
        waits.push(HostWait { call, device, is_of_any, lanes: 0, found: None });
    }
    (lanes, waits)
}

/// The processes whose waits have a recorded device that is evidence: one of these devices has work
/// of the process. CUPTI records device 0 for all waits of a process that uses another device.
fn with_recorded_devices(
    targets: &[WaitTarget],
    processes: &HashMap<i64, ProcessLanes>,
) -> BTreeSet<i64> {
    let has_work = |it: &&WaitTarget| {
        it.device.is_some_and(|device| processes.get(&it.process).is_some_and(|of| of.uses(device)))
    };
    targets.iter().filter(has_work).map(|it| it.process).collect()
}

/// The lanes of one process.
#[derive(Default)]
struct ProcessLanes {
    /// By device and stream; `None` for all of them.
    lanes: HashMap<(Option<u32>, Option<u32>), Vec<LaneKey>>,
}

impl ProcessLanes {
    fn add(&mut self, key: LaneKey) {
        let (_, _, device, stream) = key;
        for device in [None, Some(device)] {
            self.lanes.entry((device, None)).or_default().push(key);
            if stream.is_some() {
                self.lanes.entry((device, stream)).or_default().push(key);
            }
        }
    }

    /// True if the process has work on this device.
    fn uses(&self, device: u32) -> bool {
        self.lanes.contains_key(&(Some(device), None))
    }

    /// The lanes of a device and a stream, or of all; none if all streams are too many.
    fn lanes(&self, device: Option<u32>, stream: Option<u32>) -> &[LaneKey] {
        let found = self.lanes.get(&(device, stream)).map_or(&[][..], Vec::as_slice);
        if stream.is_none() && found.len() > MAX_LANES { &[] } else { found }
    }
}

/// The device of all these lanes.
fn only_device(lanes: &[LaneKey]) -> Option<u32> {
    let first = lanes.first()?.2;
    lanes.iter().all(|it| it.2 == first).then_some(first)
}

/// The device and the stream that a call waited for, if they are recorded; rows of one call that
/// differ prove neither.
fn awaited(targets: &[WaitTarget], call: &ApiCall) -> (Option<u32>, Option<u32>) {
    let key = call.launch_id();
    let at = targets.partition_point(|it| (it.process, it.correlation) < key);
    let mut found = targets[at..].iter().take_while(|it| (it.process, it.correlation) == key);
    match found.next() {
        Some(first) if found.all(|it| it == first) => (first.device, first.stream),
        _ => (None, None),
    }
}

/// Adds the copies to the host whose calls return after them.
fn add_reads(trace: &Timeline, index: &CallIndex, found: &mut BTreeMap<ClockPlace, ClockEvidence>) {
    let (mut lookup, mut calls) = (index.lookup(), trace.cuda_calls.reader());
    for it in trace.copies.iter().filter(|it| it.kind == CopyKind::DeviceToHost) {
        let call = lookup.find(process_of(it.global_pid), it.correlation_id);
        if call == NO_CALL {
            continue;
        }
        let call = calls.get(call);
        if CallKind::of(trace.text(call.name)) == (CallKind::Copy { is_async: false }) {
            let bound = BoundAt { at_ns: call.end_ns, bound_ns: it.end_ns - call.end_ns };
            let evidence = found.entry((process_of(it.global_pid), it.device)).or_default();
            evidence.waits.push(WaitEvidence { bound, kernel: None });
        }
    }
}

/// Divides the time of the calls.
struct LaunchWindows {
    from_ns: i64,
    ns: i64,
}

impl LaunchWindows {
    fn of(trace: &Timeline) -> Self {
        let times = || trace.cuda_calls.iter().map(|it| it.start_ns);
        let (first, last) = (times().next().unwrap_or(0), times().last().unwrap_or(0));
        Self { from_ns: first, ns: ((last - first) / WINDOWS as i64).max(1) }
    }

    fn at(&self, t: i64) -> usize {
        usize::try_from((t - self.from_ns) / self.ns).unwrap_or(0)
    }
}
