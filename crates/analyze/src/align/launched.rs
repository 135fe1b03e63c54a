//! The launches of a capture, and those whose kernel is recorded.
//!
//! A launch into a stream under graph capture runs nothing and is not counted.

use llmprof_core::trace::{nsys::NsysTrace, runtime_call::CallKind};

use crate::timeline::{
    launches::{CallSet, Cursor, LaunchIndex},
    open_ranges::NONE,
    running::RunningLaunches,
};

/// The launches of a capture.
pub struct CaptureLaunches {
    /// By call: a kernel of it is recorded.
    recorded: CallSet,
    kinds: Vec<CallKind>,
}

impl CaptureLaunches {
    /// Joins the calls of `trace` to their kernels.
    pub fn of(trace: &NsysTrace, launches: &LaunchIndex) -> Self {
        let mut recorded = CallSet::below(trace.cuda_calls.len());
        launches
            .kernels
            .iter()
            .filter(|(call, _)| *call != NONE)
            .for_each(|(call, _)| recorded.insert(call));
        Self { recorded, kinds: trace.call_kinds() }
    }

    /// Launches of single kernels that `wanted` selects by thread, time and instance of a stage;
    /// and those of them whose kernel is recorded.
    pub fn kernels(
        &self,
        trace: &NsysTrace,
        launches: &LaunchIndex,
        mut wanted: impl FnMut(i64, i64, u32) -> bool,
    ) -> (u64, u64) {
        let (mut all, mut recorded) = (0, 0);
        let mut running = RunningLaunches::of(trace, &self.kinds);
        let mut cursor = Cursor::default();
        for (at, (site, call)) in trace.cuda_calls.with_sites().enumerate() {
            let kind = self.kinds[site as usize];
            if !running.launches(kind, &call) || kind != CallKind::Kernel {
                continue;
            }
            let instance =
                cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
            if wanted(call.global_tid, call.start_ns, instance) {
                all += 1;
                recorded += u64::from(self.recorded.contains(at));
            }
        }
        (all, recorded)
    }

    /// Graph launches in counted instances, and those of them without a kernel.
    pub fn graphs(
        &self,
        trace: &NsysTrace,
        launches: &LaunchIndex,
        counted: &impl Fn(u32) -> bool,
    ) -> (u64, u64) {
        let (mut all, mut empty) = (0, 0);
        if !self.kinds.contains(&CallKind::Graph) {
            return (all, empty);
        }
        let mut cursor = Cursor::default();
        for (at, (site, call)) in trace.cuda_calls.with_sites().enumerate() {
            if self.kinds[site as usize] != CallKind::Graph {
                continue;
            }
            if counted(
                cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread)),
            ) {
                all += 1;
                empty += u64::from(!self.recorded.contains(at));
            }
        }
        (all, empty)
    }
}
