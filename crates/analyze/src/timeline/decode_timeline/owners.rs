//! Operators that launched the kernels of a step.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{range::Range, timeline::GraphNode};

use super::{SliceList, traced::StepPlace};
use crate::timeline::{
    capture::Capture,
    device_time::{captured_nodes, is_operator},
    interval::Interval,
    open_ranges::{NONE, OpenNest, nest_ranges},
    stage_spans::extended,
};

/// Finds the operators around the launch of a kernel.
pub(super) struct KernelOwners<'a> {
    nests: BTreeMap<i64, OpenNest>,
    captured: HashMap<u64, GraphNode>,
    pub capture: &'a Capture<'a>,
}

impl<'a> KernelOwners<'a> {
    /// Nests the operator ranges around the step and, for kernels of a graph, around its capture.
    pub fn of(capture: &'a Capture<'a>, place: &StepPlace, kernels: &[usize]) -> Self {
        let captured = captured_nodes(&capture.trace.graph_nodes);
        let created = kernels.iter().filter_map(|at| {
            Some(captured.get(&capture.trace.kernels.get(*at).graph_node?)?.at_ns)
        });
        let creation = created.fold(None, |around, at| Some(extended(around, (at, at))));
        let is_operator = is_operator(capture.trace);
        let overlaps = |it: &Range, (from, to): Interval| {
            it.start_ns <= to && it.end_ns.is_none_or(|end| end >= from)
        };
        let is_near = |it: &Range| {
            overlaps(it, place.range) || creation.is_some_and(|creation| overlaps(it, creation))
        };
        let nests = nest_ranges(capture.trace, |it| is_near(it) && is_operator(it));
        Self { nests, captured, capture }
    }

    /// Ranges around the launch of a kernel, outermost first, as entries of a thread's nest.
    pub fn chain(&self, at: usize) -> (i64, Vec<u32>) {
        let (kernel, join) = self.capture.kernel(at);
        let created = kernel
            .graph_node
            .and_then(|node| self.captured.get(&node))
            .map(|node| (node.global_tid, node.at_ns));
        let called = || {
            join.has_call()
                .then(|| self.capture.trace.cuda_calls.get(join.call as usize))
                .map(|call| (call.global_tid, call.start_ns))
        };
        let Some((thread, t)) = created.or_else(called) else { return (0, vec![]) };
        let Some(nest) = self.nests.get(&thread) else { return (thread, vec![]) };
        let parent =
            |entry: &u32| nest.entries.get(*entry as usize).map(|it| it.1).filter(|up| *up != NONE);
        let innermost = Some(nest.segments.at(t, &mut 0)).filter(|entry| *entry != NONE);
        let mut chain: Vec<u32> = std::iter::successors(innermost, parent).collect();
        chain.reverse();
        (thread, chain)
    }

    /// Name of the range of an entry.
    pub fn name(&self, thread: i64, entry: u32) -> &'a str {
        let range = self.nests.get(&thread).and_then(|nest| nest.entries.get(entry as usize));
        range
            .and_then(|(range, _)| self.capture.trace.ranges.get(*range as usize))
            .map_or("", |it| it.name.as_str())
    }

    /// Adds one track per nesting depth: consecutive kernels of one operator form a slice.
    pub fn add_tracks(&self, kernels: &[usize], slices: &mut SliceList) {
        let mut depths: Vec<Vec<(i64, u32, Interval)>> = Vec::new();
        let mut previous = (0, vec![]);
        for at in kernels {
            let kernel = self.capture.trace.kernels.get(*at);
            let (thread, chain) = self.chain(*at);
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
                slices.push(&track, self.name(*thread, *entry), *time, true);
            }
        }
    }
}
