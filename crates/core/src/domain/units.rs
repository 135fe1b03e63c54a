//! Units as types, so that a sum of nanoseconds and bytes does not compile.
//!
//! Arithmetic saturates: values from a file never cause a panic.

use std::{
    iter::Sum,
    ops::{Add, AddAssign, Sub},
};

use serde::{Deserialize, Serialize};

use super::digits;

/// A count with its noun: `1 row`, `2,000 rows`.
pub fn quantity(count: u64, noun: &str) -> String {
    format!("{} {}", digits::count(count), plural(count, noun))
}

/// A noun in the number of a count.
pub fn plural(count: u64, noun: &str) -> String {
    match (count, noun.ends_with("ch") || noun.ends_with("ss")) {
        (1, _) => noun.to_owned(),
        (_, true) => format!("{noun}es"),
        (_, false) => format!("{noun}s"),
    }
}

/// A text at the start of a sentence.
pub fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize,
            Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self(0), Add::add)
            }
        }
    };
}

unit! {
    /// Nanoseconds: a duration, or a point on the clock that its source names.
    Nanos(i64)
}
unit! {
    /// Bytes.
    Bytes(u64)
}
unit! {
    /// Floating-point operations; a multiply-add counts as two.
    Flops(u64)
}

impl Nanos {
    /// The same time in milliseconds.
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The same time in seconds.
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_starts_with_a_capital() {
        let shown = ["decode takes 2 ms", "Prefill", "é", ""].map(capitalised);
        assert_eq!(shown, ["Decode takes 2 ms", "Prefill", "É", ""]);
    }

    #[test]
    fn one_is_singular() {
        let shown = [0, 1, 2, 20_000].map(|count| quantity(count, "row"));
        assert_eq!(shown, ["0 rows", "1 row", "2 rows", "20,000 rows"]);
        assert_eq!([1, 3].map(|count| plural(count, "launch")), ["launch", "launches"]);
    }
}
