//! Numbers as ncu prints them, with the decimal and grouping marks of its locale.
//!
//! Unambiguous numbers decide the mark once for a page. A page without any is refused: `117.344`
//! may be a hundred and seventeen or a hundred and seventeen thousand.

/// The decimal mark; the other one, a space or an apostrophe groups digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DecimalMark {
    #[default]
    Point,
    Comma,
}

/// Marks between groups of digits in any locale: spaces of three widths and two apostrophes.
const SPACES: [char; 5] = [' ', '\u{a0}', '\u{202f}', '\'', '\u{2019}'];
/// Percentages below this are possible; a reading above it is wrong.
const MAX_PCT: f64 = 1_000.0;

impl DecimalMark {
    const fn decimal(self) -> char {
        match self {
            Self::Point => '.',
            Self::Comma => ',',
        }
    }

    const fn grouping(self) -> char {
        match self {
            Self::Point => ',',
            Self::Comma => '.',
        }
    }

    /// Reads `text` with this mark; `None` if it is not a number. Instances in brackets after a
    /// value are ignored.
    pub fn read(self, text: &str) -> Option<f64> {
        let text = text.trim();
        let text =
            text.split_once(" (").filter(|_| text.ends_with(')')).map_or(text, |(value, _)| value);
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        let (number, exponent) = digits.split_at(digits.find(['e', 'E']).unwrap_or(digits.len()));
        let (whole, fraction) = match number.split_once(self.decimal()) {
            Some((whole, fraction)) => (whole, fraction),
            None => (number, ""),
        };
        let whole = ungrouped(whole, self.grouping())?;
        let digits_only = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits_only(fraction) || whole.is_empty() && fraction.is_empty() {
            return None;
        }
        format!("{sign}{whole}.{fraction}0{exponent}").parse().ok()
    }
}

/// The digits of a whole number without grouping marks; `None` if the grouping fits no locale.
fn ungrouped(whole: &str, grouping: char) -> Option<String> {
    let mark = whole.chars().find(|c| !c.is_ascii_digit());
    if mark.is_some_and(|mark| mark != grouping && !SPACES.contains(&mark)) {
        return None;
    }
    let Some(mark) = mark else { return Some(whole.to_owned()) };
    let groups: Vec<&str> = whole.split(mark).collect();
    let (first, rest) = groups.split_first()?;
    let (last, middle) = rest.split_last()?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // Groups of two occur in India, before the last.
    let fits = (1..=3).contains(&first.len())
        && !first.starts_with('0')
        && last.len() == 3
        && middle.iter().all(|group| (2..=3).contains(&group.len()));
    (fits && groups.iter().all(|group| digits(group))).then(|| groups.concat())
}

/// Decides the mark of a page from `cells`, each a unit and a text; the error is the reason in one
/// line.
pub fn decimal_mark<'a>(
    cells: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<DecimalMark, String> {
    let (mut point, mut comma, mut open): (Option<&str>, Option<&str>, Vec<(&str, &str)>) =
        (None, None, Vec::new());
    for (unit, text) in cells.filter(|(_, text)| text.contains([',', '.'])) {
        match (DecimalMark::Point.read(text), DecimalMark::Comma.read(text)) {
            (Some(_), None) => point = point.or(Some(text)),
            (None, Some(_)) => comma = comma.or(Some(text)),
            (Some(one), Some(other)) if one != other => open.push((unit, text)),
            _ => {}
        }
    }
    match (point, comma) {
        (Some(one), Some(other)) => {
            return Err(format!(
                "its numbers have decimal points ({one}) and decimal commas ({other}); \
                 print it again with LC_ALL=C"
            ));
        }
        (Some(_), None) => return Ok(DecimalMark::Point),
        (None, Some(_)) => return Ok(DecimalMark::Comma),
        (None, None) => {}
    }
    undecided(&open)
}

/// The mark of a page with only ambiguous numbers.
fn undecided(open: &[(&str, &str)]) -> Result<DecimalMark, String> {
    let Some((_, first)) = open.first() else { return Ok(DecimalMark::Point) };
    for (_, text) in open.iter().filter(|(unit, _)| *unit == "%") {
        for (mark, other) in
            [(DecimalMark::Point, DecimalMark::Comma), (DecimalMark::Comma, DecimalMark::Point)]
        {
            if other.read(text).is_some_and(|pct| pct.abs() >= MAX_PCT) {
                return Ok(mark);
            }
        }
    }
    // ncu prints two or six digits after the mark, or none: three digits after commas are a group.
    if open.iter().all(|(_, text)| !text.contains('.')) {
        return Ok(DecimalMark::Point);
    }
    Err(format!(
        "the locale of its numbers is undecided ({first} may be a fraction or thousands); \
         print it again with LC_ALL=C"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(cells: &[(&str, &str)]) -> Result<DecimalMark, String> {
        decimal_mark(cells.iter().copied())
    }

    #[test]
    fn a_number_is_read_in_each_locale_it_can_be_printed_in() {
        for (text, mark, value) in [
            ("1,234.5", DecimalMark::Point, 1234.5),
            ("1.234,5", DecimalMark::Comma, 1234.5),
            ("1\u{202f}234,50", DecimalMark::Comma, 1234.5),
            ("1'234.5", DecimalMark::Point, 1234.5),
            ("12,34,567.8", DecimalMark::Point, 1_234_567.8),
            ("16896.000000", DecimalMark::Point, 16896.0),
            ("-1,5e-3", DecimalMark::Comma, -0.0015),
            (".5", DecimalMark::Point, 0.5),
            ("1,234 (600; 634)", DecimalMark::Point, 1234.0),
        ] {
            assert_eq!(mark.read(text), Some(value), "{text}");
        }
        for text in [
            "",
            "no data",
            "n/a",
            "1,23",
            "0,123",
            "1,2345",
            "2025.3.1",
            "127.0.0.1",
            ".",
            "-",
            "1,,234",
            "12ab",
        ] {
            assert_eq!(DecimalMark::Point.read(text), None, "{text}");
        }
    }

    #[test]
    fn the_mark_is_that_of_the_unambiguous_numbers() {
        assert_eq!(mark(&[("ns", "117,344"), ("%", "65.77")]), Ok(DecimalMark::Point));
        assert_eq!(mark(&[("ns", "117.344"), ("%", "65,77")]), Ok(DecimalMark::Comma));
        assert_eq!(mark(&[("byte", "2.508.800")]), Ok(DecimalMark::Comma));
        assert_eq!(mark(&[("ns", "152192"), ("", "288")]), Ok(DecimalMark::Point));
        assert_eq!(
            mark(&[("ns", "6,688"), ("", "1,024")]),
            Ok(DecimalMark::Point),
            "ncu never prints three decimals"
        );
        assert_eq!(
            mark(&[("%", "65.770"), ("ns", "117.344")]),
            Ok(DecimalMark::Point),
            "65,770 % is not possible"
        );
        assert_eq!(mark(&[("%", "65,770"), ("ns", "117,344")]), Ok(DecimalMark::Comma));
    }

    #[test]
    fn an_undecided_page_is_refused() {
        assert!(
            mark(&[("ns", "117.344")])
                .unwrap_err()
                .contains("117.344 may be a fraction or thousands")
        );
        assert!(
            mark(&[("%", "65.77"), ("%", "65,77")])
                .unwrap_err()
                .contains("decimal points (65.77) and decimal commas (65,77)")
        );
    }
}
