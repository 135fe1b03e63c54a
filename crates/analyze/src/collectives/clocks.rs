//! Clocks of the ranks of a group, by the operations that end at nearly the same time on all of
//! them. In most of these operations, no rank can end before every rank has started.

use llmprof_core::trace::collectives::CollectiveKind;

use super::{
    join::{JoinedGroup, NotJoined, has_one_clock},
    members::MemberGroup,
};
use crate::stats::median_of;

/// Distance up to which clocks count as one, nanoseconds, if no operation contradicts: hosts of
/// different clocks differ by more, and ranks end by less.
const SAME_CLOCK_NS: i64 = 50_000;
/// Least number of operations from which an offset is estimated.
const MIN_OPERATIONS: usize = 8;
/// Largest spread of an offset, percent of the median time of an operation.
const MAX_SPREAD_PCT: i64 = 25;
/// Operations that contradict the clocks, percent of all, above which the pairs are refused.
const MAX_CONTRADICTING_PCT: usize = 1;
/// A contradiction up to this time is the clocks' own uncertainty, nanoseconds.
const TOLERANCE_NS: i64 = 2_000;

/// Clock of one member against the first member's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockOffset {
    /// To be subtracted from the member's times.
    pub ns: i64,
    /// Half of the range that holds 90 % of the differences between the ends.
    pub spread_ns: i64,
    /// True for an estimate; false if the clock is the first member's.
    pub is_estimated: bool,
}

/// The offset of each member's clock. Pairs that the clocks contradict are withheld from `joined`.
pub fn align(group: &MemberGroup, joined: &mut JoinedGroup) -> Vec<ClockOffset> {
    let one = vec![ClockOffset::default(); group.members.len()];
    if joined.len() == 0 {
        return one;
    }
    let offsets = if has_one_clock(group) {
        one.clone()
    } else {
        match estimate(group, joined) {
            Ok(offsets) => offsets,
            Err(problem) => {
                joined.withhold(problem);
                return one;
            }
        }
    };
    let count = contradicting(group, joined, &offsets);
    let of = joined.len();
    if count * 100 > of * MAX_CONTRADICTING_PCT {
        joined.withhold(NotJoined::NotSimultaneous { count, of });
        return one;
    }
    offsets
}

/// True for operations whose ends are nearly simultaneous on all ranks.
fn ends_together(operation: CollectiveKind) -> bool {
    operation.needs_all_ranks() || operation == CollectiveKind::AllToAll
}

/// Starts and ends of one member and of the first in operations that end together.
fn ends(group: &MemberGroup, joined: &JoinedGroup, member: usize) -> Vec<[(i64, i64); 2]> {
    let launch = |of: usize, row: &[u32]| &group.members[of].launches[row[of] as usize];
    let times = |of: usize, row: &[u32]| (launch(of, row).start_ns, launch(of, row).end_ns);
    let together = joined.iter().filter(|row| ends_together(launch(0, row).operation));
    together.map(|row| [times(0, row), times(member, row)]).collect()
}

fn estimate(group: &MemberGroup, joined: &JoinedGroup) -> Result<Vec<ClockOffset>, NotJoined> {
    let mut offsets = vec![ClockOffset::default()];
    for member in 1..group.members.len() {
        let ends = ends(group, joined, member);
        let mut differences: Vec<i64> =
            ends.iter().map(|[first, own]| own.1.saturating_sub(first.1)).collect();
        differences.sort_unstable();
        let Some(median) = median_of(differences.iter().copied()) else {
            return Err(NotJoined::UnknownClocks);
        };
        let spread_ns = quantile(&differences, 95)
            .zip(quantile(&differences, 5))
            .map_or(0, |(high, low)| high.saturating_sub(low) / 2);
        let is_possible = ends.iter().all(|[first, own]| own.0 <= first.1 && first.0 <= own.1);
        if is_possible && median.abs() <= SAME_CLOCK_NS {
            offsets.push(ClockOffset { ns: 0, spread_ns, is_estimated: false });
            continue;
        }
        // Without numbers, another offset is another pairing.
        let is_numbered = group.members[member].launches.iter().any(|it| it.sequence.is_some());
        if !is_numbered || ends.len() < MIN_OPERATIONS {
            return Err(NotJoined::UnknownClocks);
        }
        let median_ns = median_of(ends.iter().flatten().map(|it| it.1 - it.0)).unwrap_or(0);
        if spread_ns.saturating_mul(100) > median_ns.saturating_mul(MAX_SPREAD_PCT) {
            return Err(NotJoined::Spread { spread_ns, median_ns });
        }
        offsets.push(ClockOffset { ns: median, spread_ns, is_estimated: true });
    }
    Ok(offsets)
}

/// Operations in which a rank ends before another starts.
fn contradicting(group: &MemberGroup, joined: &JoinedGroup, offsets: &[ClockOffset]) -> usize {
    let spread = offsets.iter().map(|it| it.spread_ns).max().unwrap_or(0);
    let tolerance = TOLERANCE_NS + spread.saturating_mul(2);
    let contradicts = |row: &&[u32]| {
        let launches = || row.iter().zip(&group.members).map(|(at, it)| it.launches[*at as usize]);
        let own = |ns: i64, offset: &ClockOffset| ns.saturating_sub(offset.ns);
        let start = launches().zip(offsets).map(|(it, of)| own(it.start_ns, of)).max();
        let end = launches().zip(offsets).map(|(it, of)| own(it.end_ns, of)).min();
        launches().all(|it| it.operation.needs_all_ranks())
            && start.zip(end).is_some_and(|(start, end)| end.saturating_add(tolerance) < start)
    };
    joined.iter().filter(contradicts).count()
}

/// The value below which `percent` of the sorted values lie, by nearest rank.
fn quantile(sorted: &[i64], percent: usize) -> Option<i64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last * percent + 50) / 100).copied()
}
