//! Change points of a series: E-divisive means with Student's t-test in place of permutations.
//!
//! Matteson and James, A Nonparametric Approach for Multiple Change Point Analysis of Multivariate
//! Data, JASA 109(505), 2014; Fleming et al., Hunter: Using Change Point Detection to Hunt for
//! Performance Regressions, ICPE 2023. The steps, the window and the deviation of the t-test, which
//! divides by n, are the same as in Apache Otava 0.8, so that both find the same points.

use crate::compare::student::two_sided;

/// Values of a sliding window.
pub const WINDOW: usize = 50;
/// Probability of a change by chance, below which a point is kept.
pub const MAX_P: f64 = 0.001;
/// The same before points are merged.
const WEAK_P: f64 = 10.0 * MAX_P;

/// A change of a series: it starts at the value of this index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChangePoint {
    pub index: usize,
    /// Probability of such a difference without a change, by Student's t-test.
    pub p: f64,
    /// Mean from the previous change point to this one, and from this one to the next.
    pub before: f64,
    pub after: f64,
}

impl ChangePoint {
    /// The larger of the changes relative to either mean.
    fn magnitude(&self) -> f64 {
        let relative = |a: f64, b: f64| if b == 0.0 { 0.0 } else { (a / b - 1.0).abs() };
        relative(self.after, self.before).max(relative(self.before, self.after))
    }
}

/// Finds the change points of `values`, in order.
pub fn change_points(values: &[f64]) -> Vec<ChangePoint> {
    let mut weak: Vec<usize> = Vec::new();
    let mut start = 0;
    while start < values.len() {
        let end = values.len().min(start + WINDOW);
        let found = divide(&values[start..end]);
        let last = found.last().map_or(0, |at| start + at);
        weak.extend(found.iter().map(|at| start + at));
        start = last.max(start + WINDOW / 2);
    }
    weak.sort_unstable();
    weak.dedup();
    merge(values, weak)
}

/// Splits a window at its best candidates while they are significant.
fn divide(window: &[f64]) -> Vec<usize> {
    let mut points: Vec<usize> = Vec::new();
    loop {
        let mut best: Option<(usize, f64)> = None;
        for (from, to) in intervals(&points, window.len()) {
            let Some((at, q)) = candidate(&window[from..to]) else { continue };
            if best.is_none_or(|(_, largest)| q > largest) {
                best = Some((from + at, q));
            }
        }
        let Some((at, _)) = best else { return points };
        let place = points.partition_point(|point| *point < at);
        let from = place.checked_sub(1).map_or(0, |place| points[place]);
        let to = points.get(place).copied().unwrap_or(window.len());
        if test(&window[from..at], &window[at..to]).p > WEAK_P {
            return points;
        }
        points.insert(place, at);
    }
}

/// The intervals between change points, without empty ones.
fn intervals(points: &[usize], len: usize) -> Vec<(usize, usize)> {
    let starts = std::iter::once(0).chain(points.iter().copied());
    let ends = points.iter().copied().chain([len]);
    starts.zip(ends).filter(|(from, to)| from < to).collect()
}

/// The split of the largest energy distance, over all splits of all beginnings of `values`:
///
/// `Q = 2/(m+n) (sum |x-y| - m/(n-1) sum |x-x'| - n/(m-1) sum |y-y'|)`, sums over pairs.
fn candidate(values: &[f64]) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    let mut within_left = 0.0;
    for split in 1..values.len() {
        let (left, right) = values.split_at(split);
        let newest = left[split - 1];
        within_left += left.iter().map(|x| (x - newest).abs()).sum::<f64>();
        let (mut across, mut within_right) = (0.0, 0.0);
        for (at, y) in right.iter().enumerate() {
            across += left.iter().map(|x| (x - y).abs()).sum::<f64>();
            within_right += right[..at].iter().map(|other| (other - y).abs()).sum::<f64>();
            let (n, m) = (split as f64, (at + 1) as f64);
            let mean = |sum: f64, pairs: f64| if pairs > 0.0 { sum / pairs } else { 0.0 };
            let inside = m * mean(within_left, n - 1.0) + n * mean(within_right, m - 1.0);
            let q = 2.0 / (m + n) * (across - inside);
            if best.is_none_or(|(_, largest)| q > largest) {
                best = Some((split, q));
            }
        }
    }
    best
}

/// Removes points that are not significant between their neighbours, the weakest first.
fn merge(values: &[f64], mut at: Vec<usize>) -> Vec<ChangePoint> {
    loop {
        let points: Vec<ChangePoint> = (0..at.len())
            .map(|place| {
                let from = place.checked_sub(1).map_or(0, |place| at[place]);
                let to = at.get(place + 1).copied().unwrap_or(values.len());
                ChangePoint {
                    index: at[place],
                    ..test(&values[from..at[place]], &values[at[place]..to])
                }
            })
            .collect();
        let mut weakest = None;
        for (place, point) in points.iter().enumerate() {
            let without_change = point.magnitude() <= 0.0;
            let weak = point.p >= MAX_P || without_change;
            let weaker = |other: usize| point.p > points[other].p;
            if weak && weakest.is_none_or(weaker) {
                weakest = Some(place);
            }
        }
        let Some(place) = weakest else { return points };
        at.remove(place);
    }
}

/// Student's t-test of two samples with equal variances.
fn test(left: &[f64], right: &[f64]) -> ChangePoint {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (before, after) = (mean(left), mean(right));
    let variance = |values: &[f64], mean: f64| {
        values.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / values.len() as f64
    };
    let (n, m) = (left.len() as f64, right.len() as f64);
    let freedom = n + m - 2.0;
    let unknown = ChangePoint { index: 0, p: 1.0, before, after };
    if freedom < 1.0 {
        return unknown;
    }
    let pooled =
        ((n - 1.0) * variance(left, before) + (m - 1.0) * variance(right, after)) / freedom;
    let t = (before - after) / (pooled * (1.0 / n + 1.0 / m)).sqrt();
    if t.is_nan() { unknown } else { ChangePoint { p: two_sided(t.abs(), freedom), ..unknown } }
}
