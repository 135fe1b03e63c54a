//! Work without a launching call, by process.

use std::collections::BTreeMap;

use llmprof_core::trace::call_index::LaunchId;

use crate::{
    stages::coverage::FirstCalls,
    timeline::{
        capture::Capture,
        interval::{Interval, IntervalSet},
    },
};

/// Times of kernels and graphs without a launching call, in which spans are looked up.
///
/// Work is joined to one time if no span starts or ends in between: the number of times depends on
/// the spans, not on the number of kernels.
#[derive(Debug)]
pub struct Orphans(BTreeMap<i64, IntervalSet>);

impl Orphans {
    /// The work of a capture, without work that was launched before the recording.
    pub fn of(capture: &Capture, spans: &[Interval]) -> Self {
        let mut first: Option<FirstCalls> = None;
        let is_recorded = |(process, correlation): LaunchId| {
            let first = first.get_or_insert_with(|| FirstCalls::of(capture.trace));
            !first.is_before(process, correlation)
        };
        Self::filtered(capture, spans, is_recorded)
    }

    /// All work of a capture.
    pub fn with_earlier(capture: &Capture, spans: &[Interval]) -> Self {
        Self::filtered(capture, spans, |_| true)
    }

    /// Work by its process and the number of its launch.
    fn filtered(
        capture: &Capture,
        spans: &[Interval],
        mut is_it: impl FnMut(LaunchId) -> bool,
    ) -> Self {
        let kernels = capture.kernels().filter(|it| !it.1.has_call());
        let kernels = kernels.map(|(it, _)| (it.launch_id(), (it.start_ns, it.end_ns)));
        let graphs = capture.graphs().filter(|it| !it.1.has_call());
        let graphs = graphs.map(|(it, _)| (it.launch_id(), (it.start_ns, it.end_ns)));
        let work = kernels.chain(graphs).filter(|it| is_it(it.0));
        Self::joined(work.map(|((process, _), times)| (process, times)), spans)
    }

    /// Joins work, given by process in the order of its starts.
    fn joined(work: impl Iterator<Item = (i64, Interval)>, spans: &[Interval]) -> Self {
        let mut bounds: Option<Vec<i64>> = None;
        let mut found: BTreeMap<i64, Vec<Interval>> = BTreeMap::new();
        for (process, (start, end)) in work.filter(|it| it.1.0 < it.1.1) {
            let bounds = bounds.get_or_insert_with(|| sorted_bounds(spans));
            let has_bound = |from: i64, to: i64| {
                let at = bounds.partition_point(|it| *it < from);
                from < to && bounds.get(at).is_some_and(|it| *it <= to)
            };
            let all = found.entry(process).or_default();
            match all.last_mut() {
                Some(last) if last.0 <= start && !has_bound(last.1, start) => {
                    last.1 = last.1.max(end);
                }
                _ => all.push((start, end)),
            }
        }
        let set = |(process, times): (i64, Vec<Interval>)| (process, IntervalSet::new(times));
        Self(found.into_iter().map(set).collect())
    }

    /// True if work of a process ran in one of the spans.
    pub fn are_in(&self, process: i64, span: Interval) -> bool {
        self.0.get(&process).is_some_and(|it| it.overlap_ns(span.0, span.1) > 0)
    }
}

/// Starts and ends of spans, in order.
fn sorted_bounds(spans: &[Interval]) -> Vec<i64> {
    let mut bounds: Vec<i64> = spans.iter().flat_map(|it| [it.0, it.1]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{StepState, compared},
        *,
    };
    use crate::kernels::tests::{capture, launching};

    #[test]
    fn a_step_in_which_work_runs_lacks_the_calls_that_launched_it_and_not_the_work() {
        let step = |at: i64| {
            let times = [(0, 100), (10, 11), (20, 60)].map(|it| (100 * at + it.0, 100 * at + it.1));
            launching("execute_context_0(0)_generation_2(2)", 10 + at, times)
        };
        let first = |work: &str| {
            let range = "range 1 execute_context_0(0)_generation_2(2) 0..100";
            let trace = capture(&format!("{range}\n{work}{}\n{}", step(1), step(2)));
            compared(&Capture::of(&trace)).remove(0).state
        };
        // Its launches have lower numbers than the first recorded call.
        assert_eq!(first("kernel 1 a 20..40 7\nkernel 2 b 40..60 7\n"), StepState::CallsMissing);
        assert_eq!(first(""), StepState::WithoutWork);
    }

    proptest! {
        #[test]
        fn joined_work_is_in_the_same_spans_and_has_no_more_times_than_these_have_bounds(
            mut work in prop::collection::vec((0i64..2, (0i64..60, 0i64..9)), 0..40),
            spans in prop::collection::vec((0i64..60, 0i64..20), 0..6),
        ) {
            work.sort_unstable_by_key(|it| it.1.0);
            let times = |(start, ns): (i64, i64)| (start, start + ns);
            let work: Vec<(i64, Interval)> = work.iter().map(|it| (it.0, times(it.1))).collect();
            let spans: Vec<Interval> = spans.into_iter().map(times).collect();
            let found = Orphans::joined(work.iter().copied(), &spans);
            for (process, span) in [0, 1].into_iter().flat_map(|it| {
                spans.iter().map(move |span| (it, *span))
            }) {
                let own = work.iter().filter(|it| it.0 == process);
                let overlaps = |(_, it): &(i64, Interval)| it.0.max(span.0) < it.1.min(span.1);
                let expected = own.filter(|it| it.1.0 < it.1.1).any(overlaps);
                prop_assert_eq!(found.are_in(process, span), expected, "{:?}", span);
            }
            for set in found.0.values() {
                prop_assert!(set.intervals().len() <= 2 * spans.len() + 1);
            }
        }
    }
}
