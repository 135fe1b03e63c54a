//! Gaps of the ledger: their number, their text, and the ranges of the program that have them.

use llmprof_core::domain::digits;

use super::{Ledger, LedgerCause, LedgerMember, LedgerRow, rows::length_of};
use crate::{
    stats::ratio,
    timeline::gpu::{
        long_calls::{IN_RANGE, LOADING},
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
}

impl<'a> CauseRanges<'a> {
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

impl Ledger {
    /// The ranges of the program in which the host is in the gaps of a cause.
    pub fn ranges_of<'a>(&'a self, row: &'a LedgerRow) -> Option<CauseRanges<'a>> {
        let members = self.members(&row.stage, row.cause).filter(|_| row.cause.is_gap());
        let of_ranges =
            members.filter_map(|it| Some((it.operator.as_deref()?.strip_prefix(IN_RANGE)?, it.ns)));
        let mut ranges = of_ranges.peekable();
        // Members are in the order of their time.
        let (largest, largest_ns) = *ranges.peek()?;
        let part = |ns: i64| ratio(ns as f64, row.ns as f64);
        let largest_part = part(largest_ns)?;
        Some(CauseRanges { largest, largest_part, part: part(ranges.map(|it| it.1).sum())? })
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
    let starts = |text: &str| call.is_some_and(|call| call.starts_with(text));
    let place = match cause {
        LedgerCause::GapLongCall if starts(LOADING) => "up to this call of the host",
        LedgerCause::GapLongCall if starts(IN_RANGE) => "in it",
        LedgerCause::GapLongCall => "with this call of the host",
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
        _ => format!("{counted} {place} over {instances} {noun}, {mean}"),
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
