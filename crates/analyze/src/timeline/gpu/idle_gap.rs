//! Events of a GPU in the windows of stages: work, and idle gaps with their reasons.

use llmprof_core::trace::{interval::Interval, timeline::ApiCall};

use super::{
    super::activity::Activity,
    waits::{GapReasons, HostWaits},
};

/// An event on one GPU.
pub enum LaneEvent<'a> {
    Gap(&'a IdleGap<'a>),
    /// Work of the stage of this cell, and the start of the call that launched it.
    Work {
        cell: usize,
        work: &'a Activity,
        launched_ns: i64,
    },
    /// Work without a launching call.
    Unattributed(&'a Activity),
}

/// Idle time inside the window of one cell.
pub struct IdleGap<'a> {
    pub cell: usize,
    pub from: i64,
    pub to: i64,
    pub reasons: GapReasons,
    /// Part of the unknown reasons that is an unrecorded wait.
    pub unrecorded_ns: i64,
    /// The call that launched the work that ended the gap; without that work, the thread of the
    /// last launch.
    pub call: Option<ApiCall>,
    pub last_thread: Option<i64>,
    /// Waiting and copying calls of all threads.
    pub waits: &'a HostWaits,
    /// The work that ended last before the gap, and the work that ended the gap.
    pub before: Option<Activity>,
    pub after: Option<&'a Activity>,
}

impl IdleGap<'_> {
    /// Calls `take` with each part of the gap whose reason is the host, and the thread for whose
    /// launch the GPU waited.
    pub fn each_host_part(&self, mut take: impl FnMut(i64, Interval)) {
        let thread = self.call.map(|it| it.global_tid).or(self.last_thread);
        let Some(thread) = thread.filter(|_| self.reasons.all.host > 0) else { return };
        let gap = (self.from, self.to);
        let known = (self.from, self.to - self.unrecorded_ns);
        let copy = self.after.is_some_and(Activity::is_transfer);
        let of_thread = |part| take(thread, part);
        self.waits.each_host_part((known, gap), self.call, copy, self.last_thread, of_thread);
    }
}
