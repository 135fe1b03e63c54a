//! Ranges at launches: the innermost one open on the launching thread when the call started, or for
//! a kernel of a replayed graph when its node was captured.

use foldhash::HashMap;
use llmprof_core::trace::{
    range::Range,
    timeline::{CallReader, GraphNode, Timeline},
};

use super::{
    capture::{Capture, Join},
    device_time::{captured_nodes, is_operator},
    open_ranges::{NONE, NestHint, RangeNest, nest_ranges},
};

/// An open range: position of the nest of its thread, and entry in that nest.
pub type OpenEntry = (usize, u32);

/// The ranges of operators, nested, by thread.
pub fn operator_nests(trace: &Timeline) -> Vec<(i64, RangeNest)> {
    nest_ranges(trace, is_operator(trace)).into_iter().collect()
}

/// Values at the captures of graph nodes, looked up once for each node.
pub struct AtCapture<T> {
    captured: HashMap<u64, GraphNode>,
    of_node: HashMap<u64, Option<T>>,
}

impl<T: Copy> AtCapture<T> {
    pub fn new(trace: &Timeline) -> Self {
        Self { captured: captured_nodes(&trace.graph_nodes), of_node: HashMap::default() }
    }

    /// Times and threads of all captures, in order.
    pub fn places(&self) -> Vec<(i64, i64)> {
        let place = |it: &GraphNode| (it.at_ns, it.global_tid);
        let mut places: Vec<(i64, i64)> = self.captured.values().map(place).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// The value where a node was captured; `None` if that is not recorded.
    #[inline]
    pub fn get(&mut self, node: u64, value: impl FnOnce(&GraphNode) -> T) -> Option<T> {
        let captured = &self.captured;
        *self.of_node.entry(node).or_insert_with(|| captured.get(&node).map(value))
    }
}

/// Looks up ranges at launches, in the order of the capture.
pub struct OpenAt<'a> {
    calls: CallReader<'a>,
    ranges: &'a [Range],
    nests: &'a [(i64, RangeNest)],
    captures: AtCapture<Option<OpenEntry>>,
    /// Thread of the last call, its nest, and the place of the lookup there.
    last: (Option<i64>, Option<usize>, NestHint),
}

impl<'a> OpenAt<'a> {
    pub fn new(capture: &'a Capture, nests: &'a [(i64, RangeNest)]) -> Self {
        let trace = capture.trace;
        Self {
            calls: trace.cuda_calls.reader(),
            ranges: &trace.ranges,
            nests,
            captures: AtCapture::new(trace),
            last: Default::default(),
        }
    }

    /// The range at the graph capture of work that was captured, and at the call of other work.
    #[inline]
    pub fn of(&mut self, graph_node: Option<u64>, join: Join) -> Option<OpenEntry> {
        match graph_node.and_then(|node| self.at_capture(node)) {
            Some(at_capture) => at_capture,
            None => self.at_call(join),
        }
    }

    /// The range open when a node was captured; `None` if that is not recorded.
    pub fn at_capture(&mut self, node: u64) -> Option<Option<OpenEntry>> {
        let (nests, ranges) = (self.nests, self.ranges);
        self.captures.get(node, |origin| {
            let at = place(nests, origin.global_tid)?;
            let entry = nests[at].1.at(ranges, origin.at_ns, &mut NestHint::default());
            (entry != NONE).then_some((at, entry))
        })
    }

    /// The range open at the start of a call.
    #[inline]
    pub fn at_call(&mut self, join: Join) -> Option<OpenEntry> {
        if !join.has_call() {
            return None;
        }
        let call = self.calls.get(join.call);
        self.at_time(call.global_tid, call.start_ns)
    }

    /// The range open on a thread at a time.
    #[inline]
    pub fn at_time(&mut self, thread: i64, t: i64) -> Option<OpenEntry> {
        if Some(thread) != self.last.0 {
            self.last = (Some(thread), place(self.nests, thread), NestHint::default());
        }
        let at = self.last.1?;
        let entry = self.nests[at].1.at(self.ranges, t, &mut self.last.2);
        (entry != NONE).then_some((at, entry))
    }
}

fn place(nests: &[(i64, RangeNest)], thread: i64) -> Option<usize> {
    nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok()
}
