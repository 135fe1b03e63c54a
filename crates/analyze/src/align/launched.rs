//! The launches of a capture, and those whose kernel is recorded.
//!
//! A launch into a stream under graph capture runs nothing and is not counted.

use llmprof_core::trace::{nsys::NsysTrace, runtime_call::CallKind};

use crate::timeline::{
    launches::{CallSet, Cursor, LaunchIndex},
    open_ranges::NONE,
    running::each_running,
};

/// The launches of a capture; by call, whether a kernel of it is recorded.
pub struct CaptureLaunches(CallSet);

impl CaptureLaunches {
    /// Joins the calls of `trace` to their kernels.
    pub fn of(trace: &NsysTrace, launches: &LaunchIndex) -> Self {
        let mut recorded = CallSet::below(trace.cuda_calls.len());
        launches
            .kernels
            .iter()
            .filter(|(call, _)| *call != NONE)
            .for_each(|(call, _)| recorded.insert(call));
        Self(recorded)
    }

    /// Launches of single kernels that `wanted` selects by thread, time and instance of a stage;
    /// and those of them whose kernel is recorded.
    pub fn kernels(
        &self,
        trace: &NsysTrace,
        launches: &LaunchIndex,
        wanted: impl FnMut(i64, i64, u32) -> bool,
    ) -> (u64, u64) {
        self.count(trace, launches, CallKind::Kernel, wanted)
    }

    /// Graph launches in counted instances, and those of them without a kernel.
    pub fn graphs(
        &self,
        trace: &NsysTrace,
        launches: &LaunchIndex,
        counted: &impl Fn(u32) -> bool,
    ) -> (u64, u64) {
        let wanted = |_, _, instance| counted(instance);
        let (all, recorded) = self.count(trace, launches, CallKind::Graph, wanted);
        (all, all - recorded)
    }

    fn count(
        &self,
        trace: &NsysTrace,
        launches: &LaunchIndex,
        kind: CallKind,
        mut wanted: impl FnMut(i64, i64, u32) -> bool,
    ) -> (u64, u64) {
        let (mut all, mut recorded) = (0, 0);
        let mut cursor = Cursor::default();
        each_running(trace, kind, |at, call| {
            let instance =
                cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
            if wanted(call.global_tid, call.start_ns, instance) {
                all += 1;
                recorded += u64::from(self.0.contains(at));
            }
        });
        (all, recorded)
    }
}
