//! First and last calls and work of each process: the recording has nothing before and after them.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::{Timeline, process_of};

use super::interval::{Interval, extended};

/// Least time without a call and without work that may lie outside the recording, nanoseconds: the
/// host takes less to prepare a launch.
pub const MIN_QUIET_NS: i64 = 1_000_000;

/// Resolution of the times of older traces, nanoseconds: a range that ends this close to a bound
/// ends at it.
const RESOLUTION_NS: i64 = 1_000;

/// Times of the calls of one process, and of its work on devices with the clock of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessRecord {
    /// First start and last end.
    pub times: Interval,
    first_end_ns: i64,
    last_start_ns: i64,
}

impl ProcessRecord {
    fn add(record: Option<Self>, (start_ns, end_ns): Interval) -> Self {
        let one = Self { times: (start_ns, end_ns), first_end_ns: end_ns, last_start_ns: start_ns };
        let Some(it) = record else { return one };
        Self {
            times: extended(Some(it.times), (start_ns, end_ns)),
            first_end_ns: it.first_end_ns.min(end_ns),
            last_start_ns: it.last_start_ns.max(start_ns),
        }
    }
}

/// The records of all processes.
#[derive(Debug, Clone, Default)]
pub struct ProcessRecords {
    processes: BTreeMap<i64, ProcessRecord>,
    /// Start and end of the recording, if the profiler wrote them.
    windows: BTreeMap<i64, Interval>,
}

impl ProcessRecords {
    pub fn of(trace: &Timeline) -> Self {
        let mut processes: BTreeMap<i64, ProcessRecord> = BTreeMap::new();
        let mut add = |process: i64, times: Interval| {
            let known = processes.get(&process).copied();
            processes.insert(process, ProcessRecord::add(known, times));
        };
        for it in trace.cuda_calls.iter() {
            add(process_of(it.global_tid), (it.start_ns, it.end_ns));
        }
        let kernels =
            trace.kernels.iter().map(|it| (it.global_pid, it.device, it.start_ns, it.end_ns));
        let copies =
            trace.copies.iter().map(|it| (it.global_pid, it.device, it.start_ns, it.end_ns));
        let graphs =
            trace.graphs.iter().map(|it| (it.global_pid, it.device, it.start_ns, it.end_ns));
        for (process, device, start_ns, end_ns) in kernels.chain(copies).chain(graphs) {
            if trace.has_common_clock(process, device) {
                add(process_of(process), (start_ns, end_ns));
            }
        }
        Self { processes, windows: trace.windows.clone() }
    }

    pub fn of_process(&self, process: i64) -> Option<&ProcessRecord> {
        self.processes.get(&process)
    }

    /// True if a range has, or lies beyond, the start or the end of the recording of its process.
    pub fn is_at_bound(&self, process: i64, range: Interval) -> bool {
        self.windows.get(&process).is_some_and(|(start, end)| {
            range.0.saturating_sub(*start) <= RESOLUTION_NS
                || end.saturating_sub(range.1) <= RESOLUTION_NS
        })
    }

    /// True if nothing of the process ends before a range, and if nothing starts after it.
    pub fn edges(&self, process: i64, range: Interval) -> [bool; 2] {
        let Some(it) = self.processes.get(&process) else { return [false; 2] };
        [range.0 < it.first_end_ns, it.last_start_ns < range.1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn a_range_is_at_the_edge_of_a_recording_if_no_call_and_no_work_lies_beyond_it() {
        let trace = capture(
            "range 1 prefill 0..40\ncall 1 1 10..20\nkernel 1 k 15..60 7
             range 1 prefill 50..100\ncall 1 2 70..80\nkernel 2 k 75..90 7",
        );
        let process = process_of(trace.ranges[0].global_tid);
        let records = ProcessRecords::of(&trace);
        assert_eq!(records.of_process(process).map(|it| it.times), Some((10, 90)));
        assert_eq!(records.edges(process, (0, 40)), [true, false]);
        assert_eq!(records.edges(process, (50, 100)), [false, true]);
        assert_eq!(records.edges(process, (50, 75)), [false, false], "a kernel starts then");
        assert!(!records.is_at_bound(process, (0, 100)), "no profiler wrote a bound");
    }
}
