//! Ranges of operators that the runner recorded only as events.
//!
//! A profiler takes about a microsecond for each range, as long as a small kernel: under Nsight
//! Systems the runner opens ranges only for its stages. Both clocks are known at the start of each
//! stage: the profiler's time of the range, and the event's, which the runner reads right after it.
//! So the difference of the clocks is at most the difference at any start, and nearly the one at
//! the fastest.

use std::{collections::BTreeMap, iter};

use super::{
    event::{CAPTURE_RANGE, Event, OPERATOR_DOMAIN, OperatorCall, STAGE_DOMAIN, StageRange},
    range::{self, Range, RangeLabel, RangeSites},
    timeline::Timeline,
};
use crate::domain::finding::{Finding, catalogue};

/// Time by which a stage may end later by the event than by its range, nanoseconds. The runner
/// reads its clock before it closes the range.
const TOLERANCE_NS: i64 = 1_000;
/// Ends that contradict the clocks, percent of all, from which operators are left out.
const MAX_CONTRADICTING_PCT: usize = 1;

/// Adds the ranges of operators in `events` to a capture that has none outside of captured graphs.
pub fn add(trace: &mut Timeline, events: &[Event]) {
    let called: Vec<&OperatorCall> = events.iter().filter_map(called).collect();
    if called.is_empty() || has_operators(trace) {
        return;
    }
    let pairs = paired(&trace.ranges, events);
    let (Some(clock), Some((first, _))) = (ClockDifference::of(&pairs), pairs.first()) else {
        trace.findings.push(not_joined(format!(
            "the {} ranges of the capture are not those of the runner's stages",
            trace.ranges.len()
        )));
        return;
    };
    let late = pairs.iter().filter(|(range, event)| {
        let end_ns = event.end_ns - clock.at(event.end_ns);
        range.end_ns.is_some_and(|end| end_ns > end + TOLERANCE_NS)
    });
    let late = late.count();
    if late * 100 > pairs.len() * MAX_CONTRADICTING_PCT {
        let of = pairs.len();
        trace.findings.push(not_joined(format!(
            "{late} of {of} stages end later by the runner's clock than by that of the profiler"
        )));
        return;
    }
    let global_tid = first.global_tid;
    let mut sites = RangeSites::default();
    let added = called.into_iter().map(|call| {
        let label = RangeLabel { domain: OPERATOR_DOMAIN.into(), name: call.path.clone() };
        let label = sites.label(label);
        let at = |time: i64| time - clock.at(time);
        let times = (at(call.start_ns), Some(at(call.end_ns)));
        Range::at(sites.site(&label, (global_tid, true)), times)
    });
    trace.ranges.extend(added);
    range::sort(&mut trace.ranges);
}

fn not_joined(reason: String) -> Finding {
    let message = "The operators of stages that are launched kernel by kernel are unknown: the \
                   runner's events and the capture have no common clock.";
    Finding::new(catalogue::OPERATORS_NOT_JOINED, message)
        .with("reason", reason)
        .advise("List the pass nsys in operator_ranges of the profiling settings (runner)")
}

/// A call with times of its own; calls in a replayed graph have none.
fn called(event: &Event) -> Option<&OperatorCall> {
    match event {
        Event::Op(call) if !call.captured => Some(call),
        _ => None,
    }
}

/// True if a range of an operator is outside of captures.
fn has_operators(trace: &Timeline) -> bool {
    let is_capture = |it: &&Range| it.domain == STAGE_DOMAIN && it.name == CAPTURE_RANGE;
    let captures: Vec<&Range> = trace.ranges.iter().filter(is_capture).collect();
    let is_captured = |at_ns: i64| {
        let encloses =
            |it: &Range| it.start_ns <= at_ns && it.end_ns.is_none_or(|end| at_ns <= end);
        captures.iter().any(|it| encloses(it))
    };
    let mut operators = trace.ranges.iter().filter(|it| it.domain == OPERATOR_DOMAIN);
    operators.any(|it| !is_captured(it.start_ns))
}

/// Each stage's range with its event, by the order of the starts. A stage with another number of
/// ranges than events has no pairs.
fn paired<'a>(ranges: &'a [Range], events: &'a [Event]) -> Vec<(&'a Range, &'a StageRange)> {
    let mut by_name: BTreeMap<&str, (Vec<&Range>, Vec<&StageRange>)> = BTreeMap::new();
    for range in ranges.iter().filter(|it| it.domain == STAGE_DOMAIN) {
        by_name.entry(&range.name).or_default().0.push(range);
    }
    for event in events {
        if let Event::Range(event) = event {
            by_name.entry(&event.name).or_default().1.push(event);
        }
    }
    let mut pairs = Vec::new();
    for (mut ranges, mut events) in by_name.into_values() {
        if ranges.len() == events.len() {
            ranges.sort_by_key(|it| it.start_ns);
            events.sort_by_key(|it| it.start_ns);
            pairs.extend(iter::zip(ranges, events));
        }
    }
    pairs.sort_by_key(|(_, event)| event.start_ns);
    pairs
}

/// The runner's clock less the profiler's, by the runner's time.
///
/// The lower convex hull of all differences: it follows a drift, and leaves out starts between
/// whose two times the thread was interrupted (Zhang, Liu and Xia, "Clock synchronization
/// algorithms for network measurements", INFOCOM 2002).
struct ClockDifference {
    hull: Vec<(i64, i64)>,
}

impl ClockDifference {
    /// `None` without pairs. They are sorted by the events' starts.
    fn of(pairs: &[(&Range, &StageRange)]) -> Option<Self> {
        let mut hull: Vec<(i64, i64)> = Vec::new();
        for (range, event) in pairs {
            let point = (event.start_ns, event.start_ns - range.start_ns);
            while let [.., before, last] = hull[..]
                && !is_below(last, before, point)
            {
                hull.pop();
            }
            match hull.last_mut() {
                Some(last) if last.0 == point.0 => last.1 = last.1.min(point.1),
                _ => hull.push(point),
            }
        }
        (!hull.is_empty()).then_some(Self { hull })
    }

    /// The difference at a time of the runner.
    fn at(&self, time_ns: i64) -> i64 {
        let after = self.hull.partition_point(|(at, _)| *at < time_ns);
        match (self.hull[..after].last(), self.hull.get(after)) {
            (Some(&(from, start)), Some(&(to, end))) => {
                let part = i128::from(time_ns - from) * i128::from(end - start);
                start + (part / i128::from(to - from)) as i64
            }
            (Some(&(_, only)), None) | (None, Some(&(_, only))) => only,
            (None, None) => 0,
        }
    }
}

/// True if `point` is below the line from `before` to `after`.
fn is_below(point: (i64, i64), before: (i64, i64), after: (i64, i64)) -> bool {
    let [x, y] = [point.0 - before.0, point.1 - before.1].map(i128::from);
    let [to_x, to_y] = [after.0 - before.0, after.1 - before.1].map(i128::from);
    y * to_x < to_y * x
}

#[cfg(test)]
mod tests;
