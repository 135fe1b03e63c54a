//! Time of each unknown in each operator, for sampled metrics of operators.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};

use super::{
    rows::{NO_STAGE, Work},
    unknowns::DeviceCapture,
};
use crate::{
    analyze::{
        operators::rolled_paths::RolledPaths,
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
    let mut paths = RolledPaths::default();
    let mut enclosing: HashMap<(usize, u32), Vec<u32>> = HashMap::new();
    let mut sums: HashMap<(u16, u32, u32), i64> = HashMap::new();
    for ((kernel, (call, _)), Work { stage, unknown, .. }) in
        trace.kernels.iter().zip(launches.kernels.iter()).zip(works)
    {
        if *stage == NO_STAGE || kernel.device != capture.device {
            continue;
        }
        let Some((at, entry)) = operators.of(kernel.graph_node, call) else { continue };
        let numbers = enclosing
            .entry((at, entry))
            .or_insert_with(|| enclosing_paths(trace, &nests[at].1, entry, &mut paths));
        for path in numbers {
            let sum = sums.entry((*stage, *path, *unknown)).or_default();
            *sum = sum.saturating_add(kernel.ns());
        }
    }
    for ((stage, path, unknown), ns) in sums {
        let operator = times.entry((stage, paths.path(path).to_owned())).or_default();
        let time = operator.entry(unknown as usize).or_default();
        *time = time.saturating_add(ns);
    }
}

/// Numbers of the paths of an entry and of those that enclose it, rolled up, each once.
fn enclosing_paths<'a>(
    trace: &'a NsysTrace,
    nest: &OpenNest,
    entry: u32,
    paths: &mut RolledPaths<'a>,
) -> Vec<u32> {
    let up = |at: &u32| nest.entries.get(*at as usize).map(|it| it.1).filter(|at| *at != NONE);
    let entries = std::iter::successors(Some(entry), up);
    let mut numbers: Vec<u32> = entries
        .map(|at| paths.number(&trace.ranges[nest.entries[at as usize].0 as usize].name))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
