//! The launches of a capture, and those whose kernel is recorded.
//!
//! A launch into a stream under graph capture runs nothing and is not counted.

use llmprof_core::trace::runtime_call::CallKind;

use crate::timeline::{
    capture::{Capture, Join},
    launches::CallSet,
};

/// The launches of a capture; by call, whether a kernel of it is recorded.
pub struct CaptureLaunches(CallSet);

impl CaptureLaunches {
    /// Joins the calls of a capture to their kernels.
    pub fn of(capture: &Capture) -> Self {
        let mut recorded = CallSet::below(capture.trace.cuda_calls.len());
        let called = capture.kernel_joins().filter(|it| it.has_call());
        called.for_each(|Join { call, .. }| recorded.insert(call));
        Self(recorded)
    }

    /// Launches of single kernels that `wanted` selects by thread, time and instance of a stage;
    /// and the launches with a recorded kernel.
    pub fn kernels(
        &self,
        capture: &Capture,
        wanted: impl FnMut(i64, i64, u32) -> bool,
    ) -> (u64, u64) {
        self.count(capture, CallKind::Kernel, wanted)
    }

    /// Graph launches in counted instances, and the ones without a kernel.
    pub fn graphs(&self, capture: &Capture, counted: &impl Fn(u32) -> bool) -> (u64, u64) {
        let wanted = |_, _, instance| counted(instance);
        let (all, recorded) = self.count(capture, CallKind::Graph, wanted);
        (all, all - recorded)
    }

    fn count(
        &self,
        capture: &Capture,
        kind: CallKind,
        mut wanted: impl FnMut(i64, i64, u32) -> bool,
    ) -> (u64, u64) {
        let (mut all, mut recorded) = (0, 0);
        capture.each_running(kind, |at, call, instance| {
            if wanted(call.global_tid, call.start_ns, instance) {
                all += 1;
                recorded += u64::from(self.0.contains(at));
            }
        });
        (all, recorded)
    }
}
