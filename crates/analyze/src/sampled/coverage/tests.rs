//! Coverage of samples on sketches of captures.

use llmprof_core::trace::{gpu_metrics::GpuMetric, timeline::Timeline};

use super::*;
use crate::kernels::tests::capture;

/// A capture of one stage with kernels from 1,000 to 2,000, and samples at these times.
fn sampled(times: impl IntoIterator<Item = i64>, rate_hz: Option<u32>) -> Timeline {
    let mut trace = capture(
        "range 1 prefill 0..100\ncall 1 1 1..2\ncall 1 2 3..4
         kernel 1 gemm 1000..1400 7\nkernel 2 gemm 1500..2000 7",
    );
    let mut device = DeviceSamples::new(0);
    times.into_iter().for_each(|at| device.push(at, GpuMetric::SmsActive, 50));
    device.finish();
    trace.samples = Some(GpuSamples { rate_hz, devices: vec![device], ..GpuSamples::default() });
    trace
}

fn only(trace: &Timeline) -> GpuSampleCoverage {
    let rows = stage_samples(&Capture::of(trace));
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.into_iter().next().unwrap().coverage
}

/// 10 MHz: a period of 100 ns.
const RATE: Option<u32> = Some(10_000_000);

#[test]
fn samples_from_before_the_first_kernel_to_after_the_last_span_a_stage() {
    let row = only(&sampled((0..40).map(|at| at * 100), RATE));
    assert!(row.is_spanned);
    assert_eq!((row.expected, row.samples, row.gaps, row.longest_gap_ms), (10, 10, 0, None));
    assert_eq!((row.covered_pct, row.window_ms), (Some(100.0), 0.001));
}

#[test]
fn samples_that_end_early_or_start_late_do_not_span_it() {
    let early = only(&sampled((0..17).map(|at| at * 100), RATE));
    assert_eq!((early.is_spanned, early.samples, early.gaps), (false, 7, 1));
    assert_eq!((early.covered_pct, early.longest_gap_ms), (Some(70.0), Some(0.0003)));
    let late = only(&sampled((15..40).map(|at| at * 100), RATE));
    assert_eq!((late.is_spanned, late.gaps), (false, 1));
    let outside = only(&sampled((50..90).map(|at| at * 100), RATE));
    assert_eq!((outside.samples, outside.gaps, outside.covered_pct), (0, 1, Some(0.0)));
    let none = only(&sampled([0], RATE));
    assert_eq!((none.is_spanned, none.gaps, none.covered_pct), (false, 1, Some(0.0)));
}

#[test]
fn an_earlier_sample_does_not_cover_the_start_of_a_stage() {
    let of = |removed: [i64; 2]| {
        let mut trace =
            sampled((0..80).filter(|at| !removed.contains(at)).map(|at| at * 100), RATE);
        trace.kernels = trace.kernels.map(|at, kernel| kernel.end_ns += 2_000 * at as i64);
        only(&trace)
    };
    let start = of([9, 10]);
    assert!(start.covered_pct.unwrap() > 90.0, "{start:?}");
    assert_eq!(start.problem, Some(SampleProblem::StartsLate));
    assert_eq!(of([38, 39]).problem, Some(SampleProblem::EndsEarly));
    assert_eq!(of([20, 30]).problem, None);
}

#[test]
fn a_distance_above_one_and_a_half_periods_is_a_gap() {
    let times = |removed: &[i64]| {
        (0..40).filter(|at| !removed.contains(at)).map(|at| at * 100).collect::<Vec<_>>()
    };
    let one = only(&sampled(times(&[13]), RATE));
    assert_eq!((one.gaps, one.longest_gap_ms, one.covered_pct), (1, Some(0.0001), Some(90.0)));
    let two = only(&sampled(times(&[13, 16]), RATE));
    assert_eq!((one.is_spanned, two.is_spanned), (true, false), "90 % of the time is covered");
    let jitter = only(&sampled((0..40).map(|at| at * 100 + (at % 3) * 20), RATE));
    assert_eq!((jitter.gaps, jitter.is_spanned), (0, true));
}

#[test]
fn an_unknown_rate_is_that_of_the_samples_and_an_overflow_disproves_all() {
    let mut trace = sampled((0..40).map(|at| at * 100), None);
    assert_eq!(only(&trace).rate_hz, 10_000_000);
    trace.samples.as_mut().unwrap().devices[0].overflowed = true;
    assert!(!only(&trace).is_spanned);
}

#[test]
fn stages_are_covered_by_the_samples_of_their_own_device() {
    let mut trace = sampled((0..40).map(|at| at * 100), RATE);
    let mut other = DeviceSamples::new(1);
    other.push(1500, GpuMetric::SmsActive, 1);
    trace.samples.as_mut().unwrap().devices.push(other);
    assert!(only(&trace).is_spanned, "no kernel ran on device 1");
    trace.kernels = trace.kernels.map(|_, kernel| kernel.device = 1);
    assert_eq!((only(&trace).device, only(&trace).is_spanned), (1, false));
}
