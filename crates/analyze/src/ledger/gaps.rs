//! Gaps of the ledger: their number, their text, and the ranges of the program and calls of the
//! operating system that have them.

use llmprof_core::domain::digits;

use super::{Ledger, LedgerCause, LedgerMember, LedgerRow, rows::length_of};
use crate::{
    stats::ratio,
    timeline::gpu::{
        host_activity::{HostActivity, IN_RANGE, OS_WAIT},
        in_gap::MAX_RANGES,
        split::GapSum,
    },
};

/// Min part of a cause's time inside ranges, from which the ranges are named as the cause.
const RANGE_PART: f64 = 0.97;
/// The same of ranges that are named next to other calls, or as most of the ranges.
const MOST: f64 = 0.5;
/// The longest gap is named above this many means.
const LONGEST_MEANS: f64 = 2.0;

/// Ranges of the program in which the host is for a part of a cause's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CauseRanges<'a> {
    /// The range with the most time.
    largest: &'a str,
    /// Its part of the cause's time, and the part of all ranges: 0 to 1.
    largest_part: f64,
    part: f64,
    /// The ranges with the most time, largest first.
    first: [Option<&'a LedgerMember>; MAX_RANGES],
}

impl<'a> CauseRanges<'a> {
    /// The ranges that have most of the time together, largest first, if none has it alone.
    pub fn together(&self, row: &LedgerRow) -> Vec<(&'a str, &'a LedgerMember)> {
        let ns: i64 = self.first.iter().flatten().map(|it| it.ns).sum();
        let are_most = ratio(ns as f64, row.ns as f64).is_some_and(|it| it > MOST);
        let first = self.first.iter().filter(|_| are_most && self.main().is_none());
        first.flatten().copied().filter_map(|it| Some((range_of(it)?, it))).collect()
    }

    /// The range that has nearly all of the time.
    pub fn one(&self) -> Option<&'a str> {
        (self.largest_part >= RANGE_PART).then_some(self.largest)
    }

    /// True if ranges have nearly all of the time.
    pub fn are_all(&self) -> bool {
        self.part >= RANGE_PART
    }

    /// True if ranges have most of the time.
    pub fn are_most(&self) -> bool {
        self.part > MOST
    }

    /// The range that has most of the time.
    pub fn main(&self) -> Option<&'a str> {
        (self.largest_part > MOST).then_some(self.largest)
    }
}

/// Calls of the operating system in which the host is for most of a cause's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CauseOsCalls<'a> {
    /// The call that has most of the time.
    main: Option<&'a str>,
    /// True if the host waits for most of the calls' time.
    pub are_waits: bool,
}

impl CauseOsCalls<'_> {
    /// The calls, after "the host" or "the host is".
    pub fn words(&self) -> String {
        match (self.main, self.are_waits) {
            (Some(name), _) => match name.strip_prefix(OS_WAIT) {
                Some(call) => format!("waiting in {call}, a call of the operating system"),
                None => format!("in {name}"),
            },
            (None, true) => "waiting in calls of the operating system".into(),
            (None, false) => "in calls of the operating system".into(),
        }
    }
}

/// The range of the program that has the gaps of a member.
fn range_of(it: &LedgerMember) -> Option<&str> {
    it.operator.as_deref()?.strip_prefix(IN_RANGE)
}

impl Ledger {
    /// The calls of the operating system that have most of the time of a cause's gaps.
    pub fn os_calls_of<'a>(&'a self, row: &'a LedgerRow) -> Option<CauseOsCalls<'a>> {
        let is_most = |ns: i64, of: i64| ratio(ns as f64, of as f64).is_some_and(|it| it > MOST);
        let members = self.members(&row.stage, row.cause).filter(|_| row.cause.is_gap());
        let (mut os_ns, mut waits_ns, mut main) = (0, 0, None);
        for member in members {
            let Some(name) = member.operator.as_deref() else { continue };
            let activity = HostActivity::of(name);
            if activity.is_of_os() {
                os_ns += member.ns;
                waits_ns += if activity == HostActivity::OsWait { member.ns } else { 0 };
                main = main.or_else(|| Some(name).filter(|_| is_most(member.ns, row.ns)));
            }
        }
        let are_waits = is_most(waits_ns, os_ns);
        is_most(os_ns, row.ns).then_some(CauseOsCalls { main, are_waits })
    }

    /// The ranges of the program in which the host is in the gaps of a cause.
    pub fn ranges_of<'a>(&'a self, row: &'a LedgerRow) -> Option<CauseRanges<'a>> {
        let members = self.members(&row.stage, row.cause).filter(|_| row.cause.is_gap());
        // Members are in the order of their time.
        let ranges: Vec<&LedgerMember> = members.filter(|it| range_of(it).is_some()).collect();
        let of_largest = *ranges.first()?;
        let part = |ns: i64| ratio(ns as f64, row.ns as f64);
        Some(CauseRanges {
            largest: range_of(of_largest)?,
            largest_part: part(of_largest.ns)?,
            part: part(ranges.iter().map(|it| it.ns).sum())?,
            first: std::array::from_fn(|at| ranges.get(at).copied()),
        })
    }

    /// Gaps of a member in one repeat, with the parts of gaps that another member counts.
    pub fn gaps_and_parts(&self, of: &LedgerMember) -> f64 {
        let mut gaps = self.members.iter().filter(|it| it.stage == of.stage && it.cause.is_idle());
        // All gaps of a stage have one scale.
        let scale = gaps.find_map(|it| ratio(it.calls, it.samples as f64)).unwrap_or(1.0);
        of.calls + of.gap_parts as f64 * scale
    }
}

/// Number, mean and longest of a cause's gaps on all GPUs, over the instances of a stage, with
/// their noun. All gaps with time of the cause are counted, and only this time. If each gap has
/// more time of another cause, the text calls the cause a part of them.
pub fn gaps_text(
    cause: LedgerCause,
    call: Option<&str>,
    gaps: &GapSum,
    (instances, noun): (u64, &str),
) -> String {
    let length = |us: f64| length_of((us * 1e3).round() as i64);
    let all = gaps.count + gaps.parts;
    let mean_us = ratio(gaps.ns as f64 / 1e3, all as f64).unwrap_or(0.0);
    let longest_us = gaps.longest_ns as f64 / 1e3;
    let (all_us, longest) = (gaps.ns as f64 / 1e3, length(longest_us));
    // A mean does not stand for one long gap.
    let mean = if longest_us <= LONGEST_MEANS * mean_us {
        format!("{} on average", length(mean_us))
    } else if 2.0 * longest_us > all_us {
        format!("the longest {longest} of {}", length(all_us))
    } else {
        format!("{} on average, the longest {longest}", length(mean_us))
    };
    let place = match (cause, call.map(HostActivity::of)) {
        (LedgerCause::GapLongCall, Some(HostActivity::Loading)) => "up to this call of the host",
        (LedgerCause::GapLongCall, Some(HostActivity::Range | HostActivity::OsWait)) => "in it",
        (LedgerCause::GapLongCall, _) => "with this call of the host",
        _ => "after this work",
    };
    let number = |count: u64| match count {
        1 => "one gap".to_owned(),
        _ => format!("{} gaps", digits::count(count)),
    };
    let counted = match gaps.count {
        0 => format!("a part of {}", number(gaps.parts)),
        _ => number(all),
    };
    match (all, instances) {
        (1, _) => format!("{counted} {place}, {}", length(mean_us)),
        (_, 1) => format!("{counted} {place}, {mean}"),
        _ => {
            let instances = digits::count(instances);
            format!("{counted} {place} over {instances} {noun}, {mean}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text((count, parts): (u64, u64), ns: i64, longest_ns: i64) -> String {
        let gaps = GapSum { count, parts, ns, longest_ns };
        gaps_text(LedgerCause::GapHost, None, &gaps, (10, "instances"))
    }

    #[test]
    fn one_long_gap_is_named_next_to_the_mean() {
        let of_ten = "10 gaps after this work over 10 instances";
        let of = |longest_ns| text((10, 0), 30_000_000, longest_ns);
        assert_eq!(of(3_000_000), format!("{of_ten}, 3.00 ms on average"));
        assert_eq!(of(14_900_000), format!("{of_ten}, 3.00 ms on average, the longest 14.9 ms"));
        assert_eq!(of(29_100_000), format!("{of_ten}, the longest 29.1 ms of 30.0 ms"));
        assert_eq!(text((1, 0), 29_100_000, 29_100_000), "one gap after this work, 29.1 ms");
    }

    #[test]
    fn gaps_that_all_have_more_time_of_another_cause_are_called_parts() {
        let place = "after this work over 10 instances, 1.00 ms on average";
        for (gaps, expected) in [
            ((0, 1), "a part of one gap after this work, 1.00 ms".to_owned()),
            ((0, 3), format!("a part of 3 gaps {place}")),
            ((1, 1), format!("2 gaps {place}")),
            ((2, 7), format!("9 gaps {place}")),
        ] {
            let ns = (gaps.0 + gaps.1) as i64 * 1_000_000;
            assert_eq!(text(gaps, ns, 1_000_000), expected);
        }
    }
}
