//! Time of each unknown in each operator, for sampled metrics of operators.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};

use super::{
    rows::{NO_STAGE, Work},
    unknowns::DeviceCapture,
};
use crate::{
    analyze::{
        operators::collapse,
        timeline::{
            open_ranges::{NONE, OpenNest},
            operator_entries::{OperatorEntries, operator_nests},
        },
    },
    trace::nsys::NsysTrace,
};

/// Kernel time by unknown, nanoseconds.
pub type UnknownTimes = BTreeMap<usize, i64>;

/// Operators, layers rolled up, by stage number and path.
pub type OperatorTimes = BTreeMap<(u16, String), UnknownTimes>;

/// Adds the kernels of a capture to the operators whose ranges were open when they were launched.
/// `works` has the stage number and unknown of each.
pub fn add(times: &mut OperatorTimes, capture: &DeviceCapture, works: &[Work]) {
    let (trace, launches) = (capture.trace, capture.launches);
    let nests = operator_nests(trace);
    let mut operators = OperatorEntries::new(trace, &nests);
    let mut paths: HashMap<(usize, u32), Vec<String>> = HashMap::new();
    for ((kernel, (call, _)), Work { stage, unknown, .. }) in
        trace.kernels.iter().zip(launches.kernels.iter()).zip(works)
    {
        if *stage == NO_STAGE || kernel.device != capture.device {
            continue;
        }
        let Some((at, entry)) = operators.of(kernel.graph_node, call) else { continue };
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
