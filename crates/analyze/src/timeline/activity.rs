//! Device activity of a capture in order of start: the definition of *busy* shared by all tables.
//!
//! A device is busy while at least one kernel, copy, fill or whole-traced graph runs on it, on any
//! stream. Times of several devices are summed, never merged: a busy device does not hide an idle
//! one.

use std::collections::BTreeSet;

use llmprof_core::trace::{
    names::base_name,
    timeline::{CopyKind, ON_HOST, Timeline, process_of},
};

use super::{
    capture::{Capture, Join},
    interval::Interval,
};

/// Name of a graph that was traced as a whole, among the kernels of tables.
pub const WHOLE_GRAPH: &str = "CUDA graph";

/// Kinds of work on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceWork {
    /// A kernel by its index in [`llmprof_core::trace::kernel::KernelTrace::kinds`].
    Kernel(u32),
    /// A launch of a CUDA graph traced as a whole.
    Graph,
    Copy(CopyKind),
    Fill,
}

impl DeviceWork {
    /// The name of a kernel without its template arguments, or the kind of other work.
    pub fn name(self, trace: &Timeline) -> String {
        match self {
            Self::Kernel(kind) => {
                let kind = &trace.kernels.kinds()[kind as usize];
                base_name(trace.text(kind.name)).to_owned()
            }
            Self::Graph => WHOLE_GRAPH.to_owned(),
            Self::Fill | Self::Copy(CopyKind::Set) => "fill".to_owned(),
            Self::Copy(kind) => format!("copy {}", kind.as_str()),
        }
    }
}

/// One piece of work on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activity {
    pub start_ns: i64,
    pub end_ns: i64,
    pub device: u32,
    pub process: i64,
    pub join: Join,
    pub work: DeviceWork,
    /// Index among the kernels, copies or graphs of the capture.
    pub row: usize,
    pub graph_node: Option<u64>,
}

impl Activity {
    /// True for a copy or fill.
    pub const fn is_transfer(&self) -> bool {
        matches!(self.work, DeviceWork::Copy(_) | DeviceWork::Fill)
    }
}

/// All activities, in order of start.
pub fn activities<'a>(capture: &'a Capture<'a>) -> impl Iterator<Item = Activity> + 'a {
    let activity = |(start_ns, end_ns): (i64, i64),
                    (device, process): (u32, i64),
                    join: Join,
                    (work, row): (DeviceWork, usize),
                    graph_node: Option<u64>| {
        let process = process_of(process);
        Activity { start_ns, end_ns, device, process, join, work, row, graph_node }
    };
    let kernels = capture.kernels_by_kind().enumerate();
    let kernels = kernels.map(move |(row, ((kind, it), by))| {
        let (times, place) = ((it.start_ns, it.end_ns), (it.device, it.global_pid));
        activity(times, place, by, (DeviceWork::Kernel(kind), row), it.graph_node)
    });
    let graphs = capture.graphs().enumerate();
    let graphs = graphs.map(move |(row, (it, by))| {
        let place = (it.device, it.global_pid);
        activity((it.start_ns, it.end_ns), place, by, (DeviceWork::Graph, row), None)
    });
    let copies = capture.copies().enumerate();
    let copies = copies.map(move |(row, (it, by))| {
        let work = match it.kind {
            CopyKind::Set => DeviceWork::Fill,
            kind => DeviceWork::Copy(kind),
        };
        let place = (it.device, it.global_pid);
        activity((it.start_ns, it.end_ns), place, by, (work, row), it.graph_node)
    });
    merged(kernels, merged(graphs, copies))
}

/// Pairs of process and device with work, but of graphs whose device is unknown.
pub fn used_devices(trace: &Timeline) -> BTreeSet<(i64, u32)> {
    let kernels = trace.kernels.kinds().iter().map(|it| (process_of(it.global_pid), it.device));
    let copies = trace.copies.iter().map(|it| (process_of(it.global_pid), it.device));
    let graphs = trace.graphs.iter().map(|it| (process_of(it.global_pid), it.device));
    kernels.chain(copies).chain(graphs.filter(|it| it.1 != ON_HOST)).collect()
}

/// Merges two sorted iterators. Most work is of the first: it is held only while work of the other
/// precedes it.
fn merged(
    mut a: impl Iterator<Item = Activity>,
    mut b: impl Iterator<Item = Activity>,
) -> impl Iterator<Item = Activity> {
    let (mut held, mut other) = (None, b.next());
    std::iter::from_fn(move || {
        let first = held.take().or_else(|| a.next());
        let is_first = match (&first, &other) {
            (Some(it), Some(other)) => it.start_ns <= other.start_ns,
            (it, _) => it.is_some(),
        };
        if is_first {
            return first;
        }
        held = first;
        std::mem::replace(&mut other, b.next())
    })
}

/// Union length of intervals added in order of start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    pub ns: i64,
    until: i64,
}

impl Default for Busy {
    fn default() -> Self {
        Self { ns: 0, until: i64::MIN }
    }
}

impl Busy {
    /// Adds an interval and returns the part not covered by earlier ones.
    #[inline]
    pub fn add(&mut self, start_ns: i64, end_ns: i64) -> Interval {
        let start_ns = self.until.max(start_ns);
        self.until = self.until.max(end_ns);
        self.ns = self.ns.saturating_add(end_ns.saturating_sub(start_ns).max(0));
        (start_ns, end_ns.max(start_ns))
    }

    /// The part of the next interval that earlier ones cover; empty or inverted if none.
    #[inline]
    pub fn covered(&self, (start_ns, end_ns): Interval) -> Interval {
        (start_ns, end_ns.min(self.until))
    }

    /// The part of an interval after all earlier ones.
    #[inline]
    pub fn idle_in(&self, (from, to): Interval) -> Option<Interval> {
        let from = self.until.max(from);
        (from < to).then_some((from, to))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_interval_is_new_or_covered_time_and_only_time_after_all_earlier_ones_is_idle(
            intervals in prop::collection::vec((-20i64..40, 0i64..15), 1..12)
        ) {
            let mut intervals: Vec<Interval> =
                intervals.iter().map(|(start, length)| (*start, start + length)).collect();
            intervals.sort_by_key(|it| it.0);
            let mut busy = Busy::default();
            for (at, it) in intervals.iter().enumerate() {
                let before = |t: &i64| {
                    intervals[..at].iter().any(|(start, end)| (*start..*end).contains(t))
                };
                let count = |(from, to): Interval| (from..to).count();
                let covered = (it.0..it.1).filter(before).count();
                prop_assert_eq!(count(busy.covered(*it)), covered);
                let gap = (it.0 - 9, it.0);
                let last = intervals[..at].iter().map(|it| it.1).max().unwrap_or(i64::MIN);
                let idle = (gap.0..gap.1).filter(|t| *t >= last).count();
                prop_assert_eq!(busy.idle_in(gap).map_or(0, count), idle);
                let added = busy.add(it.0, it.1);
                prop_assert_eq!(count(added), count(*it) - covered);
            }
            let is_in = |t: &i64| intervals.iter().any(|(start, end)| (*start..*end).contains(t));
            prop_assert_eq!(busy.ns, (-20..60).filter(is_in).count() as i64);
        }
    }
}
