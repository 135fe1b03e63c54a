//! Reasons for GPU idle time, from the host's calls.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    clocks::CLOCK_TOLERANCE_NS,
    timeline::{ApiCall, Timeline, process_of},
};

use super::super::interval::{Interval, IntervalSet};

/// Max time from the return of a launching call to the start of its work, nanoseconds, that is part
/// of the launch. Work starts 3 to 8 us after the start of its call on an idle GPU, and times of
/// devices have errors of some microseconds; later work waited for another reason.
const LAUNCH_LATENCY_NS: i64 = CLOCK_TOLERANCE_NS;

/// Idle time by reason, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct IdleSplit {
    pub host: i64,
    pub copy: i64,
    pub sync: i64,
    pub unknown: i64,
    /// Part of `host` from the start to the end of the launching call.
    pub launch: i64,
}

impl IdleSplit {
    pub fn add(&mut self, other: &Self) {
        self.host += other.host;
        self.copy += other.copy;
        self.sync += other.sync;
        self.unknown += other.unknown;
        self.launch += other.launch;
    }

    pub const fn ns(&self) -> i64 {
        self.host + self.copy + self.sync + self.unknown
    }
}

/// The reasons of one gap.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GapReasons {
    pub all: IdleSplit,
    /// Without the time in which the profiler worked.
    pub program: IdleSplit,
}

impl GapReasons {
    pub fn add_unknown(&mut self, ns: i64) {
        self.all.unknown += ns;
        self.program.unknown += ns;
    }
}

/// The launch that ended an idle gap, within a part of the gap.
struct LaunchTimes {
    thread: i64,
    /// Start of the call; the end of the part for a gap that no work ended.
    launched: i64,
    /// End of the launch; `None` if no work ended the gap.
    returned: Option<i64>,
}

impl LaunchTimes {
    /// `None` if no thread is known.
    fn of(
        (from, to): Interval,
        gap: Interval,
        call: Option<ApiCall>,
        last: Option<i64>,
    ) -> Option<Self> {
        let Some(call) = call else {
            return last.map(|thread| Self { thread, launched: to, returned: None });
        };
        let launched = call.start_ns.clamp(from, to);
        let returned = match call.end_ns {
            end if end <= gap.0 => launched,
            end if gap.1 - end <= LAUNCH_LATENCY_NS => to,
            end => end.clamp(launched, to),
        };
        Some(Self { thread: call.global_tid, launched, returned: Some(returned) })
    }
}

/// Waiting and copying calls by thread, and the profiler's own work by process.
#[derive(Default)]
pub struct HostWaits {
    profiler: BTreeMap<i64, IntervalSet>,
    sync: BTreeMap<i64, IntervalSet>,
    copy: BTreeMap<i64, IntervalSet>,
}

impl HostWaits {
    pub fn of(trace: &Timeline) -> Self {
        let kinds = trace.call_kinds();
        let (mut sync, mut copy): (BTreeMap<i64, Vec<Interval>>, BTreeMap<i64, Vec<Interval>>) =
            Default::default();
        let sites: Vec<bool> = kinds.iter().map(|it| it.waits() || it.writes_memory()).collect();
        for (_, site, call) in trace.cuda_calls.at_sites(&sites) {
            let calls = if kinds[site as usize].waits() { &mut sync } else { &mut copy };
            calls.entry(call.global_tid).or_default().push((call.start_ns, call.end_ns));
        }
        let cover = |calls: BTreeMap<i64, Vec<Interval>>| {
            calls.into_iter().map(|(at, calls)| (at, IntervalSet::new(calls))).collect()
        };
        let mut profiler: BTreeMap<i64, Vec<Interval>> = BTreeMap::new();
        for (process, start, end) in &trace.framework.overheads {
            profiler.entry(*process).or_default().push((*start, *end));
        }
        Self { profiler: cover(profiler), sync: cover(sync), copy: cover(copy) }
    }

    /// Splits an idle gap by reason. `call` launched the work that ended the gap; without it,
    /// `last` is the thread of the last launch. `near` has the positions of the previous lookup.
    pub fn split(
        &self,
        gap: Interval,
        call: Option<ApiCall>,
        copy: bool,
        last: Option<i64>,
        near: &mut [usize; 2],
    ) -> GapReasons {
        let mut part = |part| self.part(part, gap, call, copy, last, near);
        let all = part(gap);
        // The profiler of a process delays only that process.
        let thread = call.map(|it| it.global_tid).or(last);
        let profiler = thread.and_then(|thread| self.profiler.get(&process_of(thread)));
        let Some(profiler) = profiler.filter(|it| it.overlap_ns(gap.0, gap.1) > 0) else {
            return GapReasons { all, program: all };
        };
        let mut program = IdleSplit::default();
        profiler.outside(gap).for_each(|outside| program.add(&part(outside)));
        GapReasons { all, program }
    }

    /// Calls `take` with each part of an idle gap whose reason is the host. `known` is the gap
    /// without an unrecorded wait at its end.
    pub fn each_host_part(
        &self,
        (known, gap): (Interval, Interval),
        call: Option<ApiCall>,
        copy: bool,
        last: Option<i64>,
        mut take: impl FnMut(Interval),
    ) {
        let Some(launch) = LaunchTimes::of(known, gap, call, last) else { return };
        let none = IntervalSet::default();
        let sync = self.sync.get(&launch.thread).unwrap_or(&none);
        let copying = self.copy.get(&launch.thread).unwrap_or(&none);
        for part in sync.outside((known.0, launch.launched)) {
            copying.outside(part).for_each(&mut take);
        }
        if let Some(returned) = launch.returned.filter(|it| !copy && launch.launched < *it) {
            take((launch.launched, returned));
        }
    }

    /// Time of the host in a part of an idle gap before the launch that ended it, without waiting
    /// and copying calls and the profiler's own work.
    pub fn host_ns(&self, part: Interval, gap: Interval, call: ApiCall) -> i64 {
        let none = IntervalSet::default();
        let profiler = self.profiler.get(&process_of(call.global_tid)).unwrap_or(&none);
        let host_ns = |part: Interval| {
            let split = self.part(part, gap, Some(call), false, None, &mut [0; 2]);
            split.host - split.launch
        };
        profiler.outside(part).map(host_ns).sum()
    }

    /// Splits a part of the gap.
    fn part(
        &self,
        (from, to): Interval,
        gap: Interval,
        call: Option<ApiCall>,
        copy: bool,
        last: Option<i64>,
        near: &mut [usize; 2],
    ) -> IdleSplit {
        let mut split = IdleSplit::default();
        let Some(LaunchTimes { thread, launched, returned }) =
            LaunchTimes::of((from, to), gap, call, last)
        else {
            return IdleSplit { unknown: to - from, ..split };
        };
        let inside = |covers: &BTreeMap<i64, IntervalSet>, near: &mut usize| {
            covers.get(&thread).map_or(0, |it| it.overlap_near(from, launched, near))
        };
        split.sync = inside(&self.sync, &mut near[0]);
        split.copy = inside(&self.copy, &mut near[1]).min(launched - from - split.sync);
        split.host = launched - from - split.sync - split.copy;
        let Some(returned) = returned else { return split };
        let launching = returned - launched;
        match copy {
            true => split.copy += launching,
            false => (split.host, split.launch) = (split.host + launching, launching),
        }
        split.unknown += to - returned;
        split
    }
}
