//! Statistics over repeats that never return non-finite numbers.

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

    /// The sum of the values.
    pub fn total(&self) -> f64 {
        self.mean * f64::from(self.n)
    }

    /// Coefficient of variation in percent: `100 std / mean`.
    pub fn cv_pct(&self) -> Option<f64> {
        percent(self.std?, self.mean)
    }
}

/// The median of the finite values: the least that at least half of them do not exceed.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
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
    fn results_are_always_finite() {
        assert_eq!((Spread::of([]), median([])), (None, None));
        assert_eq!(median([f64::NAN, 3.0, 60.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(percent(f64::NAN, 1.0), None);
    }
}
