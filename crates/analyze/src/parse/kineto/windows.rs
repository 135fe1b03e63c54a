//! Windows of one process: a profiler that starts again writes a file of its own each time.
//!
//! Files of one process on one device that do not overlap in time are windows of one GPU. The time
//! between windows is not recorded and counts for nothing: each starts where the last one ended.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::trace::{
    collectives::ProcessRank,
    interval::{Interval, extended, union},
    timeline::{ApiCall, ApiCalls, Timeline, process_of},
};

use super::rows::FileRows;

/// Identity of a process: equal in all of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessKey {
    pub rank: Option<u32>,
    pub world_size: Option<u32>,
    /// Number or text.
    pub pid: String,
    /// Devices with work, in the numbers of the file.
    pub devices: BTreeSet<u32>,
}

impl ProcessKey {
    pub fn of(place: &ProcessRank, rows: &FileRows, pid: i64) -> Self {
        let pid = rows.label(pid).map_or_else(|| pid.to_string(), str::to_owned);
        let ProcessRank { rank, world_size, .. } = *place;
        Self { rank, world_size, pid, devices: rows.used_devices() }
    }
}

#[derive(Debug)]
struct FileWindow {
    file: usize,
    key: ProcessKey,
    /// Process of the file in the timeline.
    process: i64,
    /// First and last time of its events, with the file's base.
    span: Interval,
}

/// The files of a timeline.
#[derive(Debug, Default)]
pub struct Windows {
    files: Vec<FileWindow>,
    are_several: bool,
}

impl Windows {
    /// Adds a file; returns the first one of the same process, with its process in the timeline.
    pub fn add(
        &mut self,
        file: usize,
        key: ProcessKey,
        process: i64,
        span: Interval,
    ) -> Option<(usize, i64)> {
        let overlaps = |it: &FileWindow| it.span.0 < span.1 && span.0 < it.span.1;
        let same = || self.files.iter().filter(|it| it.key == key);
        let first = same().next().map(|it| (it.file, it.process));
        let other = first.filter(|_| !same().any(overlaps));
        self.are_several |= other.is_some();
        self.files.push(FileWindow { file, key, process, span });
        other
    }

    /// Time by which the events of each process move to leave no time between windows.
    pub fn moves(&self) -> HashMap<i64, i64> {
        if !self.are_several {
            return HashMap::default();
        }
        let recorded = union(self.files.iter().map(|it| it.span));
        let mut by_start: BTreeMap<i64, i64> = BTreeMap::new();
        let mut last: Option<(i64, i64)> = None;
        for (start, end) in recorded {
            let by = last.map_or(0, |(end, by)| by + end - start);
            by_start.insert(start, by);
            last = Some((end, by));
        }
        let by = |it: &FileWindow| by_start.range(..=it.span.0).next_back().map_or(0, |it| *it.1);
        self.files.iter().map(|it| (it.process, by(it))).collect()
    }
}

impl FileRows {
    /// Devices with kernels or copies.
    pub fn used_devices(&self) -> BTreeSet<u32> {
        let kernels = self.kernels.kinds().iter().map(|it| it.device);
        kernels.chain(self.copies.iter().map(|it| it.device)).collect()
    }

    /// First and last time of the events that a timeline has, after the base.
    pub fn span(&self, base: i64) -> Interval {
        let kernels = self.kernels.iter().map(|it| (it.start_ns, it.end_ns));
        let copies = self.copies.iter().map(|it| (it.start_ns, it.end_ns));
        let calls = self.calls.iter().map(|it| (it.start_ns, it.end_ns));
        let ranges = self.ranges.iter().map(|it| (it.start_ns, it.end_ns.unwrap_or(it.start_ns)));
        let operators = self.operators.iter().map(|it| (it.start_ns, it.end_ns));
        let all = kernels.chain(copies).chain(calls).chain(ranges).chain(operators);
        let all = all.chain(self.overheads.iter().copied());
        let span = all.reduce(|all, it| extended(Some(all), it)).unwrap_or_default();
        (span.0.saturating_add(base), span.1.saturating_add(base))
    }
}

/// Start of the first event.
pub fn origin(trace: &Timeline) -> i64 {
    let kernels = trace.kernels.iter().map(|it| it.start_ns);
    let calls = trace.cuda_calls.iter().map(|it| it.start_ns);
    let copies = trace.copies.iter().map(|it| it.start_ns);
    let ranges = trace.ranges.iter().map(|it| it.start_ns);
    let operators = trace.framework.iter().map(|it| it.start_ns);
    let overheads = trace.framework.overheads.iter().map(|it| it.1);
    let host = calls.chain(ranges).chain(operators).chain(overheads);
    kernels.chain(copies).chain(host).min().unwrap_or(0)
}

/// The calls, moved by the time of their processes.
pub fn shifted(calls: &ApiCalls, by: impl Fn(i64) -> i64) -> ApiCalls {
    let moved = |it: ApiCall| {
        let by = by(process_of(it.global_tid));
        ApiCall { start_ns: it.start_ns + by, end_ns: it.end_ns + by, ..it }
    };
    calls.iter().map(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: &str, device: u32) -> ProcessKey {
        let devices = [device].into();
        ProcessKey { rank: Some(0), world_size: Some(1), pid: pid.into(), devices }
    }

    #[test]
    fn files_of_one_process_at_different_times_are_windows_without_time_between() {
        let mut windows = Windows::default();
        assert_eq!(windows.add(0, key("7", 0), 70, (1_000, 1_100)), None);
        assert_eq!(windows.add(1, key("7", 0), 71, (100, 200)), Some((0, 70)), "in any order");
        assert_eq!(windows.add(2, key("8", 1), 72, (120, 230)), None, "another rank");
        let mut moves: Vec<(i64, i64)> = windows.moves().into_iter().collect();
        moves.sort_unstable();
        assert_eq!(moves, [(70, -770), (71, 0), (72, 0)]);
    }

    #[test]
    fn files_of_several_gpus_and_of_one_time_keep_their_times() {
        let mut windows = Windows::default();
        assert_eq!(windows.add(0, key("7", 0), 70, (0, 100)), None);
        assert_eq!(windows.add(1, key("7", 0), 71, (50, 150)), None, "two hosts have one id");
        assert_eq!(windows.add(2, key("7", 1), 72, (500, 600)), None, "another device");
        assert!(windows.moves().is_empty());
    }
}
