//! The offset between the clock of a device and its host's clock: one rule for work that starts
//! too early and waits that return too early.
//!
//! A device clock that is `o` ahead of the host's (its times are late) is bounded by the order of
//! events:
//!
//! - Work starts after the start of its launching call: `o <= start - call.start`.
//! - A synchronisation returns after the end of all work that it waits for:
//!   `o >= end - call.end`. A wait whose device is recorded is evidence only on that device,
//!   unless its process has no work on any device that its waits name.
//!
//! The clocks count as equal if 0 lies between both bounds, with a tolerance. If it does not, and
//! both bounds are near each other, times of the device are moved so that the fastest launch takes
//! as long as launches do. A line takes the place of the constant for a clock that drifts. If
//! launches alone or waits alone contradict equal clocks at a few kernels, the times of these
//! kernels are not valid. In all other cases, times of the device are not compared with the host's.

mod bounds;
mod evidence;
mod findings;

use std::collections::BTreeMap;

use super::{
    timeline::{Timeline, process_of},
    untimed::TimeFault,
};

use self::{
    bounds::{ClockBounds, ClockLine},
    evidence::ClockEvidence,
};

/// Max difference between the clocks of host and device, nanoseconds, that is not corrected.
/// CUPTI converts times of the device to the host's clock with errors of some microseconds, and a
/// launch takes 3 us or more.
pub const CLOCK_TOLERANCE_NS: i64 = 10_000;
/// Max distance of the bounds of an offset, nanoseconds, between which the offset is known.
const KNOWN_WITHIN_NS: f64 = 200_000.0;
/// Max share of launches or waits that are of kernels with an invalid time, percent.
const FEW_PCT: usize = 1;

/// The device and stream that a call waited for, as recorded; `None` for all or an unknown one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitTarget {
    pub process: i64,
    pub correlation: i64,
    pub device: Option<u32>,
    pub stream: Option<u32>,
}

/// A device whose times cannot be compared with the times of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnequalClock {
    pub process: i64,
    pub device: u32,
}

/// The relation of a device's clock to its host's.
#[derive(Debug, Clone, PartialEq)]
enum ClockRelation {
    Equal,
    /// Equal, except for the times of these kernels.
    EqualBut(TimeFault, BTreeMap<usize, i64>),
    /// Times of the device follow the line; the bounds have this distance.
    Shifted(ClockLine, f64),
    Unknown,
}

impl Timeline {
    /// Moves the times of each device to the host's clock, or records that its clock is unequal.
    pub(super) fn align_clocks(&mut self) {
        let all = evidence::evidence(self);
        let mut moved: BTreeMap<(i64, u32), ClockLine> = BTreeMap::new();
        let mut invalid: BTreeMap<usize, (TimeFault, i64)> = BTreeMap::new();
        for (place, evidence) in &all {
            let relation = relation(evidence);
            self.clock_findings.extend(findings::finding(place.1, evidence, &relation));
            match relation {
                ClockRelation::Equal => {}
                ClockRelation::EqualBut(fault, at) => {
                    invalid.extend(at.into_iter().map(|(at, by_ns)| (at, (fault, by_ns))));
                }
                ClockRelation::Shifted(line, _) => {
                    moved.insert(*place, line);
                }
                ClockRelation::Unknown => {
                    self.unequal_clocks.push(UnequalClock { process: place.0, device: place.1 });
                }
            }
        }
        self.exclude_kernels(&invalid);
        self.move_times(&moved);
    }

    fn move_times(&mut self, by: &BTreeMap<(i64, u32), ClockLine>) {
        if by.is_empty() {
            return;
        }
        let line = |process: i64, device: u32| by.get(&(process_of(process), device));
        self.kernels = self.kernels.map(|_, it| {
            if let Some(line) = line(it.global_pid, it.device) {
                (it.start_ns, it.end_ns) = line.host_times(it.start_ns, it.end_ns);
            }
        });
        self.kernels.sort();
        for it in &mut self.copies {
            if let Some(line) = line(it.global_pid, it.device) {
                (it.start_ns, it.end_ns) = line.host_times(it.start_ns, it.end_ns);
            }
        }
        self.copies.sort_by_key(|it| it.start_ns);
        for it in &mut self.graphs {
            if let Some(line) = line(it.global_pid, it.device) {
                (it.start_ns, it.end_ns) = line.host_times(it.start_ns, it.end_ns);
            }
        }
        self.graphs.sort_by_key(|it| it.start_ns);
    }
}

/// Returns true for at most one, or a small share, of several.
fn is_few(count: usize, all: usize) -> bool {
    count <= (all * FEW_PCT / 100).max(1)
}

fn relation(evidence: &ClockEvidence) -> ClockRelation {
    let tolerance = CLOCK_TOLERANCE_NS as f64;
    let bounds = evidence.bounds();
    let (low, high) = bounds.of_constant();
    if low <= tolerance && high >= -tolerance {
        return ClockRelation::Equal;
    }
    if low <= high + tolerance && low.is_finite() && high.is_finite() {
        return shifted(bounds.constant(), high - low);
    }
    let launches = evidence.launches;
    if low <= tolerance && is_few(evidence.early, launches) && evidence.early < launches {
        return ClockRelation::EqualBut(TimeFault::BeforeLaunch, evidence.early_kernels.clone());
    }
    if high >= -tolerance
        && let Some(outlasting) = evidence.outlasting_kernels()
        && is_few(outlasting.len(), evidence.waits.len())
    {
        return ClockRelation::EqualBut(TimeFault::OutlastsWait, outlasting);
    }
    match bounds.drift() {
        Some((line, width)) => shifted(line, width),
        None => ClockRelation::Unknown,
    }
}

/// The line, if its bounds are near each other.
fn shifted(line: ClockLine, width: f64) -> ClockRelation {
    match width.abs() <= KNOWN_WITHIN_NS {
        true => ClockRelation::Shifted(line, width.max(0.0)),
        false => ClockRelation::Unknown,
    }
}

#[cfg(test)]
mod tests;
