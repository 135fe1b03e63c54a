//! Numbers of CUDA graphs, distinct in a capture.
//!
//! Each process numbers its own graphs, and ids of nodes hold the number of their graph: nodes of
//! several processes would be joined to each other.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::{
    kernel::UNNUMBERED_NODE,
    timeline::{Timeline, process_of},
};

/// Bits of a node within the id of a node; the graph has the others.
const NODE_BITS: u32 = 32;

/// The graph of a node, if its id holds it.
pub fn graph_of(node: u64) -> Option<u64> {
    Some(node >> NODE_BITS).filter(|graph| *graph > 0 && node & UNNUMBERED_NODE == 0)
}

impl Timeline {
    /// Gives the graphs of all processes distinct numbers. The first of several processes with one
    /// number keeps it, so that the graphs of a single process keep theirs.
    pub fn number_graphs(&mut self) {
        let kinds = self.kernels.kinds().iter().map(|it| process_of(it.global_pid));
        let nodes = self.graph_nodes.iter().map(|it| process_of(it.global_tid));
        let whole = self.graphs.iter().map(|it| process_of(it.global_pid));
        let copies = self.copies.iter().map(|it| process_of(it.global_pid));
        let processes: BTreeSet<i64> = kinds.chain(nodes).chain(whole).chain(copies).collect();
        if processes.len() < 2 {
            return;
        }
        let numbers = GraphNumbers::of(self.graphs_by_process());
        if numbers.0.is_empty() {
            return;
        }
        self.kernels = self.kernels.map(|_, it| {
            it.graph_node = it.graph_node.map(|node| numbers.node(it.global_pid, node));
        });
        for it in &mut self.copies {
            it.graph_node = it.graph_node.map(|node| numbers.node(it.global_pid, node));
        }
        for it in &mut self.graphs {
            it.graph = it.graph.map(|graph| numbers.graph(it.global_pid, graph));
        }
        for it in &mut self.graph_nodes {
            it.id = numbers.node(it.global_tid, it.id);
            it.original = it.original.map(|node| numbers.node(it.global_tid, node));
        }
    }

    /// Pairs of process and graph.
    fn graphs_by_process(&self) -> BTreeSet<(i64, u64)> {
        let kernels = self.kernels.iter().map(|it| (it.global_pid, it.graph_node));
        let copies = self.copies.iter().map(|it| (it.global_pid, it.graph_node));
        let made = self.graph_nodes.iter();
        let made =
            made.flat_map(|it| [it.id].into_iter().chain(it.original).map(move |id| (it, id)));
        let made = made.map(|(it, id)| (it.global_tid, Some(id)));
        let nodes = kernels.chain(copies).chain(made);
        let nodes = nodes.filter_map(|(of, node)| Some((process_of(of), graph_of(node?)?)));
        let whole =
            self.graphs.iter().filter_map(|it| Some((process_of(it.global_pid), it.graph?)));
        nodes.chain(whole).collect()
    }
}

/// New numbers by process and its own number; graphs that keep theirs are absent.
struct GraphNumbers(HashMap<(i64, u64), u64>);

impl GraphNumbers {
    fn of(graphs: BTreeSet<(i64, u64)>) -> Self {
        let known: HashSet<u64> = graphs.iter().map(|(_, graph)| *graph).collect();
        let mut free = (1..).filter(|graph| !known.contains(graph));
        let mut kept = HashSet::new();
        let again = graphs.into_iter().filter(|(_, graph)| !kept.insert(*graph));
        Self(again.zip(&mut free).collect())
    }

    fn graph(&self, of: i64, graph: u64) -> u64 {
        self.0.get(&(process_of(of), graph)).copied().unwrap_or(graph)
    }

    fn node(&self, of: i64, node: u64) -> u64 {
        let within = node & ((1 << NODE_BITS) - 1);
        graph_of(node).map_or(node, |graph| self.graph(of, graph) << NODE_BITS | within)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::timeline::GraphNode;

    fn made(process: i64, id: u64, original: Option<u64>) -> GraphNode {
        GraphNode { at_ns: 0, global_tid: process << 24 | 9, id, original }
    }

    fn numbered(nodes: &[GraphNode]) -> Vec<(u64, Option<u64>)> {
        let mut trace = Timeline { graph_nodes: nodes.to_vec(), ..Timeline::default() };
        trace.number_graphs();
        trace.graph_nodes.iter().map(|it| (it.id, it.original)).collect()
    }

    #[test]
    fn nodes_of_one_id_in_two_processes_are_of_two_graphs() {
        let node = |graph: u64, node: u64| graph << 32 | node;
        let of = |process| made(process, node(3, 7), Some(node(1, 7)));
        assert_eq!(numbered(&[of(5), of(5)]), [(node(3, 7), Some(node(1, 7))); 2]);
        let first = (node(3, 7), Some(node(1, 7)));
        assert_eq!(numbered(&[of(5), of(6)]), [first, (node(4, 7), Some(node(2, 7)))]);
        assert_eq!(numbered(&[of(6), of(5)]), [(node(4, 7), Some(node(2, 7))), first]);
        // Ids without the number of a graph, and nodes without an id, stay.
        let others = [made(5, 7, None), made(6, UNNUMBERED_NODE | 7, None)];
        assert_eq!(numbered(&others), [(7, None), (UNNUMBERED_NODE | 7, None)]);
    }

    proptest! {
        #[test]
        fn graphs_of_processes_are_never_joined_and_those_of_one_process_never_split(
            ids in prop::collection::vec((1i64..4, 1u64..6, 0u64..3), 1..40)
        ) {
            let nodes: Vec<GraphNode> = ids
                .iter()
                .map(|(process, graph, node)| made(*process, graph << 32 | node, None))
                .collect();
            let found = numbered(&nodes);
            for (a, (of_a, _)) in ids.iter().zip(&found) {
                prop_assert_eq!(of_a & 0xffff_ffff, a.2);
                for (b, (of_b, _)) in ids.iter().zip(&found) {
                    prop_assert_eq!(of_a >> 32 == of_b >> 32, (a.0, a.1) == (b.0, b.1));
                }
            }
        }
    }
}
