//! Numbers of distinct values, in order of first use.

use std::{collections::HashMap, hash::Hash};

use foldhash::fast::RandomState;

/// Numbers values. A program repeats itself, so a value is first compared with the one that
/// followed its predecessor the last time; others are looked up.
#[derive(Debug, Clone)]
pub struct Interner<T> {
    values: Vec<T>,
    numbers: HashMap<T, u32, RandomState>,
    /// By value: the number of its last successor; [`NONE`] before there was one.
    next: Vec<u32>,
    last: u32,
}

const NONE: u32 = u32::MAX;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        let (values, numbers, next) = Default::default();
        Self { values, numbers, next, last: NONE }
    }
}

impl<T: Copy + Eq + Hash> Interner<T> {
    /// The number of `value`.
    #[inline]
    pub fn number(&mut self, value: T) -> u32 {
        let expected = self.next.get(self.last as usize).copied().unwrap_or(NONE);
        if self.values.get(expected as usize) != Some(&value) {
            return self.find(value);
        }
        self.last = expected;
        expected
    }

    #[inline(never)]
    fn find(&mut self, value: T) -> u32 {
        let number = *self.numbers.entry(value).or_insert_with(|| {
            self.values.push(value);
            self.next.push(NONE);
            self.values.len() as u32 - 1
        });
        if let Some(next) = self.next.get_mut(self.last as usize) {
            *next = number;
        }
        self.last = number;
        number
    }

    /// All values, by number.
    #[inline]
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// All values, by number.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// Changes all values. Values that become equal keep their numbers; the first is found.
    pub fn change(&mut self, change: impl Fn(&mut T)) {
        self.values.iter_mut().for_each(change);
        self.numbers.clear();
        for (at, value) in self.values.iter().enumerate() {
            self.numbers.entry(*value).or_insert(at as u32);
        }
        (self.next, self.last) = (vec![NONE; self.values.len()], NONE);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_has_the_number_of_its_first_use(
            values in prop::collection::vec(0u8..9, 0..200), by in 0u8..9
        ) {
            let mut interner = Interner::default();
            let numbers: Vec<u32> = values.iter().map(|it| interner.number(*it)).collect();
            let mut distinct: Vec<u8> = Vec::new();
            for (value, number) in values.iter().zip(numbers) {
                if !distinct.contains(value) {
                    distinct.push(*value);
                }
                prop_assert_eq!(distinct.iter().position(|it| it == value), Some(number as usize));
            }
            prop_assert_eq!(interner.values(), &distinct[..]);
            interner.change(|it| *it += by);
            for (at, value) in distinct.iter().enumerate() {
                prop_assert_eq!(interner.number(value + by), at as u32);
            }
        }
    }
}
