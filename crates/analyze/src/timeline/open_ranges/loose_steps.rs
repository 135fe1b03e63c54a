//! Runs of decode steps that lie in no decode range.

use std::collections::BTreeMap;

use llmprof_core::trace::{range::Range, timeline::Timeline};

use super::{PlaceIntervals, end, outermost, place};
use crate::timeline::interval::{Interval, IntervalSet};

/// The ranges of steps by thread or process, without ranges inside others.
pub(in crate::timeline) fn step_ranges(
    trace: &Timeline,
    is_step: impl Fn(&Range) -> bool,
) -> BTreeMap<i64, Vec<Interval>> {
    let mut found = PlaceIntervals::new();
    for it in trace.ranges.iter().filter(|it| is_step(it)) {
        found.entry(place(it)).or_default().push((it.start_ns, end(it)));
    }
    found.into_iter().map(|(place, all)| (place, outermost(all))).collect()
}

/// Runs of decode steps by thread or process that lie in no range of decode: a run ends where a
/// stage or the warm-up starts or ends.
pub(super) fn loose_steps(
    trace: &Timeline,
    open: &BTreeMap<(i64, usize), Vec<Interval>>,
    decode: usize,
) -> PlaceIntervals {
    let mut steps = step_ranges(trace, |it| trace.rules.is_decode_step(&it.name, &it.domain));
    for (place, steps) in &mut steps {
        if let Some(decodes) = open.get(&(*place, decode)) {
            let decodes = IntervalSet::new(decodes.iter().copied());
            steps.retain(|it| decodes.overlap_ns(it.0, it.1) == 0 && !decodes.contains(it.0));
        }
        let of_place = open.iter().filter(|((at, _), _)| at == place);
        let mut bounds: Vec<i64> =
            of_place.flat_map(|(_, all)| all.iter().flat_map(|it| [it.0, it.1])).collect();
        bounds.sort_unstable();
        let mut runs: Vec<Interval> = Vec::new();
        for step in std::mem::take(steps) {
            let next = |run: &Interval| bounds.get(bounds.partition_point(|it| *it < run.1));
            match runs.last_mut() {
                Some(run) if next(run).is_none_or(|next| *next > step.0) => {
                    run.1 = run.1.max(step.1)
                }
                _ => runs.push(step),
            }
        }
        *steps = runs;
    }
    steps.retain(|_, runs| !runs.is_empty());
    steps
}
