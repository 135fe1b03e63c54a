//! The median of values.

use std::cmp::Ordering;

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
}
