//! Launches of the first repeat of the first sample of a traced pass: ncu runs that one only.

use std::collections::BTreeSet;

use llmprof_core::trace::{kernel::TracedKernel, nsys::NsysTrace};

use crate::{kernels::launched, stages::PREFILL, timeline::launches::LaunchIndex};

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
    trace: &'a NsysTrace,
    joined: &'a LaunchIndex,
) -> impl Iterator<Item = (TracedKernel<'a>, Option<&'a str>, i64)> {
    let start = |(_, instance): (u32, u32)| {
        joined.stages.instances.get(instance as usize).map_or(0, |it| it.start_ns)
    };
    let starts = joined.kernels.iter().map(start);
    launched(trace, joined).zip(starts).map(|((kernel, stage), start)| (kernel, stage, start))
}

/// Start of the second measured repeat of a runner: of its second prefill, warm-up excluded. `None`
/// if there is none.
pub(super) fn second_start(
    trace: &NsysTrace,
    joined: &LaunchIndex,
    traced: TracedProgram,
) -> Option<i64> {
    if !traced.is_runner {
        return None;
    }
    let prefills: BTreeSet<i64> = stage_starts(trace, joined)
        .filter(|(_, stage, _)| *stage == Some(PREFILL))
        .map(|(_, _, start)| start)
        .collect();
    prefills.into_iter().nth(1)
}
