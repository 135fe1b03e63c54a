//! What the GPU did while each stage was open: busy, copying, idle, and what it waited for when it was idle.
//!
//! A stage's window lasts from its range's start to the end of its range, or of the last thing that it launched where that is later.
//! The GPU is idle where nothing runs on any stream. An idle stretch ends with the next thing that runs, and is told by the call that
//! launched it: until the call began, the launching thread was inside a call that waits (*sync*), inside a call that copies (*copy*), or
//! elsewhere (*host*); from there on it waited for the launch itself (*host*, or *copy* where a copy was launched). What was launched
//! before the GPU fell idle waited for something that a capture does not tell (*unknown*).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    interval::{Cover, Interval},
    launches::Launches,
    scopes::{Instance, NONE},
    stats::percent,
};
use crate::trace::{
    nsys::{ApiCall, CopyKind, NsysTrace},
    units::Nanos,
};

/// The GPU in one stage of the traced pass, all instances together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageGpu {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Times that the stage was open.
    pub instances: u64,
    /// From each start to the end of the last thing that the stage launched, summed.
    pub window_ms: f64,
    /// Time in which at least one kernel of the stage ran, over all streams.
    pub busy_ms: f64,
    /// `busy_ms` of `window_ms`, percent.
    pub busy_pct: Option<f64>,
    /// Time of the window in which nothing ran on the GPU.
    pub idle_ms: f64,
    /// Idle while the host had launched nothing, or was launching.
    pub idle_host_ms: f64,
    /// Idle while the host copied, or launched a copy.
    pub idle_copy_ms: f64,
    /// Idle while the host waited inside the driver.
    pub idle_sync_ms: f64,
    /// Idle for a reason that the capture does not tell.
    pub idle_unknown_ms: f64,
    /// Idle stretches.
    pub gaps: u64,
    pub longest_gap_ms: f64,
    /// `idle_host_ms` of `window_ms`, percent: what a host that launched in time would save at most.
    pub launch_bound_pct: Option<f64>,
    pub launches: u64,
    pub copies: Vec<StageCopies>,
}

/// Copies of one kind that a stage launched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageCopies {
    /// `host_to_device`, `device_to_host`, `device_to_device`, `set` (a fill), `other`.
    #[schema(example = "device_to_device")]
    pub kind: String,
    pub calls: u64,
    pub bytes: u64,
    pub total_ms: f64,
}

/// Something that ran on the device.
#[derive(Clone, Copy)]
struct Op {
    start: i64,
    end: i64,
    call: u32,
    instance: u32,
    copy: bool,
}

/// Sums of one stage, nanoseconds.
#[derive(Default, Clone)]
struct Sums {
    instances: u64,
    window: i64,
    busy: i64,
    busy_until: i64,
    host: i64,
    copy: i64,
    sync: i64,
    unknown: i64,
    gaps: u64,
    longest: i64,
    launches: u64,
    copies: BTreeMap<CopyKind, (u64, u64, i64)>,
}

/// Tells what the GPU did in each stage that was open.
pub fn stage_gpu(trace: &NsysTrace, launches: &Launches) -> Vec<StageGpu> {
    let instances = &launches.stages.instances;
    let mut sums = vec![Sums { busy_until: i64::MIN, ..Sums::default() }; launches.stages.labels.len()];
    let mut last_end: Vec<i64> = vec![i64::MIN; instances.len()];
    for op in ops(trace, launches) {
        let Some(instance) = instances.get(op.instance as usize) else { continue };
        last_end[op.instance as usize] = last_end[op.instance as usize].max(op.end);
        if !op.copy {
            let sum = &mut sums[instance.label];
            sum.launches += 1;
            sum.busy += (op.end - op.start.max(sum.busy_until)).max(0);
            sum.busy_until = sum.busy_until.max(op.end);
        }
    }
    for (copy, (_, instance)) in trace.copies.iter().zip(&launches.copies) {
        if let Some(instance) = instances.get(*instance as usize) {
            let sum = sums[instance.label].copies.entry(copy.kind).or_default();
            *sum = (sum.0 + 1, sum.1 + copy.bytes, sum.2 + copy.end_ns - copy.start_ns);
        }
    }
    let window = |(it, last): (&Instance, &i64)| {
        let end = if it.end_ns == i64::MAX { *last } else { it.end_ns.max(*last) };
        (it.start_ns < it.end_ns && it.start_ns < end).then_some((it.label, it.start_ns, end))
    };
    let windows: Vec<(usize, i64, i64)> = instances.iter().zip(&last_end).filter_map(window).collect();
    for (label, start, end) in &windows {
        sums[*label].instances += 1;
        sums[*label].window += end - start;
    }
    idle(trace, launches, &windows, &mut sums);

    let shown = launches.stages.labels.iter().zip(sums).filter(|(_, sum)| sum.instances > 0);
    shown.map(|(stage, sum)| sum.told(stage)).collect()
}

/// Kernels and copies in order of their start.
fn ops<'a>(trace: &'a NsysTrace, launches: &'a Launches) -> impl Iterator<Item = Op> + 'a {
    let op = |start, end, (call, instance), copy| Op { start, end, call, instance, copy };
    let kernels = trace.kernels.iter().zip(&launches.kernels).map(move |(it, at)| op(it.start_ns, it.end_ns, *at, false));
    let copies = trace.copies.iter().zip(&launches.copies).map(move |(it, at)| op(it.start_ns, it.end_ns, *at, true));
    let (mut kernels, mut copies) = (kernels.peekable(), copies.peekable());
    std::iter::from_fn(move || match (kernels.peek(), copies.peek()) {
        (Some(kernel), Some(copy)) if copy.start < kernel.start => copies.next(),
        (None, _) => copies.next(),
        _ => kernels.next(),
    })
}

/// Splits the idle time of every window by what the GPU waited for.
fn idle(trace: &NsysTrace, launches: &Launches, windows: &[(usize, i64, i64)], sums: &mut [Sums]) {
    let waits = Waits::of(trace);
    let (mut busy_until, mut next_window) = (i64::MIN, 0);
    let mut open: Vec<(usize, i64, i64)> = Vec::new();
    let mut thread = None;
    let end = Op { start: i64::MAX, end: i64::MAX, call: NONE, instance: NONE, copy: false };
    for op in ops(trace, launches).chain([end]) {
        let call = (op.call != NONE).then(|| trace.cuda_calls.get(op.call as usize));
        if busy_until < op.start {
            while windows.get(next_window).is_some_and(|window| window.1 < op.start) {
                open.push(windows[next_window]);
                next_window += 1;
            }
            open.retain(|window| window.2 > busy_until);
            for (label, from, to) in &open {
                let (from, to) = (busy_until.max(*from), op.start.min(*to));
                if from < to {
                    let last = op.start == i64::MAX;
                    sums[*label].add(from, to, &waits.split((from, to), call, op.copy, if last { thread } else { None }));
                }
            }
        }
        thread = call.map(|call| call.global_tid).or(thread);
        busy_until = busy_until.max(op.end);
    }
}

/// Idle time by reason, nanoseconds.
#[derive(Debug, Default, PartialEq)]
struct Split {
    host: i64,
    copy: i64,
    sync: i64,
    unknown: i64,
}

/// Calls on each thread in which the host waits or copies.
#[derive(Default)]
struct Waits {
    sync: BTreeMap<i64, Cover>,
    copy: BTreeMap<i64, Cover>,
}

impl Waits {
    fn of(trace: &NsysTrace) -> Self {
        let kinds: Vec<Option<bool>> = trace
            .cuda_calls
            .sites()
            .iter()
            .map(|(name, _)| waits(trace.strings.get(*name as usize).map_or("", |it| it)))
            .collect();
        let (mut sync, mut copy): (BTreeMap<i64, Vec<Interval>>, BTreeMap<i64, Vec<Interval>>) = Default::default();
        for at in 0..trace.cuda_calls.len() {
            if let Some(waits) = kinds[trace.cuda_calls.site(at) as usize] {
                let call = trace.cuda_calls.get(at);
                let calls = if waits { &mut sync } else { &mut copy };
                calls.entry(call.global_tid).or_default().push((call.start_ns, call.end_ns));
            }
        }
        let cover = |calls: BTreeMap<i64, Vec<Interval>>| calls.into_iter().map(|(at, calls)| (at, Cover::new(calls))).collect();
        Self { sync: cover(sync), copy: cover(copy) }
    }

    /// Why the GPU was idle in a stretch that the op of `call` ended, or that nothing ended, on the thread that launched last.
    fn split(&self, (from, to): Interval, call: Option<ApiCall>, copy: bool, last: Option<i64>) -> Split {
        let mut split = Split::default();
        let (launched, thread) = match (call, last) {
            (Some(call), _) => (call.start_ns.clamp(from, to), call.global_tid),
            (None, Some(thread)) => (to, thread),
            (None, None) => return Split { unknown: to - from, ..split },
        };
        let inside = |covers: &BTreeMap<i64, Cover>| covers.get(&thread).map_or(0, |it| it.overlap_ns(from, launched));
        split.sync = inside(&self.sync);
        split.copy = inside(&self.copy).min(launched - from - split.sync);
        split.host = launched - from - split.sync - split.copy;
        let rest = to - launched;
        match call {
            Some(call) if call.end_ns <= from => split.unknown += rest,
            Some(_) if copy => split.copy += rest,
            _ => split.host += rest,
        }
        split
    }
}

/// Whether a call waits for the device (`true`) or copies (`false`); `None` for every other one.
fn waits(name: &str) -> Option<bool> {
    let name = name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu"))?;
    if name.contains("Synchronize") || name.starts_with("EventQuery") || name.starts_with("StreamQuery") {
        return Some(true);
    }
    (name.starts_with("Memcpy") || name.starts_with("Memset")).then_some(false)
}

impl Sums {
    fn add(&mut self, from: i64, to: i64, split: &Split) {
        self.host += split.host;
        self.copy += split.copy;
        self.sync += split.sync;
        self.unknown += split.unknown;
        self.gaps += 1;
        self.longest = self.longest.max(to - from);
    }

    fn told(self, stage: &str) -> StageGpu {
        let ms = |ns: i64| Nanos(ns).as_ms();
        let copies = |(kind, (calls, bytes, ns)): (CopyKind, (u64, u64, i64))| StageCopies {
            kind: kind.as_str().into(),
            calls,
            bytes,
            total_ms: ms(ns),
        };
        StageGpu {
            stage: stage.into(),
            instances: self.instances,
            window_ms: ms(self.window),
            busy_ms: ms(self.busy),
            busy_pct: percent(self.busy as f64, self.window as f64),
            idle_ms: ms(self.host + self.copy + self.sync + self.unknown),
            idle_host_ms: ms(self.host),
            idle_copy_ms: ms(self.copy),
            idle_sync_ms: ms(self.sync),
            idle_unknown_ms: ms(self.unknown),
            gaps: self.gaps,
            longest_gap_ms: ms(self.longest),
            launch_bound_pct: percent(self.host as f64, self.window as f64),
            launches: self.launches,
            copies: self.copies.into_iter().map(copies).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::kernels::tests::capture, *};

    /// What the GPU did in prefill: `window busy host copy sync unknown gaps`. Calls of correlation 9 wait.
    fn told(sketch: &str) -> [i64; 7] {
        let mut trace = capture(sketch);
        let name = trace.strings.len() as u32;
        trace.strings.extend(["cudaLaunchKernel".to_owned(), "cudaStreamSynchronize_v3020".to_owned()]);
        let named = |call: ApiCall| ApiCall { name: if call.correlation_id == 9 { name + 1 } else { name }, ..call };
        trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
        let stage = stage_gpu(&trace, &Launches::of(&trace)).remove(0);
        let ns = |ms: f64| (ms * 1e6).round() as i64;
        let idle = [stage.idle_host_ms, stage.idle_copy_ms, stage.idle_sync_ms, stage.idle_unknown_ms].map(ns);
        [ns(stage.window_ms), ns(stage.busy_ms), idle[0], idle[1], idle[2], idle[3], stage.gaps as i64]
    }

    #[test]
    fn a_gpu_that_waits_for_the_host_is_idle_until_the_launch_arrives() {
        let sketch = "range 1 prefill 0..50\ncall 1 1 5..6\ncall 1 2 30..32\nkernel 1 a 10..20 7\nkernel 2 b 35..60 7";
        assert_eq!(told(sketch), [60, 35, 25, 0, 0, 0, 2], "0..10 and 20..35; the window ends with its last kernel");
    }

    #[test]
    fn what_was_launched_before_the_gpu_fell_idle_waited_for_something_unknown() {
        let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\ncall 1 2 1..2\nkernel 1 a 1..10 7\nkernel 2 b 14..30 8";
        assert_eq!(told(sketch), [30, 25, 1, 0, 0, 4, 2]);
    }

    #[test]
    fn a_host_that_waits_in_the_driver_is_told_apart_from_one_that_computes() {
        let sketch =
            "range 1 prefill 0..40\ncall 1 1 0..1\ncall 1 9 5..22\ncall 1 2 30..31\nkernel 1 a 0..20 7\nkernel 2 b 32..40 7";
        assert_eq!(told(sketch), [40, 28, 10, 0, 2, 0, 1], "20..22 in the wait, 22..32 until the launch arrived");
    }

    #[test]
    fn kernels_on_two_streams_leave_no_gap_where_one_of_them_runs() {
        let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\ncall 1 2 1..2\nkernel 1 a 0..20 7\nkernel 2 b 10..30 8";
        assert_eq!(told(sketch), [30, 30, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_time_after_the_last_kernel_is_the_hosts() {
        let sketch = "range 1 prefill 0..30\ncall 1 1 0..1\nkernel 1 a 0..20 7";
        assert_eq!(told(sketch), [30, 20, 10, 0, 0, 0, 1]);
    }
}
