//! Sampled metrics of launches, over all GPUs: values of a kernel's own, and parts of the mean of
//! adjacent kernels that samples cannot separate.

use std::collections::BTreeMap;

use llmprof_core::trace::gpu_metrics::GpuMetric;

use super::evidence::Launch;
use crate::{
    kernels::{counters::Like, durations::Length},
    sampled::figures::{SampledKernel, SampledValue},
    stats::ratio,
};

/// A sampled metric of a launch, percent of the device's peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchValue {
    pub pct: f64,
    pub half_width: f64,
    /// True if it is the mean of adjacent kernels, less those with a value of their own.
    pub is_group_mean: bool,
}

/// Sampled metrics of one kernel with one grid and block in one stage: of its launches of similar
/// duration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledLaunch {
    like: Option<Like>,
    pub samples: u64,
    pub calls: u64,
    pub total_ms: f64,
    /// Ran at the same time as other kernels.
    pub is_concurrent: bool,
    /// Values that are resolved on all GPUs on which the kernel was sampled.
    values: BTreeMap<GpuMetric, LaunchValue>,
}

impl SampledLaunch {
    /// A metric of the kernel's own.
    pub fn own(&self, metric: GpuMetric) -> Option<LaunchValue> {
        self.any(metric).filter(|it| !it.is_group_mean)
    }

    /// A metric of the kernel's own, or its part of the mean of a group.
    pub fn any(&self, metric: GpuMetric) -> Option<LaunchValue> {
        self.values.get(&metric).copied()
    }

    /// True for launches that take `ns`.
    pub fn has(&self, ns: i64) -> bool {
        self.like.is_none_or(|like| like.has(ns))
    }

    fn length(&self) -> Option<Length> {
        self.like.map(|it| it.length)
    }

    pub fn is_resolved(&self) -> bool {
        !self.values.is_empty()
    }

    /// Adds the same launch on another GPU: means weighted by time, of the metrics that both have.
    fn add(&mut self, more: Self) {
        let (before, after) = (self.total_ms, more.total_ms);
        let mean = |a: f64, b: f64| ratio(a * before + b * after, before + after);
        let both = |(metric, a): (&GpuMetric, &LaunchValue)| {
            let b = more.values.get(metric)?;
            let value = LaunchValue {
                pct: mean(a.pct, b.pct)?,
                half_width: mean(a.half_width, b.half_width)?,
                is_group_mean: a.is_group_mean || b.is_group_mean,
            };
            Some((*metric, value))
        };
        self.values = self.values.iter().filter_map(both).collect();
        self.samples += more.samples;
        self.calls += more.calls;
        self.total_ms += more.total_ms;
        self.is_concurrent |= more.is_concurrent;
    }
}

/// Stage, device, metric and number of a group of adjacent kernels.
type GroupKey<'a> = (&'a str, u32, GpuMetric, u64);

/// Sums over the kernels of a group, percent x milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct GroupSums {
    mean_pct: f64,
    all_ms: f64,
    own: f64,
    rest_ms: f64,
}

impl GroupSums {
    /// Mean of the kernels without a value of their own: the mean of the group covers all its
    /// kernels.
    fn rest_pct(self) -> Option<f64> {
        let rest = ratio(self.mean_pct * self.all_ms - self.own, self.rest_ms)?;
        Some(rest.clamp(0.0, 100.0))
    }
}

/// Sampled metrics of all launches, by duration.
pub fn sampled_launches(kernels: &[SampledKernel]) -> BTreeMap<Launch<'_>, Vec<SampledLaunch>> {
    let groups = groups(kernels);
    let mut launches: BTreeMap<Launch, Vec<SampledLaunch>> = BTreeMap::new();
    for it in kernels {
        let Some((grid, block)) = it.grid.zip(it.block) else { continue };
        let value = |(metric, value): (&GpuMetric, &SampledValue)| {
            let group = group_key(it, *metric, value).filter(|_| value.is_group_mean);
            let rest = group.and_then(|key| groups.get(&key)?.rest_pct());
            let SampledValue { pct, half_width, is_group_mean, .. } = *value;
            let pct = rest.unwrap_or(pct.clamp(0.0, 100.0));
            (*metric, LaunchValue { pct, half_width, is_group_mean })
        };
        // The time of kernels that run at once is divided, so that the rest of a group is unknown.
        let is_known =
            |(_, value): &(&GpuMetric, &SampledValue)| !(it.is_concurrent && value.is_group_mean);
        let launch = SampledLaunch {
            like: it.like,
            samples: it.samples,
            calls: it.calls,
            total_ms: it.total_ms,
            is_concurrent: it.is_concurrent,
            values: it.metrics.iter().filter(is_known).map(value).collect(),
        };
        let key = (it.stage.as_str(), it.kernel_name.as_str(), grid, block);
        let of_key = launches.entry(key).or_default();
        match of_key.iter_mut().find(|it| it.length() == launch.length()) {
            Some(known) => known.add(launch),
            None => of_key.push(launch),
        }
    }
    launches
}

fn group_key<'a>(
    kernel: &'a SampledKernel,
    metric: GpuMetric,
    value: &SampledValue,
) -> Option<GroupKey<'a>> {
    Some((kernel.stage.as_str(), kernel.device, metric, value.group?))
}

fn groups(kernels: &[SampledKernel]) -> BTreeMap<GroupKey<'_>, GroupSums> {
    let mut groups: BTreeMap<GroupKey, GroupSums> = BTreeMap::new();
    for it in kernels {
        for (metric, value) in &it.metrics {
            let Some(key) = group_key(it, *metric, value) else { continue };
            let sums = groups.entry(key).or_default();
            sums.all_ms += it.total_ms;
            if value.is_group_mean {
                sums.mean_pct = value.pct;
                sums.rest_ms += it.total_ms;
            } else {
                sums.own += value.pct * it.total_ms;
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernels::durations::Durations;

    const METRIC: GpuMetric = GpuMetric::DramRead;

    fn kernel(
        device: u32,
        name: &str,
        total_ms: f64,
        value: Option<SampledValue>,
    ) -> SampledKernel {
        SampledKernel {
            stage: "prefill".into(),
            device,
            kernel_name: name.into(),
            grid: Some([1, 1, 1]),
            block: Some([32, 1, 1]),
            calls: 2,
            total_ms,
            mean_ms: None,
            share_pct: None,
            samples: 10,
            is_concurrent: false,
            metrics: value.into_iter().map(|value| (METRIC, value)).collect(),
            like: None,
        }
    }

    fn value(pct: f64, group: Option<u64>, is_group_mean: bool) -> Option<SampledValue> {
        Some(SampledValue { pct, half_width: 4.0, group, is_group_mean })
    }

    fn launch(kernels: &[SampledKernel], name: &str) -> SampledLaunch {
        let launches = sampled_launches(kernels);
        launches[&("prefill", name, [1, 1, 1], [32, 1, 1])][0].clone()
    }

    #[test]
    fn a_launch_on_two_gpus_has_the_mean_of_both_weighted_by_time_and_all_samples() {
        let both = [
            kernel(0, "k", 1.0, value(20.0, None, false)),
            kernel(1, "k", 3.0, value(60.0, None, false)),
        ];
        let found = launch(&both, "k");
        assert_eq!((found.samples, found.calls, found.total_ms), (20, 4, 4.0));
        assert_eq!(found.own(METRIC).map(|it| it.pct), Some(50.0));
        let one = [both[0].clone(), kernel(1, "k", 3.0, None)];
        assert_eq!(launch(&one, "k").any(METRIC), None, "missing on one of them");
        let shared = [both[0].clone(), kernel(1, "k", 3.0, value(60.0, Some(1), true))];
        assert_eq!(launch(&shared, "k").own(METRIC), None, "a mean of a group on one of them");
    }

    #[test]
    fn short_and_long_launches_of_a_kernel_have_values_of_their_own() {
        let of = Durations::of(&[20, 20, 64, 64]);
        let part = |length, pct| SampledKernel {
            like: Some(Like { of, length }),
            ..kernel(0, "k", 1.0, value(pct, None, false))
        };
        let kernels = [part(Length::Short, 24.0), part(Length::Long, 72.0)];
        let launches = sampled_launches(&kernels);
        let found = |ns: i64| {
            let of_kernel = &launches[&("prefill", "k", [1, 1, 1], [32, 1, 1])];
            of_kernel.iter().find(|it| it.has(ns)).and_then(|it| it.own(METRIC)).map(|it| it.pct)
        };
        assert_eq!((found(21), found(60), found(42)), (Some(24.0), Some(72.0), None));
    }

    #[test]
    fn groups_of_two_gpus_with_one_number_are_apart() {
        let kernels = [
            kernel(0, "a", 1.0, value(50.0, Some(1), true)),
            kernel(1, "b", 1.0, value(30.0, Some(1), true)),
            kernel(1, "c", 1.0, value(10.0, Some(1), false)),
        ];
        assert_eq!(launch(&kernels, "a").any(METRIC).map(|it| it.pct), Some(50.0));
        assert_eq!(launch(&kernels, "b").any(METRIC).map(|it| it.pct), Some(50.0));
    }

    proptest! {
        #[test]
        fn the_kernels_of_a_group_add_up_to_its_mean(
            own in prop::collection::vec((0.0f64..100.0, 0.1f64..9.0), 0..4),
            rest in prop::collection::vec((0.0f64..100.0, 0.1f64..9.0), 1..4),
        ) {
            let all: f64 = own.iter().chain(&rest).map(|it| it.1).sum();
            let busy: f64 = own.iter().chain(&rest).map(|it| it.0 * it.1).sum();
            let (mean, names) = (busy / all, ["a", "b", "c", "d", "e", "f", "g"]);
            let values = own.iter().map(|it| (value(it.0, Some(1), false), it.1));
            let values = values.chain(rest.iter().map(|it| (value(mean, Some(1), true), it.1)));
            let kernels: Vec<_> =
                values.zip(names).map(|((value, ms), name)| kernel(0, name, ms, value)).collect();
            let of = |it: &SampledKernel| {
                launch(&kernels, &it.kernel_name).any(METRIC).unwrap().pct * it.total_ms
            };
            let sum: f64 = kernels.iter().map(of).sum();
            prop_assert!((sum - busy).abs() < 1e-6, "{sum} {busy}");
        }
    }
}
