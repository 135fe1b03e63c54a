//! Parameters of a command: types, bounds, and the check of a value against them.
//!
//! No value of any type contains a control character or exceeds [`MAX_TEXT`].

use std::fmt;

use regex::Regex;
use serde::{Deserialize, Deserializer, Serialize, de::Visitor};

use crate::domain::json_numbers::MAX_EXACT;

/// Maximum length of a text value, in characters.
pub const MAX_TEXT: usize = 4096;
/// Maximum size of a compiled pattern, bytes.
const MAX_PATTERN: usize = 1 << 20;

/// A parameter: type, bounds and default. One without a default is required.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", schema(as = CommandParam))]
pub enum Param {
    /// A whole number.
    Int {
        description: String,
        min: i64,
        max: i64,
        #[serde(default)]
        default: Option<i64>,
    },
    /// A number.
    Float {
        description: String,
        min: f64,
        max: f64,
        #[serde(default)]
        default: Option<f64>,
    },
    /// One of several texts.
    Enum {
        description: String,
        values: Vec<String>,
        #[serde(default)]
        default: Option<String>,
    },
    /// A text that fully matches a pattern.
    String {
        description: String,
        /// A regular expression.
        pattern: String,
        /// In characters.
        max_length: usize,
        #[serde(default)]
        default: Option<String>,
        /// Allow a value that starts with `-` at the start of an argument.
        #[serde(default)]
        leading_dash: bool,
    },
    /// An argument that is present or absent.
    Flag {
        description: String,
        /// Argument for true.
        on: String,
        /// Argument for false; none when absent.
        #[serde(default)]
        off: Option<String>,
        #[serde(default)]
        default: bool,
    },
}

/// A parameter's value in a request. Integers beyond 64 bits are floats.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum ParamValue {
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

/// By the type of the value, so that errors name it.
impl<'de> Deserialize<'de> for ParamValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = ParamValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a text, true or false")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<ParamValue, E> {
        Ok(ParamValue::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<ParamValue, E> {
        Ok(ParamValue::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<ParamValue, E> {
        let float = ParamValue::Float(number as f64);
        Ok(i64::try_from(number).map_or(float, ParamValue::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<ParamValue, E> {
        Ok(ParamValue::Float(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<ParamValue, E> {
        Ok(ParamValue::Text(text.to_owned()))
    }
}

impl ParamValue {
    /// Rejects values that no parameter accepts.
    pub fn check_form(&self) -> Result<(), String> {
        match self {
            Self::Text(text) if text.chars().count() > MAX_TEXT => Err(too_long(text, MAX_TEXT)),
            Self::Text(text) if text.chars().any(char::is_control) => {
                Err("the text contains a control character".into())
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for ParamValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

fn too_long(text: &str, max: usize) -> String {
    format!("the text has {} characters, at most {max} are allowed", text.chars().count())
}

/// True if `name` has at most `max` bytes, each accepted by `letter` or, after the first, one of
/// `more`.
pub fn is_name(name: &str, max: usize, letter: impl Fn(u8) -> bool, more: &[u8]) -> bool {
    let mut bytes = name.bytes();
    name.len() <= max
        && bytes.next().is_some_and(&letter)
        && bytes.all(|byte| letter(byte) || more.contains(&byte))
}

/// True if `name` is a valid parameter name.
pub fn is_param(name: &str) -> bool {
    is_name(name, 32, |byte| byte.is_ascii_lowercase(), b"_0123456789")
}

/// The pattern, anchored to the whole text.
fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(&format!(r"\A(?:{pattern})\z")).size_limit(MAX_PATTERN).build()
}

impl Param {
    pub fn description(&self) -> &str {
        match self {
            Self::Int { description, .. }
            | Self::Float { description, .. }
            | Self::Enum { description, .. }
            | Self::String { description, .. }
            | Self::Flag { description, .. } => description,
        }
    }

    /// Default value.
    pub fn default(&self) -> Option<ParamValue> {
        match self {
            Self::Int { default, .. } => default.map(ParamValue::Int),
            Self::Float { default, .. } => default.map(ParamValue::Float),
            Self::Enum { default, .. } | Self::String { default, .. } => {
                default.clone().map(ParamValue::Text)
            }
            Self::Flag { default, .. } => Some(ParamValue::Flag(*default)),
        }
    }

    /// Rejects bounds that no value fits, and a default outside of them.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Int { min, max, .. } if min > max => {
                return Err(format!("min {min} is above max {max}"));
            }
            Self::Float { min, max, .. } if !(min <= max && min.is_finite() && max.is_finite()) => {
                return Err(format!("min {min} and max {max} are not valid bounds"));
            }
            Self::Enum { values, .. } => {
                if values.is_empty() {
                    return Err("values: empty list".into());
                }
                if let Some(value) = values
                    .iter()
                    .find(|value| value.is_empty() || value.chars().any(char::is_control))
                {
                    return Err(format!("values: {value:?} is not a valid value"));
                }
            }
            Self::String { pattern, max_length, .. } => {
                compiled(pattern)
                    .map_err(|_| format!("pattern: {pattern:?} is not a regular expression"))?;
                if !(1..=MAX_TEXT).contains(max_length) {
                    return Err(format!(
                        "max_length: {max_length} is not between 1 and {MAX_TEXT}"
                    ));
                }
            }
            Self::Flag { on, off, .. } => {
                if on.is_empty() || std::iter::once(on).chain(off).any(|text| text.contains('\0')) {
                    return Err("on: not a valid argument".into());
                }
            }
            Self::Int { .. } | Self::Float { .. } => {}
        }
        match self.default() {
            Some(default) => {
                self.text(&default).map(|_| ()).map_err(|why| format!("default: {why}"))
            }
            None => Ok(()),
        }
    }

    /// The value in its stored form. A number has one form per type, since values of runs are
    /// compared: 3.0 is an integer in JSON Schema.
    pub fn normalised(&self, value: ParamValue) -> ParamValue {
        match (self, value) {
            (Self::Int { .. }, ParamValue::Float(number))
                if number.fract() == 0.0 && number.abs() <= MAX_EXACT as f64 =>
            {
                ParamValue::Int(number as i64)
            }
            (Self::Float { .. }, ParamValue::Int(number))
                if number.unsigned_abs() <= MAX_EXACT.unsigned_abs() =>
            {
                ParamValue::Float(number as f64)
            }
            (_, value) => value,
        }
    }

    /// The argument's text for `value`; `None`: the argument is left out.
    pub fn text(&self, value: &ParamValue) -> Result<Option<String>, String> {
        value.check_form()?;
        let value = &self.normalised(value.clone());
        let bounded = |fits: bool, min: &dyn fmt::Display, max: &dyn fmt::Display| {
            if fits {
                Ok(Some(value.to_string()))
            } else {
                let shown = match value {
                    ParamValue::Float(number) if number.abs() >= 1e16 => format!("{number:e}"),
                    _ => value.to_string(),
                };
                Err(format!("{shown} is not between {min} and {max}"))
            }
        };
        match (self, value) {
            (Self::Int { min, max, .. }, ParamValue::Int(number)) => {
                bounded((min..=max).contains(&number), min, max)
            }
            (Self::Int { min, max, .. }, ParamValue::Float(number)) if number.fract() == 0.0 => {
                bounded(false, min, max)
            }
            (Self::Float { min, max, .. }, ParamValue::Float(number)) => {
                bounded((min..=max).contains(&number), min, max)
            }
            (Self::Float { min, max, .. }, ParamValue::Int(number)) => {
                bounded((*min..=*max).contains(&(*number as f64)), min, max)
            }
            (Self::Enum { values, .. }, ParamValue::Text(text)) if values.contains(text) => {
                Ok(Some(text.clone()))
            }
            (Self::Enum { values, .. }, ParamValue::Text(text)) => {
                Err(format!("{text:?} is not one of {}", values.join(", ")))
            }
            (Self::String { pattern, max_length, .. }, ParamValue::Text(text)) => {
                if text.chars().count() > *max_length {
                    return Err(too_long(text, *max_length));
                }
                let fits = compiled(pattern).is_ok_and(|pattern| pattern.is_match(text));
                if fits {
                    Ok(Some(text.clone()))
                } else {
                    Err(format!("{text:?} does not match {pattern}"))
                }
            }
            (Self::Flag { on, .. }, ParamValue::Flag(true)) => Ok(Some(on.clone())),
            (Self::Flag { off, .. }, ParamValue::Flag(false)) => Ok(off.clone()),
            (Self::Int { .. }, _) => Err("expected a whole number".into()),
            (Self::Float { .. }, _) => Err("expected a number".into()),
            (Self::Enum { .. } | Self::String { .. }, _) => Err("expected a text".into()),
            (Self::Flag { .. }, _) => Err("expected true or false".into()),
        }
    }

    /// True if an argument may start with a value that starts with `-`. Numbers and enum values
    /// are bounded by the operator.
    pub fn allows_leading_dash(&self) -> bool {
        !matches!(self, Self::String { leading_dash: false, .. })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_number_outside_the_range_of_its_parameter_is_refused_with_value_and_range() {
        let (min, max, description) = (1, 4096, String::new());
        let int = Param::Int { description: description.clone(), min, max, default: None };
        let (min, max) = (0.5, 2.0);
        let float = Param::Float { description, min, max, default: None };
        let text = |param: &Param, value: Value| -> Result<Option<String>, String> {
            param.text(&serde_json::from_value(value).unwrap())
        };
        assert_eq!(text(&int, json!(8.0)), Ok(Some("8".into())), "JSON Schema's integer");
        for (value, shown) in [
            (json!(0), "0"),
            (json!(4097.0), "4097"),
            (json!(i64::MAX), "9223372036854775807"),
            (json!(u64::MAX), "1.8446744073709552e19"),
            (json!(1e300), "1e300"),
            (json!(-1e16), "-1e16"),
        ] {
            let refused = Err(format!("{shown} is not between 1 and 4096"));
            assert_eq!(text(&int, value.clone()), refused);
            assert!(text(&float, value).unwrap_err().ends_with(" is not between 0.5 and 2"));
        }
        assert_eq!(text(&int, json!(1.5)), Err("expected a whole number".into()));
    }
    #[test]
    fn equal_numbers_have_one_stored_form_and_one_argument() {
        let (min, max, description) = (-10, 10, String::new());
        let int = Param::Int { description: description.clone(), min, max, default: None };
        let float = Param::Float { description, min: -10.0, max: 10.0, default: None };
        for number in [-10i32, -1, 0, 1, 10] {
            let (whole, real) = (ParamValue::Int(number.into()), ParamValue::Float(number.into()));
            for value in [&whole, &real] {
                assert_eq!(int.normalised(value.clone()), whole);
                assert_eq!(float.normalised(value.clone()), real);
                for param in [&int, &float] {
                    assert_eq!(param.text(value), Ok(Some(number.to_string())));
                }
            }
        }
        for value in [ParamValue::Float(1.5), ParamValue::Float(1e300), ParamValue::Flag(true)] {
            assert_eq!(int.normalised(value.clone()), value);
        }
        assert_eq!(float.normalised(ParamValue::Int(i64::MIN)), ParamValue::Int(i64::MIN));
    }
}
