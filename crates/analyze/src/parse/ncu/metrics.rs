//! Metrics of one launch by name, in base units: nanoseconds, bytes, hertz, percent, counts.
//!
//! A field that ncu left empty or marked `no data` is absent; one that is NaN, infinite or
//! unreadable is kept apart and reported, as is a time or size without a known unit.

use std::collections::BTreeMap;

use super::numbers::DecimalMark;

/// Metrics of one launch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchMetrics {
    values: BTreeMap<String, f64>,
    /// Names of metrics whose value is NaN or infinite.
    pub not_a_number: Vec<String>,
    /// Names of metrics whose value starts like a number but is not one, or has no known unit.
    pub unreadable: Vec<String>,
}

impl LaunchMetrics {
    /// Adds a printed field; text that is not a number is skipped.
    pub fn take(&mut self, name: &str, unit: &str, text: &str, mark: DecimalMark) {
        match figure(text, mark) {
            PrintedValue::Number(value) => match scale(name, unit) {
                Some(factor) => {
                    self.values.insert(name.to_owned(), value * factor);
                }
                None => self.unreadable.push(name.to_owned()),
            },
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

/// The factor from the unit of this metric to base units; `None` if the metric is a time, a size or
/// a rate and the unit is not. An unknown unit of another metric is the base unit.
fn scale(name: &str, unit: &str) -> Option<f64> {
    let (over, under) = unit.split_once('/').unwrap_or((unit, ""));
    let seconds = nanos(under).map(|ns| ns / 1e9);
    let (bytes, hertz) = (prefixed(over, "byte"), prefixed(unit, "hz"));
    let is_size = name.contains("__bytes") && !name.contains(".pct");
    if name.starts_with("gpu__time_duration") {
        nanos(unit)
    } else if name.ends_with(".per_second") {
        match hertz.filter(|_| !is_size) {
            Some(hertz) => Some(hertz),
            None => Some(if is_size { bytes? } else { 1.0 } / seconds?),
        }
    } else if is_size {
        bytes
    } else {
        let amount = nanos(over).or(bytes).or(hertz).unwrap_or(1.0);
        Some(amount / seconds.unwrap_or(1.0))
    }
}

/// Nanoseconds of a unit of time.
fn nanos(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" | "nsecond" => 1.0,
        "us" | "usecond" => 1e3,
        "ms" | "msecond" => 1e6,
        "s" | "second" => 1e9,
        _ => return None,
    })
}

/// The factor of a prefix before `base`.
fn prefixed(unit: &str, base: &str) -> Option<f64> {
    Some(match unit.strip_suffix(base)? {
        "" => 1.0,
        "K" | "k" => 1e3,
        "M" | "m" => 1e6,
        "G" | "g" => 1e9,
        "T" | "t" => 1e12,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_brought_to_their_base() {
        for (name, unit, expected) in [
            (DURATION, "us", 1e3),
            (DURATION, "nsecond", 1.0),
            (DURATION, "s", 1e9),
            ("dram__bytes_read.sum", "Kbyte", 1e3),
            ("dram__bytes.sum.per_second", "Tbyte/s", 1e12),
            ("dram__bytes.sum.per_second", "byte/second", 1.0),
            ("dram__bytes.sum.per_second", "byte/ns", 1e9),
            (CYCLES, "Ghz", 1e9),
            (CYCLES, "cycle/nsecond", 1e9),
            ("dram__bytes_read.sum.pct_of_peak_sustained_elapsed", "%", 1.0),
            ("launch__waves_per_multiprocessor", "", 1.0),
            ("launch__registers_per_thread", "register/thread", 1.0),
            ("launch__shared_mem_per_block", "Kbyte/block", 1e3),
            ("a", "é", 1.0),
        ] {
            let factor = scale(name, unit).unwrap();
            assert!((factor / expected - 1.0).abs() < 1e-12, "{name} {unit}");
        }
    }

    const DURATION: &str = "gpu__time_duration.sum";
    const CYCLES: &str = "smsp__cycles_elapsed.avg.per_second";

    #[test]
    fn a_time_size_or_rate_has_no_factor_without_its_unit() {
        for name in [DURATION, "dram__bytes_read.sum", "dram__bytes.sum.per_second", CYCLES] {
            for unit in ["", "%", "inst", "/", "Xbyte", "byte/fortnight", "é"] {
                let is_size = name.ends_with("read.sum") && unit == "byte/fortnight";
                assert_eq!(scale(name, unit).is_some(), is_size, "{name} {unit}");
            }
        }
        assert_eq!(scale("dram__bytes.sum.per_second", "Ghz"), None);
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
