//! Device activity of a capture in order of start: the definition of *busy* shared by all tables.
//!
//! A device is busy while at least one kernel, copy, fill or whole-traced graph runs on it, on any
//! stream. Times of several devices are summed, never merged: a busy device does not hide an idle
//! one.

use std::collections::BTreeSet;

use super::launches::LaunchIndex;
use crate::trace::nsys::{CopyKind, NsysTrace, process_of};

/// Kinds of work on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceWork {
    Kernel,
    /// A launch of a CUDA graph traced as a whole.
    Graph,
    Copy,
    Fill,
}

/// One piece of work on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activity {
    pub start_ns: i64,
    pub end_ns: i64,
    pub device: u32,
    pub process: i64,
    /// The launching call and the stage instance open at its start, or
    /// [`crate::analyze::timeline::open_ranges::NONE`].
    pub call: u32,
    pub instance: u32,
    pub work: DeviceWork,
    /// Index in the table of its kind of work.
    pub at: u32,
}

/// All activities, in order of start.
pub fn activities<'a>(
    trace: &'a NsysTrace,
    launches: &'a LaunchIndex,
) -> impl Iterator<Item = Activity> + 'a {
    let activity = |(start_ns, end_ns): (i64, i64),
                    (device, process): (u32, i64),
                    &(call, instance): &(u32, u32),
                    work,
                    at: usize| {
        let process = process_of(process);
        Activity { start_ns, end_ns, device, process, call, instance, work, at: at as u32 }
    };
    let kernels = trace.kernels.iter().zip(&launches.kernels).enumerate();
    let kernels = kernels.map(move |(at, (it, by))| {
        let place = (it.device, it.global_pid);
        activity((it.start_ns, it.end_ns), place, by, DeviceWork::Kernel, at)
    });
    let graphs = trace.graphs.iter().zip(&launches.graphs).enumerate();
    let graphs = graphs.map(move |(at, (it, by))| {
        let place = (it.device, it.global_pid);
        activity((it.start_ns, it.end_ns), place, by, DeviceWork::Graph, at)
    });
    let copies = trace.copies.iter().zip(&launches.copies).enumerate();
    let copies = copies.map(move |(at, (it, by))| {
        let work = if it.kind == CopyKind::Set { DeviceWork::Fill } else { DeviceWork::Copy };
        activity((it.start_ns, it.end_ns), (it.device, it.global_pid), by, work, at)
    });
    merged(kernels, merged(graphs, copies))
}

/// Pairs of process and device with work.
pub fn used_devices(trace: &NsysTrace) -> BTreeSet<(i64, u32)> {
    let kernels = trace.kernels.kinds().iter().map(|it| (process_of(it.global_pid), it.device));
    let copies = trace.copies.iter().map(|it| (process_of(it.global_pid), it.device));
    kernels
        .chain(copies)
        .chain(trace.graphs.iter().map(|it| (process_of(it.global_pid), it.device)))
        .collect()
}

/// Merges two sorted iterators.
fn merged(
    a: impl Iterator<Item = Activity>,
    b: impl Iterator<Item = Activity>,
) -> impl Iterator<Item = Activity> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(second)) if second.start_ns < first.start_ns => b.next(),
        (None, _) => b.next(),
        _ => a.next(),
    })
}

/// Union length of intervals added in order of start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Busy {
    pub ns: i64,
    until: Option<i64>,
}

impl Busy {
    /// Adds an interval and returns the part not covered by earlier ones.
    pub fn add(&mut self, start_ns: i64, end_ns: i64) -> (i64, i64) {
        let start_ns = self.until.map_or(start_ns, |until| until.max(start_ns));
        self.until = Some(self.until.map_or(end_ns, |until| until.max(end_ns)));
        self.ns = self.ns.saturating_add((end_ns - start_ns).max(0));
        (start_ns, end_ns.max(start_ns))
    }
}
