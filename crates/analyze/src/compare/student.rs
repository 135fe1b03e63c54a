//! Student's t distribution and Welch's test of two means with unequal variances.
//!
//! The distribution function is computed by the regularised incomplete beta function: Abramowitz
//! and Stegun, Handbook of Mathematical Functions, 26.7.1; its continued fraction as in Press et
//! al., Numerical Recipes, 3rd edition, 6.4.

use serde::{Deserialize, Serialize};

use crate::{samples::SampleSpread, stats::Spread};

/// Probability of a false verdict if nothing changed.
pub const ALPHA: f64 = 0.05;
/// Probability of finding a change of the smallest detectable size.
pub const POWER: f64 = 0.8;

/// Natural logarithm of the gamma function of a positive number (Lanczos' approximation, g = 7,
/// nine terms).
fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum = C.iter().enumerate().skip(1).fold(C[0], |sum, (at, c)| sum + c / (x + at as f64));
    let t = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The continued fraction of the incomplete beta function, by the modified method of Lentz.
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    /// Keeps divisors away from zero.
    const TINY: f64 = 1e-300;
    let apart = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / apart(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for m in 1..=500 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut step = 1.0;
        for term in [even, odd] {
            d = 1.0 / apart(1.0 + term * d);
            c = apart(1.0 + term / c);
            step = d * c;
            h *= step;
        }
        if (step - 1.0).abs() < 1e-15 {
            break;
        }
    }
    h
}

/// The regularised incomplete beta function `I_x(a, b)`, from 0 to 1.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// Probability that |T| exceeds `t` for `freedom` > 0 degrees of freedom.
pub fn two_sided(t: f64, freedom: f64) -> f64 {
    if t.is_infinite() {
        return 0.0;
    }
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// Quantile of Student's t for 0.5 <= `p` < 1 and `freedom` > 0.
pub fn quantile(p: f64, freedom: f64) -> f64 {
    let ln_scale = ln_gamma((freedom + 1.0) / 2.0)
        - ln_gamma(freedom / 2.0)
        - 0.5 * (freedom * std::f64::consts::PI).ln();
    let density = |t: f64| (ln_scale - (freedom + 1.0) / 2.0 * (t * t / freedom).ln_1p()).exp();
    let mut t = 0.0;
    // The function is concave right of 0, so Newton's steps from there never pass the root.
    for _ in 0..500 {
        let step = (p - (1.0 - two_sided(t, freedom) / 2.0)) / density(t);
        t += step;
        if !step.is_finite() || step.abs() <= 1e-10 * t.abs() {
            break;
        }
    }
    t
}

/// Half of the two-sided 95 % interval in standard errors.
pub fn t95(freedom: f64) -> f64 {
    quantile(1.0 - ALPHA / 2.0, freedom)
}

/// A mean with its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub mean: f64,
    pub std_error: f64,
    /// Degrees of freedom of the standard error.
    pub freedom: f64,
}

impl Estimate {
    /// The mean of independent values; `None` for a single one.
    pub fn of(values: &Spread) -> Option<Self> {
        let n = f64::from(values.n);
        Some(Self { mean: values.mean, std_error: values.std? / n.sqrt(), freedom: n - 1.0 })
    }

    /// The mean over the repeats of several samples. Samples differ by their content: only the
    /// repeats of each show the error, and each sample takes a degree of freedom.
    pub fn over_samples(values: &Spread, samples: Option<&SampleSpread>) -> Option<Self> {
        let Some(samples) = samples else { return Self::of(values) };
        let n = f64::from(values.n);
        let freedom = n - f64::from(samples.over_samples_ms.n);
        let std_error = samples.over_repeats_std_ms? / n.sqrt();
        (freedom > 0.0).then_some(Self { mean: values.mean, std_error, freedom })
    }

    /// Half of the 95 % interval.
    pub fn half_interval(&self) -> f64 {
        t95(self.freedom) * self.std_error
    }

    /// The sum of two independent estimates (Satterthwaite 1946).
    pub fn plus(&self, other: &Self) -> Self {
        let (std_error, freedom) = combined(self, other);
        Self { mean: self.mean + other.mean, std_error, freedom }
    }
}

/// Standard error of the sum or difference of two independent estimates, with its degrees of
/// freedom by Welch and Satterthwaite.
fn combined(a: &Estimate, b: &Estimate) -> (f64, f64) {
    let (x, y) = (a.std_error.powi(2), b.std_error.powi(2));
    let freedom = (x + y).powi(2) / (x.powi(2) / a.freedom + y.powi(2) / b.freedom);
    // Without spread on either side the degrees of freedom do not matter.
    ((x + y).sqrt(), if freedom.is_finite() { freedom } else { a.freedom + b.freedom })
}

/// The difference of two means and its significance (Welch, Biometrika 34, 1947).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The second less the first.
    pub mean: f64,
    pub std_error: f64,
    pub freedom: f64,
}

impl Difference {
    /// `b` less `a`.
    pub fn of(a: &Estimate, b: &Estimate) -> Self {
        let (std_error, freedom) = combined(a, b);
        Self { mean: b.mean - a.mean, std_error, freedom }
    }

    /// Two-sided probability of such a difference if nothing changed.
    pub fn p(&self) -> f64 {
        if self.mean == 0.0 {
            return 1.0;
        }
        two_sided((self.mean / self.std_error).abs(), self.freedom)
    }

    /// Smallest true difference that is found with probability [`POWER`] at [`ALPHA`]: `(t(1 -
    /// alpha/2) + t(power)) * std_error` (Bloom, Minimum detectable effects, Evaluation Review
    /// 19(5), 1995).
    pub fn detectable(&self) -> f64 {
        (t95(self.freedom) + quantile(POWER, self.freedom)) * self.std_error
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_match_the_published_table() {
        // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values of
        // Student's t.
        let table = [
            (1.0, 0.975, 12.706),
            (2.0, 0.975, 4.303),
            (3.0, 0.95, 2.353),
            (4.0, 0.975, 2.776),
            (5.0, 0.999, 5.893),
            (10.0, 0.975, 2.228),
            (10.0, 0.90, 1.372),
            (14.0, 0.975, 2.145),
            (30.0, 0.975, 2.042),
            (60.0, 0.99, 2.390),
            (100.0, 0.975, 1.984),
            (1e6, 0.975, 1.960),
        ];
        for (freedom, p, expected) in table {
            let t = quantile(p, freedom);
            assert!((t - expected).abs() < 6e-4, "t({p}, {freedom}) = {t}, expected {expected}");
            assert!((two_sided(t, freedom) - 2.0 * (1.0 - p)).abs() < 1e-9);
        }
        assert!((quantile(0.8, 1.0) - 1.376_382).abs() < 1e-6, "tan(0.3 pi)");
    }

    #[test]
    fn unequal_variances_have_welchs_degrees_of_freedom() {
        // Standard errors 0.3 and 1.0 with 8 and 4 degrees: (0.09 + 1)^2 / (0.0081 / 8 + 1 / 4).
        let difference = Difference::of(
            &Estimate { mean: 10.0, std_error: 0.3, freedom: 8.0 },
            &Estimate { mean: 12.0, std_error: 1.0, freedom: 4.0 },
        );
        assert!((difference.freedom - 1.1881 / 0.251_012_5).abs() < 1e-9 && difference.mean == 2.0);
        assert!((difference.std_error - 1.09f64.sqrt()).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn a_quantile_and_its_probability_are_inverse(
            p in 0.5f64..0.9999, freedom in 0.5f64..2000.0
        ) {
            prop_assert!((1.0 - two_sided(quantile(p, freedom), freedom) / 2.0 - p).abs() < 1e-8);
        }
    }
}
