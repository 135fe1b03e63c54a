//! Groups of adjacent kernels that samples cannot separate, and the interval of a kernel or group.

use std::collections::{BTreeMap, BTreeSet};

use super::equations::dot;

/// Max half-width of a value that is shown, percentage points.
pub const MAX_HALF_WIDTH: f64 = 10.0;
/// Max kernels of a group.
const MAX_KERNELS: usize = 8;
/// Half-width of a 95 % interval in standard deviations.
pub const DEVIATIONS: f64 = 1.96;
/// Added to each half-width, for values are whole percents.
pub const ROUNDING: f64 = 1.0;

/// Values of all kernels of a stage for one metric.
#[derive(Debug, Clone, Default)]
pub struct KernelEstimates {
    pub values: Vec<f64>,
    /// Values under other assumptions on the times of the trace.
    pub refits: Vec<Vec<f64>>,
    pub covariance: Vec<f64>,
    /// Time by kernel.
    pub weight: Vec<f64>,
    /// Share of each kernel's time, at the peak rate, for work that is counted after its end. Empty
    /// for metrics that count at once.
    pub late: Vec<f64>,
}

/// Value of a kernel or group with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval95 {
    pub value: f64,
    pub half_width: f64,
}

/// Kernels with one value.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelGroup {
    pub kernels: Vec<usize>,
    pub interval: Interval95,
}

/// Value of one kernel that is resolved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResolvedValue {
    pub interval: Interval95,
    /// Index of the group that the kernel is in.
    pub group: Option<usize>,
    /// The value is the mean of the group, not the kernel's own.
    pub is_group_mean: bool,
}

/// Values of the kernels of a stage that are resolved.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resolved {
    /// By kernel.
    pub values: Vec<Option<ResolvedValue>>,
    /// Groups with a narrow interval.
    pub groups: Vec<KernelGroup>,
}

impl Interval95 {
    /// An interval from a standard error and the change under other assumptions, for a percentage.
    pub fn of(value: f64, error: f64, change: f64) -> Self {
        let clipped = value.clamp(0.0, 100.0);
        let half_width = (DEVIATIONS * error).hypot(change) + ROUNDING;
        Self { value: clipped, half_width: half_width + (value - clipped).abs() }
    }

    pub fn is_resolved(&self) -> bool {
        self.half_width <= MAX_HALF_WIDTH
    }
}

impl KernelEstimates {
    /// Mean of these kernels, weighted by time.
    pub fn interval(&self, kernels: &[usize]) -> Interval95 {
        let weights: Vec<f64> = kernels.iter().map(|k| self.weight[*k]).collect();
        self.weighted(kernels, &weights)
    }

    /// Mean of these kernels with these weights.
    pub fn weighted(&self, kernels: &[usize], weights: &[f64]) -> Interval95 {
        let total = weights.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let weights: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        // Only one of several adjacent kernels has neighbours outside the group.
        let late = |(k, weight): (&usize, &f64)| Some(self.late.get(*k)? * weight);
        let late = kernels.iter().zip(&weights).filter_map(late).fold(0.0, f64::max);
        let mean = |values: &[f64]| {
            let values: Vec<f64> = kernels.iter().map(|k| values[*k]).collect();
            dot(&weights, &values)
        };
        let value = mean(&self.values);
        let changes = self.refits.iter().map(|refit| (mean(refit) - value).abs());
        let (n, mut variance) = (self.values.len(), 0.0);
        for (k, a) in kernels.iter().zip(&weights) {
            for (l, b) in kernels.iter().zip(&weights) {
                variance += a * b * self.covariance[k * n + l];
            }
        }
        // Late work of another kernel is part of the value, so the value bounds it.
        let change = changes.fold(0.0, f64::max).hypot(value.clamp(0.0, 100.0 * late));
        Interval95::of(value, variance.max(0.0).sqrt(), change)
    }

    /// Estimates of kernels, as means over their parts: `kernel_of` has the kernel of each of the
    /// first unknowns, `ns` the time of each part. What has no time is left out.
    pub fn of_kernels(&self, kernel_of: &[u32], ns: &[i64], kernels: usize) -> Self {
        let mut total = vec![0.0; kernels];
        kernel_of.iter().zip(ns).for_each(|(k, ns)| total[*k as usize] += *ns as f64);
        let parts: Vec<(usize, f64)> = kernel_of
            .iter()
            .zip(ns)
            .map(|(k, ns)| (*k as usize, *ns as f64 / total[*k as usize].max(1.0)))
            .collect();
        let mean = |values: &[f64]| {
            let mut means = vec![0.0; kernels];
            parts.iter().zip(values).for_each(|((k, share), value)| means[*k] += share * value);
            means
        };
        let n = self.values.len();
        let mut covariance = vec![0.0; kernels * kernels];
        for (p, (k, a)) in parts.iter().enumerate() {
            for (q, (l, b)) in parts.iter().enumerate() {
                covariance[k * kernels + l] += a * b * self.covariance[p * n + q];
            }
        }
        let mut weight = vec![0.0; kernels];
        kernel_of
            .iter()
            .zip(ns)
            .zip(&self.weight)
            .for_each(|((k, _), it)| weight[*k as usize] += it);
        Self {
            values: mean(&self.values),
            refits: self.refits.iter().map(|it| mean(it)).collect(),
            covariance,
            weight,
            late: if self.late.is_empty() { Vec::new() } else { mean(&self.late) },
        }
    }

    /// Values of all kernels: of their own if the interval is narrow, else of their group.
    pub fn resolve(&self, adjacent: &[BTreeSet<usize>]) -> Resolved {
        let is_group = |it: &KernelGroup| it.kernels.len() > 1 && it.interval.is_resolved();
        let groups: Vec<KernelGroup> = self.groups(adjacent).into_iter().filter(is_group).collect();
        let value = |k: usize| {
            // Without a sample, the estimate is the prior.
            if self.weight[k] <= 0.0 {
                return None;
            }
            let group = groups.iter().position(|it| it.kernels.contains(&k));
            let own = self.interval(&[k]);
            if own.is_resolved() {
                return Some(ResolvedValue { interval: own, group, is_group_mean: false });
            }
            let interval = groups[group?].interval;
            Some(ResolvedValue { interval, group, is_group_mean: true })
        };
        Resolved { values: (0..self.values.len()).map(value).collect(), groups }
    }

    /// Merges kernels whose interval is too wide with the adjacent kernel that narrows it most,
    /// longest first. `adjacent` are the neighbours of each kernel in the order of launches.
    fn groups(&self, adjacent: &[BTreeSet<usize>]) -> Vec<KernelGroup> {
        let mut groups: BTreeMap<usize, KernelGroup> = BTreeMap::new();
        let mut owner: Vec<usize> = (0..self.values.len()).collect();
        for k in 0..self.values.len() {
            groups.insert(k, KernelGroup { kernels: vec![k], interval: self.interval(&[k]) });
        }
        // A group that cannot be narrowed is tried again only after a neighbour has changed.
        let mut waiting: BTreeSet<usize> = groups.keys().copied().collect();
        while let Some(at) = self.widest(&groups, &waiting) {
            waiting.remove(&at);
            let Some((other, interval)) = self.best_neighbour(at, &groups, &owner, adjacent) else {
                continue;
            };
            let Some(merged) = groups.remove(&other) else { continue };
            waiting.remove(&other);
            merged.kernels.iter().for_each(|k| owner[*k] = at);
            if let Some(group) = groups.get_mut(&at) {
                group.kernels.extend(merged.kernels);
                group.kernels.sort_unstable();
                group.interval = interval;
                waiting.insert(at);
                let near = group.kernels.iter().flat_map(|k| &adjacent[*k]).map(|k| owner[*k]);
                waiting.extend(near);
            }
        }
        groups.into_values().collect()
    }

    /// The waiting group with the most time whose interval is too wide.
    fn widest(
        &self,
        groups: &BTreeMap<usize, KernelGroup>,
        waiting: &BTreeSet<usize>,
    ) -> Option<usize> {
        let time = |at: &usize| {
            let kernels = groups.get(at).map(|it| it.kernels.as_slice()).unwrap_or_default();
            kernels.iter().map(|k| self.weight[*k]).sum::<f64>()
        };
        let wide =
            waiting.iter().filter(|at| groups.get(at).is_some_and(|it| !it.interval.is_resolved()));
        wide.copied().max_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// The adjacent group whose merger gives the narrowest interval, if that is narrower.
    fn best_neighbour(
        &self,
        at: usize,
        groups: &BTreeMap<usize, KernelGroup>,
        owner: &[usize],
        adjacent: &[BTreeSet<usize>],
    ) -> Option<(usize, Interval95)> {
        let group = groups.get(&at)?;
        let near = group.kernels.iter().flat_map(|k| &adjacent[*k]).map(|k| owner[*k]);
        let near: BTreeSet<usize> = near.filter(|other| *other != at).collect();
        let merged = |other: usize| {
            let kernels = [group.kernels.as_slice(), &groups.get(&other)?.kernels].concat();
            (kernels.len() <= MAX_KERNELS).then(|| (other, self.interval(&kernels)))
        };
        near.into_iter()
            .filter_map(merged)
            .min_by(|a, b| a.1.half_width.total_cmp(&b.1.half_width))
            .filter(|(_, interval)| interval.half_width < group.interval.half_width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels of equal time with these values and variances; the kernels in `together` have the
    /// covariance that makes their mean exact.
    fn estimates(
        values: &[f64],
        variances: &[f64],
        together: &[(usize, usize)],
    ) -> KernelEstimates {
        let n = values.len();
        let mut covariance = vec![0.0; n * n];
        variances.iter().enumerate().for_each(|(k, variance)| covariance[k * n + k] = *variance);
        for &(k, l) in together {
            covariance[k * n + l] = -variances[k];
            covariance[l * n + k] = -variances[k];
        }
        KernelEstimates {
            values: values.to_vec(),
            refits: vec![values.to_vec()],
            covariance,
            weight: vec![1.0; n],
            late: Vec::new(),
        }
    }

    /// Neighbours in a chain.
    fn chain(n: usize) -> Vec<BTreeSet<usize>> {
        (0..n)
            .map(|k| [k.wrapping_sub(1), k + 1].into_iter().filter(|l| *l < n).collect())
            .collect()
    }

    fn kernels(groups: &[KernelGroup]) -> Vec<Vec<usize>> {
        groups.iter().map(|it| it.kernels.clone()).collect()
    }

    #[test]
    fn kernels_with_narrow_intervals_stay_alone() {
        let groups = estimates(&[10.0, 90.0], &[4.0, 4.0], &[]).groups(&chain(2));
        assert_eq!(kernels(&groups), [vec![0], vec![1]]);
        assert!((groups[0].interval.half_width - (1.96 * 2.0 + 1.0)).abs() < 1e-9);
    }

    #[test]
    fn kernels_that_only_their_sum_resolves_share_one_value() {
        let of = estimates(&[-20.0, 80.0, 50.0], &[900.0, 900.0, 1.0], &[(0, 1)]);
        let groups = of.groups(&chain(3));
        assert_eq!(kernels(&groups), [vec![0, 1], vec![2]]);
        assert_eq!(groups[0].interval, Interval95 { value: 30.0, half_width: 1.0 });
    }

    #[test]
    fn a_kernel_with_a_value_of_its_own_keeps_it_in_a_group() {
        let of = estimates(&[10.0, 60.0], &[900.0, 1.0], &[]);
        let of = KernelEstimates { weight: vec![1.0, 9.0], ..of };
        let Resolved { values, groups } = of.resolve(&chain(2));
        assert_eq!(kernels(&groups), [vec![0, 1]]);
        let of_group = |interval, is_group_mean| {
            Some(ResolvedValue { interval, group: Some(0), is_group_mean })
        };
        assert_eq!(values[0], of_group(groups[0].interval, true));
        assert_eq!(values[1], of_group(of.interval(&[1]), false));
    }

    #[test]
    fn a_kernel_without_samples_has_no_value() {
        let of = estimates(&[0.0, 60.0], &[0.0, 1.0], &[]);
        let Resolved { values, .. } =
            KernelEstimates { weight: vec![0.0, 9.0], ..of }.resolve(&chain(2));
        assert_eq!((values[0], values[1].is_some()), (None, true));
    }

    #[test]
    fn what_no_neighbour_narrows_stays_unresolved() {
        let groups = estimates(&[50.0, 50.0], &[900.0, 90_000.0], &[]).groups(&chain(2));
        assert!(groups.iter().any(|it| !it.interval.is_resolved()), "{groups:?}");
        let apart = vec![BTreeSet::new(); 2];
        let of = estimates(&[-20.0, 80.0], &[900.0, 900.0], &[(0, 1)]);
        assert_eq!(kernels(&of.groups(&apart)), [vec![0], vec![1]], "not adjacent");
    }

    #[test]
    fn a_group_has_at_most_eight_kernels() {
        let of = estimates(&[50.0; 30], &[400.0; 30], &[]);
        let groups = of.groups(&chain(30));
        assert!(groups.iter().all(|it| it.kernels.len() <= 8), "{groups:?}");
        let all: BTreeSet<usize> = groups.iter().flat_map(|it| it.kernels.clone()).collect();
        assert_eq!(all.len(), 30);
    }

    #[test]
    fn late_work_of_a_neighbour_widens_intervals_by_at_most_the_value_and_once_in_a_group() {
        let late =
            KernelEstimates { late: vec![0.2, 0.05], ..estimates(&[3.0, 40.0], &[0.0, 0.0], &[]) };
        let half_width = |kernels: &[usize]| late.interval(kernels).half_width - ROUNDING;
        assert!((half_width(&[0]) - 3.0).abs() < 1e-9, "no more than the value");
        assert!((half_width(&[1]) - 5.0).abs() < 1e-9);
        assert!((half_width(&[0, 1]) - 10.0).abs() < 1e-9, "the largest share of the group's time");
    }

    #[test]
    fn a_value_outside_its_bounds_is_clipped_and_its_interval_covers_the_clipped_part() {
        assert_eq!(Interval95::of(-3.0, 0.0, 4.0), Interval95 { value: 0.0, half_width: 8.0 });
        assert_eq!(Interval95::of(103.0, 0.0, 0.0), Interval95 { value: 100.0, half_width: 4.0 });
    }
}
