//! Completeness of samples: those expected at the configured rate against those present, in the
//! device time of each stage.
//!
//! A full buffer loses samples and nsys exits with 0, so a stage has sampled figures only if
//! samples span it. A sample's value is the mean over the period after its time.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{named_values::named_values, units::Nanos},
    trace::gpu_metrics::{DeviceSamples, GpuSamples},
};
use serde::{Deserialize, Serialize};

use super::displacement::displacement;
use crate::{
    kernels::is_measured,
    stats::{median_of, percent},
    timeline::{
        capture::Capture,
        interval::{Interval, extended, union},
    },
};

/// Distance of two samples, in periods, above which samples between them are missing.
const MAX_PERIODS: f64 = 1.5;
/// Min share of a stage's device time that samples cover, percent, for sampled figures.
const MIN_COVERED_PCT: f64 = 90.0;

/// Samples above this multiple of the expected ones contradict the rate.
const MAX_EXCESS: f64 = 1.1;

named_values! {
    /// Reason why samples of a stage are not used.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    SampleProblem {
        /// The buffer of samples overflowed.
        Overflow = "overflow",
        /// The samples are displaced in time.
        Displaced = "displaced",
        /// More samples than the rate gives.
        TooMany = "too_many",
        /// They start after the first kernel.
        StartsLate = "starts_late",
        /// They end before the last kernel.
        EndsEarly = "ends_early",
        /// They cover less than 90 % of the time.
        TooFew = "too_few",
    }
}

/// Samples of one device in one stage of one capture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSampleCoverage {
    pub stage: String,
    /// Index of the device.
    pub device: u32,
    /// Configured samples per second; the median of those present if it is unknown.
    pub rate_hz: u32,
    /// Time from the first kernel to the last, summed over the stage's instances.
    pub window_ms: f64,
    /// Samples that the rate gives for that time.
    pub expected: u64,
    /// Samples present.
    pub samples: u64,
    /// Distances of more than 1.5 periods between two samples.
    pub gaps: u64,
    pub longest_gap_ms: Option<f64>,
    /// Share of the time that samples cover, percent.
    pub covered_pct: Option<f64>,
    /// True if samples span the stage: from before its first kernel to after its last, 90 % of the
    /// time in between, without an overflow of their buffer, at their rate and in their place.
    pub is_spanned: bool,
    /// Reason why they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<SampleProblem>,
    /// Time by which the samples are late, if they are displaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_ms: Option<f64>,
}

/// Period of the samples of a device, nanoseconds; `None` for fewer than two samples of an unknown
/// rate.
pub fn period_ns(samples: &GpuSamples, device: &DeviceSamples) -> Option<f64> {
    if let Some(rate) = samples.rate_hz {
        return Some(1e9 / f64::from(rate));
    }
    median_of(device.times().windows(2).map(|pair| pair[1] - pair[0])).map(|ns| ns as f64)
}

/// Device time of each measured stage on one device: an interval for each instance, from the start
/// of its first kernel or graph to the end of its last.
pub fn stage_windows(capture: &Capture, device: u32) -> Vec<(String, Vec<Interval>)> {
    let mut windows: Vec<Option<Interval>> = vec![None; capture.stages.instances.len()];
    let kernels = capture.kernels();
    let kernels = kernels.map(|(it, join)| (it.device, (it.start_ns, it.end_ns), join.instance));
    let graphs = capture.graphs();
    let graphs = graphs.map(|(it, join)| (it.device, (it.start_ns, it.end_ns), join.instance));
    for (of, (start, end), instance) in kernels.chain(graphs) {
        if let Some(window) = windows.get_mut(instance as usize).filter(|_| of == device) {
            *window = Some(extended(*window, (start, end)));
        }
    }
    let labels = capture.stages.labels.iter().enumerate();
    let of_stage = |(label, stage): (usize, &String)| {
        let instances = capture.stages.instances.iter().zip(&windows);
        let of_label = instances.filter(|(it, _)| it.label == label);
        let windows = union(of_label.filter_map(|(_, window)| *window));
        (!windows.is_empty() && is_measured(stage)).then(|| (stage.clone(), windows))
    };
    labels.filter_map(of_stage).collect()
}

/// The samples of one stage on one device.
#[derive(Debug, Clone)]
pub struct StageSamples {
    pub coverage: GpuSampleCoverage,
    /// Device time of the stage.
    pub windows: Vec<Interval>,
}

/// Samples of all stages and devices of one capture.
pub fn stage_samples(capture: &Capture) -> Vec<StageSamples> {
    let Some(samples) = &capture.trace.samples else { return Vec::new() };
    let mut rows = Vec::new();
    for device in &samples.devices {
        let Some(period) = period_ns(samples, device) else { continue };
        let late_ns = displacement(capture.trace, device, period as i64);
        for (stage, windows) in stage_windows(capture, device.device) {
            let coverage = of_stage(stage, &windows, device, (period, late_ns));
            rows.push(StageSamples { coverage, windows });
        }
    }
    rows
}

/// Stages with kernels on devices that a capture with samples does not sample, by device.
pub fn unsampled(capture: &Capture) -> BTreeMap<u32, Vec<String>> {
    let Some(samples) = &capture.trace.samples else { return BTreeMap::new() };
    let kernels = capture.trace.kernels.kinds().iter().map(|it| it.device);
    let used: BTreeSet<u32> =
        kernels.chain(capture.trace.graphs.iter().map(|it| it.device)).collect();
    let is_unsampled = |used: &u32| !samples.devices.iter().any(|it| it.device == *used);
    let stages = |device: u32| -> Vec<String> {
        stage_windows(capture, device).into_iter().map(|(stage, _)| stage).collect()
    };
    let unsampled = used.into_iter().filter(is_unsampled).map(|device| (device, stages(device)));
    unsampled.filter(|(_, stages)| !stages.is_empty()).collect()
}

fn of_stage(
    stage: String,
    windows: &[Interval],
    device: &DeviceSamples,
    (period, late_ns): (f64, Option<i64>),
) -> GpuSampleCoverage {
    let mut sums = Sums::default();
    for window in windows {
        sums.add(device.times(), *window, period as i64);
    }
    let window: i64 = windows.iter().map(|(start, end)| end - start).sum();
    let covered_pct = percent(sums.covered as f64, window as f64);
    let expected = window as f64 / period;
    let problem = if device.overflowed {
        Some(SampleProblem::Overflow)
    } else if late_ns.is_some() {
        Some(SampleProblem::Displaced)
    } else if sums.samples as f64 > MAX_EXCESS * expected + 2.0 * windows.len() as f64 {
        Some(SampleProblem::TooMany)
    } else if sums.starts_late {
        Some(SampleProblem::StartsLate)
    } else if sums.ends_early {
        Some(SampleProblem::EndsEarly)
    } else if covered_pct.is_none_or(|pct| pct < MIN_COVERED_PCT) {
        Some(SampleProblem::TooFew)
    } else {
        None
    };
    GpuSampleCoverage {
        stage,
        device: device.device,
        rate_hz: (1e9 / period).round() as u32,
        window_ms: Nanos(window).as_ms(),
        expected: expected as u64,
        samples: sums.samples,
        gaps: sums.gaps,
        longest_gap_ms: (sums.gaps > 0).then(|| Nanos(sums.longest_gap).as_ms()),
        covered_pct,
        is_spanned: problem.is_none(),
        problem,
        late_ms: late_ns.map(|ns| Nanos(ns).as_ms()),
    }
}

/// Sums over the instances of a stage.
#[derive(Default)]
struct Sums {
    samples: u64,
    covered: i64,
    gaps: u64,
    longest_gap: i64,
    /// Start or end of a window is not covered, apart from half a period.
    starts_late: bool,
    ends_early: bool,
}

impl Sums {
    /// Adds the samples of one window; each covers the time to the next, or one period if the next
    /// is missing.
    fn add(&mut self, times: &[i64], (start, end): Interval, period: i64) {
        let max_step = (period as f64 * MAX_PERIODS) as i64;
        let first = times.partition_point(|at| *at <= start).saturating_sub(1);
        let last = times.partition_point(|at| *at < end);
        self.samples += times[first..last].iter().filter(|at| **at >= start).count() as u64;
        let (mut covered_from, mut covered_to) = (None, start);
        for at in first..last {
            let next = times.get(at + 1).copied().unwrap_or(i64::MAX);
            let step = next.saturating_sub(times[at]);
            let to = if step <= max_step { next } else { times[at] + period };
            if to <= start {
                continue;
            }
            self.gap(covered_to, times[at].min(end), period);
            let from = times[at].max(start);
            covered_from.get_or_insert(from);
            self.covered += to.min(end) - from;
            covered_to = to;
        }
        self.gap(covered_to, end, period);
        // Samples that all lie before the window end early.
        let from = covered_from.or_else(|| times.get(first).copied());
        self.starts_late |= from.is_none_or(|from| from > start + period / 2);
        self.ends_early |= covered_to + period / 2 < end;
    }

    /// Counts a time without samples, unless it is less than half a period.
    fn gap(&mut self, from: i64, to: i64, period: i64) {
        if to - from > period / 2 {
            self.gaps += 1;
            self.longest_gap = self.longest_gap.max(to - from);
        }
    }
}

#[cfg(test)]
mod tests;
