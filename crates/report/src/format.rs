//! Figures for people: grouped digits, a fitting unit, no false precision.

use llmprof_analyze::stats::ratio;
pub use llmprof_core::domain::{
    digits::{count, decimals, figure, multiple, sides},
    units::quantity,
};
use llmprof_core::{domain::visible::visible, trace::copies::CopyKind};

/// Stands in a cell whose figure is unknown.
pub const UNKNOWN: &str = "–";
/// Meaning of ± wherever it stands.
pub const HALF_INTERVAL: &str = "± is half of the 95 % interval";
/// Stands for an empty name, which a program gave to a kernel or range.
const NO_NAME: &str = "(no name)";

/// Text from outside on one line of a terminal: hidden characters are symbols, and line breaks and
/// tabs are escaped.
pub fn escaped(text: &str) -> String {
    visible(text).replace('\t', "\\t").replace("\r\n", "\\r\\n").replace('\n', "\\n")
}

/// Milliseconds without the unit; small values keep their microseconds.
pub fn ms(value: f64) -> String {
    let places = match value.abs() {
        0.0 | 0.1.. => 3,
        0.01..0.1 => 4,
        _ => 5,
    };
    decimals(value, places)
}

/// Milliseconds next to a bar, where three digits are enough.
pub fn short_ms(value: f64) -> String {
    if value >= 100.0 { decimals(value, 1) } else { ms(value) }
}

/// A value and half of its interval, each with the decimals of the first digit of the interval, or
/// of the second if the first is 1: further digits are noise.
pub fn of_interval(value: f64, half: f64) -> [String; 2] {
    if !(half.is_normal() && half > 0.0) {
        return [figure(value), figure(half)];
    }
    let magnitude = half.log10().floor();
    let second = if half / 10f64.powf(magnitude) < 2.0 { 1.0 } else { 0.0 };
    let places = (second - magnitude).clamp(0.0, 9.0) as usize;
    [value, half].map(|it| decimals(it, places))
}

/// Half of the interval of a figure that is proportional to a mean with this half of its interval.
pub fn proportional_half(value: f64, mean: Option<f64>, half: Option<f64>) -> Option<f64> {
    half.zip(mean).and_then(|(half, mean)| ratio(half * value, mean))
}

/// The same as a text: `349 ± 106`, `386.0 ± 0.5`.
pub fn with_interval(value: f64, half: f64) -> String {
    of_interval(value, half).join(" ± ")
}

/// A share of a sentence, percent, with its sign.
pub fn share(value: f64) -> String {
    match value {
        // Not all, though it would round to it.
        99.5..100.0 => pct(value.min(99.9)),
        10.0.. => format!("{value:.0} %"),
        _ => pct(value),
    }
}

/// A name in a sentence.
pub fn short_name(name: &str) -> String {
    shortened(name, 48)
}

/// Work of a GPU in a sentence, by its name in tables: a copy in words, or the name of a kernel.
pub fn work_name(name: &str) -> String {
    const COPIES: [CopyKind; 3] =
        [CopyKind::HostToDevice, CopyKind::DeviceToHost, CopyKind::DeviceToDevice];
    let is_copy = |kind: &&str| COPIES.iter().any(|it| it.as_str() == *kind);
    match name.strip_prefix("copy ").filter(is_copy) {
        Some(kind) => format!("copy {}", kind.replace('_', " ")),
        None => short_name(name),
    }
}

/// A name of at most `max` characters: its start and its end.
pub fn shortened(name: &str, max: usize) -> String {
    if name.trim().is_empty() {
        return NO_NAME.to_owned();
    }
    let length = name.chars().count();
    if length <= max {
        return name.to_owned();
    }
    let tail = max / 3;
    let head = max - tail - 1;
    let first: String = name.chars().take(head).collect();
    let last: String = name.chars().skip(length - tail).collect();
    format!("{first}…{last}")
}

/// More than this share, percent, is most of a time.
pub const MAJORITY_PCT: f64 = 50.0;

/// Percent, with its sign.
pub fn pct(value: f64) -> String {
    if value != 0.0 && value.abs() < 0.1 {
        "< 0.1 %".into()
    } else {
        format!("{} %", decimals(value, 1))
    }
}

/// Bytes in decimal units.
pub fn bytes(value: u64) -> String {
    match value {
        0..1000 => format!("{value} B"),
        _ => scaled(value as f64, "B"),
    }
}

/// A rate or amount with a decimal prefix: `1.21 TFLOP/s`.
pub fn scaled(value: f64, unit: &str) -> String {
    let mut value = value;
    for prefix in ["", "k", "M", "G", "T", "P"] {
        if value.abs() < 999.5 {
            let places = if value.abs() >= 100.0 {
                0
            } else if value.abs() >= 10.0 {
                1
            } else {
                2
            };
            return format!("{value:.places$} {prefix}{unit}");
        }
        value /= 1000.0;
    }
    format!("{} E{unit}", decimals(value, 2))
}

/// A rate and its peak, of which it is `share` percent: `2.22 of 20.1 GFLOP/s`.
pub fn of_peak(rate: f64, share: f64, unit: &str) -> String {
    let (rate, peak) = (scaled(rate, unit), scaled(rate / share * 100.0, unit));
    match (rate.split_once(' '), peak.split_once(' ')) {
        (Some((number, one)), Some((_, other))) if one == other => {
            format!("{number} of {peak}")
        }
        _ => format!("{rate} of {peak}"),
    }
}

/// Formats a value; a dash if it is unknown.
pub fn known<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), format)
}

/// Operand shapes: `1x918x1280, 1280x1280`.
pub fn shapes(shapes: &[Vec<u64>], variants: u64) -> String {
    let one = |shape: &Vec<u64>| {
        let sides: Vec<String> = shape.iter().map(u64::to_string).collect();
        if sides.is_empty() { "scalar".to_owned() } else { sides.join("×") }
    };
    let all: Vec<String> = shapes.iter().map(one).collect();
    let more = if variants > 1 { format!(" (+{} more)", variants - 1) } else { String::new() };
    if all.is_empty() { UNKNOWN.into() } else { format!("{}{more}", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_and_units_fit() {
        assert_eq!(count(3_336_106_240), "3,336,106,240");
        assert_eq!((count(999).as_str(), count(1000).as_str()), ("999", "1,000"));
        assert_eq!(
            (ms(1234.5678).as_str(), ms(0.00287).as_str(), ms(-0.5).as_str()),
            ("1,234.568", "0.00287", "-0.500")
        );
        assert_eq!((bytes(512).as_str(), bytes(6_672_212_480).as_str()), ("512 B", "6.67 GB"));
        assert_eq!(scaled(989e12, "FLOP/s"), "989 TFLOP/s");
        assert_eq!(scaled(999.9e9, "FLOP/s"), "1.00 TFLOP/s");
    }

    #[test]
    fn a_share_names_the_rate_and_the_peak_with_one_unit_if_it_is_of_both() {
        for (rate, share, text) in [
            (2.22e9, 11.0, "2.22 of 20.2 GFLOP/s"),
            (346.15e12, 35.0, "346 of 989 TFLOP/s"),
            (2.5e9, 0.25, "2.50 GFLOP/s of 1.00 TFLOP/s"),
        ] {
            assert_eq!(of_peak(rate, share, "FLOP/s"), text);
        }
    }

    #[test]
    fn a_name_in_a_sentence_is_short_and_never_empty() {
        assert_eq!((short_name("gemm").as_str(), short_name(" ").as_str()), ("gemm", "(no name)"));
        let long = short_name(&"a".repeat(338));
        assert_eq!((long.chars().count(), long.contains('…')), (48, true));
    }

    #[test]
    fn a_copy_in_a_sentence_has_words_and_other_work_its_name() {
        for (name, words) in [
            ("copy host_to_device", "copy host to device"),
            ("copy device_to_device", "copy device to device"),
            ("copy kv_cache", "copy kv_cache"),
            ("copy_to_device", "copy_to_device"),
            ("fill", "fill"),
        ] {
            assert_eq!(work_name(name), words);
        }
    }

    #[test]
    fn digits_beyond_the_interval_are_left_out() {
        for (value, half, text) in [
            (349.424, 106.345, "349 ± 106"),
            (386.0, 0.484, "386.0 ± 0.5"),
            (2.3543, 0.0413, "2.35 ± 0.04"),
            (512.34, 1.94, "512.3 ± 1.9"),
            (2.0, 0.02, "2.00 ± 0.02"),
            (123_456.7, 4_321.0, "123,457 ± 4,321"),
            (23.8, 0.0, "23.8 ± 0"),
        ] {
            assert_eq!(with_interval(value, half), text);
        }
    }

    #[test]
    fn a_tiny_share_is_not_shown_as_zero() {
        assert_eq!(
            (pct(0.0).as_str(), pct(0.04).as_str(), pct(12.34).as_str()),
            ("0.0 %", "< 0.1 %", "12.3 %")
        );
    }
}
