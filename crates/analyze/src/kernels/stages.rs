//! Device time by stage: recorded kernels, whole-traced graphs, and busy time.

use llmprof_core::{domain::units::Nanos, trace::timeline::ON_HOST};

use super::{StageKernels, durations::Tally};
use crate::timeline::{
    activity::{Busy, DeviceWork, activities, used_devices},
    capture::Capture,
};

/// Device time by stage, in order of stage name.
pub fn stage_kernels(capture: &Capture, tallies: &[Tally]) -> Vec<StageKernels> {
    let numbers = capture.stage_count();
    let mut devices: Vec<u32> =
        used_devices(capture.trace).into_iter().map(|(_, device)| device).collect();
    devices.sort_unstable();
    devices.dedup();
    // By stage number, then by device.
    let mut busy = vec![Busy::default(); numbers * devices.len()];
    let mut graphs = vec![Tally::default(); numbers];
    let mut unplaced = vec![false; numbers];
    for it in activities(capture) {
        let number = capture.stage_number(it.join.instance);
        if it.device == ON_HOST {
            unplaced[number] = true;
        }
        if let Ok(device) = devices.binary_search(&it.device) {
            busy[number * devices.len() + device].add(it.start_ns, it.end_ns);
        }
        if it.work == DeviceWork::Graph {
            let sum = &mut graphs[number];
            (sum.calls, sum.ns) = (sum.calls + 1, sum.ns.saturating_add(it.end_ns - it.start_ns));
        }
    }
    let mut stages: Vec<StageKernels> = Vec::new();
    for (number, graphs) in graphs.iter().enumerate() {
        let of_stage = || tallies.iter().skip(number).step_by(numbers);
        let calls: u64 = of_stage().map(|tally| tally.calls).sum();
        let of_devices = &busy[number * devices.len()..(number + 1) * devices.len()];
        let busy_ns = of_devices.iter().map(|it| it.ns);
        if calls + graphs.calls > 0 {
            stages.push(StageKernels {
                stage: capture.stage_label(number).into(),
                launches: calls,
                kernel_ms: Some(
                    Nanos(of_stage().map(|tally| tally.ns).fold(0, i64::saturating_add)).as_ms(),
                ),
                busy_ms: Some(Nanos(busy_ns.fold(0, i64::saturating_add)).as_ms())
                    .filter(|_| !unplaced[number]),
                graph_launches: graphs.calls,
                graph_ms: Nanos(graphs.ns).as_ms(),
            });
        }
    }
    stages.sort_by(|a, b| a.stage.cmp(&b.stage));
    stages
}
