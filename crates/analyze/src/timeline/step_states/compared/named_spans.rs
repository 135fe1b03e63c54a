//! Ranges and operators in the part of a step that has no record.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::timeline::{Timeline, process_of};

use super::ComparedStep;
use crate::timeline::{capture::Capture, interval::Interval};

/// Least number of other spans of one name to compare with.
const MIN_OTHERS: usize = 2;

/// Name of a range, or number of an operator with its shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SpanName<'a> {
    Range(&'a str, &'a str),
    Operator(u32),
}

/// A range or an operator.
#[derive(Debug, Clone, Copy)]
struct NamedSpan<'a> {
    name: SpanName<'a>,
    thread: i64,
    times: Interval,
}

/// True if a range or an operator, before the first or after the last record of the process, has no
/// call, unlike each other one of its name: calls of the step are missing, whatever part of it that
/// is. `edges` are the sides at which the step lies at the edge of the recording.
pub(super) fn lack_calls(capture: &Capture, step: &ComparedStep, edges: [bool; 2]) -> bool {
    let (trace, process) = (capture.trace, process_of(step.place));
    let Some(record) = capture.stages.records.of_process(process) else { return false };
    let (start, end) = step.range;
    let (first, last) = record.times;
    let sides = [(start, first.min(end)), (last.max(start), end)].into_iter().zip(edges);
    let outside: Vec<Interval> =
        sides.filter(|(it, is_edge)| *is_edge && it.0 < it.1).map(|it| it.0).collect();
    if outside.is_empty() {
        return false;
    }
    let is_outside = |it: &NamedSpan| {
        let (from, to) = it.times;
        let is_in = |side: &Interval| side.0 <= from && to <= side.1;
        from < to && it.times != step.range && outside.iter().any(is_in)
    };
    let own = || spans(trace).filter(move |it| process_of(it.thread) == process);
    let names: BTreeSet<SpanName> = own().filter(is_outside).map(|it| it.name).collect();
    if names.is_empty() {
        return false;
    }
    let calls = calls_by_thread(trace, process);
    let has_call = |it: &NamedSpan| {
        let starts = calls.get(&it.thread).map_or(&[][..], Vec::as_slice);
        let at = starts.partition_point(|start| *start < it.times.0);
        starts.get(at).is_some_and(|start| *start < it.times.1)
    };
    // By name: number of other spans, and number of other spans with a call.
    let mut others: BTreeMap<SpanName, (usize, usize)> = BTreeMap::new();
    let is_recorded = |it: &NamedSpan| first <= it.times.0 && it.times.1 <= last;
    for it in own().filter(|it| is_recorded(it) && names.contains(&it.name)) {
        let (all, with) = others.entry(it.name).or_default();
        *all += 1;
        *with += usize::from(has_call(&it));
    }
    others.values().any(|(all, with)| *all >= MIN_OTHERS && all == with)
}

/// All ranges and operators of a timeline.
fn spans(trace: &Timeline) -> impl Iterator<Item = NamedSpan<'_>> {
    let ranges = trace.ranges.iter().filter_map(|it| {
        let label = it.label();
        let name = SpanName::Range(&label.domain, &label.name);
        Some(NamedSpan { name, thread: it.global_tid, times: (it.start_ns, it.end_ns?) })
    });
    let operators = trace.framework.iter().map(|it| NamedSpan {
        name: SpanName::Operator(it.signature),
        thread: it.global_tid,
        times: (it.start_ns, it.end_ns),
    });
    ranges.chain(operators)
}

/// Starts of the calls of a process by thread, in order.
fn calls_by_thread(trace: &Timeline, process: i64) -> BTreeMap<i64, Vec<i64>> {
    let mut found: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for it in trace.cuda_calls.iter().filter(|it| process_of(it.global_tid) == process) {
        found.entry(it.global_tid).or_default().push(it.start_ns);
    }
    found.values_mut().for_each(|starts| starts.sort_unstable());
    found
}
