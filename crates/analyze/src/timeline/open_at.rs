//! Ranges at launches: the innermost one open on the launching thread when the call started, or for
//! a kernel of a replayed graph when its node was captured.

use foldhash::HashMap;
use llmprof_core::trace::timeline::{CallReader, GraphNode, Timeline};

use super::{
    capture::{Capture, Join},
    device_time::{captured_nodes, is_operator},
    launches::Cursor,
    open_ranges::{NONE, OpenNest, nest_ranges},
};

/// An open range: position of the nest of its thread, and entry in that nest.
pub type OpenEntry = (usize, u32);

/// The ranges of operators, nested, by thread.
pub fn operator_nests(trace: &Timeline) -> Vec<(i64, OpenNest)> {
    nest_ranges(trace, is_operator(trace)).into_iter().collect()
}

/// Looks up ranges at launches, in the order of the capture.
pub struct OpenAt<'a> {
    calls: CallReader<'a>,
    nests: &'a [(i64, OpenNest)],
    captured: HashMap<u64, GraphNode>,
    /// By node, see [`Self::at_capture`].
    of_node: HashMap<u64, Option<Option<OpenEntry>>>,
    cursor: Cursor<'a>,
}

impl<'a> OpenAt<'a> {
    pub fn new(capture: &'a Capture, nests: &'a [(i64, OpenNest)]) -> Self {
        let trace = capture.trace;
        Self {
            calls: trace.cuda_calls.reader(),
            nests,
            captured: captured_nodes(&trace.graph_nodes),
            of_node: HashMap::default(),
            cursor: Cursor::default(),
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

    /// The range open when a node was captured; `None` where that is not recorded.
    pub fn at_capture(&mut self, node: u64) -> Option<Option<OpenEntry>> {
        let nests = self.nests;
        *self.of_node.entry(node).or_insert_with(|| {
            let origin = self.captured.get(&node)?;
            Some(place(nests, origin.global_tid).and_then(|at| {
                let entry = nests[at].1.segments.at(origin.at_ns, &mut 0);
                (entry != NONE).then_some((at, entry))
            }))
        })
    }

    /// The range open at the start of a call.
    #[inline]
    pub fn at_call(&mut self, join: Join) -> Option<OpenEntry> {
        if !join.has_call() {
            return None;
        }
        let nests = self.nests;
        let call = self.calls.get(join.call);
        let segments = |thread| Some(&nests[place(nests, thread)?].1.segments);
        let entry = self.cursor.at(call.global_tid, call.start_ns, segments);
        (entry != NONE).then(|| place(nests, call.global_tid)).flatten().map(|at| (at, entry))
    }
}

fn place(nests: &[(i64, OpenNest)], thread: i64) -> Option<usize> {
    nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok()
}
