//! Open stages and nests against a direct search, on random ranges.

use llmprof_core::trace::{event::STAGE_DOMAIN, stage::StageRules, timeline::ApiCall};
use proptest::prelude::*;

use super::*;
use crate::timeline::launches::CallSet;

const NAMES: [&str; 6] = ["warmup", "prefill", "decode_all", "measured", "skipped", "other"];

fn range((name, start, length, thread, push_pop): (usize, i64, i64, i64, bool)) -> Range {
    Range::new(
        (STAGE_DOMAIN, NAMES[name]),
        (start, (length < 19).then_some(start + length)),
        ((7 << 24) | thread, push_pop),
    )
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
        for t in 0..70 {
            let counts = |thread: i64| {
                let has = |name: &str| {
                    let mut open = open(&trace, (7 << 24) | thread, t);
                    open.any(|at| trace.ranges[at].name == name)
                };
                (!include || has("measured")) && (!exclude || !has("skipped"))
            };
            let is_excluded = !counts(1) && !counts(2);
            prop_assert_eq!(stages.is_excluded(7 << 24, t), is_excluded, "at {}", t);
        }
    }

    #[test]
    fn the_innermost_range_at_any_time_is_the_one_opened_last(trace in trace()) {
        let nests = nest_ranges(&trace, |_| true);
        for thread in [(7 << 24) | 1, (7 << 24) | 2] {
            let mut hint = NestHint::default();
            for t in (0..70).chain([3, 60, 0]) {
                let latest = |at: &usize| {
                    let range = &trace.ranges[*at];
                    (range.start_ns, std::cmp::Reverse(end(range)), *at)
                };
                let expected = open(&trace, thread, t).max_by_key(latest);
                let nest = nests.get(&thread);
                let entry = nest.map_or(NONE, |nest| nest.at(&trace.ranges, t, &mut hint));
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

    #[test]
    fn sums_of_a_nest_are_those_of_its_entries_and_of_all_inside(
        trace in trace(), values in prop::collection::vec(0u64..3, 10)
    ) {
        for nest in nest_ranges(&trace, |_| true).into_values() {
            let own = |entry: usize| values[nest.entries[entry].0 as usize % values.len()];
            let around = |entry: usize| {
                let outer = |at: &usize| match nest.entries[*at].1 {
                    NONE => None,
                    outer => Some(outer as usize),
                };
                std::iter::successors(Some(entry), outer).collect::<Vec<_>>()
            };
            let mut expected = vec![0; nest.entries.len()];
            let leaves: Vec<(u32, u64)> = (0..nest.entries.len())
                .map(|at| (at as u32, own(at)))
                .filter(|it| it.1 > 0)
                .collect();
            for (entry, value) in &leaves {
                around(*entry as usize).into_iter().for_each(|at| expected[at] += value);
            }
            let mut found = vec![0; nest.entries.len()];
            nest.roll_up(leaves, |sum, more| *sum += more, |at, sum| found[at as usize] += *sum);
            prop_assert_eq!(found, expected);
            let name = |range: u32| {
                let name = trace.ranges[range as usize].name.as_str();
                NAMES.iter().position(|it| *it == name).unwrap() as u32
            };
            let names: Vec<u32> = nest.entries.iter().map(|it| name(it.0)).collect();
            let inside = nest.inside_same(&names);
            for (at, inside) in inside.into_iter().enumerate() {
                let same = around(at)[1..].iter().any(|it| names[*it] == names[at]);
                prop_assert_eq!(inside, same);
            }
        }
    }

    #[test]
    fn the_set_at_a_launch_has_the_groups_of_all_open_ranges(
        trace in trace(),
        launches in prop::collection::vec((0i64..70, 1i64..3, any::<bool>()), 0..20),
    ) {
        let mut launches = launches;
        launches.sort_unstable();
        let calls = launches.iter().filter(|it| it.2).map(|(start_ns, thread, _)| ApiCall {
            name: 0,
            start_ns: *start_ns,
            end_ns: start_ns + 1,
            global_tid: (7 << 24) | thread,
            correlation_id: 0,
        });
        let trace = Timeline { cuda_calls: calls.collect(), ..trace };
        let captures: Vec<(i64, i64)> =
            launches.iter().filter(|it| !it.2).map(|it| (it.0, (7 << 24) | it.1)).collect();
        let mut all = CallSet::below(trace.cuda_calls.len());
        (0..trace.cuda_calls.len() as u32).for_each(|at| all.insert(at));
        let group = |it: &Range| {
            let at = NAMES.iter().position(|name| *name == it.name).unwrap();
            (at < 5).then_some(at as u32)
        };
        let sets = OpenSets::of(&trace, group, &all, &captures).unwrap();
        for (t, thread, _) in launches {
            let thread = (7 << 24) | thread;
            let mut expected: Vec<u32> =
                open(&trace, thread, t).filter_map(|at| group(&trace.ranges[at])).collect();
            expected.sort_unstable();
            expected.dedup();
            let set = sets.on(thread).map_or(NONE, |it| it.at(t, &mut 0));
            prop_assert_eq!(sets.groups(set), &expected[..], "at {} on {}", t, thread);
        }
    }
}

#[test]
fn steps_of_decode_without_a_range_around_them_are_one_decode_until_another_stage_starts() {
    let named = |name: &str, start: i64, end: i64| {
        Range::new((STAGE_DOMAIN, name), (start, Some(end)), ((7 << 24) | 1, true))
    };
    let decodes = |ranges: &[(&str, i64, i64)], rules: StageRules| {
        let ranges = ranges.iter().map(|it| named(it.0, it.1, it.2)).collect();
        let stages = OpenStages::of(&Timeline { ranges, rules, ..Timeline::default() }, "warmup");
        let is_decode = |it: &&StageInstance| stages.labels[it.label] == DECODE;
        let counted =
            stages.instances.iter().filter(is_decode).filter(|it| it.start_ns < it.end_ns);
        counted.map(|it| (it.start_ns, it.end_ns)).collect::<Vec<Interval>>()
    };
    let step = "decode_step";
    let turns = [
        ("warmup", 0, 30),
        ("prefill", 1, 9),
        (step, 10, 20),
        (step, 30, 39),
        (step, 41, 50),
        ("prefill", 50, 60),
        (step, 60, 70),
        (step, 71, 80),
    ];
    let mut rules = StageRules::default();
    assert_eq!(decodes(&turns, rules.clone()), [(30, 50), (60, 80)]);
    assert_eq!(decodes(&turns[2..5], rules.clone()), [(10, 50)], "without other stages");
    let inside = [("decode_all", 0, 50), (step, 5, 9), (step, 60, 70)];
    assert_eq!(decodes(&inside, rules.clone()), [(0, 50), (60, 70)], "next to a named decode");
    rules = StageRules::with(vec!["decode_all=decode_all@LLM".parse().unwrap()], vec![], vec![]);
    assert_eq!(decodes(&turns, rules), [(30, 50), (60, 80)], "the user names the usual range");
    rules = StageRules::with(vec!["decode_all=generate".parse().unwrap()], vec![], vec![]);
    assert_eq!(decodes(&turns, rules), [], "the user names another range");
}

#[test]
fn a_decode_lacks_its_start_by_the_outermost_ranges_of_its_steps() {
    let extent = |steps: &[Interval]| {
        let range = |it: &Interval| {
            Range::new((STAGE_DOMAIN, "decode_step"), (it.0, Some(it.1)), ((7 << 24) | 1, true))
        };
        let before = Range::new((STAGE_DOMAIN, "other"), (2, Some(3)), ((7 << 24) | 1, true));
        let ranges = std::iter::once(before).chain(steps.iter().map(range)).collect();
        let stages = OpenStages::of(&Timeline { ranges, ..Timeline::default() }, "warmup");
        stages.instances[0].extent
    };
    assert_eq!(extent(&[(5, 100), (105, 200)]), Extent::Cut, "a step may lie before it");
    assert_eq!(extent(&[(5, 100), (6, 99), (105, 200), (106, 199)]), Extent::Cut);
    assert_eq!(extent(&[(5, 7), (8, 10)]), Extent::Whole, "no step fits before it");
}

#[test]
fn a_run_of_steps_is_cut_if_other_decodes_of_its_thread_have_a_range() {
    let named = |name: &str, (start, end): Interval| {
        Range::new((STAGE_DOMAIN, name), (start, Some(end)), ((7 << 24) | 1, true))
    };
    let ranges = vec![
        named("prefill", (0, 5)),
        named("decode_all", (5, 30)),
        named("decode_step", (6, 29)),
        named("prefill", (30, 35)),
        named("decode_step", (35, 45)),
        named("decode_step", (46, 55)),
    ];
    let stages = OpenStages::of(&Timeline { ranges, ..Timeline::default() }, "warmup");
    let decodes = stages.instances.iter().filter(|it| stages.labels[it.label] == DECODE);
    let found: Vec<_> = decodes.map(|it| ((it.start_ns, it.end_ns), it.extent)).collect();
    assert_eq!(found, [((5, 30), Extent::Whole), ((35, 55), Extent::Cut)]);
}
