//! Classes of replays: equal kernels, geometries and copies in the same order.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::trace::{
    graph_capture::NodeWork,
    graph_numbers::graph_of,
    timeline::{CopyKind, Timeline},
};

use crate::timeline::capture::Capture;

/// Kernels by which HIP copies and fills.
const COPIES: &str = "__amd_rocclr_copy";
const FILLS: &str = "__amd_rocclr_fill";

/// A node of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplayNode {
    pub work: NodeWork,
    /// Index into the kinds of launches of the timeline; `None` for a copy or fill.
    pub kind: Option<u32>,
}

/// A node of one replay.
#[derive(Debug, Clone, Copy)]
pub struct RunNode {
    start_ns: i64,
    end_ns: i64,
    /// Index of the kernel; `None` for a copy or fill.
    pub kernel: Option<u32>,
    node: ReplayNode,
}

/// The nodes that one call launched, in order of start.
#[derive(Debug)]
pub struct Replay {
    pub call: u32,
    /// Number of the graph, which PyTorch writes from 2.12.
    graph: Option<u64>,
    pub nodes: Vec<RunNode>,
}

/// Replays of equal nodes, and of one graph if graphs have numbers.
#[derive(Debug)]
pub struct ReplayClass {
    pub process: i64,
    pub graph: Option<u64>,
    pub nodes: Vec<ReplayNode>,
    pub replays: Vec<Replay>,
}

/// Classes of the replays whose launching call is recorded, in order of their first calls.
pub fn classes(capture: &Capture) -> Vec<ReplayClass> {
    let trace = capture.trace;
    let works: Vec<NodeWork> =
        trace.kernels.kinds().iter().map(|it| work(trace.text(it.name))).collect();
    let mut replays: BTreeMap<u32, Replay> = BTreeMap::new();
    for (at, ((kind, kernel), join)) in capture.kernels_by_kind().enumerate() {
        let Some(id) = kernel.graph_node.filter(|_| join.has_call()) else { continue };
        let node = ReplayNode { work: works[kind as usize], kind: Some(kind) };
        let (start_ns, end_ns, kernel) = (kernel.start_ns, kernel.end_ns, Some(at as u32));
        let call = join.call;
        let new = || Replay { call, graph: graph_of(id), nodes: Vec::new() };
        let nodes = &mut replays.entry(call).or_insert_with(new).nodes;
        nodes.push(RunNode { start_ns, end_ns, kernel, node });
    }
    for (copy, join) in capture.copies() {
        if let Some(replay) = replays.get_mut(&join.call).filter(|_| join.has_call()) {
            let work = if copy.kind == CopyKind::Set { NodeWork::Fill } else { NodeWork::Copy };
            let node = ReplayNode { work, kind: None };
            let (start_ns, end_ns) = (copy.start_ns, copy.end_ns);
            replay.nodes.push(RunNode { start_ns, end_ns, kernel: None, node });
        }
    }
    by_nodes(replays, trace)
}

fn by_nodes(replays: BTreeMap<u32, Replay>, trace: &Timeline) -> Vec<ReplayClass> {
    let mut known: HashMap<(Option<u64>, Vec<ReplayNode>), usize> = HashMap::default();
    let mut classes: Vec<ReplayClass> = Vec::new();
    for mut replay in replays.into_values() {
        replay.nodes.sort_by_key(|it| (it.start_ns, it.end_ns));
        let nodes: Vec<ReplayNode> = replay.nodes.iter().map(|it| it.node).collect();
        let at = *known.entry((replay.graph, nodes.clone())).or_insert(classes.len());
        if at == classes.len() {
            let kind = replay.nodes.iter().find_map(|it| it.node.kind);
            let process = kind.map_or(0, |it| trace.kernels.kinds()[it as usize].global_pid);
            let graph = replay.graph;
            classes.push(ReplayClass { process, graph, nodes, replays: Vec::new() });
        }
        classes[at].replays.push(replay);
    }
    classes
}

fn work(kernel: &str) -> NodeWork {
    if kernel.starts_with(COPIES) {
        NodeWork::Copy
    } else if kernel.starts_with(FILLS) {
        NodeWork::Fill
    } else {
        NodeWork::Kernel
    }
}
