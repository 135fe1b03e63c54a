//! Noise of a figure: the standard deviation between runs of one build.
//!
//! Pooled over the builds of a series, of the natural logarithm of the figure, which is the
//! relative deviation for small ones and equal for a time and its rate.

/// Standard deviation of the logarithm of a figure between runs of one build.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    pub log_std: f64,
    /// Degrees of freedom: runs less builds.
    pub freedom: f64,
}

impl Noise {
    /// Pools the deviations within groups: `sqrt(sum (x - mean of its group)^2 / (N - groups))`.
    /// `None` if no group has two values.
    pub fn within<'a>(groups: impl IntoIterator<Item = &'a [f64]>) -> Option<Self> {
        let (mut squares, mut freedom) = (0.0, 0.0);
        for group in groups {
            let logs: Vec<f64> = group.iter().map(|value| value.ln()).collect();
            let logs: Vec<f64> = logs.into_iter().filter(|log| log.is_finite()).collect();
            if logs.len() < 2 {
                continue;
            }
            let mean = logs.iter().sum::<f64>() / logs.len() as f64;
            squares += logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>();
            freedom += logs.len() as f64 - 1.0;
        }
        (freedom > 0.0).then(|| Self { log_std: (squares / freedom).sqrt(), freedom })
    }

    /// Pools two independent estimates.
    pub fn and(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        let freedom = self.freedom + other.freedom;
        let squares = self.log_std.powi(2) * self.freedom + other.log_std.powi(2) * other.freedom;
        Self { log_std: (squares / freedom).sqrt(), freedom }
    }

    /// The relative deviation, percent.
    pub fn pct(&self) -> f64 {
        100.0 * self.log_std.exp_m1()
    }
}
