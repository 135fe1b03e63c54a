//! Work of a device whose time is not valid: the one rule for exports of nsys and traces by the
//! profiler of PyTorch.
//!
//! - Start and end are 0: CUPTI could not record the time
//!   (<https://docs.nvidia.com/cupti/api/structCUpti__ActivityKernel9.html>: "a value of 0 for both
//!   the start and end timestamps indicates that timestamp information could not be collected").
//! - A kernel ends before its start, or its duration is 0 or missing: no kernel takes no time. In a
//!   trace of whole microseconds, 0 is a rounded duration, which is valid.
//! - It ends after the end of a kernel that started later on its stream: kernels of one stream run
//!   in order (CUDA C++ Programming Guide, "Streams"). Kernels of one graph launch may overlap, and
//!   with programmatic dependent launch a kernel may start before its predecessor ends, but ends
//!   after it.
//! - A synchronisation that waited for it returned before its end, or it starts before its launch,
//!   and the other work of its device does not ([`super::clocks`]).
//!
//! Such work is left out of all times. Launches of such kernels count as untimed.

use std::collections::{BTreeMap, VecDeque};

use foldhash::HashMap;

use super::{
    kernel::{Kernel, KernelTrace, TracedKernel},
    timeline::Timeline,
};
/// Max time by which a kernel may outlast its successor: two ends that are rounded to microseconds
/// differ by up to two.
const ROUNDING_NS: i64 = 2_000;
/// Running kernels of one launching call that are compared with a kernel of the same launch.
const MAX_BRANCHES: usize = 64;
/// Running kernels of a stream that are compared with the next one.
const MAX_RUNNING: usize = 4096;
/// Min share of untimed kernels, percent, at which sums over timed kernels are withheld.
const MAX_UNTIMED_PCT: f64 = 1.0;

/// The reason why a time is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeFault {
    /// Start and end are 0.
    NotRecorded,
    /// The duration is 0 or missing.
    NoDuration,
    /// It ends before its start.
    EndsBeforeStart,
    /// It ends after the end of a later kernel of its stream.
    OutlastsSuccessor,
    /// It ends after the return of a wait for it.
    OutlastsWait,
    /// It starts before its launching call.
    BeforeLaunch,
}

impl TimeFault {
    /// Returns the fault of times that CUPTI did not record. Traces by PyTorch's profiler are
    /// relative to a base, so 0 may be negative there.
    pub const fn of(start_ns: i64, end_ns: i64) -> Option<Self> {
        if start_ns == end_ns && start_ns <= 0 { Some(Self::NotRecorded) } else { None }
    }
}

/// Count of one fault, and its worst case.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FaultCount {
    pub kernels: u64,
    /// Copies and fills.
    pub copies: u64,
    /// Max time by which the bound is exceeded, and the name of the kernel.
    pub worst: Option<(i64, u32)>,
}

/// Work without a valid time.
#[derive(Debug, Clone, Default)]
pub struct UntimedWork {
    /// Kernels, at the times that were recorded.
    pub kernels: KernelTrace,
    counts: BTreeMap<TimeFault, FaultCount>,
}

impl UntimedWork {
    /// Adds a kernel that exceeds a bound by `by_ns`.
    pub fn add_kernel(&mut self, kernel: impl Into<Kernel>, fault: TimeFault, by_ns: i64) {
        let kernel = kernel.into();
        let count = self.counts.entry(fault).or_default();
        count.kernels += 1;
        count.worst = count.worst.max(Some((by_ns, kernel.name)));
        self.kernels.push(kernel);
    }

    /// Adds a copy or fill.
    pub fn add_copy(&mut self, fault: TimeFault) {
        self.counts.entry(fault).or_default().copies += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Adds all work of `other`.
    pub fn append(&mut self, other: Self) {
        other.kernels.iter().for_each(|it| self.kernels.push(it.into()));
        for (fault, it) in other.counts {
            let count = self.counts.entry(fault).or_default();
            count.kernels += it.kernels;
            count.copies += it.copies;
            count.worst = count.worst.max(it.worst);
        }
    }

    /// Counts by fault.
    pub fn faults(&self) -> impl Iterator<Item = (TimeFault, FaultCount)> + '_ {
        self.counts.iter().map(|(fault, count)| (*fault, *count))
    }
}

impl Timeline {
    /// Returns true if sums over the kernels that have a time are not sums over all.
    pub fn lacks_times(&self) -> bool {
        let (untimed, timed) = (self.untimed.kernels.len(), self.kernels.len());
        100.0 * untimed as f64 > MAX_UNTIMED_PCT * (untimed + timed) as f64
    }

    /// Excludes kernels that outlast their successors. The kernels are sorted.
    pub(super) fn exclude_overlong(&mut self) {
        let overlong = overlong(&self.kernels);
        let fault = |(at, by_ns)| (at, (TimeFault::OutlastsSuccessor, by_ns));
        self.exclude_kernels(&overlong.into_iter().map(fault).collect());
    }

    /// Excludes the kernels at these indices, each with its fault and the time by which it exceeds
    /// the bound.
    pub(super) fn exclude_kernels(&mut self, at: &BTreeMap<usize, (TimeFault, i64)>) {
        if at.is_empty() {
            return;
        }
        let mut kept = KernelTrace::default();
        for (place, kernel) in self.kernels.iter().enumerate() {
            match at.get(&place) {
                Some((fault, by_ns)) => self.untimed.add_kernel(kernel, *fault, *by_ns),
                None => kept.push(kernel.into()),
            }
        }
        self.kernels = kept;
    }
}

/// A running kernel of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RunningKernel {
    end_ns: i64,
    at: usize,
    /// Its launching call, whose kernels may overlap; 0 if unknown.
    launch: i64,
}

/// Kernels that end after the end of a kernel that started later on their stream, and by how much.
fn overlong(kernels: &KernelTrace) -> BTreeMap<usize, i64> {
    let mut streams: HashMap<(i64, u32, u32), VecDeque<RunningKernel>> = HashMap::default();
    let mut found = BTreeMap::new();
    for (at, it) in kernels.iter().enumerate() {
        let running = streams.entry((it.global_pid, it.device, it.stream)).or_default();
        compare(running, at, &it, &mut found);
    }
    found
}

/// Compares a kernel with those that still run on its stream, in order of their ends.
fn compare(
    running: &mut VecDeque<RunningKernel>,
    at: usize,
    it: &TracedKernel,
    found: &mut BTreeMap<usize, i64>,
) {
    while running.front().is_some_and(|first| first.end_ns <= it.start_ns)
        || running.len() > MAX_RUNNING
    {
        running.pop_front();
    }
    let launch = it.correlation_id;
    let mut branches = Vec::new();
    while let Some(last) = running.back().filter(|last| last.end_ns > it.end_ns + ROUNDING_NS)
        && branches.len() < MAX_BRANCHES
    {
        if launch != 0 && last.launch == launch {
            branches.push(*last);
        } else {
            found.insert(last.at, last.end_ns - it.end_ns);
        }
        running.pop_back();
    }
    running.extend(branches.into_iter().rev());
    let place = running.partition_point(|other| other.end_ns <= it.end_ns);
    running.insert(place, RunningKernel { end_ns: it.end_ns, at, launch });
}

#[cfg(test)]
mod tests;
