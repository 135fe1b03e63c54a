//! Long lists of results: the first rows, and the rest summed.
//!
//! A capture may have a hundred thousand names, whose rows would take more memory than its events
//! and make unreadable tables.

use std::{
    cmp::Ordering,
    ops::{Deref, DerefMut},
};

/// Maximum rows of a table.
pub const MAX_ROWS: usize = 10_000;

/// Sorts the rows that a table keeps to its front. The others follow in any order: comparing a
/// hundred thousand names takes longer than summing them.
pub fn sort_kept<T>(rows: &mut [T], order: impl FnMut(&T, &T) -> Ordering) {
    sort_first(MAX_ROWS, rows, order);
}

fn sort_first<T>(max: usize, rows: &mut [T], mut order: impl FnMut(&T, &T) -> Ordering) {
    if rows.len() > max {
        rows.select_nth_unstable_by(max, &mut order);
    }
    let kept = rows.len().min(max);
    rows[..kept].sort_unstable_by(order);
}

/// A record whose counts and times can be added.
pub trait Summed {
    /// Adds the counts and times of another record. Other fields keep their values, which mean
    /// nothing in a sum.
    fn add(&mut self, other: Self);
}

/// The first [`MAX_ROWS`] rows in the order of their table, and the sum of the others.
#[derive(Debug, Clone, PartialEq)]
pub struct Limited<T> {
    pub rows: Vec<T>,
    /// The sum of the other rows, and their number.
    pub rest: Option<(T, u64)>,
}

impl<T> Default for Limited<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), rest: None }
    }
}

impl<T: Summed> Limited<T> {
    /// Keeps the first rows. Rows are made one at a time, so that the others take no memory.
    pub fn of(rows: impl IntoIterator<Item = T>) -> Self {
        Self::with(MAX_ROWS, rows)
    }

    fn with(max: usize, rows: impl IntoIterator<Item = T>) -> Self {
        let mut rows = rows.into_iter();
        let mut kept = Self { rows: rows.by_ref().take(max).collect(), rest: None };
        for row in rows {
            match &mut kept.rest {
                Some((sum, count)) => {
                    sum.add(row);
                    *count += 1;
                }
                None => kept.rest = Some((row, 1)),
            }
        }
        kept
    }

    /// Number of all rows.
    pub fn total(&self) -> u64 {
        self.rows.len() as u64 + self.rest.as_ref().map_or(0, |it| it.1)
    }
}

impl<T> Deref for Limited<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> DerefMut for Limited<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.rows
    }
}

impl<'a, T> IntoIterator for &'a Limited<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Limited<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Summed for u64 {
        fn add(&mut self, other: Self) {
            *self += other;
        }
    }

    proptest! {
        #[test]
        fn the_first_rows_are_sorted_and_none_is_lost(
            mut rows in prop::collection::vec(0u64..20, 0..40), max in 0usize..44
        ) {
            let mut all = rows.clone();
            all.sort_unstable();
            sort_first(max, &mut rows, Ord::cmp);
            let kept = max.min(all.len());
            prop_assert_eq!(&rows[..kept], &all[..kept]);
            rows.sort_unstable();
            prop_assert_eq!(rows, all);
        }

        #[test]
        fn sums_and_counts_are_those_of_all_rows(
            rows in prop::collection::vec(0u64..100, 0..12), max in 0usize..14
        ) {
            let limited = Limited::with(max, rows.iter().copied());
            prop_assert_eq!(&limited[..], &rows[..rows.len().min(max)]);
            let rest = limited.rest.map_or(0, |it| it.0);
            prop_assert_eq!(limited.iter().sum::<u64>() + rest, rows.iter().sum::<u64>());
            prop_assert_eq!(limited.total(), rows.len() as u64);
        }
    }
}
