//! Launches of graphs by stage: their calls, and those whose GPU is unknown.

use llmprof_core::trace::nsys::{NsysTrace, ON_HOST, process_of};

use super::GpuCells;
use crate::{
    stages::coverage::{CudaCallKind, kind},
    timeline::launches::{Cursor, LaunchIndex},
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
    let name = |index: u32| trace.strings.get(index as usize).map_or("", String::as_str);
    let kinds: Vec<CudaCallKind> =
        trace.cuda_calls.sites().iter().map(|(index, _)| kind(name(*index))).collect();
    let mut calls = vec![0; launches.stages.labels.len()];
    let mut cursor = Cursor::default();
    let is_graph: Vec<bool> =
        kinds.iter().map(|kind| matches!(kind, CudaCallKind::Graph)).collect();
    for (_, _, call) in trace.cuda_calls.at_sites(&is_graph) {
        let instance =
            cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
        if let Some(instance) = launches.stages.instances.get(instance as usize) {
            calls[instance.label] += 1;
        }
    }
    (calls, kinds.iter().any(|kind| matches!(kind, CudaCallKind::Graph | CudaCallKind::Kernel)))
}
