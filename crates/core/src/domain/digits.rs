//! Numbers in sentences and tables.

/// A figure of a sentence: three digits, which is as precise as measured times are.
pub fn figure(value: f64) -> String {
    let places = match value.abs() {
        0.0 | 100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.01.. => 3,
        _ => 5,
    };
    decimals(value, places)
}

/// A ratio in a sentence, "2.4 times": one decimal, and none from 100.
pub fn multiple(value: f64) -> String {
    decimals(value, usize::from(value.abs() < 99.95))
}

/// A number with `places` decimals, digits in groups of three.
pub fn decimals(value: f64, places: usize) -> String {
    let text = format!("{value:.places$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    grouped(whole, fraction)
}

/// A count with its digits in groups of three.
pub fn count(value: u64) -> String {
    grouped(&value.to_string(), "")
}

/// Sides of a grid or block: `4×24×1`.
pub fn sides(size: [u32; 3]) -> String {
    size.map(|side| side.to_string()).join("×")
}

fn grouped(whole: &str, fraction: &str) -> String {
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if !fraction.is_empty() {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiple_has_at_most_one_decimal_and_none_from_100() {
        for (value, text) in [
            (0.94, "0.9"),
            (2.44, "2.4"),
            (57.68, "57.7"),
            (99.94, "99.9"),
            (99.96, "100"),
            (250.5, "250"),
            (1_692.4, "1,692"),
        ] {
            assert_eq!(multiple(value), text);
        }
    }
}
