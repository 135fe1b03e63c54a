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
    /// The work that ended last before the gap, and the work that ended the gap.
    pub before: Option<Activity>,
    pub after: Option<&'a Activity>,
}

impl IdleGap<'_> {
    /// The thread whose launch the GPU waited for.
    pub fn thread(&self) -> Option<i64> {
        self.call.map(|it| it.global_tid).or(self.last_thread)
    }

    /// True if a copy or fill ended the gap.
    fn ends_with_copy(&self) -> bool {
        self.after.is_some_and(Activity::is_transfer)
    }

    /// Calls `take` with each part of the gap whose reason is the host.
    pub fn each_host_part(&self, waits: &HostWaits, take: impl FnMut(Interval)) {
        let gap = (self.from, self.to);
        let known = (self.from, self.to - self.unrecorded_ns);
        waits.each_host_part(
            (known, gap),
            self.call,
            self.ends_with_copy(),
            self.last_thread,
            take,
        );
    }
}
