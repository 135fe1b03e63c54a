//! One side of a change: a time with its own standard error.

use serde::{Deserialize, Serialize};

use crate::{
    compare::student::{Difference, Estimate},
    requests::LatencyRecord,
    samples::SampleSpread,
    stats::Spread,
    timeline::duration_stats::DurationStats,
};

/// Maximum number of repeats to propose.
const MAX_REPEATS: u64 = 1_000_000;

/// One side of a change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Measured {
    /// Milliseconds per repeat; for a kernel, of its calls in one repeat of the traced stage.
    pub ms: f64,
    /// Half of the 95 % interval, milliseconds; `null` if noise is unknown.
    pub noise_ms: Option<f64>,
    /// Calls of all repeats; instances of one run, if `repeats` is `null`.
    pub calls: Option<u64>,
    /// Repeats that `ms` is the mean of, of each sample if there are several; `null` for a kernel
    /// outside every stage, whose `ms` is of all its calls, and for instances of one run, such as
    /// the steps of an engine and the stages of its requests, whose `ms` is of one instance.
    #[serde(default)]
    pub repeats: Option<u64>,
    /// Standard error of `ms`; `null` if noise is unknown.
    #[serde(default)]
    pub std_error_ms: Option<f64>,
    /// Degrees of freedom of the standard error.
    #[serde(default)]
    pub freedom: Option<f64>,
}

impl Measured {
    /// True if a single value was measured, which has no noise.
    fn is_single(&self) -> bool {
        self.repeats.or(self.calls).is_none_or(|values| values <= 1)
    }

    /// A mean over repeats.
    pub fn over_repeats(ms: &Spread, calls: Option<u64>) -> Self {
        Self::from_estimate(ms.mean, Estimate::of(ms), calls, Some(u64::from(ms.n)))
    }

    /// A mean over the repeats of several samples; `samples` is its spread over them. A submission
    /// has the repeats of each sample, and so has the result.
    pub fn over_samples(ms: &Spread, samples: Option<&SampleSpread>) -> Self {
        let estimate = Estimate::over_samples(ms, samples);
        let samples = samples.map_or(1, |it| it.over_samples_ms.n.max(1));
        Self::from_estimate(ms.mean, estimate, None, Some(u64::from((ms.n / samples).max(1))))
    }

    /// A mean over instances of one run, which do not show the variation between runs.
    pub fn over_instances(ms: &Spread) -> Self {
        Self::from_estimate(ms.mean, Estimate::of(ms), Some(u64::from(ms.n)), None)
    }

    /// The median latency of requests. Several loads are repeats; the requests of a single load do
    /// not show the variation between loads.
    pub fn over_requests(it: &LatencyRecord) -> Self {
        let loads = Some(it.loads).filter(|loads| *loads > 1);
        let freedom = loads.unwrap_or(it.n) as f64 - 1.0;
        let estimate = it.std_error_ms.filter(|_| freedom > 0.0);
        let estimate = estimate.map(|std_error| Estimate { mean: it.p50_ms, std_error, freedom });
        Self::from_estimate(it.p50_ms, estimate, Some(it.n), loads)
    }

    /// The time of a kernel in one repeat, with the noise of its own calls; of all its calls if
    /// `repeats` is unknown.
    pub fn over_calls(ns: &DurationStats, repeats: Option<u64>) -> Self {
        let per = repeats.filter(|it| *it > 0).map_or(1.0, |it| it as f64) * 1e6;
        let (n, mean) = (ns.count as f64, ns.total as f64 / per);
        // `n` times the mean of a call, so `n` times its standard error.
        let estimate =
            ns.std.map(|std| Estimate { mean, std_error: std * n.sqrt() / per, freedom: n - 1.0 });
        Self::from_estimate(mean, estimate, Some(ns.count), repeats)
    }

    fn from_estimate(
        ms: f64,
        estimate: Option<Estimate>,
        calls: Option<u64>,
        repeats: Option<u64>,
    ) -> Self {
        Self {
            ms,
            noise_ms: estimate.map(|it| it.half_interval()),
            calls,
            repeats,
            std_error_ms: estimate.map(|it| it.std_error),
            freedom: estimate.map(|it| it.freedom),
        }
    }

    /// The mean with its standard error; `None` if noise is unknown.
    pub fn estimate(&self) -> Option<Estimate> {
        Some(Estimate { mean: self.ms, std_error: self.std_error_ms?, freedom: self.freedom? })
    }

    /// The sum of two independent times.
    pub fn and(self, other: Self) -> Self {
        let estimate = self.estimate().zip(other.estimate()).map(|(a, b)| a.plus(&b));
        let calls = self.calls.zip(other.calls).map(|(a, b)| a + b);
        Self::from_estimate(self.ms + other.ms, estimate, calls, self.repeats)
    }

    /// The estimate that `repeats` repeats, or calls, with the same spread would give.
    fn with_repeats(&self, repeats: u64) -> Option<Estimate> {
        let times = repeats as f64 / self.repeats.or(self.calls).filter(|it| *it > 0)? as f64;
        let it = self.estimate()?;
        let freedom = (it.freedom + 1.0) * times - 1.0;
        (freedom > 0.0).then(|| Estimate { std_error: it.std_error / times.sqrt(), freedom, ..it })
    }
}

/// The reason of a verdict for which a side lacks its noise.
pub(super) fn unknown_noise(a: &Measured, b: &Measured) -> String {
    let is_lacking = |(_, it): &(&str, &Measured)| it.noise_ms.is_none();
    let lacking: Vec<(&str, &Measured)> =
        [("A", a), ("B", b)].into_iter().filter(is_lacking).collect();
    let names: Vec<&str> = lacking.iter().map(|(name, _)| *name).collect();
    let names = names.join(" and ");
    match lacking.iter().all(|(_, it)| it.is_single()) {
        true => format!("measured once in {names}: its noise is unknown"),
        false => {
            format!("noise unknown in {names}: too few values, or a report of an earlier version")
        }
    }
}

/// Repeats, or calls, on each side that would halve the smallest detectable change; `None` if noise
/// or their number is unknown.
pub fn repeats_to_halve(a: &Measured, b: &Measured) -> Option<u64> {
    let goal = Difference::of(&a.estimate()?, &b.estimate()?).detectable() / 2.0;
    let reached = |repeats: u64| {
        let (a, b) = (a.with_repeats(repeats)?, b.with_repeats(repeats)?);
        Some(Difference::of(&a, &b).detectable() <= goal)
    };
    let mut high = a.repeats.or(a.calls)?.max(b.repeats.or(b.calls)?).max(2);
    while !reached(high)? {
        high = high.checked_mul(2).filter(|it| *it <= MAX_REPEATS)?;
    }
    let mut low = 1;
    while high - low > 1 {
        let middle = low.midpoint(high);
        if reached(middle).unwrap_or(false) { high = middle } else { low = middle }
    }
    Some(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_several_samples_is_of_the_repeats_of_each_and_not_of_their_content() {
        let spread = |of_samples: &[f64], over_repeats_std_ms| SampleSpread {
            stage: "prefill".into(),
            over_samples_ms: Spread::of(of_samples.iter().copied()).unwrap(),
            over_repeats_std_ms,
            slowest_sample: 1,
        };
        let ms = Spread::of([9.0, 11.0, 99.0, 101.0]).unwrap();
        let it = Measured::over_samples(&ms, Some(&spread(&[10.0, 100.0], Some(2f64.sqrt()))));
        assert_eq!((it.ms, it.freedom, it.repeats), (55.0, Some(2.0), Some(2)));
        assert!((it.std_error_ms.unwrap() - 0.5f64.sqrt()).abs() < 1e-9, "{it:?}");
        let once = Measured::over_samples(&ms, Some(&spread(&[9.0, 11.0, 99.0, 101.0], None)));
        let expected = (None, None, Some(1));
        assert_eq!((once.std_error_ms, once.noise_ms, once.repeats), expected, "one of each");
        let one_sample = Measured::over_samples(&ms, None);
        assert_eq!(one_sample, Measured::over_repeats(&ms, None));
    }

    #[test]
    fn the_noise_of_a_kernel_is_that_of_its_own_calls() {
        let kernel = |ns: &[i64]| Measured::over_calls(&DurationStats::of(ns), None);
        // Mean 2 ms, deviation 1 ms, n 3: t 4.303 * 1 / sqrt(3) on the mean, three times that on
        // the total.
        let three = kernel(&[1_000_000, 2_000_000, 3_000_000]);
        assert!(
            (three.noise_ms.unwrap() - 4.302_653 * 3f64.sqrt()).abs() < 1e-5 && three.ms == 6.0
        );
        assert_eq!(kernel(&[5]).noise_ms, None);
        let both = three.and(three);
        assert!(
            (both.std_error_ms.unwrap() - three.std_error_ms.unwrap() * 2f64.sqrt()).abs() < 1e-9
        );
        assert_eq!(
            (both.ms, both.calls, both.freedom, three.and(kernel(&[5])).noise_ms),
            (12.0, Some(6), Some(4.0), None)
        );
        let per =
            Measured::over_calls(&DurationStats::of(&[1_000_000, 2_000_000, 3_000_000]), Some(3));
        assert_eq!((per.ms, per.calls), (2.0, Some(3)), "of one repeat");
    }

    #[test]
    fn eight_repeats_detect_half_the_change_of_three() {
        let three = Measured::over_repeats(&Spread::of([9.0, 10.0, 11.0]).unwrap(), None);
        // (t(0.975, 4) + t(0.8, 4)) * sqrt(2/3) = 3.04; with 8 repeats (t(0.975, 14) + t(0.8, 14))
        // * sqrt(2/8) = 1.51, with 7 1.63.
        assert_eq!(repeats_to_halve(&three, &three), Some(8));
        let single = Measured::over_repeats(&Spread::of([9.0]).unwrap(), None);
        assert_eq!(repeats_to_halve(&three, &single), None);
    }
}
