//! Least squares over samples: sums of the rows of one stage, and the values of its kernels with
//! their covariance.
//!
//! Unknowns x, one for each kernel: `sum_k A[i,k] x[k] = v[i]` for sample i, with A the share of
//! the sample's period. A weak prior (the stage's mean, 50 points) keeps unobserved unknowns finite
//! and their intervals wide.

use llmprof_core::trace::gpu_metrics::GpuMetric;

use super::{groups::DEVIATIONS, rows::SampleRow};
use crate::compare::student::t95;

/// Deviation of the prior, percentage points.
const PRIOR: f64 = 50.0;
/// Initial residual variance, also for stages with too few samples for an estimate.
const FIRST_VARIANCE: f64 = 9.0;
/// Values above it vary enough for their rounding to average out.
const MAX_STEADY: f64 = 4.0;
/// Least residual variance: values are whole percents.
const MIN_VARIANCE: f64 = 0.25;
/// Samples in addition to the unknowns from which the residual variance is estimated.
const MIN_FREEDOM: usize = 10;
const ITERATIONS: usize = 3;

/// Sums over the rows of one stage.
#[derive(Debug, Clone, Default)]
pub struct StageSums {
    unknowns: usize,
    /// Kernel of each unknown that is a part of a kernel; copies follow.
    kernel_of: Vec<u32>,
    /// A'A, row by row.
    gram: Vec<f64>,
    pub rows: u64,
    /// Sum of A by unknown: its time, in periods.
    pub weight: Vec<f64>,
    /// The same in nanoseconds.
    pub observed_ns: Vec<f64>,
    /// Samples by kernel.
    pub samples: Vec<u64>,
    /// Sum of the busy share over the rows without copies.
    busy: f64,
    /// A'v by unknown, then by metric.
    products: Vec<f64>,
    /// A'u by unknown, then by metric: u by [`rounding`].
    rounding: Vec<f64>,
    metrics: Vec<MetricSums>,
}

/// Sums of one metric.
#[derive(Debug, Clone, Default)]
struct MetricSums {
    sum: f64,
    squares: f64,
    rounding: f64,
    /// Sum over the rows without copies.
    kernel_sum: f64,
}

/// Mean of a metric while a stage's kernels run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageMean {
    pub value: f64,
    pub error: f64,
}

/// Values of one metric for all unknowns.
#[derive(Debug, Clone, Default)]
pub struct Estimate {
    pub values: Vec<f64>,
    /// Variance of the residuals.
    pub variance: f64,
}

/// By how much a sample may exceed the true value: nsys rounds to the nearest percent, and what is
/// above 0 to at least 1.
fn rounding(value: f64) -> f64 {
    match value {
        1.0 => 1.0,
        _ if value > 1.0 && value <= MAX_STEADY => 0.5,
        _ => 0.0,
    }
}

impl StageSums {
    /// `kernel_of` has the kernel of each unknown that is a part of one.
    pub fn new(unknowns: usize, kernel_of: &[u32], metrics: usize) -> Self {
        let kernels = kernel_of.iter().max().map_or(0, |it| *it as usize + 1);
        Self {
            unknowns,
            kernel_of: kernel_of.to_vec(),
            gram: vec![0.0; unknowns * unknowns],
            weight: vec![0.0; unknowns],
            observed_ns: vec![0.0; unknowns],
            samples: vec![0; kernels],
            products: vec![0.0; unknowns * metrics],
            rounding: vec![0.0; unknowns * metrics],
            metrics: vec![MetricSums::default(); metrics],
            ..Self::default()
        }
    }

    /// Adds one sample.
    pub fn add(&mut self, row: &SampleRow) {
        self.rows += 1;
        let mut roundings = [0.0; GpuMetric::COUNT];
        roundings.iter_mut().zip(&row.values).for_each(|(it, value)| *it = rounding(*value));
        let mut busy = 0.0;
        for (at, &(k, a)) in row.entries.iter().enumerate() {
            let k = k as usize;
            busy += a;
            self.weight[k] += a;
            self.observed_ns[k] += a * row.period_ns;
            let kernel = |it: &(u32, f64)| self.kernel_of.get(it.0 as usize);
            if let Some(of) = self.kernel_of.get(k)
                && !row.entries[..at].iter().any(|it| kernel(it) == Some(of))
            {
                self.samples[*of as usize] += 1;
            }
            for &(l, b) in &row.entries {
                self.gram[k * self.unknowns + l as usize] += a * b;
            }
            let from = k * self.metrics.len();
            let products = &mut self.products[from..];
            products.iter_mut().zip(&row.values).for_each(|(sum, value)| *sum += a * value);
            let rounding = &mut self.rounding[from..from + self.metrics.len()];
            rounding.iter_mut().zip(&roundings).for_each(|(sum, value)| *sum += a * value);
        }
        for ((sums, value), rounding) in self.metrics.iter_mut().zip(&row.values).zip(roundings) {
            sums.sum += value;
            sums.squares += value * value;
            sums.rounding += rounding;
        }
        if row.entries.iter().any(|(k, _)| *k as usize >= self.kernel_of.len()) {
            return;
        }
        self.busy += busy;
        for (sums, value) in self.metrics.iter_mut().zip(&row.values) {
            sums.kernel_sum += value;
        }
    }

    /// Kernel time of the samples, in periods.
    pub fn busy(&self) -> f64 {
        self.weight[..self.kernel_of.len()].iter().sum()
    }

    /// The same in nanoseconds.
    pub fn busy_ns(&self) -> f64 {
        self.observed_ns[..self.kernel_of.len()].iter().sum()
    }

    /// By how much the mean of a metric may be too high as samples are rounded.
    pub fn mean_rounding(&self, metric: usize) -> f64 {
        self.metrics[metric].rounding / self.busy().max(f64::MIN_POSITIVE)
    }

    /// Mean of a metric over the samples without copies.
    fn mean_without_copies(&self, metric: usize) -> Option<f64> {
        (self.busy > 0.0).then(|| self.metrics[metric].kernel_sum / self.busy)
    }

    /// Mean of a metric while the stage's kernels run, over all samples: copies have the values in
    /// `values`, whose covariance is `covariance`.
    pub fn mean(&self, metric: usize, values: &[f64], covariance: &[f64]) -> Option<StageMean> {
        let busy = self.busy();
        if busy <= 0.0 || self.rows < 2 {
            return None;
        }
        let (n, kernels) = (self.unknowns, self.kernel_of.len());
        let copies = kernels..n;
        let of_copies: f64 = copies.clone().map(|c| self.weight[c] * values[c]).sum();
        let mean = (self.metrics[metric].sum - of_copies) / busy;
        // The squares of the residuals, with one value for all kernels.
        let value = |k: usize| if k < kernels { mean } else { values[k] };
        let all: Vec<f64> = (0..n).map(value).collect();
        let squares = self.squares(metric, &all);
        // The spread of few samples is uncertain: Student's factor over the normal one.
        let freedom = self.rows.saturating_sub(1);
        let spread = self.rows as f64 / freedom as f64 * (t95(freedom as f64) / DEVIATIONS).powi(2);
        let mut error = squares.max(MIN_VARIANCE * self.rows as f64) * spread / (busy * busy);
        for c in copies.clone() {
            for d in copies.clone() {
                error += self.weight[c] * self.weight[d] * covariance[c * n + d] / (busy * busy);
            }
        }
        Some(StageMean { value: mean, error: error.max(0.0).sqrt() })
    }

    /// Mean of a metric over all samples.
    pub fn sample_mean(&self, metric: usize) -> Option<f64> {
        (self.rows > 0).then(|| self.metrics[metric].sum / self.rows as f64)
    }

    /// Sum of squared residuals of the best fit of a metric.
    pub fn misfit(&self, metric: usize) -> f64 {
        self.solve(metric).map_or(0.0, |it| it.variance * self.rows as f64)
    }

    /// Solves for the values of a metric; `None` without samples.
    pub fn solve(&self, metric: usize) -> Option<Estimate> {
        // Without a sample of only kernels, the prior is 0.
        let mean = self.mean_without_copies(metric).or((self.rows > 0).then_some(0.0))?;
        let mut estimate = Estimate { values: Vec::new(), variance: FIRST_VARIANCE };
        for _ in 0..ITERATIONS {
            let inverse = inverse(self.precision(estimate.variance), self.unknowns)?;
            estimate.values = self.values(metric, mean, &inverse, estimate.variance);
            estimate.variance = self.variance(metric, &estimate.values);
        }
        Some(estimate)
    }

    /// `A'A / s2 + I / prior^2`.
    fn precision(&self, variance: f64) -> Vec<f64> {
        let mut precision: Vec<f64> = self.gram.iter().map(|it| it / variance).collect();
        (0..self.unknowns).for_each(|k| precision[k * self.unknowns + k] += PRIOR.powi(-2));
        precision
    }

    fn values(&self, metric: usize, mean: f64, inverse: &[f64], variance: f64) -> Vec<f64> {
        let right: Vec<f64> =
            self.products(metric).map(|it| it / variance + mean * PRIOR.powi(-2)).collect();
        inverse.chunks_exact(self.unknowns).map(|row| dot(row, &right)).collect()
    }

    /// By how much the values of an estimate may be too high as samples are rounded.
    pub fn rounding(&self, metric: usize, estimate: &Estimate) -> Option<Vec<f64>> {
        let inverse = inverse(self.precision(estimate.variance), self.unknowns)?;
        let sums = self.rounding.iter().skip(metric).step_by(self.metrics.len());
        let right: Vec<f64> = sums.map(|it| it / estimate.variance).collect();
        Some(inverse.chunks_exact(self.unknowns).map(|row| dot(row, &right)).collect())
    }

    /// A'v of a metric.
    fn products(&self, metric: usize) -> impl Iterator<Item = f64> {
        self.products.iter().skip(metric).step_by(self.metrics.len()).copied()
    }

    /// Sum of the squared residuals of these values.
    fn squares(&self, metric: usize, values: &[f64]) -> f64 {
        let sums = &self.metrics[metric];
        let products: Vec<f64> = self.products(metric).collect();
        let fitted: f64 = self
            .gram
            .chunks_exact(self.unknowns)
            .zip(values)
            .map(|(row, value)| dot(row, values) * value)
            .sum();
        (sums.squares - 2.0 * dot(values, &products) + fitted).max(0.0)
    }

    /// Residual variance of these values.
    fn variance(&self, metric: usize, values: &[f64]) -> f64 {
        let squares = self.squares(metric, values);
        let freedom = (self.rows as usize).saturating_sub(self.used());
        if freedom < MIN_FREEDOM {
            return (squares / freedom.max(1) as f64).max(FIRST_VARIANCE);
        }
        (squares / freedom as f64).max(MIN_VARIANCE)
    }

    /// Number of unknowns with samples.
    fn used(&self) -> usize {
        self.weight.iter().filter(|weight| **weight > 0.0).count()
    }

    /// Covariance of an estimate, robust against samples of different variance. `meat` is the sum
    /// over rows of the squared residual times the outer product of the row.
    pub fn covariance(&self, estimate: &Estimate, mut meat: Vec<f64>) -> Option<Vec<f64>> {
        let (n, variance) = (self.unknowns, estimate.variance);
        let mut covariance = inverse(self.precision(variance), n)?;
        let rows = self.rows as f64;
        let correction = rows / (rows - self.used() as f64).max(1.0);
        for (meat, gram) in meat.iter_mut().zip(&self.gram) {
            *meat = (*meat * correction - variance * gram) / (variance * variance);
        }
        let half = product(&covariance, &meat, n);
        let robust = product(&half, &covariance, n);
        for k in 0..n {
            for l in 0..n {
                let at = k * n + l;
                let sum = covariance[at] + robust[at];
                covariance[at] = if k == l { sum.max(covariance[at]) } else { sum };
            }
        }
        Some(covariance)
    }
}

/// Residuals of all rows of a stage, summed for [`StageSums::covariance`].
#[derive(Debug, Clone)]
pub struct Meat {
    unknowns: usize,
    metrics: usize,
    /// Row by row, then by metric: a sample adds to neighbours in memory.
    sums: Vec<f64>,
}

impl Meat {
    pub fn new(unknowns: usize, metrics: usize) -> Self {
        Self { unknowns, metrics, sums: vec![0.0; unknowns * unknowns * metrics] }
    }

    /// Adds one sample with the estimates of all metrics.
    pub fn add(&mut self, row: &SampleRow, estimates: &[Estimate]) {
        let mut squares = [0.0; GpuMetric::COUNT];
        for ((square, estimate), value) in squares.iter_mut().zip(estimates).zip(&row.values) {
            let fitted = row.entries.iter().map(|(k, a)| a * estimate.values[*k as usize]);
            let residual = value - fitted.sum::<f64>();
            *square = residual * residual;
        }
        for &(k, a) in &row.entries {
            let part = squares.map(|square| square * a);
            for &(l, b) in &row.entries {
                let at = (k as usize * self.unknowns + l as usize) * self.metrics;
                let sums = &mut self.sums[at..at + self.metrics];
                sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part * b);
            }
        }
    }

    /// The sums by metric.
    pub fn into_sums(self) -> Vec<Vec<f64>> {
        let of = |metric| self.sums.iter().skip(metric).step_by(self.metrics).copied().collect();
        (0..self.metrics).map(of).collect()
    }
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Product of two matrices of n rows and columns.
fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut product = vec![0.0; n * n];
    for (row, sums) in a.chunks_exact(n).zip(product.chunks_exact_mut(n)) {
        for (factor, from) in row.iter().zip(b.chunks_exact(n)) {
            if *factor != 0.0 {
                sums.iter_mut().zip(from).for_each(|(sum, it)| *sum += factor * it);
            }
        }
    }
    product
}

/// Inverse of a symmetric positive definite matrix, by Cholesky's decomposition; `None` for
/// another matrix.
fn inverse(mut matrix: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    for row in 0..n {
        for column in 0..=row {
            let (above, below) = matrix.split_at(row * n);
            let of_column = if column == row { below } else { &above[column * n..] };
            let sum = below[column] - dot(&below[..column], &of_column[..column]);
            if row == column {
                if sum.is_nan() || sum <= 0.0 {
                    return None;
                }
                matrix[row * n + row] = sum.sqrt();
            } else {
                let pivot = of_column[column];
                matrix[row * n + column] = sum / pivot;
            }
        }
    }
    // The inverse of the factor, transposed: each column of it is a row here.
    let mut factor = vec![0.0; n * n];
    for column in 0..n {
        let solved = &mut factor[column * n..(column + 1) * n];
        solved[column] = 1.0 / matrix[column * n + column];
        for row in column + 1..n {
            let known = &matrix[row * n + column..row * n + row];
            let sum = dot(known, &solved[column..row]);
            solved[row] = -sum / matrix[row * n + row];
        }
    }
    let mut inverse = vec![0.0; n * n];
    for row in 0..n {
        for column in 0..=row {
            let value = dot(
                &factor[row * n + row..(row + 1) * n],
                &factor[column * n + row..(column + 1) * n],
            );
            inverse[row * n + column] = value;
            inverse[column * n + row] = value;
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests;
