//! Time of each unknown in each operator, for sampled metrics of operators.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};

use super::unknowns::DeviceCapture;
use crate::{
    analyze::{
        operators::collapse,
        timeline::{
            device_time::{captured_nodes, is_operator},
            launches::Cursor,
            open_ranges::{NONE, OpenNest, nest_ranges},
        },
    },
    trace::nsys::NsysTrace,
};

/// Kernel time by unknown, nanoseconds.
pub type UnknownTimes = BTreeMap<usize, i64>;

/// Operators, layers rolled up, by stage number and path.
pub type OperatorTimes = BTreeMap<(u16, String), UnknownTimes>;

/// Adds the kernels of a capture to the operators whose ranges were open when they were launched.
/// `of_kernel` has the stage number and unknown of each.
pub fn add(times: &mut OperatorTimes, capture: &DeviceCapture, of_kernel: &[(u16, u32)]) {
    let (trace, launches) = (capture.trace, capture.launches);
    let nests: Vec<(i64, OpenNest)> = nest_ranges(trace, is_operator(trace)).into_iter().collect();
    let place = |thread: i64| nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok();
    let captured = captured_nodes(&trace.graph_nodes);
    let mut of_node: HashMap<u64, Option<(usize, u32)>> = HashMap::new();
    let mut paths: HashMap<(usize, u32), Vec<String>> = HashMap::new();
    let mut cursor = Cursor::default();
    for ((kernel, (call, _)), (stage, unknown)) in
        trace.kernels.iter().zip(&launches.kernels).zip(of_kernel)
    {
        if *stage == 0 || kernel.device != capture.device {
            continue;
        }
        let origin = kernel.graph_node.and_then(|node| Some((node, captured.get(&node)?)));
        let entry = match origin {
            Some((node, origin)) => *of_node.entry(node).or_insert_with(|| {
                let at = place(origin.global_tid)?;
                let entry = nests[at].1.segments.at(origin.at_ns, &mut 0);
                (entry != NONE).then_some((at, entry))
            }),
            None if *call == NONE => None,
            None => {
                let call = trace.cuda_calls.get(*call as usize);
                let entry = cursor.at(call.global_tid, call.start_ns, |thread| {
                    Some(&nests[place(thread)?].1.segments)
                });
                (entry != NONE).then(|| place(call.global_tid)).flatten().map(|at| (at, entry))
            }
        };
        let Some((at, entry)) = entry else { continue };
        let paths =
            paths.entry((at, entry)).or_insert_with(|| enclosing(trace, &nests[at].1, entry));
        for path in paths {
            let operator = times.entry((*stage, path.clone())).or_default();
            let time = operator.entry(*unknown as usize).or_default();
            *time = time.saturating_add(kernel.ns());
        }
    }
}

/// Paths of an entry and of those that enclose it, rolled up, each once.
fn enclosing(trace: &NsysTrace, nest: &OpenNest, entry: u32) -> Vec<String> {
    let up = |at: &u32| nest.entries.get(*at as usize).map(|it| it.1).filter(|at| *at != NONE);
    let entries = std::iter::successors(Some(entry), up);
    let mut paths: Vec<String> = entries
        .map(|at| collapse(&trace.ranges[nest.entries[at as usize].0 as usize].name))
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}
