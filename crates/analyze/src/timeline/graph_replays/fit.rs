//! Fit of a replay's nodes and a capture's launches.
//!
//! On one stream the n-th node is the n-th launch; names, geometries and the calls that launch a
//! kernel must not contradict it. Several streams run nodes in another order: there
//! the launches of one kernel are joined by its name.

use foldhash::HashMap;
use llmprof_core::trace::{
    graph_capture::NodeWork,
    kernel::{LaunchKind, known_sides},
    timeline::Timeline,
};

use super::{captured::KnownGraph, replayed::ReplayNode};
use crate::timeline::open_ranges::NONE;

/// Suffix of kernels' names in code objects of AMD.
const KERNEL_DESCRIPTOR: &str = ".kd";

/// Launches by node.
#[derive(Debug, PartialEq, Eq)]
pub struct Fit {
    /// [`NONE`] for a node whose launch is not proven.
    pub launches: Vec<u32>,
    /// True if geometries were compared.
    pub is_measured: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// Counts, names, geometries or calls differ.
    Nodes,
    /// The order is unknown: several streams, and launches without a name.
    Streams,
}

/// Joins the nodes of a replay to the launches of a capture.
pub fn fit(nodes: &[ReplayNode], graph: &KnownGraph, trace: &Timeline) -> Result<Fit, Misfit> {
    let launches = &graph.captured.launches;
    if nodes.len() != launches.len() {
        return Err(Misfit::Nodes);
    }
    let kinds = trace.kernels.kinds();
    let mut streams = nodes.iter().filter_map(|it| Some(kinds[it.kind? as usize].stream));
    let first = streams.next();
    if graph.captured.is_forked || streams.any(|it| Some(it) != first) {
        return by_name(nodes, graph, trace);
    }
    let mut is_measured = false;
    let mut calls: HashMap<u32, u32> = HashMap::default();
    for (at, node) in nodes.iter().enumerate() {
        is_measured |= pair(node, at, graph, trace)?;
        let Some(kind) = node.kind.map(|it| &kinds[it as usize]) else { continue };
        // One kernel is launched by one function, as the libraries do.
        let call = launches[at].call;
        if *calls.entry(kind.full_name).or_insert(call) != call && launches[at].kernel.is_none() {
            return Err(Misfit::Nodes);
        }
    }
    Ok(Fit { launches: (0..nodes.len() as u32).collect(), is_measured })
}

/// Compares a node with a launch. Returns true if their geometries were compared.
fn pair(
    node: &ReplayNode,
    launch: usize,
    graph: &KnownGraph,
    trace: &Timeline,
) -> Result<bool, Misfit> {
    let captured = &graph.captured.launches[launch];
    if node.work != captured.work {
        return Err(Misfit::Nodes);
    }
    // CUPTI records a part of the bytes of a copy in a graph: they prove nothing.
    let Some(kind) = node.kind.map(|it| &trace.kernels.kinds()[it as usize]) else {
        return Ok(false);
    };
    // HIP names its own kernel only where it runs.
    let named = graph.kernel_name(launch).filter(|_| node.work == NodeWork::Kernel);
    if named.is_some_and(|it| it != kernel_name(kind, trace)) {
        return Err(Misfit::Nodes);
    }
    let (grids, blocks) = ((kind.grid, captured.grid), (kind.block, captured.block));
    let both = |(a, b): ([u32; 3], [u32; 3])| known_sides(a).and(known_sides(b)).is_some();
    let differ = |sides: ([u32; 3], [u32; 3])| both(sides) && sides.0 != sides.1;
    if differ(grids) || differ(blocks) { Err(Misfit::Nodes) } else { Ok(both(grids)) }
}

fn kernel_name<'a>(kind: &LaunchKind, trace: &'a Timeline) -> &'a str {
    let name = trace.text(kind.full_name);
    name.strip_suffix(KERNEL_DESCRIPTOR).unwrap_or(name)
}

/// Joins the launches of each kernel by its name. Their order is known if all its nodes ran on the
/// same stream, and unimportant if all its launches have equal operators and shapes.
fn by_name(nodes: &[ReplayNode], graph: &KnownGraph, trace: &Timeline) -> Result<Fit, Misfit> {
    let launches = &graph.captured.launches;
    let mut named: HashMap<&str, Vec<usize>> = HashMap::default();
    for at in (0..launches.len()).filter(|at| launches[*at].work == NodeWork::Kernel) {
        named.entry(graph.kernel_name(at).ok_or(Misfit::Streams)?).or_default().push(at);
    }
    let kinds = trace.kernels.kinds();
    let kind = |node: &ReplayNode| node.kind.map(|it| &kinds[it as usize]);
    let mut ran: HashMap<&str, Vec<usize>> = HashMap::default();
    for (at, node) in nodes.iter().enumerate().filter(|(_, it)| it.work == NodeWork::Kernel) {
        let Some(kind) = kind(node) else { return Err(Misfit::Nodes) };
        ran.entry(kernel_name(kind, trace)).or_default().push(at);
    }
    let count = |work: NodeWork| {
        let captured = launches.iter().filter(|it| it.work == work).count();
        captured == nodes.iter().filter(|it| it.work == work).count()
    };
    if named.len() != ran.len() || !count(NodeWork::Copy) || !count(NodeWork::Fill) {
        return Err(Misfit::Nodes);
    }
    let stream = |at: &usize| kind(&nodes[*at]).map(|it| it.stream);
    let has_streams = nodes.iter().filter_map(|it| Some(kind(it)?.stream)).collect::<Vec<_>>();
    let has_streams = has_streams.windows(2).any(|pair| pair[0] != pair[1]);
    let mut fit = Fit { launches: vec![NONE; nodes.len()], is_measured: false };
    for (name, nodes_of) in ran {
        let Some(launches_of) = named.get(name).filter(|it| it.len() == nodes_of.len()) else {
            return Err(Misfit::Nodes);
        };
        let on_one = has_streams && nodes_of.iter().all(|it| stream(it) == stream(&nodes_of[0]));
        let content = graph.contents[launches_of[0]];
        if !on_one && launches_of.iter().any(|it| graph.contents[*it] != content) {
            continue;
        }
        for (node, launch) in nodes_of.into_iter().zip(launches_of) {
            fit.launches[node] = *launch as u32;
            fit.is_measured |= on_one && pair(&nodes[node], *launch, graph, trace)?;
        }
    }
    Ok(fit)
}
