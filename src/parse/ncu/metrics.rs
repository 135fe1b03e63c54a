//! Metrics of one launch by name, in base units: nanoseconds, bytes, hertz, percent, counts.
//!
//! A field that ncu left empty or marked `no data` is absent; one that is NaN, infinite or
//! unreadable is kept apart and reported.

use std::collections::BTreeMap;

use super::numbers::DecimalMark;

/// Metrics of one launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchMetrics {
    values: BTreeMap<String, f64>,
    /// Names of metrics whose value is NaN or infinite.
    pub not_a_number: Vec<String>,
    /// Names of metrics whose value starts like a number but is not one.
    pub unreadable: Vec<String>,
}

impl LaunchMetrics {
    /// Adds a printed field; text that is not a number is skipped.
    pub fn take(&mut self, name: &str, unit: &str, text: &str, mark: DecimalMark) {
        match figure(text, mark) {
            PrintedValue::Number(value) => {
                self.values.insert(name.to_owned(), value * scale(unit));
            }
            PrintedValue::NotANumber => self.not_a_number.push(name.to_owned()),
            PrintedValue::Unreadable => self.unreadable.push(name.to_owned()),
            PrintedValue::Text => {}
        }
    }

    /// The first of these that was read.
    pub fn any(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.values.get(*name)).copied()
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }

    /// Metrics with this prefix and suffix, each with the text in between.
    pub fn between<'a>(
        &'a self,
        prefix: &'a str,
        suffix: &'a str,
    ) -> impl Iterator<Item = (&'a str, f64)> + 'a {
        self.values
            .range(prefix.to_owned()..)
            .take_while(move |(name, _)| name.starts_with(prefix))
            .filter_map(move |(name, value)| {
                Some((name.strip_prefix(prefix)?.strip_suffix(suffix)?, *value))
            })
    }
}

/// A field as ncu prints it.
enum PrintedValue {
    Number(f64),
    /// NaN or infinite.
    NotANumber,
    /// Starts like a number but is not one in the page's locale.
    Unreadable,
    /// Empty, `no data`, or a word.
    Text,
}

fn figure(text: &str, mark: DecimalMark) -> PrintedValue {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    if matches!(
        lower.trim_start_matches(['-', '+']),
        "nan" | "inf" | "infinity" | "-nan(ind)" | "nan(ind)"
    ) {
        return PrintedValue::NotANumber;
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | ',')) {
        return PrintedValue::Text;
    }
    match mark.read(text) {
        Some(value) if value.is_finite() => PrintedValue::Number(value),
        Some(_) => PrintedValue::NotANumber,
        None => PrintedValue::Unreadable,
    }
}

/// The factor from this unit to base units. An unknown unit counts as a base unit.
fn scale(unit: &str) -> f64 {
    let (over, under) = unit.split_once('/').unwrap_or((unit, ""));
    let under = match under {
        "ns" | "nsecond" => 1e-9,
        "us" | "usecond" => 1e-6,
        "ms" | "msecond" => 1e-3,
        _ => 1.0,
    };
    let over = match over {
        "us" | "usecond" => 1e3,
        "ms" | "msecond" => 1e6,
        "s" | "second" => 1e9,
        over => match (over.chars().next(), over.get(1..)) {
            (Some('K' | 'k'), Some("byte" | "hz")) => 1e3,
            (Some('M' | 'm'), Some("byte" | "hz")) => 1e6,
            (Some('G' | 'g'), Some("byte" | "hz")) => 1e9,
            (Some('T' | 't'), Some("byte" | "hz")) => 1e12,
            _ => 1.0,
        },
    };
    over / under
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_brought_to_their_base() {
        for (unit, expected) in [
            ("us", 1e3),
            ("nsecond", 1.0),
            ("s", 1e9),
            ("Kbyte", 1e3),
            ("Tbyte/s", 1e12),
            ("byte/second", 1.0),
            ("Ghz", 1e9),
            ("cycle/nsecond", 1e9),
            ("%", 1.0),
            ("", 1.0),
            ("register/thread", 1.0),
            ("é", 1.0),
        ] {
            assert!((scale(unit) / expected - 1.0).abs() < 1e-12, "{unit}");
        }
    }

    #[test]
    fn grouped_digits_are_figures_and_missing_ones_are_absent() {
        let mut metrics = LaunchMetrics::default();
        for (name, text) in [
            ("a", "1,234.5"),
            ("b", "no data"),
            ("c", ""),
            ("d", "nan"),
            ("e", "-inf"),
            ("f", "1e3"),
            ("g", "PolicySpread"),
            ("h", "12ab"),
        ] {
            metrics.take(name, "", text, DecimalMark::Point);
        }
        assert_eq!(
            (metrics.get("a"), metrics.get("b"), metrics.get("c"), metrics.get("f")),
            (Some(1234.5), None, None, Some(1000.0))
        );
        assert_eq!(
            (metrics.not_a_number, metrics.unreadable),
            (vec!["d".into(), "e".into()], vec!["h".to_owned()])
        );
    }
}
