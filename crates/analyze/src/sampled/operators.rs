//! Operators of the work of a stage, for sampled metrics of operators.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashMapExt as _};
use llmprof_core::trace::timeline::Timeline;

use super::{
    rows::{NO_STAGE, Work},
    unknowns::DeviceCapture,
};
use crate::{
    operators::rolled_paths::RolledPaths,
    timeline::{
        open_at::{OpenAt, operator_nests},
        open_ranges::{NONE, RangeNest},
    },
};

/// Time of kernels and graphs by unknown, nanoseconds.
pub type UnknownTimes = BTreeMap<usize, i64>;

/// Operators, layers rolled up, by stage number and path.
pub type OperatorTimes = BTreeMap<(u16, String), UnknownTimes>;

/// Number of the nest of work outside all operators.
pub const NO_NEST: u32 = u32::MAX;

/// The nests of operators, layers rolled up, that were open at launches.
#[derive(Default)]
pub struct OpenOperators<'a> {
    paths: RolledPaths<'a>,
    /// Numbers of the paths of each nest.
    nests: Vec<Vec<u32>>,
    numbers: HashMap<Vec<u32>, u32>,
}

impl<'a> OpenOperators<'a> {
    /// The number of the nest of each of the works of a capture: all kernels, then the graphs of
    /// its device.
    pub fn of_works(&mut self, capture: &DeviceCapture<'a>) -> Vec<u32> {
        let (timeline, trace) = (capture.timeline, capture.timeline.trace);
        let nests = operator_nests(trace);
        let mut of_entry: HashMap<(usize, u32), u32> = HashMap::new();
        let mut number = |entry: Option<(usize, u32)>| {
            let Some((at, entry)) = entry else { return NO_NEST };
            *of_entry.entry((at, entry)).or_insert_with(|| self.number(trace, &nests[at].1, entry))
        };
        let mut operators = OpenAt::new(timeline, &nests);
        let mut works = Vec::with_capacity(trace.kernels.len() + trace.graphs.len());
        for (kernel, join) in timeline.kernels() {
            let is_other = kernel.device != capture.device;
            works.push(if is_other {
                NO_NEST
            } else {
                number(operators.of(kernel.graph_node, join))
            });
        }
        let mut operators = OpenAt::new(timeline, &nests);
        for (graph, join) in timeline.graphs() {
            if graph.device == capture.device {
                works.push(number(operators.of(None, join)));
            }
        }
        works
    }

    /// The number of the nest of an entry: its path and those that enclose it, each once.
    fn number(&mut self, trace: &'a Timeline, nest: &RangeNest, entry: u32) -> u32 {
        let up = |at: &u32| nest.entries.get(*at as usize).map(|it| it.1).filter(|at| *at != NONE);
        let entries = std::iter::successors(Some(entry), up);
        let mut paths: Vec<u32> = entries
            .map(|at| self.paths.number(&trace.ranges[nest.entries[at as usize].0 as usize].name))
            .collect();
        paths.sort_unstable();
        paths.dedup();
        let next = self.nests.len() as u32;
        *self.numbers.entry(paths).or_insert_with_key(|paths| {
            self.nests.push(paths.clone());
            next
        })
    }

    /// Adds the works of a capture, with the numbers of their nests, to all operators of the nests.
    pub fn add(&self, times: &mut OperatorTimes, works: &[Work], nests: &[u32]) {
        let mut sums: HashMap<(u16, u32, u32), i64> = HashMap::new();
        for (work, nest) in works.iter().zip(nests) {
            if work.stage != NO_STAGE && *nest != NO_NEST {
                let sum = sums.entry((work.stage, *nest, work.unknown)).or_default();
                *sum = sum.saturating_add(work.ns());
            }
        }
        for ((stage, nest, unknown), ns) in sums {
            for path in &self.nests[nest as usize] {
                let path = self.paths.path(*path).to_owned();
                let time =
                    times.entry((stage, path)).or_default().entry(unknown as usize).or_default();
                *time = time.saturating_add(ns);
            }
        }
    }
}
