//! Captures in which kernels, stages and GPUs share names, time and samples.

use super::*;
use llmprof_core::trace::timeline::Timeline;

/// Replaces the samples by these, of the same device.
fn set_samples(trace: &mut Timeline, push: impl Fn(&DeviceSamples, usize, &mut DeviceSamples)) {
    let samples = &mut trace.samples.as_mut().unwrap().devices[0];
    let mut changed = DeviceSamples::new(samples.device);
    (0..samples.times().len()).for_each(|at| push(samples, at, &mut changed));
    changed.finish();
    *samples = changed;
}

fn of_operator<'a>(sampled: &'a SampledMetrics, path: &str) -> Option<&'a SampledValue> {
    let operator = sampled.operators.iter().find(|it| it.path == path)?;
    operator.metrics.get(&GpuMetric::DramRead)
}

#[track_caller]
fn assert_contains(value: &SampledValue, truth: f64) {
    assert!((value.pct - truth).abs() <= value.half_width, "{value:?} does not contain {truth}");
}

#[test]
fn intervals_contain_small_values_that_are_rounded_up_to_one_percent() {
    let of = Synthetic { gap_ns: 54_000, ..Synthetic::of(&[(6_000, 1.5), (6_000, 0.3)]) };
    let sampled = analysed(vec![of.capture()]);
    let values = values(&sampled);
    assert_eq!(contained(&of.kernels, &values), (2, 2), "{values:?}");
    let mean = sampled.stages[0].metrics[&GpuMetric::DramRead];
    assert!((mean.pct - 0.9).abs() <= mean.half_width, "{mean:?}");
}

#[test]
fn launches_of_one_name_and_grid_with_other_work_are_told_apart() {
    let of = Synthetic::of(&[(25_000, 20.0), (30_000, 3.0), (75_000, 90.0), (30_000, 3.0)]);
    let mut trace = of.capture();
    let ranges = "range 1 decode_all 0..100\nrange 1 o_proj 10..20\nrange 1 down_proj 30..40\n\
                  call 1 1 11..12\ncall 1 2 31..32";
    let nested = capture(ranges);
    (trace.ranges, trace.cuda_calls) = (nested.ranges, nested.cuda_calls);
    trace.kernels = trace.kernels.map(|at, kernel| {
        (kernel.name, kernel.full_name) = (at as u32 % 2, at as u32 % 2);
        kernel.correlation_id = 1 + (at as i64 % 4) / 2;
    });
    let mut without_operators = trace.clone();
    without_operators.ranges.retain(|it| it.name == "decode_all");
    for trace in [&trace, &without_operators] {
        let mut kernels = analysed(vec![trace.clone()]).kernels;
        kernels.sort_by(|a, b| {
            (a.total_ms / a.calls as f64).total_cmp(&(b.total_ms / b.calls as f64))
        });
        assert_eq!(kernels.len(), 3, "short, the other kernel, long");
        for (kernel, truth) in kernels.iter().zip([20.0, 3.0, 90.0]) {
            let value = &kernel.metrics[&GpuMetric::DramRead];
            assert_contains(value, truth);
            assert!(value.half_width < 5.0, "{value:?}");
        }
    }
    let sampled = analysed(vec![trace]);
    assert_contains(of_operator(&sampled, "o_proj").unwrap(), (25.0 * 20.0 + 30.0 * 3.0) / 55.0);
    assert_contains(of_operator(&sampled, "down_proj").unwrap(), (75.0 * 90.0 + 90.0) / 105.0);
    let operators = analysed(vec![without_operators]).operators;
    assert_eq!(operators, []);
}

#[test]
fn an_operator_that_launches_a_graph_has_the_graphs_time_too() {
    let mut trace = Synthetic::of(&[(200_000, 80.0), (30_000, 5.0)]).capture();
    let nested = capture("range 1 decode_all 0..100\nrange 1 step 10..20\ncall 1 1 11..12");
    (trace.ranges, trace.cuda_calls) = (nested.ranges, nested.cuda_calls);
    let graph = capture("graph 1 1 2..3 7").graphs[0];
    let kernels: Vec<Kernel> = trace.kernels.iter().map(Kernel::from).collect();
    trace.kernels.truncate(0);
    for (at, kernel) in kernels.into_iter().enumerate() {
        let Kernel { start_ns, end_ns, .. } = kernel;
        match at % 2 {
            0 => trace.graphs.push(GraphLaunch { start_ns, end_ns, ..graph }),
            _ => trace.kernels.push(kernel),
        }
    }
    let sampled = analysed(vec![trace]);
    assert_contains(of_operator(&sampled, "step").unwrap(), (200.0 * 80.0 + 30.0 * 5.0) / 230.0);
    let all: f64 = sampled.kernels.iter().map(|it| it.total_ms).sum();
    assert!((sampled.operators[0].total_ms - all).abs() < 1e-9);
}

#[test]
fn a_stage_that_runs_alongside_another_has_no_mean_of_the_little_that_is_alone() {
    let mut trace = Synthetic::of(&[(75_000, 95.0), (30_000, 10.0)]).capture();
    let nested = capture(
        "range 1 prefill 0..100\nrange 1 decode_all 200..300\ncall 1 1 1..2\ncall 1 2 201..202",
    );
    (trace.ranges, trace.cuda_calls) = (nested.ranges, nested.cuda_calls);
    let second: Vec<Kernel> = trace.kernels.iter().skip(40).map(Kernel::from).collect();
    for kernel in second {
        trace.kernels.push(Kernel { correlation_id: 2, stream: 8, ..kernel });
    }
    trace.kernels.sort();
    let sampled = analysed(vec![trace]);
    assert!(sampled.stages.iter().all(|it| it.metrics.is_empty()), "{:?}", sampled.stages);
    assert!(sampled.stages.iter().any(|it| it.samples > 0), "some samples are of prefill alone");
    assert!(sampled.kernels.iter().all(|it| it.metrics.is_empty()), "{:?}", sampled.kernels);
    assert_eq!(problems(&sampled), ["gpu_metrics_too_few"; 2]);
    assert!(sampled.lost);
}

#[test]
fn a_kernel_alongside_an_idle_one_has_no_value_that_the_device_never_had() {
    let mut trace = Synthetic::of(&[(75_000, 40.0), (30_000, 10.0)]).capture();
    trace.strings.push("waiting".into());
    let waiting = trace.strings.len() as u32 - 1;
    let second: Vec<Kernel> = trace.kernels.iter().step_by(2).map(Kernel::from).collect();
    for kernel in second {
        let (name, full_name) = (waiting, waiting);
        trace.kernels.push(Kernel { name, full_name, stream: 8, ..kernel });
    }
    trace.kernels.sort();
    let sampled = analysed(vec![trace]);
    let of = |name: &str| sampled.kernels.iter().find(|it| it.kernel_name == name).unwrap();
    assert!(of("kernel_0").is_concurrent && of("waiting").is_concurrent);
    let read = of("kernel_0").metrics.get(&GpuMetric::DramRead);
    assert!(read.is_none_or(|it| it.is_group_mean), "either had the reads: {read:?}");
    assert_contains(&of("kernel_1").metrics[&GpuMetric::DramRead], 10.0);
}

#[test]
fn a_metric_that_is_missing_from_a_stage_alone_leaves_the_others_their_values() {
    let mut trace = Synthetic::of(&[(75_000, 95.0), (30_000, 10.0)]).capture();
    let end = trace.kernels.iter().last().unwrap().end_ns;
    set_samples(&mut trace, |samples, at, changed| {
        let time = samples.times()[at];
        changed.push(time, GpuMetric::DramRead, samples.value(at, GpuMetric::DramRead).unwrap());
        if time > end {
            changed.push(time, GpuMetric::TensorActive, 0);
        }
    });
    // A long time without work, in which the metric is complete.
    let samples = &mut trace.samples.as_mut().unwrap().devices[0];
    let (last, count) = (*samples.times().last().unwrap(), 200 * samples.times().len() as i64);
    for at in 1..count {
        samples.push(last + at * PERIOD_NS, GpuMetric::DramRead, 0);
        samples.push(last + at * PERIOD_NS, GpuMetric::TensorActive, 0);
    }
    samples.finish();
    let sampled = analysed(vec![trace]);
    assert_eq!(values(&sampled).len(), 2, "{sampled:?}");
    let lacking = sampled.findings.iter().find(|it| it.id == "gpu_metrics_lacking").unwrap();
    assert_eq!(lacking.evidence["tensor_active"], "no sample", "of the stage");
}

#[test]
fn kernels_on_a_gpu_that_was_not_sampled_are_a_finding() {
    let mut both = Synthetic::of(&[(75_000, 95.0), (30_000, 10.0)]).capture();
    let other = Synthetic { device: 1, ..Synthetic::of(&[(75_000, 20.0), (30_000, 70.0)]) };
    let kernels: Vec<Kernel> = other.capture().kernels.iter().map(Kernel::from).collect();
    let mut alone = both.clone();
    kernels.iter().for_each(|it| both.kernels.push(*it));
    both.kernels.sort();
    alone.kernels = kernels.into_iter().collect();
    for (trace, count) in [(both, 2), (alone, 0)] {
        let sampled = analysed(vec![trace]);
        assert_eq!(problems(&sampled), ["gpu_metrics_other_gpu"]);
        assert!(sampled.lost && sampled.unsampled.contains("decode_all"));
        assert_eq!(sampled.kernels.len(), count);
    }
}
