//! Operators that launched the kernels of a step.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    kernel::TracedKernel,
    nsys::{GraphNode, NsysTrace},
    range::Range,
};

use super::{SliceList, traced::StepPlace};
use crate::timeline::{
    device_time::{captured_nodes, is_operator},
    interval::Interval,
    launches::LaunchIndex,
    open_ranges::{NONE, OpenNest, nest_ranges},
};

/// Finds the operators around the launch of a kernel.
pub(super) struct KernelOwners<'a> {
    nests: BTreeMap<i64, OpenNest>,
    captured: HashMap<u64, GraphNode>,
    launches: &'a LaunchIndex,
}

impl<'a> KernelOwners<'a> {
    /// Nests the operator ranges around the step and, for kernels of a graph, around its capture.
    pub fn of(
        trace: &NsysTrace,
        launches: &'a LaunchIndex,
        place: &StepPlace,
        kernels: &[usize],
    ) -> Self {
        let captured = captured_nodes(&trace.graph_nodes);
        let captures = kernels
            .iter()
            .filter_map(|at| Some(captured.get(&trace.kernels.get(*at).graph_node?)?.at_ns));
        let capture = captures.fold(None, |around: Option<Interval>, at| {
            Some(around.map_or((at, at), |it| (it.0.min(at), it.1.max(at))))
        });
        let is_operator = is_operator(trace);
        let overlaps = |it: &Range, (from, to): Interval| {
            it.start_ns <= to && it.end_ns.is_none_or(|end| end >= from)
        };
        let is_near = |it: &Range| {
            overlaps(it, place.range) || capture.is_some_and(|capture| overlaps(it, capture))
        };
        let nests = nest_ranges(trace, |it| is_near(it) && is_operator(it));
        Self { nests, captured, launches }
    }

    /// Ranges around the launch of a kernel, outermost first, as entries of a thread's nest.
    pub fn chain(&self, trace: &NsysTrace, at: usize, kernel: &TracedKernel) -> (i64, Vec<u32>) {
        let capture = kernel
            .graph_node
            .and_then(|node| self.captured.get(&node))
            .map(|node| (node.global_tid, node.at_ns));
        let call = self.launches.kernels.get(at).0;
        let called = || {
            (call != NONE)
                .then(|| trace.cuda_calls.get(call as usize))
                .map(|call| (call.global_tid, call.start_ns))
        };
        let Some((thread, t)) = capture.or_else(called) else { return (0, vec![]) };
        let Some(nest) = self.nests.get(&thread) else { return (thread, vec![]) };
        let parent =
            |entry: &u32| nest.entries.get(*entry as usize).map(|it| it.1).filter(|up| *up != NONE);
        let innermost = Some(nest.segments.at(t, &mut 0)).filter(|entry| *entry != NONE);
        let mut chain: Vec<u32> = std::iter::successors(innermost, parent).collect();
        chain.reverse();
        (thread, chain)
    }

    /// Name of the range of an entry.
    pub fn name<'t>(&self, trace: &'t NsysTrace, thread: i64, entry: u32) -> &'t str {
        let range = self.nests.get(&thread).and_then(|nest| nest.entries.get(entry as usize));
        range
            .and_then(|(range, _)| trace.ranges.get(*range as usize))
            .map_or("", |it| it.name.as_str())
    }

    /// Adds one track per nesting depth: consecutive kernels of one operator form a slice.
    pub fn add_tracks(&self, trace: &NsysTrace, kernels: &[usize], slices: &mut SliceList) {
        let mut depths: Vec<Vec<(i64, u32, Interval)>> = Vec::new();
        let mut previous = (0, vec![]);
        for at in kernels {
            let kernel = trace.kernels.get(*at);
            let (thread, chain) = self.chain(trace, *at, &kernel);
            for (depth, entry) in chain.iter().enumerate() {
                if depths.len() == depth {
                    depths.push(vec![]);
                }
                let continues = previous.0 == thread && previous.1.get(depth) == Some(entry);
                match depths[depth].last_mut() {
                    Some((_, _, time)) if continues => time.1 = time.1.max(kernel.end_ns),
                    _ => depths[depth].push((thread, *entry, (kernel.start_ns, kernel.end_ns))),
                }
            }
            previous = (thread, chain);
        }
        for (depth, operators) in depths.iter().enumerate() {
            let track = format!("operators {}", depth + 1);
            for (thread, entry, time) in operators {
                slices.push(&track, self.name(trace, *thread, *entry), *time, true);
            }
        }
    }
}
