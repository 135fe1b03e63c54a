//! Host calls in each stage of the traced pass: waits, copies and graph launches.
//!
//! A call belongs to the stage open on its thread when it started.

use std::collections::BTreeMap;

use llmprof_core::{domain::units::Nanos, trace::runtime_call::CallKind};

use crate::timeline::{
    capture::{Capture, Join},
    open_ranges::NONE,
};

/// Calls of one stage, summed over instances.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StageCalls {
    /// Time of the stage's ranges on the host.
    pub host_ms: f64,
    /// Kernels run by CUDA graph launches, as far as they were recorded individually.
    pub replayed_kernels: u64,
    /// Synchronising calls.
    pub waits: u64,
    pub wait_ms: f64,
    /// Calls that copy memory.
    pub copies: u64,
    pub copy_ms: f64,
}

/// Sums the calls of one capture by stage.
pub fn stage_calls(capture: &Capture) -> BTreeMap<String, StageCalls> {
    let mut sums = vec![StageCalls::default(); capture.stage_count()];
    for it in capture
        .stages
        .instances
        .iter()
        .filter(|it| it.start_ns < it.end_ns && it.end_ns != i64::MAX)
    {
        sums[it.label + 1].host_ms += Nanos(it.end_ns - it.start_ns).as_ms();
    }
    let kinds = capture.trace.call_kinds();
    let mut open = capture.stages.cursor();
    // A fill moves no data between host and device.
    let is_copy = |it: CallKind| matches!(it, CallKind::Copy { .. });
    let sites: Vec<bool> = kinds.iter().map(|it| it.waits() || is_copy(*it)).collect();
    for (_, site, call) in capture.trace.cuda_calls.at_sites(&sites) {
        let sum = &mut sums[capture.stage_number(open.at_call(&call))];
        let ms = Nanos(call.end_ns - call.start_ns).as_ms();
        if kinds[site as usize].waits() {
            (sum.waits, sum.wait_ms) = (sum.waits + 1, sum.wait_ms + ms);
        } else {
            (sum.copies, sum.copy_ms) = (sum.copies + 1, sum.copy_ms + ms);
        }
    }
    for (kernel, Join { call, instance }) in capture.kernels() {
        if kernel.graph_node.is_some() && call != NONE {
            sums[capture.stage_number(instance)].replayed_kernels += 1;
        }
    }
    let named = sums
        .into_iter()
        .enumerate()
        .map(|(number, sum)| (capture.stage_label(number).to_owned(), sum));
    named.filter(|(_, sum)| *sum != StageCalls::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn calls_belong_to_the_stage_in_which_they_started() {
        let mut trace = capture(
            "range 1 prefill 0..10\nrange 1 decode_all 10..40\ncall 1 1 5..12\ncall 1 2 12..15
             call 1 3 20..26\ncall 1 4 60..70\nkernel 2 a 16..18 7",
        );
        let first = trace.strings.len() as u32;
        trace.strings.extend(
            ["cudaMemcpyAsync_v3020", "cudaGraphLaunch_v10000", "cudaStreamSynchronize_v3020"]
                .map(str::to_owned),
        );
        let named =
            |call: llmprof_core::trace::timeline::ApiCall| llmprof_core::trace::timeline::ApiCall {
                name: first + [0, 1, 2, 2][call.correlation_id as usize - 1],
                ..call
            };
        trace.cuda_calls = trace.cuda_calls.iter().map(named).collect();
        trace.kernels = trace.kernels.map(|_, kernel| kernel.graph_node = Some(1));
        let calls = stage_calls(&Capture::of(&trace));
        let (prefill, decode) = (calls["prefill"], calls["decode_all"]);
        assert_eq!(
            (prefill.copies, prefill.copy_ms, prefill.host_ms, prefill.waits),
            (1, 7e-6, 1e-5, 0)
        );
        assert_eq!((decode.replayed_kernels, decode.waits, decode.wait_ms), (1, 1, 6e-6));
        assert_eq!(calls[""].waits, 1, "outside every stage");
    }
}
