//! Launches of graphs by stage: their calls, and those whose GPU is unknown.

use llmprof_core::trace::{
    runtime_call::CallKind,
    timeline::{ON_HOST, process_of},
};

use super::GpuCells;
use crate::timeline::capture::{Capture, Join};

impl GpuCells {
    /// Marks the windows, on all GPUs of its process, in which a graph ran whose GPU is unknown.
    pub(super) fn add_unplaced(&mut self, capture: &Capture) {
        let graphs = capture.graphs();
        for (it, Join { instance, .. }) in graphs.filter(|(it, _)| it.device == ON_HOST) {
            if let Some(instance) = capture.stages.instances.get(instance as usize) {
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
pub(super) fn graph_calls(capture: &Capture) -> (Vec<u64>, bool) {
    let mut calls = vec![0; capture.stages.labels.len()];
    capture.each_running(CallKind::Graph, |_, _, instance| {
        if let Some(instance) = capture.stages.instances.get(instance as usize) {
            calls[instance.label] += 1;
        }
    });
    (calls, capture.trace.call_kinds().iter().any(|kind| kind.is_launch()))
}
