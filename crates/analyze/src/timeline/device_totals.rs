//! Work of the devices over a whole capture: the answer of a capture without stages.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        units::{Nanos, quantity},
    },
    trace::timeline::{CopyKind, ON_HOST, process_of},
};
use serde::{Deserialize, Serialize};

use super::{
    activity::{Activity, Busy, DeviceWork, activities},
    capture::{Capture, Join},
    interval::{Interval, extended},
    withheld::{TimelineFigure, Withheld},
};
use crate::{
    stages::{Stages, coverage::FirstCalls},
    stats::percent,
};

/// Work of all devices, from the first recorded work to the last.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceTotals {
    /// Devices with work.
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub devices: u64,
    /// Time from the start of the first work to the end of the last, milliseconds.
    pub window_ms: f64,
    /// Time in which a device ran at least one kernel, copy, fill or whole-traced graph, summed
    /// over devices, milliseconds.
    pub busy_ms: f64,
    /// Share of `busy_ms` in the window of all devices, percent; `null` if too many kernels have no
    /// valid time.
    pub busy_pct: Option<f64>,
    /// The same share of the least busy device, percent.
    #[serde(default)]
    pub min_busy_pct: Option<f64>,
    /// The same share of the busiest device, percent.
    #[serde(default)]
    pub max_busy_pct: Option<f64>,
    /// Kernels with a valid time; the times are of these.
    pub kernels: u64,
    /// Kernels without a valid time.
    #[serde(default)]
    pub untimed_kernels: u64,
    /// Sum of their durations, milliseconds.
    pub kernel_ms: f64,
    /// Kernels among `kernels` that were launched before the first recorded call of their process.
    #[serde(default)]
    pub kernels_before: u64,
    /// Sum of their durations, milliseconds.
    #[serde(default)]
    pub kernel_before_ms: f64,
    /// Launches of graphs traced as a whole.
    pub whole_graphs: u64,
    /// Copies and fills, longest first.
    pub transfers: Vec<TransferTotal>,
}

impl DeviceTotals {
    /// Removes the figures that are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        if withheld.has_in_capture(TimelineFigure::DevicesBusy) {
            (self.busy_pct, self.min_busy_pct, self.max_busy_pct) = (None, None, None);
        }
    }
}

/// Copies of one direction, or fills.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TransferTotal {
    /// `host_to_device`, `device_to_host`, `device_to_device`, `set` or `other`.
    #[cfg_attr(feature = "schema", schema(example = "host_to_device"))]
    pub kind: String,
    pub calls: u64,
    pub bytes: u64,
    /// Sum of their durations, milliseconds.
    pub total_ms: f64,
}

/// Sums all work of a capture.
pub fn device_totals(capture: &Capture) -> DeviceTotals {
    let mut busy: BTreeMap<u32, Busy> = BTreeMap::new();
    let mut window: Option<Interval> = None;
    let mut transfers: BTreeMap<CopyKind, (u64, u64, i64)> = BTreeMap::new();
    let mut totals = DeviceTotals::default();
    let mut kernel_ns: i64 = 0;
    for it in activities(capture).filter(|it| it.device != ON_HOST) {
        let Activity { start_ns, end_ns, device, work, row, .. } = it;
        window = Some(extended(window, (start_ns, end_ns)));
        busy.entry(device).or_default().add(start_ns, end_ns);
        let ns = end_ns - start_ns;
        match work {
            DeviceWork::Kernel(_) => {
                totals.kernels += 1;
                kernel_ns = kernel_ns.saturating_add(ns);
            }
            DeviceWork::Graph => totals.whole_graphs += 1,
            DeviceWork::Copy(_) | DeviceWork::Fill => {
                let copy = &capture.trace.copies[row];
                let sum = transfers.entry(copy.kind).or_default();
                *sum = (sum.0 + 1, sum.1.saturating_add(copy.bytes), sum.2.saturating_add(ns));
            }
        }
    }
    let (kernels_before, kernel_before_ns) = launched_before(capture);
    let (start, end) = window.unwrap_or_default();
    let busy_ns = busy.values().fold(0i64, |sum, it| sum.saturating_add(it.ns));
    let is_timed = !capture.trace.lacks_times();
    let share = |ns: i64| percent(ns as f64, (end - start) as f64).filter(|_| is_timed);
    let shares = || busy.values().filter_map(|it| share(it.ns));
    let mut transfers: Vec<_> = transfers.into_iter().collect();
    transfers.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.2));
    let transfer = |(kind, (calls, bytes, ns)): (CopyKind, _)| TransferTotal {
        kind: kind.as_str().into(),
        calls,
        bytes,
        total_ms: Nanos(ns).as_ms(),
    };
    DeviceTotals {
        devices: busy.len() as u64,
        window_ms: Nanos(end - start).as_ms(),
        busy_ms: Nanos(busy_ns).as_ms(),
        busy_pct: percent(busy_ns as f64, (end - start) as f64 * busy.len() as f64)
            .filter(|_| is_timed),
        min_busy_pct: shares().reduce(f64::min),
        max_busy_pct: shares().reduce(f64::max),
        untimed_kernels: capture.trace.untimed.kernels.len() as u64,
        kernel_ms: Nanos(kernel_ns).as_ms(),
        kernels_before,
        kernel_before_ms: Nanos(kernel_before_ns).as_ms(),
        transfers: transfers.into_iter().map(transfer).collect(),
        ..totals
    }
}

/// Min part of the kernel time, percent, of earlier launches that a capture with stages names.
const NAMED_BEFORE_PCT: f64 = 1.0;

/// Names the kernels that were launched before the recording.
pub fn before_recording(capture: &Capture, stages: &Stages) -> Option<Finding> {
    let (before, before_ns) = launched_before(capture);
    let on_gpus = capture.kernels().filter(|(it, _)| it.device != ON_HOST);
    let (all, all_ns) = on_gpus
        .fold((0, 0), |(count, ns): (u64, i64), (it, _)| (count + 1, ns.saturating_add(it.ns())));
    let pct = percent(before_ns as f64, all_ns as f64).unwrap_or_default();
    if before == 0 || (!stages.rows.is_empty() && pct < NAMED_BEFORE_PCT) {
        return None;
    }
    let ms = |ns: i64| digits::figure(Nanos(ns).as_ms());
    let (was, them) = if before == 1 { ("was", "it") } else { ("were", "them") };
    let message = format!(
        "{} of {} {was} launched before the start of the recording ({} of {} ms): no call shows \
         what launched {them}.",
        digits::count(before),
        quantity(all, "kernel"),
        ms(before_ns),
        ms(all_ns),
    );
    Some(Finding::new(catalogue::WORK_BEFORE_RECORDING, message))
}

/// Number and time of the kernels that were launched before the first recorded call of their
/// process.
fn launched_before(capture: &Capture) -> (u64, i64) {
    if capture.kernel_joins().all(Join::has_call) {
        return (0, 0);
    }
    let first = FirstCalls::of(capture.trace);
    let orphans = capture.kernels().filter(|(it, by)| it.device != ON_HOST && !by.has_call());
    let before =
        orphans.filter(|(it, _)| first.is_before(process_of(it.global_pid), it.correlation_id));
    before.fold((0, 0), |(count, ns): (u64, i64), (it, _)| {
        (count + 1, ns.saturating_add(it.end_ns - it.start_ns))
    })
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::Trace;

    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn work_of_a_capture_counts_once_where_it_overlaps() {
        let trace = capture("kernel 1 a 1000000..3000000 7\nkernel 2 b 2000000..5000000 8");
        let totals = device_totals(&Capture::of(&trace));
        assert_eq!((totals.window_ms, totals.busy_ms, totals.kernel_ms), (4.0, 4.0, 5.0));
        assert_eq!((totals.busy_pct, totals.kernels, totals.devices), (Some(100.0), 2, 1));
        assert_eq!(totals.kernels_before, 0, "their calls are missing");
        let idle = capture("range 1 a 1..2");
        assert_eq!(device_totals(&Capture::of(&idle)), DeviceTotals::default());
    }

    #[test]
    fn the_least_and_the_most_busy_device_have_shares_of_the_window_of_all() {
        let mut trace = capture("kernel 1 a 0..4000000 7\nkernel 2 b 1000000..2000000 8");
        trace.kernels = trace.kernels.map(|at, it| it.device = at as u32);
        let totals = device_totals(&Capture::of(&trace));
        assert_eq!((totals.devices, totals.busy_pct), (2, Some(62.5)));
        assert_eq!((totals.min_busy_pct, totals.max_busy_pct), (Some(25.0), Some(100.0)));
    }

    #[test]
    fn kernels_that_were_launched_before_the_recording_are_named_with_and_without_stages() {
        let found = |sketch: &str| {
            let trace = Trace { timeline: Some(capture(sketch)), ..Trace::default() };
            let found = crate::analyze(&trace, None, None).findings.into_iter();
            found.filter(|it| it.id == "work_before_recording").map(|it| it.message.clone()).next()
        };
        let work = "kernel 7 a 0..2000000 7\ncall 1 9 3000000..3000001
            kernel 9 b 4000000..5000000 7";
        let message = "1 of 2 kernels was launched before the start of the recording (2.00 of \
                       3.00 ms): no call shows what launched it.";
        let stage = "range 1 prefill 2900000..6000000";
        for (case, expected) in [
            (work.to_owned(), Some(message)),
            (format!("{work}\n{stage}"), Some(message)),
            (format!("{}\n{stage}", work.replace("0..2000000", "0..1000")), None),
            (work.replace("kernel 7", "kernel 12"), None),
        ] {
            assert_eq!(found(&case).as_deref(), expected, "{case}");
        }
    }

    #[test]
    fn kernels_that_were_launched_before_the_first_call_are_counted_apart() {
        let before = |sketch: &str| {
            let trace = capture(sketch);
            let totals = device_totals(&Capture::of(&trace));
            (totals.kernels, totals.kernels_before, totals.kernel_before_ms)
        };
        let own = "call 1 9 4000000..4100000\nkernel 9 b 5000000..6000000 7";
        assert_eq!(before(own), (1, 0, 0.0));
        let earlier = format!("kernel 7 a 0..2000000 7\n{own}");
        assert_eq!(before(&earlier), (2, 1, 2.0));
        let lost = format!("kernel 12 a 0..2000000 7\n{own}");
        assert_eq!(before(&lost), (2, 0, 0.0), "its call is missing");
    }
}
