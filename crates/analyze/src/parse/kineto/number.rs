//! Exact times from the text of a number.
//!
//! Times since 1970 in microseconds with decimals have more digits than an `f64` holds, so text is
//! read digit by digit. What is not a number has no value; nothing is guessed.

/// Digits after which a number is out of every range.
const MAX_DIGITS: usize = 30;

/// Nanoseconds of `text`, a JSON number of microseconds, rounded to the nearest; the text may be
/// quoted. `None` for other text and for values beyond 2^63.
pub fn nanos(text: &str) -> Option<i64> {
    let text = unquoted(text);
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_number = |part: &str| part.bytes().all(|it| it.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let digits = whole.bytes().chain(fraction.bytes());
    // The value is `digits` times ten to the power of `shift`, in nanoseconds.
    let mut shift = exponent.checked_add(3)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let (mut value, mut count) = (0_i128, 0);
    for digit in digits.skip_while(|it| *it == b'0') {
        if count < MAX_DIGITS {
            value = value * 10 + i128::from(digit - b'0');
            count += 1;
        } else {
            shift = shift.checked_add(1)?;
        }
    }
    let value = match shift {
        _ if value == 0 => 0,
        0.. => value.checked_mul(10_i128.checked_pow(shift.cast_unsigned())?)?,
        _ => {
            let unit = 10_i128.checked_pow(shift.unsigned_abs()).unwrap_or(i128::MAX);
            value / unit + i128::from(value % unit >= unit - unit / 2)
        }
    };
    i64::try_from(if negative { -value } else { value }).ok()
}

/// The text without the quotes around it.
pub fn unquoted(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or(text).trim()
}

/// Returns true if a number of microseconds has decimals.
pub fn has_decimals(text: &str) -> bool {
    text.contains('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        for (text, ns) in [
            ("4461382452007.101", 4_461_382_452_007_101),
            ("1790857026123456.789", 1_790_857_026_123_456_789),
            ("1664989026123456", 1_664_989_026_123_456_000),
            ("2.944", 2944),
            ("0", 0),
            ("0.0004", 0),
            ("0.0005", 1),
            ("-1.5", -1500),
            ("1e3", 1_000_000),
            ("1.5E-3", 2),
            ("\"12.25\"", 12_250),
            ("0.1000000000000000000000000000000000000000001", 100),
        ] {
            assert_eq!(nanos(text), Some(ns), "{text}");
        }
    }

    #[test]
    fn other_text_and_absurd_numbers_have_no_value() {
        for text in [
            "",
            "-",
            ".5",
            "abc",
            "1.2.3",
            "null",
            "true",
            "[1]",
            "1e99",
            "1e999999999999",
            "99999999999999999999999999999999999999",
            "\"\"",
            "0x10",
            "1 2",
        ] {
            assert_eq!(nanos(text), None, "{text}");
        }
        assert_eq!(nanos("1e-99"), Some(0));
    }
}
