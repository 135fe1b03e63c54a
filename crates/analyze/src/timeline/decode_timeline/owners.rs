//! Operators that launched the kernels of a step.

use std::collections::BTreeMap;

use llmprof_core::trace::range::Range;

use super::{SliceList, traced::StepPlace};
use crate::timeline::{
    capture::Capture,
    device_time::{captured_nodes, is_operator},
    interval::{Interval, extended},
    open_at::{OpenAt, OpenEntry},
    open_ranges::{NONE, RangeNest, nest_ranges},
};

/// An operator range that is open, and its index among the ranges.
type OpenOperator = (OpenEntry, u32);

/// The operators around the launches of a step's kernels.
pub(super) struct KernelOwners<'a> {
    pub capture: &'a Capture<'a>,
    /// By kernel, outermost first.
    chains: BTreeMap<usize, Vec<OpenOperator>>,
}

impl<'a> KernelOwners<'a> {
    /// Nests the operator ranges around the step and, for kernels of a graph, around its capture.
    pub fn of(capture: &'a Capture<'a>, place: &StepPlace, kernels: &[usize]) -> Self {
        let captured = captured_nodes(&capture.trace.graph_nodes);
        let created = kernels.iter().filter_map(|at| {
            Some(captured.get(&capture.trace.kernels.get(*at).graph_node?)?.at_ns)
        });
        let creation = created.fold(None, |around, at| Some(extended(around, (at, at))));
        let mut is_operator = is_operator(capture.trace);
        let overlaps = |it: &Range, (from, to): Interval| {
            it.start_ns <= to && it.end_ns.is_none_or(|end| end >= from)
        };
        let is_near = |it: &Range| {
            overlaps(it, place.range) || creation.is_some_and(|creation| overlaps(it, creation))
        };
        let nests: Vec<(i64, RangeNest)> =
            nest_ranges(capture.trace, |it| is_near(it) && is_operator(it)).into_iter().collect();
        let mut open = OpenAt::new(capture, &nests);
        let chain = |at: &usize| {
            let (kernel, join) = capture.kernel(*at);
            let mut chain = Vec::new();
            let mut next = open.of(kernel.graph_node, join);
            while let Some((thread, entry)) = next {
                let (range, parent) = nests[thread].1.entries[entry as usize];
                chain.push(((thread, entry), range));
                next = Some((thread, parent)).filter(|_| parent != NONE);
            }
            chain.reverse();
            (*at, chain)
        };
        Self { capture, chains: kernels.iter().map(chain).collect() }
    }

    /// Name of the innermost operator of a kernel.
    pub fn innermost(&self, kernel: usize) -> Option<&'a str> {
        Some(self.name(self.chains.get(&kernel)?.last()?))
    }

    fn name(&self, (_, range): &OpenOperator) -> &'a str {
        &self.capture.trace.ranges[*range as usize].name
    }

    /// Adds one track per nesting depth: consecutive kernels of one operator form a slice.
    pub fn add_tracks(&self, slices: &mut SliceList) {
        let mut depths: Vec<Vec<(OpenOperator, Interval)>> = Vec::new();
        let mut previous: &[OpenOperator] = &[];
        for (at, chain) in &self.chains {
            let kernel = self.capture.trace.kernels.get(*at);
            for (depth, open) in chain.iter().enumerate() {
                if depths.len() == depth {
                    depths.push(vec![]);
                }
                let continues = previous.get(depth) == Some(open);
                match depths[depth].last_mut() {
                    Some((_, time)) if continues => time.1 = time.1.max(kernel.end_ns),
                    _ => depths[depth].push((*open, (kernel.start_ns, kernel.end_ns))),
                }
            }
            previous = chain;
        }
        for (depth, operators) in depths.iter().enumerate() {
            let track = format!("operators {}", depth + 1);
            for (open, time) in operators {
                slices.push(&track, self.name(open), *time, true);
            }
        }
    }
}
