//! Assumptions on when a kernel's counters count, and the one that fits each metric best.
//!
//! A kernel's traced time includes the start of its blocks and the end of the last ones, in which
//! it hardly reads or multiplies. A model without that time blames its neighbours: the time that
//! fits the samples best is assumed, and the changes under other times widen the interval. So do
//! those if kernels that run at once do not slow each other down, and if all samples are as low as
//! their rounding allows.

use llmprof_core::trace::gpu_metrics::GpuMetric;
use rayon::prelude::*;

use super::{
    equations::{Estimate, Meat, StageSums},
    groups::KernelEstimates,
    rows::TimeShift,
    unknowns::{DeviceUnknowns, StageUnknowns},
};

/// Times at either end of a kernel in which a unit may be idle, nanoseconds.
const IDLE_NS: [i64; 4] = [0, 500, 1_000, 1_500];
/// Times by which all samples may be displaced, nanoseconds.
const LAGS_NS: [i64; 2] = [500, -500];
/// The same of writes to device memory, which the L2 cache delays.
const WRITE_LAGS_NS: [i64; 2] = [1_500, -1_500];

/// Sums over all captures, by assumption, then by stage.
pub struct AssumedTimes {
    idle: Vec<Vec<StageSums>>,
    lags: Vec<Vec<StageSums>>,
    /// Only of writes to device memory.
    write_lags: Vec<Vec<StageSums>>,
    /// With the whole time of kernels that run at once; empty unless some do.
    additive: Vec<Vec<StageSums>>,
}

/// Sums of one stage, by assumption.
pub struct StageTimes<'a> {
    idle: Vec<&'a StageSums>,
    lags: Vec<&'a StageSums>,
    write_lags: Vec<&'a StageSums>,
    additive: Vec<&'a StageSums>,
}

/// The values of a metric under the idle time that fits best.
pub struct BestFit {
    /// Index of the idle time.
    idle: usize,
    /// Under each idle time.
    estimates: Vec<Estimate>,
    /// Sum over the samples of the squared residual times the outer product of the row.
    meat: Vec<f64>,
}

/// Sums over all captures, by stage.
pub fn all_sums(of: &DeviceUnknowns, shift: TimeShift, metrics: &[GpuMetric]) -> Vec<StageSums> {
    let mut sums: Vec<StageSums> =
        of.stages.iter().map(|it| StageSums::new(it.count, &it.kernel_of, metrics.len())).collect();
    for work in &of.work {
        work.each_row(shift, metrics, |row| sums[row.stage as usize - 1].add(row));
    }
    sums
}

impl AssumedTimes {
    /// `traced` are the sums under the traced times.
    pub fn of(of: &DeviceUnknowns, traced: Vec<StageSums>, metrics: &[GpuMetric]) -> Self {
        let idle = |idle_ns: &i64| TimeShift { idle_ns: *idle_ns, ..TimeShift::default() };
        let lag = |lag_ns: &i64| TimeShift { lag_ns: *lag_ns, ..TimeShift::default() };
        let has_writes = metrics.contains(&GpuMetric::DramWrite);
        let write_lags: &[i64] = if has_writes { &WRITE_LAGS_NS } else { &[] };
        let is_concurrent = of.stages.iter().any(StageUnknowns::is_concurrent);
        let additive = TimeShift { is_additive: true, ..TimeShift::default() };
        let all = IDLE_NS[1..].iter().map(|it| (idle(it), metrics));
        let all = all.chain(LAGS_NS.iter().map(|it| (lag(it), metrics)));
        let all = all.chain(write_lags.iter().map(|it| (lag(it), &[GpuMetric::DramWrite][..])));
        let all = all.chain(is_concurrent.then_some((additive, metrics)));
        let all: Vec<(TimeShift, &[GpuMetric])> = all.collect();
        let mut sums: Vec<Vec<StageSums>> =
            all.par_iter().map(|(shift, metrics)| all_sums(of, *shift, metrics)).collect();
        let additive = sums.split_off(sums.len() - usize::from(is_concurrent));
        let write_lags = sums.split_off(IDLE_NS.len() - 1 + LAGS_NS.len());
        let lags = sums.split_off(IDLE_NS.len() - 1);
        sums.insert(0, traced);
        Self { idle: sums, lags, write_lags, additive }
    }

    pub fn of_stage(&self, stage: usize) -> StageTimes<'_> {
        fn of_stage(sums: &[Vec<StageSums>], stage: usize) -> Vec<&StageSums> {
            sums.iter().map(|it| &it[stage]).collect()
        }
        StageTimes {
            idle: of_stage(&self.idle, stage),
            lags: of_stage(&self.lags, stage),
            write_lags: of_stage(&self.write_lags, stage),
            additive: of_stage(&self.additive, stage),
        }
    }

    /// The best fit of each of `percents`, by stage; `None` without samples.
    pub fn best_fits(
        &self,
        of: &DeviceUnknowns,
        percents: &[GpuMetric],
        metrics: &[GpuMetric],
    ) -> Vec<Option<Vec<BestFit>>> {
        let solve = |sums: &StageSums| -> Option<Vec<Estimate>> {
            (0..percents.len()).into_par_iter().map(|metric| sums.solve(metric)).collect()
        };
        let solved: Vec<Vec<Option<Vec<Estimate>>>> =
            self.idle.iter().map(|sums| sums.iter().map(solve).collect()).collect();
        let best: Vec<Vec<usize>> = (0..of.stages.len())
            .map(|stage| (0..percents.len()).map(|metric| best(&solved, stage, metric)).collect())
            .collect();
        let mut meat: Vec<Option<Vec<Vec<Vec<f64>>>>> = (0..IDLE_NS.len())
            .into_par_iter()
            .map(|idle| {
                let is_used = best.iter().flatten().any(|it| *it == idle);
                is_used.then(|| meat(of, IDLE_NS[idle], &solved[idle], percents.len(), metrics))
            })
            .collect();
        let mut solved = solved;
        let mut fit = |stage: usize, metric: usize| -> Option<BestFit> {
            let idle = best[stage][metric];
            let mut estimates = Vec::new();
            for solved in &mut solved {
                let of_metric = solved[stage].as_mut()?.get_mut(metric)?;
                estimates.push(std::mem::take(of_metric));
            }
            let meat = std::mem::take(&mut meat[idle].as_mut()?[stage][metric]);
            Some(BestFit { idle, estimates, meat })
        };
        (0..of.stages.len())
            .map(|stage| (0..percents.len()).map(|metric| fit(stage, metric)).collect())
            .collect()
    }
}

/// Index of the idle time whose residuals are smallest.
fn best(solved: &[Vec<Option<Vec<Estimate>>>], stage: usize, metric: usize) -> usize {
    let variance = |idle: &usize| {
        solved[*idle][stage].as_ref().map_or(f64::INFINITY, |it| it[metric].variance)
    };
    (0..solved.len()).min_by(|a, b| variance(a).total_cmp(&variance(b))).unwrap_or(0)
}

/// Sums of the squared residuals, by stage and metric.
fn meat(
    of: &DeviceUnknowns,
    idle_ns: i64,
    estimates: &[Option<Vec<Estimate>>],
    count: usize,
    metrics: &[GpuMetric],
) -> Vec<Vec<Vec<f64>>> {
    let mut meat: Vec<Meat> = of.stages.iter().map(|it| Meat::new(it.count, count)).collect();
    for work in &of.work {
        work.each_row(TimeShift { idle_ns, ..TimeShift::default() }, metrics, |row| {
            let at = row.stage as usize - 1;
            if let Some(estimates) = &estimates[at] {
                meat[at].add(row, estimates);
            }
        });
    }
    meat.into_iter().map(Meat::into_sums).collect()
}

impl<'a> StageTimes<'a> {
    /// Under the traced times.
    pub fn traced(&self) -> &'a StageSums {
        self.idle[0]
    }

    /// With displaced samples, of all metrics.
    pub fn lagging(&self) -> &[&'a StageSums] {
        &self.lags
    }

    /// Values for the traced durations, their covariance, and the values under other times.
    pub fn estimates(
        &self,
        metric: GpuMetric,
        at: usize,
        best: BestFit,
    ) -> Option<KernelEstimates> {
        let BestFit { idle, estimates, meat } = best;
        let traced = self.traced();
        let values = self.scaled(idle, &estimates[idle].values);
        let mut covariance = self.idle[idle].covariance(&estimates[idle], meat)?;
        let scale = self.scaled(idle, &vec![1.0; values.len()]);
        for (row, a) in covariance.chunks_exact_mut(values.len().max(1)).zip(&scale) {
            row.iter_mut().zip(&scale).for_each(|(it, b)| *it *= a * b);
        }
        let near = [idle.checked_sub(1), Some(idle + 1).filter(|it| *it < estimates.len())];
        let mut refits: Vec<Vec<f64>> =
            near.into_iter().flatten().map(|it| self.scaled(it, &estimates[it].values)).collect();
        // Other assumptions change the values of the traced times.
        let mut displaced = |sums: &StageSums, metric: usize| {
            let Some(other) = sums.solve(metric) else { return };
            let change = other.values.iter().zip(&estimates[0].values).map(|(it, was)| it - was);
            refits.push(values.iter().zip(change).map(|(value, by)| value + by).collect());
        };
        match metric {
            GpuMetric::DramWrite => self.write_lags.iter().for_each(|it| displaced(it, 0)),
            _ => self.lags.iter().for_each(|it| displaced(it, at)),
        }
        self.additive.iter().for_each(|it| displaced(it, at));
        if let Some(rounding) = self.idle[idle].rounding(at, &estimates[idle]) {
            let rounding = self.scaled(idle, &rounding);
            refits.push(values.iter().zip(rounding).map(|(value, by)| value - by).collect());
        }
        let (weight, late) = (traced.weight.clone(), Vec::new());
        Some(KernelEstimates { values, refits, covariance, weight, late })
    }

    /// Values under an idle time as means over the traced durations.
    fn scaled(&self, idle: usize, values: &[f64]) -> Vec<f64> {
        let weights = self.idle[idle].weight.iter().zip(&self.traced().weight);
        let scaled = |(value, (now, traced)): (&f64, (&f64, &f64))| {
            if *traced > 0.0 { value * now / traced } else { *value }
        };
        values.iter().zip(weights).map(scaled).collect()
    }
}
