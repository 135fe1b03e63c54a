//! Filters of stored rows: `COLUMN=VALUE`, `COLUMN!=VALUE`, `COLUMN~TEXT`, `COLUMN=MIN..MAX`.
//!
//! Pure: parses a filter, and compares cells with it.

use std::{borrow::Cow, ops::RangeInclusive, str::FromStr};

use serde_json::Value;

/// A condition on the cells of one column.
#[derive(Debug, Clone, PartialEq)]
pub struct RowFilter {
    pub column: String,
    operator: FilterOperator,
    value: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterOperator {
    Equal,
    Differs,
    Contains,
}

/// A text that is not a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid filter {0:?}; expected COLUMN=VALUE, COLUMN!=VALUE, COLUMN~TEXT or COLUMN=MIN..MAX"
)]
pub struct InvalidFilter(String);

/// A filter of a column of numbers whose value is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column} has numbers, and {value:?} is not a number or a range such as 1..10")]
pub struct NotANumber {
    column: String,
    value: String,
}

/// A filter with its value, by the kind of its column.
#[derive(Debug, Clone, PartialEq)]
pub enum CellTest {
    Unknown,
    Text(String),
    Number(RangeInclusive<f64>),
    /// Lower case.
    Contains(String),
    Not(Box<CellTest>),
}

impl FromStr for RowFilter {
    type Err = InvalidFilter;

    fn from_str(text: &str) -> Result<Self, InvalidFilter> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (column, rest) = text.split_at(end);
        let operators = [
            ("!=", FilterOperator::Differs),
            ("=", FilterOperator::Equal),
            ("~", FilterOperator::Contains),
        ];
        let found = operators
            .into_iter()
            .find_map(|(sign, operator)| Some((operator, rest.strip_prefix(sign)?)));
        match found {
            Some((operator, value)) if !column.is_empty() => {
                Ok(Self { column: column.into(), operator, value: value.into() })
            }
            _ => Err(InvalidFilter(text.into())),
        }
    }
}

impl RowFilter {
    /// A filter of rows whose cell is `value`.
    pub fn equal(column: &str, value: &str) -> Self {
        let (column, value) = (column.into(), value.into());
        Self { column, operator: FilterOperator::Equal, value }
    }

    /// The comparison for a column of numbers or of others.
    pub fn test(&self, is_number: bool) -> Result<CellTest, NotANumber> {
        let equal = || {
            if self.value.is_empty() {
                return Ok(CellTest::Unknown);
            }
            if is_number { self.numbers() } else { Ok(CellTest::Text(self.value.clone())) }
        };
        Ok(match self.operator {
            FilterOperator::Equal => equal()?,
            FilterOperator::Differs => CellTest::Not(Box::new(equal()?)),
            FilterOperator::Contains => CellTest::Contains(self.value.to_lowercase()),
        })
    }

    /// A number, or a range with one or both ends.
    fn numbers(&self) -> Result<CellTest, NotANumber> {
        let invalid = || NotANumber { column: self.column.clone(), value: self.value.clone() };
        let number = |text: &str| {
            text.trim().parse().ok().filter(|it: &f64| it.is_finite()).ok_or_else(invalid)
        };
        let end = |text: &str, open: f64| if text.is_empty() { Ok(open) } else { number(text) };
        let (min, max) = match self.value.split_once("..") {
            None => (number(&self.value)?, number(&self.value)?),
            Some(("", "")) => return Err(invalid()),
            Some((min, max)) => (end(min, f64::NEG_INFINITY)?, end(max, f64::INFINITY)?),
        };
        Ok(CellTest::Number(min..=max))
    }
}

impl CellTest {
    pub fn matches(&self, cell: &Value) -> bool {
        match self {
            Self::Unknown => cell.is_null() || cell == "",
            Self::Text(text) => !cell.is_null() && cell_text(cell) == text.as_str(),
            Self::Number(range) => cell.as_f64().is_some_and(|number| range.contains(&number)),
            Self::Contains(text) => contains(cell, text),
            Self::Not(test) => !test.matches(cell),
        }
    }
}

/// Returns true if the text of a cell contains `wanted`, which is in lower case.
pub fn contains(cell: &Value, wanted: &str) -> bool {
    !cell.is_null() && cell_text(cell).to_lowercase().contains(wanted)
}

/// The text of a known cell, as JSON unless it is one.
fn cell_text(cell: &Value) -> Cow<'_, str> {
    match cell {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(filter: &str, cell: Value, is_number: bool) -> bool {
        filter.parse::<RowFilter>().unwrap().test(is_number).unwrap().matches(&cell)
    }

    #[test]
    fn a_filter_is_a_column_an_operator_and_a_value() {
        let cases = [
            ("stage=prefill", json!("prefill"), false, true),
            ("stage=prefill", json!("prefill_all"), false, false),
            ("stage!=prefill", json!("decode"), false, true),
            ("kernel_name~GEMM", json!("sm90_xmma_gemm_bf16"), false, true),
            ("kernel_name=a<b>::c=..1", json!("a<b>::c=..1"), false, true),
            ("launch_ns.mean=10", json!(10.0), true, true),
            ("ms=1..2.5", json!(2.5), true, true),
            ("ms=1..2.5", json!(2.6), true, false),
            ("ms=..2", json!(-7), true, true),
            ("ms=1e3..", json!(1000), true, true),
            ("ms!=..2", json!(3), true, true),
            ("ms=", json!(null), true, true),
            ("ms=0..", json!(null), true, false),
            ("ms!=", json!(null), true, false),
            ("ok=true", json!(true), false, true),
            ("grid=[1,2,3]", json!([1, 2, 3]), false, true),
            ("grid~2,3", json!([1, 2, 3]), false, true),
        ];
        for (filter, cell, is_number, expected) in cases {
            assert_eq!(matches(filter, cell, is_number), expected, "{filter}");
        }
    }

    #[test]
    fn what_is_not_a_filter_is_refused() {
        for invalid in ["", "stage", "=x", "a b=1", "a<1", "a>=1", "käse=1"] {
            assert!(invalid.parse::<RowFilter>().is_err(), "{invalid}");
        }
        for invalid in ["ms=x", "ms=..", "ms=1..x", "ms=nan", "ms!=x", "ms=inf.."] {
            assert!(invalid.parse::<RowFilter>().unwrap().test(true).is_err(), "{invalid}");
        }
    }
}
