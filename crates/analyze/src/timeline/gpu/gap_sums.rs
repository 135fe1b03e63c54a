//! Idle time of a GPU by its reason.

use super::{idle_gap::IdleGap, waits::IdleSplit};

/// Reason of an idle gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GapReason {
    /// The profiler worked for itself.
    Profiler,
    /// The host was in a long call, or loaded code, and launched nothing.
    LongCall,
    /// The host had not called the launch.
    Host,
    /// The launching call was running, or had just returned.
    Launch,
    /// The same of a graph.
    GraphLaunch,
    /// The host waited in the driver.
    Sync,
    /// The host copied, or launched a copy.
    Copy,
    /// Between two nodes of one launch of a CUDA graph.
    InGraph,
    /// The work was launched before this time: before the gap, or by a call that returned in it.
    Queued,
    /// The work was launched before the gap, and waited for an unrecorded reason.
    Unrecorded,
    /// The work was launched before this time and waited longer than kernels take to start: for
    /// another process or an event of another stream, which the capture does not record.
    Wait,
    /// The capture has no launching call.
    Unknown,
}

/// Gaps of one reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GapSum {
    /// Gaps that no other sum counts.
    pub count: u64,
    /// Parts of gaps that another sum counts.
    pub parts: u64,
    pub ns: i64,
    /// The longest gap or part.
    pub longest_ns: i64,
}

impl GapSum {
    /// Adds other gaps.
    pub fn append(&mut self, other: &Self) {
        self.count += other.count;
        self.parts += other.parts;
        self.ns = self.ns.saturating_add(other.ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Adds the part of a gap that counts the gap, or another part of it.
    pub fn add(&mut self, ns: i64, is_counted: bool) {
        self.count += u64::from(is_counted);
        self.parts += u64::from(!is_counted);
        self.ns = self.ns.saturating_add(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }
}

/// The reasons of a gap with their time, before long calls, graphs and long waits are named.
/// Without a reason on the host, a gap is inside a graph if one launch has both its neighbours.
pub fn reasons(gap: &IdleGap) -> impl Iterator<Item = (GapReason, i64)> + use<> {
    let IdleSplit { host, copy, sync, unknown, launch } = gap.reasons.program;
    let launched = gap.after.filter(|after| after.join.has_call());
    let rest = match (launched, gap.before) {
        (None, _) => GapReason::Unknown,
        (Some(after), Some(before)) if before.join.call == after.join.call => GapReason::InGraph,
        (Some(_), _) => GapReason::Queued,
    };
    [
        (GapReason::Profiler, gap.reasons.all.ns() - gap.reasons.program.ns()),
        (GapReason::Host, host - launch),
        (GapReason::Launch, launch),
        (GapReason::Sync, sync),
        (GapReason::Copy, copy),
        (rest, unknown - gap.unrecorded_ns),
        (GapReason::Unrecorded, gap.unrecorded_ns),
    ]
    .into_iter()
    .filter(|(_, ns)| *ns > 0)
}
