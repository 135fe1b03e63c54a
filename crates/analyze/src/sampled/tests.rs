//! Sampled metrics of synthetic timelines with known values.

use std::collections::BTreeMap;

use llmprof_core::trace::{
    gpu_metrics::{DeviceSamples, GpuMetric, GpuSamples},
    kernel::Kernel,
    timeline::{GraphLaunch, Timeline},
};
use proptest::prelude::*;

use super::*;
use crate::kernels::tests::capture;
use figures::SampledValue;

mod mixed_work;

const PERIOD_NS: i64 = 20_000;

/// A timeline whose kernels repeat in order, with the metric's value of each.
#[derive(Debug, Clone)]
struct Synthetic {
    /// Duration in nanoseconds and value of each kernel of one step.
    kernels: Vec<(i64, f64)>,
    steps: usize,
    gap_ns: i64,
    /// Delay between a sample's time and its period.
    delay_ns: i64,
    /// Time at the start and at the end of each kernel in which it does nothing.
    idle_ns: i64,
    /// Standard deviation of a kernel's value over its launches.
    noise: f64,
    device: u32,
    metric: GpuMetric,
    /// Work of each kernel that counts in the time of the next one, nanoseconds at the peak rate.
    late_ns: f64,
}

/// A generator of numbers between -1 and 1, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as f64 / f64::from(u32::MAX >> 2) - 1.0
    }

    /// Roughly normal, with deviation 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() / 2.0
    }
}

impl Synthetic {
    fn of(kernels: &[(i64, f64)]) -> Self {
        let delay_ns = rows::DELAY_NS;
        let kernels = kernels.to_vec();
        Self {
            kernels,
            steps: 400,
            gap_ns: 3_300,
            delay_ns,
            idle_ns: 0,
            noise: 0.0,
            device: 0,
            metric: GpuMetric::DramRead,
            late_ns: 0.0,
        }
    }

    /// The capture, one stage `decode_all`, with samples of the metric.
    fn capture(&self) -> Timeline {
        let mut trace = capture("range 1 decode_all 0..100\ncall 1 1 1..2");
        trace.strings = (0..self.kernels.len()).map(|at| format!("kernel_{at}")).collect();
        trace.strings.push("cudaLaunchKernel".into());
        let (mut noise, mut now) = (Noise(7), 1_000_000);
        let (mut runs, mut held) = (Vec::new(), 0.0);
        for _ in 0..self.steps {
            for (at, (ns, value)) in self.kernels.iter().enumerate() {
                let ns = ns + (noise.next() * *ns as f64 * 0.02) as i64;
                // The value is the mean over the whole time of the kernel.
                let working = (ns - 2 * self.idle_ns) as f64 / ns as f64;
                let value = (value + noise.normal() * self.noise) / working;
                let work = value * ns as f64;
                let late = work.min(100.0 * self.late_ns);
                let value = (work - late + std::mem::replace(&mut held, late)) / ns as f64;
                runs.push((now + self.idle_ns, now + ns - self.idle_ns, value));
                trace.kernels.push(self.kernel(at as u32, now, now + ns));
                now += ns + self.gap_ns + (noise.next() * 400.0) as i64;
            }
        }
        let mut samples = DeviceSamples::new(self.device);
        let (mut first, mut time) = (0, 0);
        while time < now + 1_000_000 {
            let (from, to) = (time + self.delay_ns, time + self.delay_ns + PERIOD_NS);
            while runs.get(first).is_some_and(|run| run.1 <= from) {
                first += 1;
            }
            let inside = runs[first..].iter().take_while(|run| run.0 < to);
            let sum: f64 = inside.map(|run| (run.1.min(to) - run.0.max(from)) as f64 * run.2).sum();
            // As nsys rounds: what is above 0 is at least 1.
            let value = sum / PERIOD_NS as f64;
            let value = if value > 0.0 { value.round().max(1.0) } else { 0.0 };
            samples.push(time, self.metric, value as u16);
            time += PERIOD_NS;
        }
        samples.finish();
        trace.samples = Some(GpuSamples {
            rate_hz: Some((1e9 / PERIOD_NS as f64) as u32),
            devices: vec![samples],
            ..GpuSamples::default()
        });
        trace
    }

    fn kernel(&self, name: u32, start_ns: i64, end_ns: i64) -> Kernel {
        let template = Kernel::from(capture("kernel 1 gemm 5..6 7").kernels.get(0));
        Kernel { name, full_name: name, device: self.device, start_ns, end_ns, ..template }
    }
}

fn analysed(captures: Vec<Timeline>) -> SampledMetrics {
    sampled_metrics(&Trace { sampled: captures, ..Trace::default() }, None)
}

/// Ids of the findings, without the one on metrics that the captures here lack.
fn problems(sampled: &SampledMetrics) -> Vec<&str> {
    let ids = sampled.findings.iter().map(|it| it.id.as_str());
    ids.filter(|id| *id != "gpu_metrics_lacking").collect()
}

/// Values by number of the kernel.
fn values(sampled: &SampledMetrics) -> BTreeMap<usize, SampledValue> {
    let value = |it: &SampledKernel| {
        let number = it.kernel_name.strip_prefix("kernel_").unwrap().parse().unwrap();
        Some((number, *it.metrics.values().next()?))
    };
    sampled.kernels.iter().filter_map(value).collect()
}

/// Values inside their interval and all values: of kernels, and of groups by the mean over the
/// time of their members.
fn contained(kernels: &[(i64, f64)], values: &BTreeMap<usize, SampledValue>) -> (usize, usize) {
    let truth = |members: &[usize]| {
        let time: f64 = members.iter().map(|at| kernels[*at].0 as f64).sum();
        members.iter().map(|at| kernels[*at].0 as f64 * kernels[*at].1).sum::<f64>() / time
    };
    let is_inside = |(at, value): &(&usize, &SampledValue)| {
        let members: Vec<usize> = match value.group.filter(|_| value.is_group_mean) {
            Some(group) => {
                let in_group = values.iter().filter(|(_, it)| it.group == Some(group));
                in_group.map(|(at, _)| *at).collect()
            }
            None => vec![**at],
        };
        (value.pct - truth(&members)).abs() <= value.half_width
    };
    (values.iter().filter(is_inside).count(), values.len())
}

#[test]
fn lines_that_are_written_late_stay_within_the_intervals_of_writes() {
    let kernels = [(9_000, 40.0), (12_000, 1.0), (60_000, 20.0), (26_000, 45.0), (50_000, 3.0)];
    let of = |metric| Synthetic { metric, late_ns: 1_200.0, ..Synthetic::of(&kernels) };
    let writes = values(&analysed(vec![of(GpuMetric::DramWrite).capture()]));
    assert_eq!(contained(&kernels, &writes), (kernels.len(), kernels.len()), "{writes:?}");
    let reads = values(&analysed(vec![of(GpuMetric::DramRead).capture()]));
    assert!(contained(&kernels, &reads).0 < kernels.len(), "reads are counted at once: {reads:?}");
}

#[test]
fn the_idle_edges_of_kernels_are_not_blamed_on_their_neighbours() {
    let of = Synthetic::of(&[(75_000, 90.0), (2_500, 20.0), (12_000, 60.0), (8_000, 45.0)]);
    for idle_ns in [0, 600, 1_000] {
        let of = Synthetic { idle_ns, gap_ns: 900, ..of.clone() };
        let sampled = analysed(vec![of.capture()]);
        let values = values(&sampled);
        for (at, (ns, truth)) in of.kernels.iter().enumerate() {
            let Some(SampledValue { pct, half_width, is_group_mean: false, .. }) = values.get(&at)
            else {
                assert!(*ns < 5_000, "{idle_ns} ns: kernel {at} is not resolved: {values:?}");
                continue;
            };
            assert!(
                (pct - truth).abs() <= *half_width,
                "{idle_ns} ns: {at}: {pct} +- {half_width}"
            );
            let is_near = *ns < 10_000 || (pct - truth).abs() < 3.0;
            assert!(is_near, "{idle_ns} ns: {at}: {pct}, not {truth}");
        }
    }
}

#[test]
fn without_noise_each_kernel_has_its_value() {
    let of = Synthetic::of(&[(75_000, 95.0), (28_000, 43.0), (4_500, 45.0), (31_000, 0.0)]);
    let sampled = analysed(vec![of.capture()]);
    let values = values(&sampled);
    for (at, (_, truth)) in of.kernels.iter().enumerate() {
        let SampledValue { pct, half_width, is_group_mean, .. } = values[&at];
        assert!((pct - truth).abs() < 3.0, "{at}: {pct} +- {half_width}, not {truth}");
        assert!((pct - truth).abs() <= half_width && !is_group_mean, "{values:?}");
    }
    assert_eq!(problems(&sampled), [""; 0]);
    let stage = &sampled.stages[0];
    let [alone, grouped, unresolved] = {
        let it = &stage.metrics[&GpuMetric::DramRead];
        [it.alone_pct, it.grouped_pct, it.unresolved_pct]
    };
    assert_eq!((alone, grouped, unresolved), (Some(100.0), Some(0.0), Some(0.0)));
    assert!(grouped.is_some_and(f64::is_sign_positive), "no negative zero");
    let busy: f64 = of.kernels.iter().map(|(ns, _)| *ns as f64).sum();
    let mean = of.kernels.iter().map(|(ns, value)| *ns as f64 * value).sum::<f64>() / busy;
    let value = stage.metrics[&GpuMetric::DramRead];
    assert!((value.pct - mean).abs() <= value.half_width && value.half_width < 4.0, "{value:?}");
}

#[test]
fn a_sample_that_is_the_mean_over_the_period_before_it_is_recognised() {
    let kernels = [(75_000, 95.0), (28_000, 43.0), (31_000, 0.0)];
    let before = Synthetic { delay_ns: rows::DELAY_NS - PERIOD_NS, ..Synthetic::of(&kernels) };
    let values = values(&analysed(vec![before.capture()]));
    assert_eq!(contained(&kernels, &values), (3, 3), "{values:?}");
    assert!(values.values().all(|it| !it.is_group_mean), "{values:?}");
}

#[test]
fn adjacent_kernels_in_a_fixed_rhythm_share_a_value_or_have_none() {
    // One period holds a whole step, so that samples see only the sum.
    let of = Synthetic { gap_ns: 450, ..Synthetic::of(&[(600, 90.0), (500, 10.0), (900, 50.0)]) };
    let sampled = analysed(vec![of.capture()]);
    let values = values(&sampled);
    assert!(values.values().all(|it| it.is_group_mean && it.half_width <= 10.0), "{values:?}");
    assert_eq!(contained(&of.kernels, &values).0, values.len(), "{values:?}");
    let stage = &sampled.stages[0].metrics[&GpuMetric::DramRead];
    assert_eq!(stage.alone_pct, Some(0.0));
    let all = stage.grouped_pct.unwrap() + stage.unresolved_pct.unwrap();
    assert!((all - 100.0).abs() < 1e-9, "{stage:?}");
}

#[test]
fn two_devices_are_kept_apart() {
    let mut first = Synthetic::of(&[(75_000, 95.0), (30_000, 10.0)]).capture();
    let other = Synthetic { device: 1, ..Synthetic::of(&[(75_000, 20.0), (30_000, 70.0)]) };
    let second = other.capture();
    second.kernels.iter().for_each(|kernel| first.kernels.push(kernel.into()));
    first.kernels.sort();
    let devices = second.samples.unwrap().devices;
    first.samples.as_mut().unwrap().devices.extend(devices);
    let sampled = analysed(vec![first]);
    let value = |device: u32, name: &str| {
        let of = |it: &&SampledKernel| it.device == device && it.kernel_name == name;
        sampled.kernels.iter().find(of).unwrap().metrics[&GpuMetric::DramRead].pct
    };
    for (device, name, truth) in
        [(0, "kernel_0", 95.0), (0, "kernel_1", 10.0), (1, "kernel_0", 20.0), (1, "kernel_1", 70.0)]
    {
        assert!((value(device, name) - truth).abs() < 2.0, "{device} {name}");
    }
}

#[test]
fn captures_of_several_rates_share_their_unknowns() {
    let of = Synthetic { steps: 60, noise: 8.0, ..Synthetic::of(&[(75_000, 80.0), (9_000, 30.0)]) };
    let one = analysed(vec![of.capture()]);
    let both = analysed(vec![of.capture(), of.capture()]);
    assert_eq!(both.kernels.len(), 2);
    assert_eq!(both.kernels[0].samples, 2 * one.kernels[0].samples);
    let width = |of: &SampledMetrics| values(of)[&0].half_width;
    assert!(width(&both) < width(&one), "{} {}", width(&both), width(&one));
}

#[test]
fn a_stage_that_samples_do_not_span_has_no_value_and_a_finding() {
    let mut trace = Synthetic::of(&[(75_000, 95.0)]).capture();
    let samples = &mut trace.samples.as_mut().unwrap().devices[0];
    let mut cut = DeviceSamples::new(0);
    for at in 0..samples.times().len() / 2 {
        let value = samples.value(at, GpuMetric::DramRead).unwrap();
        cut.push(samples.times()[at], GpuMetric::DramRead, value);
    }
    cut.finish();
    *samples = cut;
    let sampled = analysed(vec![trace.clone()]);
    assert!(sampled.kernels.is_empty() && sampled.stages.is_empty() && sampled.lost);
    assert_eq!(problems(&sampled), ["gpu_metrics_do_not_span"]);
    let message = &sampled.findings.last().unwrap().message;
    assert!(message.contains("end before its last kernel"), "{message}");
    trace.samples.as_mut().unwrap().devices[0].overflowed = true;
    assert_eq!(problems(&analysed(vec![trace.clone()])), ["gpu_metrics_overflowed"]);
    trace.kernels.truncate(0);
    trace.samples.as_mut().unwrap().devices[0].overflowed = false;
    let sampled = analysed(vec![trace]);
    assert!(sampled.lost && problems(&sampled) == ["gpu_metrics_without_kernels"]);
}

#[test]
fn samples_of_a_program_without_stages_are_not_attributed() {
    let mut trace = Synthetic::of(&[(75_000, 95.0)]).capture();
    trace.ranges.clear();
    let sampled = analysed(vec![trace]);
    assert!(sampled.kernels.is_empty());
    assert_eq!(problems(&sampled), ["gpu_metrics_without_stages"]);
}

#[test]
fn a_run_without_samples_has_no_figures_and_no_findings() {
    assert_eq!(analysed(vec![]), SampledMetrics::default());
    let trace = Trace { timeline: Some(capture("range 1 prefill 0..1")), ..Trace::default() };
    assert_eq!(sampled_metrics(&trace, None), SampledMetrics::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn nine_of_ten_intervals_contain_the_true_value(
        kernels in prop::collection::vec((2_500i64..60_000, 20.0f64..80.0), 12..16),
        noise in 0.0f64..6.0,
    ) {
        let of = Synthetic { steps: 150, noise, ..Synthetic::of(&kernels) };
        let values = values(&analysed(vec![of.capture()]));
        let (inside, all) = contained(&kernels, &values);
        prop_assert!(all > 0 && inside * 10 >= all * 9, "{inside} of {all}: {values:?}");
    }
}
