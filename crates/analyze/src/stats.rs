//! Statistics over repeats that never return non-finite numbers.

pub use llmprof_core::domain::median::{
    has_two_halves, lower_median, lower_median_of, median, median_of, stated_median,
};
use serde::{Deserialize, Serialize};

/// Variation of a measured quantity over repeats; the containing field's name has the unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Spread {
    #[cfg_attr(feature = "schema", schema(example = 12.5))]
    pub mean: f64,
    /// Sample standard deviation, `sqrt(sum((x - mean)^2) / (n - 1))`; `null` for a single value.
    #[cfg_attr(feature = "schema", schema(example = 0.25))]
    pub std: Option<f64>,
    pub min: f64,
    pub max: f64,
    /// Number of values.
    #[cfg_attr(feature = "schema", schema(example = 3))]
    pub n: u32,
}

impl Spread {
    /// Summarises the finite values among `values`; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        if values.is_empty() {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self {
            mean,
            std: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()),
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            n: values.len() as u32,
        })
    }

    /// Summarises ratios, each of a part and its whole; their mean is all parts over all wholes.
    pub fn of_ratios(of: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let is_known = |it: &(f64, f64)| ratio(it.0, it.1).is_some();
        let of: Vec<(f64, f64)> = of.into_iter().filter(is_known).collect();
        let it = Self::of(of.iter().map(|(part, whole)| part / whole))?;
        if of.windows(2).all(|pair| pair[0].1 == pair[1].1) {
            return Some(it);
        }
        let sum = of.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        let mean = ratio(sum.0, sum.1)?;
        let squares: f64 = of.iter().map(|(part, whole)| (part / whole - mean).powi(2)).sum();
        let std = it.std.map(|_| (squares / (f64::from(it.n) - 1.0)).sqrt());
        Some(Self { mean, std, ..it })
    }

    /// The sum of the values.
    pub fn total(&self) -> f64 {
        self.mean * f64::from(self.n)
    }

    /// Coefficient of variation in percent: `100 std / mean`.
    pub fn cv_pct(&self) -> Option<f64> {
        percent(self.std?, self.mean)
    }
}

/// `part / whole`; `None` unless `whole` is positive and the quotient finite.
pub fn ratio(part: f64, whole: f64) -> Option<f64> {
    let quotient = part / whole;
    (whole > 0.0 && quotient.is_finite()).then_some(quotient)
}

/// `100 part / whole`, under the same conditions.
pub fn percent(part: f64, whole: f64) -> Option<f64> {
    ratio(part, whole).map(|quotient| quotient * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_the_sample_deviation() {
        let spread = Spread::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_eq!(spread.mean, 5.0);
        assert!((spread.std.unwrap() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((spread.min, spread.max, spread.n), (2.0, 9.0, 8));
    }

    #[test]
    fn one_value_has_no_deviation() {
        let spread = Spread::of([3.0]).unwrap();
        assert_eq!((spread.std, spread.cv_pct()), (None, None));
    }

    #[test]
    fn the_mean_of_ratios_is_all_parts_over_all_wholes() {
        for (of, mean) in [
            (&[(8.0, 4.0), (12.0, 4.0)][..], 2.5),
            (&[(8.0, 4.0), (10.0, 8.0)], 1.5),
            (&[(8.0, 4.0), (1.0, 0.0), (f64::NAN, 1.0)], 2.0),
        ] {
            assert_eq!(Spread::of_ratios(of.iter().copied()).unwrap().mean, mean, "{of:?}");
        }
        let it = Spread::of_ratios([(8.0, 4.0), (10.0, 8.0)]).unwrap();
        assert_eq!((it.min, it.max, it.n), (1.25, 2.0, 2));
        assert_eq!(Spread::of_ratios([(1.0, 1.0)]).unwrap().std, None);
        assert_eq!(Spread::of_ratios([]), None);
    }

    #[test]
    fn results_are_always_finite() {
        assert_eq!((Spread::of([]), median([]), median_of([])), (None, None, None));
        assert_eq!(lower_median([f64::NAN, 3.0, 60.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(percent(f64::NAN, 1.0), None);
    }
}
