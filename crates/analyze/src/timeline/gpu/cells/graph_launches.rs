//! Launches of graphs by stage: their calls, and those whose GPU is unknown.

use llmprof_core::trace::{
    nsys::{NsysTrace, ON_HOST, process_of},
    runtime_call::CallKind,
};

use super::GpuCells;
use crate::timeline::{
    launches::{Cursor, LaunchIndex},
    running::each_running,
};

impl GpuCells {
    /// Marks the windows, on all GPUs of its process, in which a graph ran whose GPU is unknown.
    pub(super) fn add_unplaced(&mut self, trace: &NsysTrace, launches: &LaunchIndex) {
        let graphs = trace.graphs.iter().zip(launches.graphs.iter());
        for (it, (_, instance)) in graphs.filter(|(it, _)| it.device == ON_HOST) {
            if let Some(instance) = launches.stages.instances.get(instance as usize) {
                self.unplaced[instance.label] += 1;
            }
            let process = process_of(it.global_pid);
            for (_, device) in self.used.range((process, 0)..=(process, u32::MAX)) {
                for label in 0..self.instances.len() {
                    let place = self.place(label, *device);
                    let cell = &mut self.cells[place];
                    let overlap = cell.window.overlap_ns(it.start_ns, it.end_ns);
                    cell.unplaced = cell.unplaced || overlap > 0;
                }
            }
        }
    }
}

/// Calls per stage that launch a graph, and true when any call launches work.
pub(super) fn graph_calls(trace: &NsysTrace, launches: &LaunchIndex) -> (Vec<u64>, bool) {
    let mut calls = vec![0; launches.stages.labels.len()];
    let mut cursor = Cursor::default();
    each_running(trace, CallKind::Graph, |_, call| {
        let instance =
            cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
        if let Some(instance) = launches.stages.instances.get(instance as usize) {
            calls[instance.label] += 1;
        }
    });
    (calls, trace.call_kinds().iter().any(|kind| kind.is_launch()))
}
