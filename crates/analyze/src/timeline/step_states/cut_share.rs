//! Share of the recorded GPU time that no table of steps contains, because the recording cuts the
//! steps which launched it.

use crate::{
    stats::percent,
    timeline::{activity::activities, capture::Capture, interval::Interval, steps_at::StepsAt},
};

/// Sum of the kernels, graphs and copies that these steps launched over the sum of all, percent.
/// `None` without such steps, and if work has no times.
pub fn gpu_time_pct(capture: &Capture, steps: &[(i64, Interval)]) -> Option<f64> {
    if steps.is_empty() || capture.trace.lacks_times() {
        return None;
    }
    let steps_at = StepsAt::of(steps);
    let (mut calls, mut open) = (capture.trace.cuda_calls.reader(), steps_at.lookup());
    let (mut of_steps, mut all) = (0_i64, 0_i64);
    for it in activities(capture) {
        let ns = it.end_ns.saturating_sub(it.start_ns);
        all = all.saturating_add(ns);
        if it.join.has_call() {
            let call = calls.get(it.join.call);
            let is_of_step = open.at(call.global_tid, call.start_ns).is_some();
            of_steps += if is_of_step { ns } else { 0 };
        }
    }
    percent(of_steps as f64, all as f64)
}
