//! Launches of the first sample of a traced pass: ncu runs that one only.

use std::collections::BTreeSet;

use crate::{
    analyze::{kernels::launched, stages::PREFILL, timeline::launches::LaunchIndex},
    trace::{kernel::Kernel, nsys::NsysTrace},
};

/// Repeats of a traced pass.
#[derive(Debug, Clone, Copy)]
pub struct TracedRepeats {
    /// Samples of the run, each measured after the one before.
    pub samples: u32,
    /// Measured repeats of each sample.
    pub repeats: u32,
    /// The program can run with fewer tokens under ncu.
    pub limits_tokens: bool,
}

/// Kernels with their stage and the start of its instance, 0 outside all stages.
pub(super) fn stage_starts<'a>(
    trace: &'a NsysTrace,
    joined: &'a LaunchIndex,
) -> impl Iterator<Item = (Kernel, Option<&'a str>, i64)> {
    let start = |&(_, instance): &(u32, u32)| {
        joined.stages.instances.get(instance as usize).map_or(0, |it| it.start_ns)
    };
    let starts = joined.kernels.iter().map(start);
    launched(trace, joined).zip(starts).map(|((kernel, stage), start)| (kernel, stage, start))
}

/// Start of the second sample: of the first prefill after those of the first sample, warm-up
/// excluded. `None` if there is none.
pub(super) fn second_start(
    trace: &NsysTrace,
    joined: &LaunchIndex,
    traced: TracedRepeats,
) -> Option<i64> {
    if traced.samples < 2 {
        return None;
    }
    let prefills: BTreeSet<i64> = stage_starts(trace, joined)
        .filter(|(_, stage, _)| *stage == Some(PREFILL))
        .map(|(_, _, start)| start)
        .collect();
    prefills.into_iter().nth(traced.repeats as usize)
}
