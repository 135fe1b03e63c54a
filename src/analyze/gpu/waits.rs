//! Why a GPU was idle, by what its host did meanwhile.

use std::collections::BTreeMap;

use super::super::interval::{Cover, Interval};
use crate::trace::nsys::{ApiCall, NsysTrace};

/// Idle time by reason, nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Split {
    pub host: i64,
    pub copy: i64,
    pub sync: i64,
    pub unknown: i64,
}

impl Split {
    pub fn add(&mut self, other: &Self) {
        self.host += other.host;
        self.copy += other.copy;
        self.sync += other.sync;
        self.unknown += other.unknown;
    }

    pub const fn ns(&self) -> i64 {
        self.host + self.copy + self.sync + self.unknown
    }
}

/// Calls on each thread in which the host waits or copies.
#[derive(Default)]
pub struct Waits {
    sync: BTreeMap<i64, Cover>,
    copy: BTreeMap<i64, Cover>,
}

impl Waits {
    pub fn of(trace: &NsysTrace) -> Self {
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

    /// Why the GPU was idle in a stretch that the work of `call` ended, or that nothing ended, on the thread that launched last.
    pub fn split(&self, (from, to): Interval, call: Option<ApiCall>, copy: bool, last: Option<i64>) -> Split {
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
pub(in crate::analyze) fn waits(name: &str) -> Option<bool> {
    let name = name.strip_prefix("cuda").or_else(|| name.strip_prefix("cu"))?;
    if name.contains("Synchronize") || name.starts_with("EventQuery") || name.starts_with("StreamQuery") {
        return Some(true);
    }
    (name.starts_with("Memcpy") || name.starts_with("Memset")).then_some(false)
}
