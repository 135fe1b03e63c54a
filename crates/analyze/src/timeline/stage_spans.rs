//! Time that a range of the host stands for, up to the end of the work that it launched.
//!
//! Launches are asynchronous: a range without a synchronisation ends long before its work, and the
//! work of the next one queues behind it. A span lasts from the start of the range, or from the end
//! of the work of the ranges before it if its own work queued, until the range and its work have
//! ended. Spans of consecutive ranges do not overlap. Work of a device without a common clock does
//! not count: such a span is the range's own time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{
    capture::{Capture, Join},
    interval::{Interval, extended},
};

/// A range of the host.
#[derive(Debug, Clone, Copy)]
pub struct HostRange {
    /// Its thread or process.
    pub place: i64,
    pub start_ns: i64,
    pub end_ns: i64,
    /// First start and last end of the work that it launched.
    pub work: Option<Interval>,
}

/// The span of each stage instance; empty if the instance does not count.
pub fn stage_spans(capture: &Capture) -> Vec<Interval> {
    let instances = &capture.stages.instances;
    if instances.is_empty() {
        return Vec::new();
    }
    let work = instance_work(capture);
    let mut found = spans(instances.iter().zip(work).map(|(it, work)| HostRange {
        place: it.place,
        start_ns: it.start_ns,
        end_ns: it.end_ns,
        work,
    }));
    // A step inside a decode queues behind the step before, not behind a stage.
    let states = &capture.stages.states;
    for (it, span) in instances.iter().zip(&mut found) {
        *span = states.span_inside(it.key()).unwrap_or(*span);
    }
    found
}

/// First start and last end of the work of each stage instance.
fn instance_work(capture: &Capture) -> Vec<Option<Interval>> {
    let mut work = vec![None; capture.stages.instances.len()];
    let trace = capture.trace;
    let mut add = |(process, device): (i64, u32), (start, end): Interval, join: Join| {
        if !trace.has_common_clock(process, device) {
            return;
        }
        if let Some(work) = work.get_mut(join.instance as usize) {
            *work = Some(extended(*work, (start, end)));
        }
    };
    for (it, join) in capture.kernels() {
        add((it.global_pid, it.device), (it.start_ns, it.end_ns), join);
    }
    for (it, join) in capture.copies() {
        add((it.global_pid, it.device), (it.start_ns, it.end_ns), join);
    }
    for (it, join) in capture.graphs() {
        add((it.global_pid, it.device), (it.start_ns, it.end_ns), join);
    }
    work
}

/// The spans of ranges in the order of their starts.
pub fn spans(ranges: impl Iterator<Item = HostRange>) -> Vec<Interval> {
    let mut queues: BTreeMap<i64, WorkQueue> = BTreeMap::new();
    let span = |it: HostRange| {
        let queue = queues.entry(it.place).or_default();
        let queued = queue.work_end_before(it.start_ns);
        let Some((first, last)) = it.work else { return (it.start_ns, it.end_ns) };
        queue.open.push(Reverse((it.end_ns, last)));
        let start = queued.map_or(it.start_ns, |end| end.min(first).max(it.start_ns));
        // A range that the capture does not end lasts until its work ended.
        let end = if it.end_ns == i64::MAX { last } else { it.end_ns.max(last) };
        (start, end)
    };
    ranges.map(span).collect()
}

/// Work of the ranges of one place.
#[derive(Default)]
struct WorkQueue {
    /// Ends of ranges that have not ended, and of their work; the first end is on top.
    open: BinaryHeap<Reverse<(i64, i64)>>,
    /// Last end of the work of ended ranges.
    work_end: Option<i64>,
}

impl WorkQueue {
    /// Last end of the work of the ranges that ended before `t`.
    fn work_end_before(&mut self, t: i64) -> Option<i64> {
        while self.open.peek().is_some_and(|it| it.0.0 <= t)
            && let Some(Reverse((_, work_end))) = self.open.pop()
        {
            self.work_end = self.work_end.max(Some(work_end));
        }
        self.work_end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::tests::capture;

    fn of(sketch: &str) -> Vec<Interval> {
        let trace = capture(sketch);
        stage_spans(&Capture::of(&trace))
    }

    #[test]
    fn a_stage_without_a_synchronisation_lasts_until_its_work_ends_and_the_next_follows_it() {
        let spans = of("range 1 prefill 0..20\nrange 1 decode_all 21..320
             call 1 1 1..2\ncall 1 2 22..23\nkernel 1 a 3..100 7\nkernel 2 b 101..300 7");
        assert_eq!(spans, [(0, 100), (100, 320)]);
    }

    #[test]
    fn a_stage_with_a_synchronisation_or_without_work_lasts_as_long_as_its_range() {
        let spans = of("range 1 prefill 0..20\nrange 1 decode_all 21..40
             call 1 1 1..2\nkernel 1 a 3..19 7");
        assert_eq!(spans, [(0, 20), (21, 40)]);
    }

    #[test]
    fn work_on_another_stream_and_a_concurrent_range_do_not_wait() {
        let spans = of("range 1 prefill 0..20\nrange 1 decode_all 21..40
             call 1 1 1..2\ncall 1 2 22..23\nkernel 1 a 3..100 7\nkernel 2 b 24..39 8");
        assert_eq!(spans, [(0, 100), (24, 40)]);
        let spans = of("cross 1 prefill 0..20\ncross 1 prefill 10..30
             call 1 1 1..2\ncall 1 2 22..23\nkernel 1 a 3..25 7\nkernel 2 b 26..29 7");
        assert_eq!(spans, [(0, 25), (10, 30)]);
    }

    proptest! {
        #[test]
        fn spans_of_consecutive_ranges_cover_their_work_and_never_overlap(
            steps in prop::collection::vec((1i64..50, 0i64..30, 1i64..90), 1..20)
        ) {
            // Ranges of one thread, each launching one kernel into one stream.
            let (mut host, mut device) = (0, 0);
            let mut ranges = Vec::new();
            for (length, gap, kernel) in steps {
                let first = device.max(host + 1);
                let work = Some((first, first + kernel));
                ranges.push(HostRange { place: 1, start_ns: host, end_ns: host + length, work });
                (host, device) = (host + length + gap, first + kernel);
            }
            let found = spans(ranges.iter().copied());
            for (it, span) in ranges.iter().zip(&found) {
                let (first, last) = it.work.unwrap();
                prop_assert!(it.start_ns <= span.0 && span.0 <= first);
                prop_assert!(it.end_ns <= span.1 && last <= span.1);
            }
            for (at, pair) in found.windows(2).enumerate() {
                // The host may still be in the range when its work has ended.
                prop_assert!(pair[0].1 <= pair[1].0.max(ranges[at].end_ns));
            }
        }
    }
}
