//! Waits before the first recorded work of a stream or device: a window opens while earlier work
//! still runs. Devices without a common clock have none.
//!
//! The first work that starts long after its launching call has ended waited in its queue: for work
//! from before the window, an upload or an event. The capture does not record the reason.

use std::collections::BTreeSet;

use llmprof_core::trace::timeline::{CallReader, ON_HOST};

use super::{
    activity::{Activity, Busy, DeviceWork, activities},
    capture::Capture,
    interval::{Interval, IntervalSet},
};

/// Least wait, nanoseconds: a launch alone takes some microseconds to start.
const LEAST_WAIT_NS: i64 = 100_000;

/// Selects the first work of each stream and device, from activities in the order of their starts.
pub struct FirstWork<'a> {
    capture: &'a Capture<'a>,
    /// By kind of kernel launches: whether it is the first of any.
    seen: Vec<bool>,
    streams: BTreeSet<(i64, u32, u32)>,
    devices: BTreeSet<(i64, u32)>,
}

impl<'a> FirstWork<'a> {
    pub fn of(capture: &'a Capture<'a>) -> Self {
        let seen = vec![false; capture.trace.kernels.kinds().len()];
        Self { capture, seen, streams: BTreeSet::new(), devices: BTreeSet::new() }
    }

    /// Start of this work's unrecorded wait.
    #[inline]
    pub fn waited_from(&mut self, work: &Activity, calls: &mut CallReader) -> Option<i64> {
        if let DeviceWork::Kernel(kind) = work.work
            && std::mem::replace(&mut self.seen[kind as usize], true)
        {
            return None;
        }
        self.first_waited_from(work, calls)
    }

    fn first_waited_from(&mut self, work: &Activity, calls: &mut CallReader) -> Option<i64> {
        // Copies count for their device only.
        let stream = match work.work {
            DeviceWork::Kernel(kind) => {
                Some(self.capture.trace.kernels.kinds()[kind as usize].stream)
            }
            DeviceWork::Graph => Some(self.capture.trace.graphs[work.row].stream),
            DeviceWork::Copy(_) | DeviceWork::Fill => None,
        };
        let is_first_of_stream =
            stream.is_some_and(|it| self.streams.insert((work.process, work.device, it)));
        let is_first = self.devices.insert((work.process, work.device)) || is_first_of_stream;
        let is_timed = self.capture.trace.has_common_clock(work.process, work.device);
        let call =
            (is_first && is_timed && work.join.has_call()).then(|| calls.get(work.join.call))?;
        (work.start_ns - call.end_ns >= LEAST_WAIT_NS).then_some(call.end_ns)
    }
}

/// Times in which the first work of a stream or device waited while the device ran nothing.
pub fn unrecorded_waits(capture: &Capture) -> IntervalSet {
    let mut first = FirstWork::of(capture);
    let mut calls = capture.trace.cuda_calls.reader();
    let mut devices: Vec<(u32, Busy)> = Vec::new();
    let mut waits: Vec<Interval> = Vec::new();
    for work in activities(capture).filter(|it| it.device != ON_HOST) {
        let from = first.waited_from(&work, &mut calls);
        let at = devices.iter().position(|it| it.0 == work.device).unwrap_or_else(|| {
            devices.push((work.device, Busy::default()));
            devices.len() - 1
        });
        let busy = &mut devices[at].1;
        waits.extend(from.and_then(|from| busy.idle_in((from, work.start_ns))));
        busy.add(work.start_ns, work.end_ns);
    }
    IntervalSet::new(waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    fn waits(sketch: &str) -> Vec<Interval> {
        let trace = capture(sketch);
        unrecorded_waits(&Capture::of(&trace)).intervals().to_vec()
    }

    #[test]
    fn the_first_work_of_a_stream_that_was_launched_long_before_it_started_waited() {
        let first = "call 1 1 10..20\ncall 1 2 30..40\nkernel 1 a 500000..500010 7";
        assert_eq!(waits(&format!("{first}\nkernel 2 a 900000..900010 7")), [(20, 500_000)]);
        let other = format!("{first}\nkernel 2 a 900000..900010 8");
        assert_eq!(waits(&other), [(20, 500_000), (500_010, 900_000)]);
    }

    #[test]
    fn a_short_wait_and_a_long_call_are_not_unrecorded_waits() {
        assert_eq!(waits("call 1 1 10..20\nkernel 1 a 90000..90010 7"), []);
        assert_eq!(waits("call 1 1 10..899000\nkernel 1 a 900000..900010 7"), []);
        assert_eq!(waits("kernel 1 a 900000..900010 7"), [], "without its call");
    }
}
