//! Work of steps on devices.

use crate::timeline::{
    activity::{self, Busy, activities},
    capture::{Capture, Join},
    interval::{Interval, IntervalSet, extended},
    open_ranges::EXCLUDED,
    steps_at::StepsAt,
};

/// Work of one step on devices, in the order of its starts.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::timeline) struct DeviceWork {
    /// First start and last end on devices with a common clock, of kernels, whole graphs, copies
    /// and fills: a step lasts until all of these have ended, as a stage does.
    pub window: Option<Interval>,
    /// Time in which some of it ran.
    pub(super) busy_ns: i64,
    busy: Busy,
    /// Part of the window that a range filter leaves out; nothing in it is busy time.
    excluded_ns: i64,
    pub(super) kernels: u64,
    pub(super) graphs: u64,
    pub(super) is_replayed: bool,
    /// True if some of it ran on a device without a common clock.
    pub(super) is_untimed: bool,
}

impl DeviceWork {
    /// True with a kernel or graph.
    pub const fn has_any(&self) -> bool {
        self.kernels + self.graphs > 0
    }

    /// Adds work; `excluded` are the parts of the step that a range filter leaves out.
    fn add(&mut self, (start, end): Interval, excluded: Option<&IntervalSet>) {
        let (from, to) = self.busy.add(start, end);
        let left_out = excluded.map_or(0, |it| it.overlap_ns(from, to));
        self.busy_ns = self.busy_ns.saturating_add(to - from - left_out);
        self.window = Some(extended(self.window, (start, end)));
    }

    /// From the first start to the last end, without the parts that a range filter leaves out.
    pub(super) fn window_ns(&self) -> Option<i64> {
        self.window.map(|(first, last)| (last - first - self.excluded_ns).max(0))
    }
}

/// First start and last end of the work that was launched during each step, given as thread and
/// times, in the order of their starts; `None` if some ran on a device without a common clock.
pub fn work_windows(capture: &Capture, steps: &[(i64, Interval)]) -> Option<Vec<Option<Interval>>> {
    let work = device_work(capture, steps);
    work.iter().map(|it| (!it.is_untimed).then_some(it.window)).collect()
}

/// The work that was launched during each step, on its thread or, for a process, on all of its
/// threads. If several steps are open at once, the one that started last has the work.
pub(in crate::timeline) fn device_work(
    capture: &Capture,
    steps: &[(i64, Interval)],
) -> Vec<DeviceWork> {
    let steps_at = StepsAt::of(steps);
    let (mut calls, mut open) = (capture.trace.cuda_calls.reader(), steps_at.lookup());
    let mut step_of = |join: Join| {
        if !join.has_call() || join.instance == EXCLUDED {
            return None;
        }
        let call = calls.get(join.call);
        open.at(call.global_tid, call.start_ns)
    };
    let mut work = vec![DeviceWork::default(); steps.len()];
    let parts = |(place, range): &(i64, Interval)| capture.stages.excluded_in(*place, *range);
    let excluded: Vec<IntervalSet> = match capture.trace.rules.narrowed() {
        true => steps.iter().map(parts).collect(),
        false => vec![],
    };
    for it in activities(capture) {
        let Some(at) = step_of(it.join) else { continue };
        let work = &mut work[at];
        let is_timed = capture.trace.has_common_clock(it.process, it.device);
        if is_timed {
            work.add((it.start_ns, it.end_ns), excluded.get(at));
        }
        if it.is_transfer() {
            continue;
        }
        let is_graph = it.work == activity::DeviceWork::Graph;
        work.is_untimed |= !is_timed;
        work.graphs += u64::from(is_graph);
        work.kernels += u64::from(!is_graph);
        work.is_replayed |= is_graph || it.graph_node.is_some();
    }
    for (work, excluded) in work.iter_mut().zip(&excluded) {
        let window = work.window.unwrap_or_default();
        work.excluded_ns = excluded.overlap_ns(window.0, window.1);
    }
    work
}
