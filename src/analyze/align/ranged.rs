//! An operation by its ranges: each kernel in the instance that was open when it was launched, or captured.

use std::collections::{HashMap, HashSet};

use super::{
    isolate::{Isolated, Step},
    launched::Launched,
};
use crate::{
    analyze::{
        device_time::captured,
        launches::{Cursor, Launches},
        scopes::{NONE, nests},
    },
    trace::{nsys::NsysTrace, range::Range},
};

/// Finds what ranges that are `wanted` launch in instances of stages that are `here`.
pub fn by_range(
    trace: &NsysTrace,
    launches: &Launches,
    launched: &Launched,
    wanted: &impl Fn(&Range) -> bool,
    here: &impl Fn(u32) -> bool,
) -> Isolated {
    let nests: Vec<_> = nests(trace, wanted).into_iter().collect();
    let place = |thread: i64| nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok();
    let mut found = Isolated::default();
    let captured = captured(&trace.graph_nodes);
    let mut units: HashMap<(usize, u32, u32), usize> = HashMap::new();
    let mut steps: Vec<Vec<Step>> = Vec::new();
    let (mut filled, mut stretches): (HashSet<u32>, HashSet<u32>) = Default::default();
    let mut cursor = Cursor::default();
    for (at, (kernel, (call, instance))) in trace.kernels.iter().zip(&launches.kernels).enumerate() {
        if *call == NONE || !here(*instance) {
            continue;
        }
        let at_capture = kernel.graph_node.and_then(|node| captured.get(&node)).and_then(|made| {
            let thread = place(made.global_tid)?;
            let entry = nests[thread].1.segments.at(made.at_ns, &mut 0);
            (entry != NONE).then_some((thread, entry))
        });
        // What was captured outside of any such range may yet be replayed in one.
        let at_launch = || {
            let launch = trace.cuda_calls.get(*call as usize);
            let thread = place(launch.global_tid)?;
            let entry = cursor.at(launch.global_tid, launch.start_ns, |_| Some(&nests[thread].1.segments));
            (entry != NONE).then_some((thread, entry))
        };
        let Some((thread, entry)) = at_capture.or_else(at_launch) else { continue };
        // Replayed kernels share a call, so they come in the order in which they ran; others in the order of their calls.
        let (replay, order) = if kernel.graph_node.is_some() { (*call, at as u32) } else { (NONE, *call) };
        let unit = *units.entry((thread, entry, replay)).or_insert_with(|| {
            steps.push(Vec::new());
            steps.len() - 1
        });
        stretches.insert(*instance);
        filled.insert(nests[thread].1.entries[entry as usize].0);
        found.replayed += u64::from(kernel.graph_node.is_some());
        steps[unit].push((order, trace.kernels.kind(at), kernel.ns()));
    }
    found.stretches = stretches.len() as u64;
    let mut known = HashMap::new();
    steps.into_iter().for_each(|steps| found.add(steps, &mut known));

    let mut seen = HashSet::new();
    for (thread, nest) in &nests {
        for (range, _) in &nest.entries {
            let it = &trace.ranges[*range as usize];
            let instance = launches.stages.on(*thread).map_or(NONE, |stages| stages.at(it.start_ns, &mut 0));
            if it.push_pop && it.global_tid != *thread || !seen.insert(*range) {
                continue;
            }
            found.ranges += 1;
            if here(instance) {
                found.counted += 1;
                found.empty += u64::from(!filled.contains(range));
            }
        }
    }
    let mut cursor = Cursor::default();
    let wanted = |thread: i64, t: i64, instance: u32| {
        here(instance) && place(thread).is_some_and(|at| cursor.at(thread, t, |_| Some(&nests[at].1.segments)) != NONE)
    };
    (found.launched, found.recorded) = launched.kernels(trace, launches, wanted);
    found
}
