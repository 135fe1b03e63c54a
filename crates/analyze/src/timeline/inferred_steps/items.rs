//! Launches of each thread on each device, in the order of their calls.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    kernel::UNNUMBERED_NODE, packed::PackedRows, runtime_call::CallKind, timeline::Timeline,
};

use super::roles::KernelRole;
use crate::timeline::{
    capture::{Capture, Join},
    open_ranges::NONE,
};

/// A launch, or a wait of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A kernel by its kind.
    Kernel(u32),
    /// A kernel of a replayed graph: its kind and the graph's id.
    Replayed(u32, u32),
    /// A graph traced as a whole, by its id.
    WholeGraph(u32),
    Wait,
}

/// An item with its call and the end of its work.
#[derive(Debug, Clone, Copy)]
pub struct LaunchedItem {
    pub call: u32,
    pub item: Item,
    pub end_ns: i64,
}

/// Launches of one thread on one device.
#[derive(Default)]
pub struct LaunchSequence {
    /// Call, tag, kind or graph, graph, end.
    rows: PackedRows<5>,
    /// Kernels of layers by stream.
    streams: BTreeMap<u32, u64>,
}

/// Launch sequences by thread and device, and waits by thread.
#[derive(Default)]
pub struct LaunchSequences {
    pub threads: BTreeMap<(i64, u32), LaunchSequence>,
    waits: BTreeMap<i64, PackedRows<1>>,
}

impl LaunchSequences {
    pub fn of(capture: &Capture, roles: &[KernelRole]) -> Self {
        let mut all = Self::default();
        let mut calls = capture.trace.cuda_calls.reader();
        let kernels = capture.kernels_by_kind();
        for ((kind, kernel), Join { call, .. }) in
            kernels.filter(|(_, Join { call, .. })| *call != NONE)
        {
            let thread = calls.get(call).global_tid;
            let sequence = all.threads.entry((thread, kernel.device)).or_default();
            let graph = kernel.graph_node.map(|node| match node & UNNUMBERED_NODE {
                0 => node >> 32,
                _ => 0,
            });
            let tag = i64::from(graph.is_some());
            let graph = graph.unwrap_or(0) as i64;
            sequence.rows.push([call.into(), tag, kind.into(), graph, kernel.end_ns]);
            if roles[kind as usize].is_compute {
                *sequence.streams.entry(kernel.stream).or_default() += 1;
            }
        }
        for (graph, Join { call, .. }) in capture.graphs() {
            if call != NONE {
                let thread = calls.get(call).global_tid;
                let sequence = all.threads.entry((thread, graph.device)).or_default();
                let id = graph.graph.unwrap_or(0) as i64;
                sequence.rows.push([call.into(), 2, 0, id, graph.end_ns]);
            }
        }
        all.threads.values_mut().for_each(|it| it.rows.sort());
        all.add_waits(capture.trace);
        all
    }

    fn add_waits(&mut self, trace: &Timeline) {
        let all_work = CallKind::Synchronise { of_event: false };
        let waits: Vec<bool> = trace.call_kinds().iter().map(|it| *it == all_work).collect();
        for (at, _, call) in trace.cuda_calls.at_sites(&waits) {
            self.waits.entry(call.global_tid).or_default().push([at as i64]);
        }
    }

    /// Launches of a thread on a device, with its waits, in the order of the calls. Kernels of
    /// streams other than the one with most layers are absent.
    pub fn items<'a>(
        &'a self,
        (thread, device): (i64, u32),
        trace: &'a Timeline,
    ) -> impl Iterator<Item = LaunchedItem> + 'a {
        let sequence = self.threads.get(&(thread, device));
        let main = sequence.and_then(|it| it.streams.iter().max_by_key(|(_, count)| **count));
        let main = main.map(|(stream, _)| *stream);
        let kinds = trace.kernels.kinds();
        let on_main = move |kind: u32| main.is_none_or(|main| kinds[kind as usize].stream == main);
        let rows = sequence.into_iter().flat_map(|it| it.rows.iter());
        let launched = rows.filter_map(move |[call, tag, kind, graph, end_ns]| {
            let (kind, graph) = (kind as u32, graph as u32);
            let item = match tag {
                0 => on_main(kind).then_some(Item::Kernel(kind))?,
                1 => Item::Replayed(kind, graph),
                _ => Item::WholeGraph(graph),
            };
            Some(LaunchedItem { call: call as u32, item, end_ns })
        });
        let waits = self.waits.get(&thread).into_iter().flat_map(PackedRows::iter);
        let wait = |[call]: [i64; 1]| LaunchedItem {
            call: call as u32,
            item: Item::Wait,
            end_ns: i64::MIN,
        };
        let (mut launched, mut waits) = (launched.peekable(), waits.map(wait).peekable());
        std::iter::from_fn(move || match (launched.peek(), waits.peek()) {
            (Some(launch), Some(wait)) if wait.call < launch.call => waits.next(),
            (None, _) => waits.next(),
            _ => launched.next(),
        })
    }
}
