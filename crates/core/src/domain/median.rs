//! The median of values, and its name if it stands for half of them alone.

use std::cmp::Ordering;

/// Values are alike, and steps are the time of their stage, if they differ by at most this part.
pub const TYPICAL_PART: f64 = 0.05;

/// The median of the finite values; of an even number, the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let finite = values.into_iter().filter(|value| value.is_finite()).collect();
    middle(finite, f64::total_cmp).map(|(low, high)| f64::midpoint(low, high))
}

/// The lower median of the finite values: of an even number, the lower of the two in the middle, so
/// that it is a measured value.
pub fn lower_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let finite = values.into_iter().filter(|value| value.is_finite()).collect();
    middle(finite, f64::total_cmp).map(|(low, _)| low)
}

/// The median that a table states: the lower median, but of two values their mean, as these have
/// no measured value in the middle.
pub fn stated_median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let finite: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    if finite.len() == 2 { median(finite) } else { lower_median(finite) }
}

/// True if two values differ by more than [`TYPICAL_PART`] of their mean.
pub fn are_apart(low: f64, high: f64) -> bool {
    high - low > TYPICAL_PART * f64::midpoint(low, high)
}

/// True if the finite values are two halves: of an even number of at least four, the two in the
/// middle are apart. Their lower median is called so then. Two values have no median.
pub fn has_two_halves(values: impl IntoIterator<Item = f64>) -> bool {
    let finite: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let has_median = finite.len() > 2;
    let halves = middle(finite, f64::total_cmp).filter(|_| has_median);
    halves.is_some_and(|(low, high)| are_apart(low, high))
}

/// The name of a lower median.
pub const fn median_name(has_two_halves: bool) -> &'static str {
    if has_two_halves { "lower median" } else { "median" }
}

/// The median of whole numbers; the mean of the two in the middle is rounded towards zero.
pub fn median_of(values: impl IntoIterator<Item = i64>) -> Option<i64> {
    middle(values.into_iter().collect(), i64::cmp).map(|(low, high)| i64::midpoint(low, high))
}

/// The lower median of whole numbers: a measured value.
pub fn lower_median_of(values: impl IntoIterator<Item = i64>) -> Option<i64> {
    middle(values.into_iter().collect(), i64::cmp).map(|(low, _)| low)
}

/// The two values in the middle; of an odd number, the same value twice.
fn middle<T: Copy>(mut values: Vec<T>, compare: impl FnMut(&T, &T) -> Ordering) -> Option<(T, T)> {
    values.sort_by(compare);
    let low = values.get(values.len().checked_sub(1)? / 2)?;
    Some((*low, values[values.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_two_and_the_lower_median_is_one_of_them() {
        for (values, middle, lower) in [
            (&[5.0][..], 5.0, 5.0),
            (&[1.0, 9.0], 5.0, 1.0),
            (&[9.0, 2.0, 1.0], 2.0, 2.0),
            (&[9.0, 4.0, 2.0, 1.0], 3.0, 2.0),
        ] {
            assert_eq!(median(values.iter().copied()), Some(middle), "{values:?}");
            assert_eq!(lower_median(values.iter().copied()), Some(lower), "{values:?}");
            let whole = || values.iter().map(|it| *it as i64);
            assert_eq!(median_of(whole()), Some(middle as i64), "{values:?}");
            assert_eq!(lower_median_of(whole()), Some(lower as i64), "{values:?}");
        }
        // Times since 1970 differ by less than a float of their size can.
        let first = 1_767_189_312_000_000_001;
        assert_eq!(median_of([first, first + 2]), Some(first + 1));
    }

    #[test]
    fn the_stated_median_of_two_values_is_their_mean_and_of_more_a_measured_value() {
        for (values, expected) in [
            (&[][..], None),
            (&[5.0], Some(5.0)),
            (&[9.0, 1.0], Some(5.0)),
            (&[9.0, f64::NAN, 1.0], Some(5.0)),
            (&[9.0, 2.0, 1.0], Some(2.0)),
            (&[9.0, 4.0, 2.0, 1.0], Some(2.0)),
        ] {
            assert_eq!(stated_median(values.iter().copied()), expected, "{values:?}");
        }
    }

    #[test]
    fn an_even_number_of_values_has_two_halves_if_the_two_in_the_middle_are_apart() {
        for (values, expected) in [
            (&[1.0, 1.0, 1.9, 1.9][..], true),
            (&[1.9, 1.0, 1.9, 1.0], true),
            (&[1.0, 1.0, 62.0, 56.0], true),
            (&[1.0, 1.0, 1.04, 1.9], false),
            (&[1.0, 1.0, 1.06, 1.9], true),
            (&[0.1, 1.0, 1.0, 90.0], false),
            (&[1.0, 1.0, 1.9], false),
            (&[1.0, 1.0, 1.9, 1.9, 1.9], false),
            (&[1.0, 1.9], false),
            (&[1.0, 1.0, 1.9, 1.9, f64::NAN], true),
            (&[0.0; 4], false),
            (&[], false),
        ] {
            assert_eq!(has_two_halves(values.iter().copied()), expected, "{values:?}");
        }
    }
}
