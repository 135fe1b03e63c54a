//! Attribution of samples to the kernels, stages and operators of one device.

use std::collections::BTreeSet;

use llmprof_core::{domain::units::Nanos, trace::gpu_metrics::GpuMetric};
use rayon::prelude::*;

use super::{
    assumed_times::{AssumedTimes, BestFit, StageTimes, all_sums},
    equations::StageSums,
    figures::{
        SampledKernel, SampledOperator, SampledStage, SampledStageValue, SampledValue,
        SampledValues,
    },
    findings::is_usable,
    groups::{Interval95, KernelEstimates, Resolved, ResolvedValue},
    operators::UnknownTimes,
    rows::{DELAY_NS, SampledWork, TimeShift},
    unknowns::{DeviceCapture, DeviceUnknowns, StageUnknowns, unknowns},
};
use crate::stats::{percent, ratio};

/// Residual of the other meaning of a sample's time, as a share of the usual one, below which that
/// one is taken.
const OTHER_DELAY: f64 = 0.8;

/// Time at the peak rate of device memory for the lines that the L2 cache writes after the kernel
/// that changed them, nanoseconds: 7 MB on an H200.
const LATE_WRITES_NS: f64 = 1_500.0;

/// Share of the time of a kernel or operator that samples of its stage alone contain, from which it
/// has a value; of kernels that run at once no such share is known.
const MIN_OBSERVED: f64 = 0.5;
/// The same of a stage, apart from two periods for each instance.
const MIN_OBSERVED_OF_STAGE: f64 = 0.9;
/// Share of the launches of an unknown that are an operator's own, from which it has their value.
const MIN_OWN: f64 = 0.95;

/// Sampled figures of one device.
#[derive(Debug, Default)]
pub struct DeviceFigures {
    pub kernels: Vec<SampledKernel>,
    pub stages: Vec<SampledStage>,
    pub operators: Vec<SampledOperator>,
}

/// Estimates of one metric in one stage.
struct MetricFit {
    metric: GpuMetric,
    /// Estimates for the parts of kernels.
    estimates: KernelEstimates,
    /// By kernel.
    resolved: Resolved,
    mean: Option<Interval95>,
}

/// Attributes the samples of all captures of a device.
pub fn attribute(captures: &[DeviceCapture]) -> DeviceFigures {
    let mut figures = DeviceFigures::default();
    let Some(device) = captures.first().map(|it| it.device) else { return figures };
    let metrics: Vec<GpuMetric> = GpuMetric::ALL
        .iter()
        .copied()
        .filter(|metric| captures.iter().all(|it| is_usable(it.samples, &it.spanned, *metric)))
        .collect();
    let percents: Vec<GpuMetric> = metrics.iter().copied().filter(|it| !it.is_clock()).collect();
    if percents.is_empty() {
        return figures;
    }
    let mut of = unknowns(captures);
    // Clocks are last, and have a mean only.
    let sums = set_delays(&mut of, &percents, &metrics);
    let assumed = AssumedTimes::of(&of, sums, &metrics);
    let best = assumed.best_fits(&of, &percents, &metrics);
    let times = &of.operators;
    for (at, (unknowns, best)) in of.stages.iter().zip(best).enumerate() {
        let assumed = assumed.of_stage(at);
        let every = of.work.first().map_or(1, |it| it.every[at + 1]) as f64;
        let stage = StageFit { device, unknowns, every, sums: assumed.traced(), assumed };
        let fits = stage.fits(&percents, best);
        let clock = metrics.iter().position(|it| it.is_clock());
        let clock = clock.and_then(|clock| stage.sums.sample_mean(clock));
        figures.stages.push(stage.stage(&fits, clock));
        figures.kernels.extend(stage.kernels(&fits));
        let number = at as u16 + 1;
        let of_stage = times.iter().filter(|((stage, _), _)| *stage == number);
        figures
            .operators
            .extend(of_stage.map(|((_, path), times)| stage.operator(path, times, &fits)));
    }
    figures.operators.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    figures.kernels.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    figures
}

/// Sets the delays of all captures; returns the sums over them.
fn set_delays(
    of: &mut DeviceUnknowns,
    percents: &[GpuMetric],
    metrics: &[GpuMetric],
) -> Vec<StageSums> {
    let no_shift = TimeShift::default();
    if let [work] = &of.work[..]
        && metrics.iter().all(|it| work.samples.is_complete(*it))
    {
        // The sums of all metrics have the misfit of the first one.
        let before = DELAY_NS - work.period_ns;
        let (before_misfit, sums) = rayon::join(
            || misfit(work, before, &of.stages, percents),
            || all_sums(of, no_shift, metrics),
        );
        if before_misfit >= OTHER_DELAY * mean_misfit(&sums) {
            return sums;
        }
        of.work[0].delay_ns = before;
    } else {
        for work in &mut of.work {
            work.delay_ns = delay(work, &of.stages, percents);
        }
    }
    all_sums(of, no_shift, metrics)
}

/// Squared residual of the best fit of the first metric, the mean over all rows.
fn mean_misfit(sums: &[StageSums]) -> f64 {
    let rows: u64 = sums.iter().map(|it| it.rows).sum();
    sums.iter().map(|it| it.misfit(0)).sum::<f64>() / rows.max(1) as f64
}

/// The same under this delay.
fn misfit(
    work: &SampledWork,
    delay_ns: i64,
    stages: &[StageUnknowns],
    metrics: &[GpuMetric],
) -> f64 {
    let lag_ns = delay_ns - work.delay_ns;
    let mut sums: Vec<StageSums> =
        stages.iter().map(|it| StageSums::new(it.count, &it.kernel_of, 1)).collect();
    let shift = TimeShift { lag_ns, ..TimeShift::default() };
    work.each_row(shift, &metrics[..1], |row| sums[row.stage as usize - 1].add(row));
    mean_misfit(&sums)
}

/// Delay between a sample's time and its period: the period follows, unless the one before fits
/// better.
fn delay(work: &SampledWork, stages: &[StageUnknowns], metrics: &[GpuMetric]) -> i64 {
    let before = DELAY_NS - work.period_ns;
    let (before_misfit, after_misfit) = rayon::join(
        || misfit(work, before, stages, metrics),
        || misfit(work, DELAY_NS, stages, metrics),
    );
    if before_misfit < OTHER_DELAY * after_misfit { before } else { DELAY_NS }
}

/// One stage with its sums.
struct StageFit<'a> {
    device: u32,
    unknowns: &'a StageUnknowns,
    /// One of how many samples is used.
    every: f64,
    /// Under the traced times.
    sums: &'a StageSums,
    assumed: StageTimes<'a>,
}

impl StageFit<'_> {
    /// Estimates and groups of each metric.
    fn fits(&self, metrics: &[GpuMetric], best: Option<Vec<BestFit>>) -> Vec<MetricFit> {
        let StageUnknowns { parts, kernel_of, own, .. } = self.unknowns;
        let part_ns: Vec<i64> = parts.iter().map(|it| it.ns).collect();
        let is_observed: Vec<bool> = (0..*own).map(|k| self.is_kernel_observed(k)).collect();
        let adjacent = self.separable_neighbours(&is_observed);
        metrics
            .par_iter()
            .zip(best.unwrap_or_default())
            .enumerate()
            .filter_map(|(at, (metric, best))| {
                let mut estimates = self.assumed.estimates(*metric, at, best)?;
                if *metric == GpuMetric::DramWrite {
                    estimates.late = self.late_writes();
                }
                let mut kernels = estimates.of_kernels(&kernel_of[..parts.len()], &part_ns, *own);
                let unobserved = kernels.weight.iter_mut().zip(&is_observed);
                unobserved.filter(|(_, is_observed)| !**is_observed).for_each(|(it, _)| *it = 0.0);
                let resolved = kernels.resolve(&adjacent);
                let mean = self.mean(at, &estimates);
                Some(MetricFit { metric: *metric, estimates, resolved, mean })
            })
            .collect()
    }

    /// True if samples contain most of the time of a kernel.
    fn is_kernel_observed(&self, kernel: usize) -> bool {
        let kernel_of = &self.unknowns.kernel_of;
        let first = |kernel: usize| kernel_of.partition_point(|it| (*it as usize) < kernel);
        self.is_observed(&Vec::from_iter(first(kernel)..first(kernel + 1)))
    }

    /// True if samples contain most of the time of these parts of kernels.
    fn is_observed(&self, parts: &[usize]) -> bool {
        let StageUnknowns { kernels, kernel_of, .. } = self.unknowns;
        let kernel = |part: &usize| kernels.get(kernel_of[*part] as usize);
        if parts.iter().filter_map(kernel).any(|it| it.is_concurrent) {
            return parts.iter().all(|it| self.sums.weight[*it] > 0.0);
        }
        let ns: i64 =
            parts.iter().filter_map(|it| self.unknowns.parts.get(*it)).map(|it| it.ns).sum();
        let observed: f64 = parts.iter().map(|it| self.sums.observed_ns[*it]).sum();
        observed > 0.0 && observed * self.every >= MIN_OBSERVED * ns as f64
    }

    /// True if samples contain nearly all of the time in which the stage's kernels run.
    fn is_stage_observed(&self) -> bool {
        let StageUnknowns { busy_ns, edges_ns, .. } = self.unknowns;
        let apart_from_edges = MIN_OBSERVED_OF_STAGE * busy_ns.saturating_sub(*edges_ns) as f64;
        let least = apart_from_edges.max(MIN_OBSERVED * *busy_ns as f64);
        self.sums.busy_ns() * self.every >= least
    }

    /// Share of the time of each part's calls that their late writes take.
    fn late_writes(&self) -> Vec<f64> {
        let parts = self.unknowns.parts.iter();
        parts.map(|it| it.calls as f64 * LATE_WRITES_NS / it.ns.max(1) as f64).collect()
    }

    /// Neighbours of kernels with samples.
    fn separable_neighbours(&self, is_observed: &[bool]) -> Vec<BTreeSet<usize>> {
        let of = |(k, near): (usize, &BTreeSet<usize>)| {
            near.iter().copied().filter(|l| is_observed[k] && is_observed[*l]).collect()
        };
        self.unknowns.adjacent.iter().enumerate().map(of).collect()
    }

    /// Mean of a metric over the stage's kernel time; `None` if samples with work of other stages
    /// leave too little of it.
    fn mean(&self, metric: usize, estimates: &KernelEstimates) -> Option<Interval95> {
        if !self.is_stage_observed() {
            return None;
        }
        let KernelEstimates { values, covariance, .. } = estimates;
        let mean = self.sums.mean(metric, values, covariance)?;
        let change = |sums: &&StageSums| {
            let other = sums.mean(metric, values, covariance)?;
            Some((other.value * sums.busy() / self.sums.busy() - mean.value).abs())
        };
        let changes = self.assumed.lagging().iter().filter_map(change);
        let change = changes.fold(self.sums.mean_rounding(metric), f64::max);
        Some(Interval95::of(mean.value, mean.error, change))
    }

    fn stage(&self, fits: &[MetricFit], sm_clock_mhz: Option<f64>) -> SampledStage {
        let ns: i64 = self.unknowns.kernels.iter().map(|it| it.ns).sum();
        let value = |fit: &MetricFit| {
            let mean = fit.mean?;
            let time = |grouped: bool| -> f64 {
                let kernels = self.unknowns.kernels[..self.unknowns.own].iter();
                let values = kernels.zip(&fit.resolved.values);
                let of_kind =
                    values.filter(|(_, value)| value.is_some_and(|it| it.is_group_mean == grouped));
                of_kind.map(|(kernel, _)| kernel.ns).sum::<i64>() as f64
            };
            let (alone, grouped) = (time(false), time(true));
            let value = SampledStageValue {
                pct: mean.value,
                half_width: mean.half_width,
                alone_pct: percent(alone, ns as f64),
                grouped_pct: percent(grouped, ns as f64),
                unresolved_pct: percent(ns as f64 - alone - grouped, ns as f64),
            };
            Some((fit.metric, value))
        };
        SampledStage {
            stage: self.unknowns.stage.clone(),
            device: self.device,
            kernel_ms: Nanos(ns).as_ms(),
            samples: self.sums.rows,
            sm_clock_mhz,
            metrics: fits.iter().filter_map(value).collect(),
        }
    }

    fn kernels(&self, fits: &[MetricFit]) -> Vec<SampledKernel> {
        let total: i64 = self.unknowns.kernels.iter().map(|it| it.ns).sum();
        let values = |at: usize| -> SampledValues {
            let of_metric = |fit: &MetricFit| {
                let ResolvedValue { interval, group, is_group_mean } = fit.resolved.values[at]?;
                let Interval95 { value: pct, half_width } = interval;
                let group = group.map(|group| group as u64 + 1);
                Some((fit.metric, SampledValue { pct, half_width, group, is_group_mean }))
            };
            fits.iter().filter_map(of_metric).collect()
        };
        let record = |(at, it): (usize, &super::unknowns::StageKernel)| SampledKernel {
            stage: self.unknowns.stage.clone(),
            device: self.device,
            kernel_name: it.key.0.clone(),
            grid: it.key.1,
            block: it.key.2,
            calls: it.calls,
            total_ms: Nanos(it.ns).as_ms(),
            mean_ms: ratio(Nanos(it.ns).as_ms(), it.calls as f64),
            share_pct: percent(it.ns as f64, total as f64),
            samples: if at < self.unknowns.own { self.sums.samples[at] } else { 0 },
            is_concurrent: it.is_concurrent,
            metrics: if at < self.unknowns.own { values(at) } else { SampledValues::new() },
            like: Some(it.like),
        };
        self.unknowns.kernels.iter().enumerate().map(record).collect()
    }

    /// Means over the kernels of an operator.
    fn operator(&self, path: &str, times: &UnknownTimes, fits: &[MetricFit]) -> SampledOperator {
        let unknowns: Vec<usize> = times.keys().copied().collect();
        let weights: Vec<f64> = times.values().map(|ns| *ns as f64).collect();
        // The value of an unknown covers all its launches.
        let is_own = |(at, ns): (&usize, &i64)| {
            let part = self.unknowns.parts.get(*at);
            part.is_some_and(|it| *ns as f64 >= MIN_OWN * it.ns as f64)
        };
        let is_known = times.iter().all(is_own) && self.is_observed(&unknowns);
        let value = |fit: &MetricFit| {
            let interval = fit.estimates.weighted(&unknowns, &weights);
            let Interval95 { value: pct, half_width } =
                Some(interval).filter(Interval95::is_resolved)?;
            Some((fit.metric, SampledValue { pct, half_width, group: None, is_group_mean: false }))
        };
        SampledOperator {
            stage: self.unknowns.stage.clone(),
            device: self.device,
            path: path.to_owned(),
            total_ms: Nanos(times.values().sum()).as_ms(),
            metrics: fits.iter().filter(|_| is_known).filter_map(value).collect(),
        }
    }
}
