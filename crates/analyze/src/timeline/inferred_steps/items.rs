//! Launches, copies and waits of each thread on each device, in the order of their calls.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    kernel::UNNUMBERED_NODE,
    packed::PackedRows,
    runtime_call::{Awaited, CallKind},
    timeline::{CopyKind, MemoryOp, ON_HOST, Timeline},
};

use super::roles::KernelRole;
use crate::timeline::{
    capture::{Capture, Join},
    open_ranges::NONE,
};

/// A launch, a copy between host and device, or a wait of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A kernel by its kind.
    Kernel(u32),
    /// A kernel of a replayed graph: its kind and the graph's id.
    Replayed(u32, u32),
    /// A graph traced as a whole, by its id.
    WholeGraph(u32),
    /// Bytes copied from host to device.
    Upload(u64),
    Read(ReadBack),
    Wait(WaitKind),
}

/// A copy from device to host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBack {
    pub bytes: u64,
    pub end_ns: i64,
    /// The call returned after the end of the copy.
    pub is_complete: bool,
}

/// Work that the host waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// All work of a stream or a device.
    AllWork,
    /// Work up to an event.
    Event,
}

/// An item with its call and the end of its launched work.
#[derive(Debug, Clone, Copy)]
pub struct LaunchedItem {
    pub call: u32,
    pub item: Item,
    pub end_ns: i64,
}

/// Launches of one thread on one device.
#[derive(Default)]
pub struct LaunchSequence {
    /// Call, tag, kind, graph or bytes, end.
    rows: PackedRows<5>,
    /// Kernels of layers by stream.
    streams: BTreeMap<u32, u64>,
    has_reads: bool,
}

/// Launch sequences by thread and device, and waits by thread.
#[derive(Default)]
pub struct LaunchSequences {
    pub threads: BTreeMap<(i64, u32), LaunchSequence>,
    /// Call, and 1 for a wait up to an event.
    waits: BTreeMap<i64, PackedRows<2>>,
}

/// Tags of rows.
const KERNEL: i64 = 0;
const REPLAYED: i64 = 1;
const WHOLE_GRAPH: i64 = 2;
const UPLOAD: i64 = 3;
const READ: i64 = 4;
const COMPLETE_READ: i64 = 5;

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
            let tag = if graph.is_some() { REPLAYED } else { KERNEL };
            let graph = graph.unwrap_or(0) as i64;
            sequence.rows.push([call.into(), tag, kind.into(), graph, kernel.end_ns]);
            if roles[kind as usize].is_compute {
                *sequence.streams.entry(kernel.stream).or_default() += 1;
            }
        }
        for (graph, Join { call, .. }) in capture.graphs() {
            if call != NONE {
                let thread = calls.get(call).global_tid;
                let device = all.device_of(thread, graph.device);
                let sequence = all.threads.entry((thread, device)).or_default();
                let id = graph.graph.unwrap_or(0) as i64;
                sequence.rows.push([call.into(), WHOLE_GRAPH, 0, id, graph.end_ns]);
            }
        }
        all.add_copies(capture);
        all.threads.values_mut().for_each(|it| it.rows.sort());
        all.add_waits(capture.trace);
        all
    }

    /// The device of a graph: one that starts on the host runs on the only device on which its
    /// thread launches kernels.
    fn device_of(&self, thread: i64, device: u32) -> u32 {
        let mut others = self.threads.range((thread, 0)..(thread, ON_HOST)).map(|(it, _)| it.1);
        match (device, others.next(), others.next()) {
            (ON_HOST, Some(only), None) => only,
            _ => device,
        }
    }

    /// Adds copies between host and device to the sequences that launch kernels.
    fn add_copies(&mut self, capture: &Capture) {
        let mut calls = capture.trace.cuda_calls.reader();
        let is_launched = |(it, join): &(&MemoryOp, Join)| {
            join.has_call()
                && it.graph_node.is_none()
                && matches!(it.kind, CopyKind::HostToDevice | CopyKind::DeviceToHost)
        };
        for (copy, Join { call, .. }) in capture.copies().filter(is_launched) {
            let by = calls.get(call);
            let Some(sequence) = self.threads.get_mut(&(by.global_tid, copy.device)) else {
                continue;
            };
            let tag = match copy.kind {
                CopyKind::HostToDevice => UPLOAD,
                _ if by.end_ns >= copy.end_ns => COMPLETE_READ,
                _ => READ,
            };
            sequence.has_reads |= tag != UPLOAD;
            sequence.rows.push([call.into(), tag, 0, copy.bytes as i64, copy.end_ns]);
        }
    }

    /// Returns true if a thread copies from a device to the host.
    pub fn reads(&self, place: (i64, u32)) -> bool {
        self.threads.get(&place).is_some_and(|it| it.has_reads)
    }

    fn add_waits(&mut self, trace: &Timeline) {
        let kinds = trace.call_kinds();
        let is_wait = |it: &CallKind| matches!(it, CallKind::Synchronise(_));
        let waits: Vec<bool> = kinds.iter().map(is_wait).collect();
        for (at, site, call) in trace.cuda_calls.at_sites(&waits) {
            let of_event = kinds[site as usize] == CallKind::Synchronise(Awaited::Event);
            let waits = self.waits.entry(call.global_tid).or_default();
            waits.push([at as i64, of_event.into()]);
        }
    }

    /// Launches and copies of a thread on a device, with its waits, in the order of the calls.
    /// Kernels of streams other than the one with most layers are absent.
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
        // An unknown clock proves no end.
        let is_timed = trace.has_common_clock(thread, device);
        let launched = rows.filter_map(move |[call, tag, kind, other, end_ns]| {
            let end_ns = if is_timed { end_ns } else { i64::MIN };
            let (kind, graph, bytes) = (kind as u32, other as u32, other as u64);
            let item = match tag {
                KERNEL => on_main(kind).then_some(Item::Kernel(kind))?,
                REPLAYED => Item::Replayed(kind, graph),
                WHOLE_GRAPH => Item::WholeGraph(graph),
                UPLOAD => Item::Upload(bytes),
                _ => Item::Read(ReadBack { bytes, end_ns, is_complete: tag == COMPLETE_READ }),
            };
            let end_ns = if tag < UPLOAD { end_ns } else { i64::MIN };
            Some(LaunchedItem { call: call as u32, item, end_ns })
        });
        let waits = self.waits.get(&thread).into_iter().flat_map(PackedRows::iter);
        let wait = |[call, of_event]: [i64; 2]| LaunchedItem {
            call: call as u32,
            item: Item::Wait(if of_event == 0 { WaitKind::AllWork } else { WaitKind::Event }),
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
