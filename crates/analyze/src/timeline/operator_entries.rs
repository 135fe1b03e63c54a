//! Operators of kernels: the range open on the launching thread when its launching call started, or
//! for a kernel of a replayed CUDA graph when its node was captured.

use foldhash::HashMap;
use llmprof_core::trace::timeline::{CallReader, GraphNode, Timeline};

use super::{
    device_time::{captured_nodes, is_operator},
    launches::Cursor,
    open_ranges::{NONE, OpenNest, nest_ranges},
};

/// The ranges of operators, nested, by thread.
pub fn operator_nests(trace: &Timeline) -> Vec<(i64, OpenNest)> {
    nest_ranges(trace, is_operator(trace)).into_iter().collect()
}

/// Looks up the operators of kernels, in the order of the capture.
pub struct OperatorEntries<'a> {
    calls: CallReader<'a>,
    nests: &'a [(i64, OpenNest)],
    captured: HashMap<u64, GraphNode>,
    of_node: HashMap<u64, Option<(usize, u32)>>,
    cursor: Cursor<'a>,
}

impl<'a> OperatorEntries<'a> {
    pub fn new(trace: &'a Timeline, nests: &'a [(i64, OpenNest)]) -> Self {
        let captured = captured_nodes(&trace.graph_nodes);
        let calls = trace.cuda_calls.reader();
        Self { calls, nests, captured, of_node: HashMap::default(), cursor: Cursor::default() }
    }

    /// Position of the thread's nest, and entry in it, of work that `call` launched.
    #[inline]
    pub fn of(&mut self, graph_node: Option<u64>, call: u32) -> Option<(usize, u32)> {
        let nests = self.nests;
        let place = |thread: i64| nests.binary_search_by_key(&thread, |(thread, _)| *thread).ok();
        if let Some(known) = graph_node.and_then(|node| self.of_node.get(&node)) {
            return *known;
        }
        let origin = graph_node.and_then(|node| Some((node, self.captured.get(&node)?)));
        if let Some((node, origin)) = origin {
            return *self.of_node.entry(node).or_insert_with(|| {
                let at = place(origin.global_tid)?;
                let entry = nests[at].1.segments.at(origin.at_ns, &mut 0);
                (entry != NONE).then_some((at, entry))
            });
        }
        if call == NONE {
            return None;
        }
        let call = self.calls.get(call);
        let segments = |thread| Some(&nests[place(thread)?].1.segments);
        let entry = self.cursor.at(call.global_tid, call.start_ns, segments);
        (entry != NONE).then(|| place(call.global_tid)).flatten().map(|at| (at, entry))
    }
}
