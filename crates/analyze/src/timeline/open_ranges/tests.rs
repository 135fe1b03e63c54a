//! Open stages and nests against a direct search, on random ranges.

use llmprof_core::trace::{event::STAGE_DOMAIN, stage::StageRules};
use proptest::prelude::*;

use super::*;

const NAMES: [&str; 6] = ["warmup", "prefill", "decode_all", "measured", "skipped", "other"];

fn range((name, start, length, thread, push_pop): (usize, i64, i64, i64, bool)) -> Range {
    Range {
        domain: STAGE_DOMAIN.into(),
        name: NAMES[name].into(),
        start_ns: start,
        end_ns: (length < 19).then_some(start + length),
        global_tid: (7 << 24) | thread,
        push_pop,
    }
}

prop_compose! {
    fn trace()(
        mut ranges in prop::collection::vec(
            (0usize..6, 0i64..40, 0i64..20, 1i64..3, any::<bool>()), 0..10
        )
    ) -> Timeline {
        ranges.sort_by_key(|it| it.1);
        let mut ranges: Vec<Range> = ranges.into_iter().map(range).collect();
        ranges.sort_by_key(|it| (it.start_ns, std::cmp::Reverse(end(it))));
        // An empty range makes each thread known.
        ranges.extend([1, 2].map(|thread| range((5, 100, 0, thread, true))));
        Timeline { ranges, ..Timeline::default() }
    }
}

/// Indices of the ranges open on a thread at `t`.
fn open(trace: &Timeline, thread: i64, t: i64) -> impl Iterator<Item = usize> + '_ {
    let here = move |it: &Range| it.global_tid == thread || !it.push_pop;
    (0..trace.ranges.len()).filter(move |at| {
        let it = &trace.ranges[*at];
        here(it) && it.start_ns <= t && t < end(it)
    })
}

proptest! {
    #[test]
    fn the_stage_at_any_time_is_the_first_open_one_unless_filtered(
        trace in trace(), include in any::<bool>(), exclude in any::<bool>()
    ) {
        let chosen = |on: bool, name: &str| if on { vec![name.to_owned()] } else { vec![] };
        let (included, excluded) = (chosen(include, "measured"), chosen(exclude, "skipped"));
        let rules = StageRules::with(vec![], included, excluded);
        let trace = Timeline { rules, ..trace };
        let stages = OpenStages::of(&trace, "warmup");
        for thread in [(7 << 24) | 1, (7 << 24) | 2] {
            let mut hint = 0;
            for t in 0..70 {
                let is_open =
                    |name: &str| open(&trace, thread, t).any(|at| trace.ranges[at].name == name);
                let counts = (!include || is_open("measured")) && (!exclude || !is_open("skipped"));
                let expected = ["warmup", "prefill", "decode_all"]
                    .into_iter()
                    .find(|name| counts && is_open(name));
                let instance = stages.on(thread).map_or(NONE, |it| it.at(t, &mut hint));
                let found = stages
                    .instances
                    .get(instance as usize)
                    .map(|it| stages.labels[it.label].as_str());
                prop_assert_eq!(found, expected, "at {} on {}", t, thread);
            }
        }
    }

    #[test]
    fn the_innermost_range_at_any_time_is_the_one_opened_last(trace in trace()) {
        let nests = nest_ranges(&trace, |_| true);
        for thread in [(7 << 24) | 1, (7 << 24) | 2] {
            let mut hint = 0;
            for t in (0..70).chain([3, 60, 0]) {
                let latest = |at: &usize| {
                    let range = &trace.ranges[*at];
                    (range.start_ns, std::cmp::Reverse(end(range)), *at)
                };
                let expected = open(&trace, thread, t).max_by_key(latest);
                let nest = nests.get(&thread);
                let entry = nest.map_or(NONE, |nest| nest.segments.at(t, &mut hint));
                let range = |entry: u32| Some(nest?.entries.get(entry as usize)?.0 as usize);
                let found = range(entry);
                prop_assert_eq!(found, expected, "at {} on {}", t, thread);
                let parent = nest.and_then(|nest| range(nest.entries.get(entry as usize)?.1));
                if let (Some(outer), Some(inner)) = (parent, found) {
                    let (outer, inner) = (&trace.ranges[outer], &trace.ranges[inner]);
                    prop_assert!(outer.start_ns <= inner.start_ns && end(inner) <= end(outer));
                }
            }
        }
    }
}
