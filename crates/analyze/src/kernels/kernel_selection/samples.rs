//! Launches of the first repeat of the first sample of a traced pass: ncu runs that one only.

use std::collections::BTreeSet;

use llmprof_core::trace::kernel::TracedKernel;

use crate::{stages::PREFILL, timeline::capture::Capture};

/// Program of a traced pass.
#[derive(Debug, Clone, Copy)]
pub struct TracedProgram {
    /// Samples of the run.
    pub samples: u32,
    /// It is the model runner: each repeat is a prefill and its decode, and it can run with fewer
    /// tokens under ncu.
    pub is_runner: bool,
}

/// Kernels with their stage and the start of its instance, 0 outside all stages.
pub(super) fn stage_starts<'a>(
    capture: &'a Capture<'a>,
) -> impl Iterator<Item = (TracedKernel<'a>, Option<&'a str>, i64)> {
    capture.kernels().map(|(kernel, join)| {
        let instance = capture.stages.instances.get(join.instance as usize);
        (kernel, capture.stage_of(join), instance.map_or(0, |it| it.start_ns))
    })
}

/// Start of the second measured repeat of a runner: of its second prefill, warm-up excluded. `None`
/// if there is none.
pub(super) fn second_start(capture: &Capture, traced: TracedProgram) -> Option<i64> {
    if !traced.is_runner {
        return None;
    }
    let prefills: BTreeSet<i64> = stage_starts(capture)
        .filter(|(_, stage, _)| *stage == Some(PREFILL))
        .map(|(_, _, start)| start)
        .collect();
    prefills.into_iter().nth(1)
}
