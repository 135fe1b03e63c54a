//! Isolation by ranges: each kernel belongs to the instance that was open at its launch, or at its
//! graph capture.

use std::collections::{HashMap, HashSet};

use llmprof_core::trace::range::Range;

use super::launched::CaptureLaunches;
use crate::{
    align::operation_instances::{InstanceKernel, IsolatedOperation},
    timeline::{
        capture::Capture,
        open_at::OpenAt,
        open_ranges::{NONE, nest_ranges},
    },
};

/// Isolates the kernels launched in `wanted` ranges, within `counted` instances of stages.
pub fn by_range(
    capture: &Capture,
    launched: &CaptureLaunches,
    wanted: &impl Fn(&Range) -> bool,
    counted: &impl Fn(u32) -> bool,
) -> IsolatedOperation {
    let nests: Vec<_> = nest_ranges(capture.trace, wanted).into_iter().collect();
    let mut found = IsolatedOperation::default();
    let mut numbers: HashMap<(usize, u32, u32), usize> = HashMap::new();
    let mut instances: Vec<Vec<InstanceKernel>> = Vec::new();
    let (mut filled, mut stage_instances): (HashSet<u32>, HashSet<u32>) = Default::default();
    let mut open = OpenAt::new(capture, &nests);
    for (at, ((kind, kernel), join)) in capture.kernels_by_kind().enumerate() {
        if !join.has_call() || !counted(join.instance) {
            continue;
        }
        let at_capture = kernel.graph_node.and_then(|node| open.at_capture(node)).flatten();
        // A kernel captured outside of any such range may still be replayed in one.
        let Some((thread, entry)) = at_capture.or_else(|| open.at_call(join)) else { continue };
        // Replayed kernels share a call and are ordered as they ran; others are ordered by calls.
        let (replay, order) =
            if kernel.graph_node.is_some() { (join.call, at as u32) } else { (NONE, join.call) };
        let number = *numbers.entry((thread, entry, replay)).or_insert_with(|| {
            instances.push(Vec::new());
            instances.len() - 1
        });
        stage_instances.insert(join.instance);
        filled.insert(nests[thread].1.entries[entry as usize].0);
        found.replayed += u64::from(kernel.graph_node.is_some());
        instances[number].push((order, kind, kernel.ns()));
    }
    found.stage_instances = stage_instances.len() as u64;
    let mut known = HashMap::new();
    instances.into_iter().for_each(|kernels| found.add(kernels, &mut known));

    let mut seen = HashSet::new();
    for (thread, nest) in &nests {
        for (range, _) in &nest.entries {
            let it = &capture.trace.ranges[*range as usize];
            let instance =
                capture.stages.on(*thread).map_or(NONE, |stages| stages.at(it.start_ns, &mut 0));
            if it.push_pop && it.global_tid != *thread || !seen.insert(*range) {
                continue;
            }
            found.ranges += 1;
            if counted(instance) {
                found.counted += 1;
                found.empty += u64::from(!filled.contains(range));
            }
        }
    }
    let wanted =
        |thread: i64, t: i64, instance: u32| counted(instance) && open.at_time(thread, t).is_some();
    (found.launched, found.recorded) = launched.kernels(capture, wanted);
    found
}
