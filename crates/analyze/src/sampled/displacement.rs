//! Displacement of samples in time against the work of their device.
//!
//! The activity of the SMs follows the time in which the device has work. If it follows that much
//! better when all samples are moved, their times are wrong, and so is every attribution.

use std::ops::Range;

use llmprof_core::trace::{
    gpu_metrics::{DeviceSamples, GpuMetric},
    timeline::Timeline,
};

use super::rows::DELAY_NS;
use crate::timeline::interval::{Interval, IntervalSet, extended};

/// Maximum displacement that is found, nanoseconds.
const MAX_LAG_NS: i64 = 5_000_000;
/// Maximum number of lags in either direction.
const LAGS: i64 = 64;
/// Maximum number of samples that are compared, in blocks of consecutive ones.
const MAX_SAMPLES: usize = 4_096;
const BLOCK: usize = 256;
/// Share of the variance that has to be explained at another lag, and the unexplained share over
/// that in place. On an H200 this is 1.00 for samples in place, 0.55 for samples that are a period
/// late at 10 kHz, and 0.73 at 20 kHz.
const MIN_EXPLAINED: f64 = 0.4;
const MAX_RATIO: f64 = 0.85;

/// Time by which the samples of a device are late, nanoseconds; `None` if they are in place, or the
/// capture cannot show it.
pub fn displacement(trace: &Timeline, device: &DeviceSamples, period_ns: i64) -> Option<i64> {
    if !device.has(GpuMetric::SmsActive) || period_ns <= 0 {
        return None;
    }
    let blocks = blocks(device.times(), working_time(trace, device.device)?);
    let busy = busy_time(trace, device, &blocks, period_ns);
    let explained = |lag_ns: i64| explained(&busy, device, &blocks, (period_ns, lag_ns));
    // A sample's period follows its time or precedes it.
    let in_place = explained(0).max(explained(-period_ns));
    let step = period_ns.max(MAX_LAG_NS / LAGS);
    let lags = (-MAX_LAG_NS / step..=MAX_LAG_NS / step).map(|at| at * step);
    let (best, lag) = lags
        .map(|lag| (explained(lag), lag))
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.abs().cmp(&a.1.abs())))?;
    let is_displaced = best >= MIN_EXPLAINED && 1.0 - best < MAX_RATIO * (1.0 - in_place);
    is_displaced.then_some(-lag)
}

/// From the first to the last work of a device.
fn working_time(trace: &Timeline, device: u32) -> Option<Interval> {
    let kernels = trace.kernels.iter().filter(|it| it.device == device);
    let kernels = kernels.map(|it| (it.start_ns, it.end_ns));
    let graphs = trace.graphs.iter().filter(|it| it.device == device);
    let all = kernels.chain(graphs.map(|it| (it.start_ns, it.end_ns)));
    all.fold(None, |window, work| Some(extended(window, work)))
}

/// Samples near the work of the device, evenly chosen blocks of them if there are many.
fn blocks(times: &[i64], (start, end): Interval) -> Vec<Range<usize>> {
    let first = times.partition_point(|at| *at < start - MAX_LAG_NS);
    let last = times.partition_point(|at| *at <= end + MAX_LAG_NS);
    let count = (last - first).div_ceil(BLOCK);
    let every = count.div_ceil(MAX_SAMPLES / BLOCK).max(1);
    let block = |at: usize| first + at * BLOCK..(first + (at + 1) * BLOCK).min(last);
    (0..count).step_by(every).map(block).collect()
}

/// Time in which a device has work, near the blocks.
fn busy_time(
    trace: &Timeline,
    device: &DeviceSamples,
    blocks: &[Range<usize>],
    period_ns: i64,
) -> IntervalSet {
    let margin = MAX_LAG_NS + 2 * period_ns;
    let near = |it: &Range<usize>| {
        let times = &device.times()[it.clone()];
        Some((times.first()? - margin, times.last()? + margin))
    };
    let near = IntervalSet::new(blocks.iter().filter_map(near));
    let number = device.device;
    let kernels = trace.kernels.iter().filter(|it| it.device == number);
    let kernels = kernels.map(|it| (it.start_ns, it.end_ns));
    let graphs = trace.graphs.iter().filter(|it| it.device == number);
    let copies = trace.copies.iter().filter(|it| it.device == number);
    let all = kernels
        .chain(graphs.map(|it| (it.start_ns, it.end_ns)))
        .chain(copies.map(|it| (it.start_ns, it.end_ns)));
    IntervalSet::new(all.filter(|(start, end)| near.overlap_ns(*start, *end) > 0))
}

/// Share of the variance of the activity that the time with work explains, if all samples are moved
/// by `lag_ns`; 0 if they are not proportional.
fn explained(
    busy: &IntervalSet,
    device: &DeviceSamples,
    blocks: &[Range<usize>],
    (period_ns, lag_ns): (i64, i64),
) -> f64 {
    let (mut n, mut x, mut y, mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    let mut near = 0;
    for at in blocks.iter().cloned().flatten() {
        let Some(value) = device.value(at, GpuMetric::SmsActive) else { continue };
        let from = device.times()[at] + DELAY_NS + lag_ns;
        let busy = busy.overlap_near(from, from + period_ns, &mut near) as f64;
        let value = f64::from(value);
        n += 1.0;
        x += busy;
        y += value;
        xx += busy * busy;
        xy += busy * value;
        yy += value * value;
    }
    let (covariance, variances) = (n * xy - x * y, (n * xx - x * x) * (n * yy - y * y));
    if covariance <= 0.0 || variances <= 0.0 { 0.0 } else { covariance * covariance / variances }
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::kernel::Kernel;
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::tests::capture;

    const PERIOD_NS: i64 = 50_000;

    /// A capture with kernels of these lengths after these gaps, and samples that are `late_ns`
    /// late.
    fn sampled(kernels: &[(i64, i64)], late_ns: i64) -> (Timeline, DeviceSamples) {
        let mut trace = capture("kernel 1 gemm 0..1 7");
        let template = Kernel::from(trace.kernels.get(0));
        trace.kernels.truncate(0);
        let mut end_ns = 1_000_000;
        for (gap, ns) in kernels {
            let start_ns = end_ns + gap;
            end_ns = start_ns + ns;
            trace.kernels.push(Kernel { start_ns, end_ns, ..template });
        }
        let work: Vec<Interval> = trace.kernels.iter().map(|it| (it.start_ns, it.end_ns)).collect();
        let mut samples = DeviceSamples::new(template.device);
        let mut first = 0;
        for at in 0..(end_ns + 2_000_000) / PERIOD_NS {
            let (from, to) = (at * PERIOD_NS, (at + 1) * PERIOD_NS);
            first += work[first..].iter().take_while(|it| it.1 <= from).count();
            let inside = work[first..].iter().take_while(|it| it.0 < to);
            let busy: i64 = inside.map(|it| it.1.min(to) - it.0.max(from)).sum();
            // Kernels differ in the SMs that they use.
            let pct = 100 * busy / PERIOD_NS * (60 + at % 40) / 100;
            samples.push(from - DELAY_NS + late_ns, GpuMetric::SmsActive, pct as u16);
        }
        samples.finish();
        (trace, samples)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn samples_in_place_are_not_displaced_and_moved_ones_are(
            kernels in prop::collection::vec((0i64..600_000, 20_000i64..600_000), 30..120),
            late_ns in prop::sample::select(vec![-3_000_000i64, -400_000, 250_000, 2_000_000]),
        ) {
            let found = |late_ns| {
                let (trace, samples) = sampled(&kernels, late_ns);
                displacement(&trace, &samples, PERIOD_NS)
            };
            prop_assert_eq!(found(0), None);
            prop_assert_eq!(found(PERIOD_NS), None, "the period before the time of a sample");
            let found = found(late_ns).unwrap();
            prop_assert!((found - late_ns).abs() <= MAX_LAG_NS / LAGS, "{} {}", found, late_ns);
        }
    }

    #[test]
    fn a_device_that_is_always_busy_or_has_no_activity_shows_no_displacement() {
        let (trace, samples) = sampled(&[(0, 20_000_000)], 1_000_000);
        let mut inside = DeviceSamples::new(samples.device);
        for at in 100..200 {
            inside.push(samples.times()[at], GpuMetric::SmsActive, 80);
        }
        inside.finish();
        assert_eq!(displacement(&trace, &inside, PERIOD_NS), None);
        assert_eq!(displacement(&trace, &DeviceSamples::new(samples.device), PERIOD_NS), None);
    }
}
