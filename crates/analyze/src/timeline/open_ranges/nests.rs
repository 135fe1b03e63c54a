//! Nested ranges by thread.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
};

use super::{NONE, Segments, end, place, threads};

/// Selected ranges as a tree, as visible to one thread.
#[derive(Debug, Default)]
pub struct OpenNest {
    /// The range and its enclosing entry ([`NONE`] without), in order of start.
    pub entries: Vec<(u32, u32)>,
    /// Innermost open entry over time.
    pub segments: Segments,
}

/// Nests the ranges selected by `wanted`, for each thread. Of ranges that overlap without nesting
/// the later one counts as the inner one.
pub fn nest_ranges(trace: &Timeline, wanted: impl Fn(&Range) -> bool) -> BTreeMap<i64, OpenNest> {
    let mut places: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    for (at, range) in trace
        .ranges
        .iter()
        .enumerate()
        .filter(|(_, range)| wanted(range) && range.start_ns < end(range))
    {
        places.entry(place(range)).or_default().push(at as u32);
    }
    let order = |at: &u32| {
        let range = &trace.ranges[*at as usize];
        (range.start_ns, std::cmp::Reverse(end(range)), *at)
    };
    let mut nests = BTreeMap::new();
    for thread in threads(trace) {
        let visible = [thread, process_of(thread)];
        let mut visible: Vec<u32> =
            visible.iter().filter_map(|it| places.get(it)).flatten().copied().collect();
        if visible.is_empty() {
            continue;
        }
        visible.sort_unstable_by_key(order);
        let span = |at: u32| {
            let range = &trace.ranges[at as usize];
            (range.start_ns, end(range))
        };
        nests.insert(thread, nest(span, &visible));
    }
    nests
}

/// Nests the spans numbered in `order`, which is that of their starts; of spans that start together
/// the longer one comes first.
pub fn nest(span: impl Fn(u32) -> (i64, i64), order: &[u32]) -> OpenNest {
    let mut nest = OpenNest::default();
    let mut open: Vec<u32> = Vec::new();
    let end_of = |nest: &OpenNest, entry: u32| span(nest.entries[entry as usize].0).1;
    let close = |nest: &mut OpenNest, open: &mut Vec<u32>, until: i64| {
        while let Some(&top) = open.last() {
            let t = end_of(nest, top);
            if t > until {
                break;
            }
            while open.last().is_some_and(|top| end_of(nest, *top) <= t) {
                open.pop();
            }
            nest.segments.push(t, open.last().copied().unwrap_or(NONE));
        }
    };
    for &at in order {
        let (start_ns, end_ns) = span(at);
        close(&mut nest, &mut open, start_ns);
        let parent = open
            .iter()
            .rev()
            .copied()
            .find(|entry| end_of(&nest, *entry) >= end_ns)
            .unwrap_or(NONE);
        let entry = nest.entries.len() as u32;
        nest.entries.push((at, parent));
        nest.segments.push(start_ns, entry);
        open.push(entry);
    }
    close(&mut nest, &mut open, i64::MAX - 1);
    nest
}
