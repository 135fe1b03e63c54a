//! Launches of graphs: the kernels that each must have.

use foldhash::{HashMap, HashSet};
use llmprof_core::trace::{runtime_call::CallKind, timeline::Timeline};

use crate::{
    stages::coverage::{graph_sizes, nodes_by_launch},
    timeline::{
        capture::Capture, device_time::captured_nodes, launches::CallSet, running::each_running,
    },
};

/// Kernels of one launch of a graph.
#[derive(Debug, Clone, Copy, Default)]
pub struct GraphLaunch {
    pub expected: u64,
    pub recorded: u64,
    /// Traced as a whole: the graph counts as one kernel.
    pub is_whole: bool,
    /// Nothing of it is recorded.
    pub is_silent: bool,
}

/// Launches of graphs by their call.
pub fn graph_launches(
    capture: &Capture,
    kinds: &[CallKind],
    has_work: &CallSet,
) -> HashMap<usize, GraphLaunch> {
    let mut graphs = Vec::new();
    each_running(capture.trace, CallKind::Graph, |at, _| graphs.push(at));
    if graphs.is_empty() {
        return HashMap::default();
    }
    let all = capture.kernels();
    let launched = all.filter(|(_, join)| join.has_call());
    let nodes =
        nodes_by_launch(launched.filter_map(|(it, join)| Some((join.call, it.graph_node?))));
    let whole: HashSet<u32> = capture.graph_joins().map(|it| it.call).collect();
    let ran: Vec<Option<&Vec<u64>>> = graphs.iter().map(|at| nodes.get(&(*at as u32))).collect();
    let sizes = graph_sizes(&ran);
    let known = kernel_nodes(capture.trace, kinds);
    let count = |(at, (ran, size)): (&usize, (&Option<&Vec<u64>>, u64))| {
        let graph = ran.and_then(|ran| Some((graph_of(*ran.first()?)?, ran)));
        let graph =
            graph.filter(|(graph, ran)| ran.iter().all(|node| graph_of(*node) == Some(*graph)));
        let size =
            graph.and_then(|(graph, _)| known.get(&graph)).map_or(size, |nodes| size.max(*nodes));
        let counted = match ran {
            Some(ran) => {
                GraphLaunch { expected: size, recorded: ran.len() as u64, ..GraphLaunch::default() }
            }
            None if whole.contains(&(*at as u32)) => {
                GraphLaunch { expected: 1, recorded: 1, is_whole: true, is_silent: false }
            }
            // A graph of copies alone has no kernel to lose.
            None if has_work.contains(*at) => GraphLaunch::default(),
            None => GraphLaunch { expected: size, is_silent: true, ..GraphLaunch::default() },
        };
        (*at, counted)
    };
    graphs.iter().zip(ran.iter().zip(sizes)).map(count).collect()
}

/// The graph id within a node id, if node ids contain it.
fn graph_of(node: u64) -> Option<u64> {
    Some(node >> 32).filter(|graph| *graph > 0)
}

/// Kernels of each graph instantiated from a captured one: nodes whose original was created by a
/// kernel launch. This detects nodes missing from every replay.
fn kernel_nodes(trace: &Timeline, kinds: &[CallKind]) -> HashMap<u64, u64> {
    let captured = captured_nodes(&trace.graph_nodes);
    let calls = &trace.cuda_calls;
    let mut launches: HashMap<i64, Vec<(i64, i64)>> = HashMap::default();
    if captured.is_empty() {
        return HashMap::default();
    }
    let is_launch: Vec<bool> = kinds.iter().map(|kind| *kind == CallKind::Kernel).collect();
    for (_, _, call) in calls.at_sites(&is_launch) {
        launches.entry(call.global_tid).or_default().push((call.start_ns, call.end_ns));
    }
    let in_launch = |thread: i64, t: i64| {
        let of_thread = launches.get(&thread).map_or(&[][..], Vec::as_slice);
        let after = of_thread.partition_point(|(start, _)| *start <= t);
        after > 0 && t <= of_thread[after - 1].1
    };
    let mut nodes: HashMap<u64, u64> = HashMap::default();
    for (id, origin) in captured.iter().filter(|(id, origin)| **id != origin.id) {
        if let Some(graph) = graph_of(*id).filter(|_| in_launch(origin.global_tid, origin.at_ns)) {
            *nodes.entry(graph).or_default() += 1;
        }
    }
    nodes
}
