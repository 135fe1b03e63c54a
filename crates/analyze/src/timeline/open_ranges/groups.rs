//! Sets of groups of ranges that are open at the same time.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
};

use super::{NONE, Segments, end, place, threads};

/// The set of open groups over time, for each thread that sees ranges of a group: those of the
/// thread and those of its process, which need not nest. `next` returns the number of the set after
/// a group opens or closes; [`NONE`] is the empty set.
pub fn open_groups(
    trace: &Timeline,
    group: impl Fn(&Range) -> Option<u32>,
    mut next: impl FnMut(u32, u32, bool) -> u32,
) -> BTreeMap<i64, Segments> {
    // Time, true at a start, group. Ends come before starts of the same time.
    let mut places: BTreeMap<i64, Vec<(i64, bool, u32)>> = BTreeMap::new();
    for range in trace.ranges.iter().filter(|range| range.start_ns < end(range)) {
        let Some(group) = group(range) else { continue };
        let bounds = [(range.start_ns, true, group), (end(range), false, group)];
        places.entry(place(range)).or_default().extend(bounds);
    }
    let mut found = BTreeMap::new();
    for thread in threads(trace) {
        let visible = [thread, process_of(thread)];
        let mut bounds: Vec<_> =
            visible.iter().filter_map(|it| places.get(it)).flatten().copied().collect();
        if bounds.is_empty() {
            continue;
        }
        bounds.sort_unstable();
        let (mut open, mut set): (HashMap<u32, u32>, u32) = (HashMap::default(), NONE);
        let mut segments = Segments::default();
        for (t, starts, group) in bounds {
            let count = open.entry(group).or_default();
            let was_open = *count > 0;
            *count = if starts { *count + 1 } else { count.saturating_sub(1) };
            if was_open != (*count > 0) {
                set = next(set, group, starts);
                segments.push(t, set);
            }
        }
        found.insert(thread, segments);
    }
    found
}
