//! The parameters of a command: their types, and whether a value is one of a type.
//!
//! Whatever its type, no value holds a control character, and none is longer than an argument should be.

use std::fmt;

use regex::Regex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Longest text that any parameter takes, in characters.
pub const MOST_TEXT: usize = 4096;
/// Largest pattern that is compiled, bytes of its program.
const MOST_PATTERN: usize = 1 << 20;

/// A parameter: its type, its bounds, and its value where a request names none. One without a default has to be given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = CommandParam)]
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
    /// A text that a pattern matches as a whole.
    String {
        description: String,
        /// A regular expression.
        pattern: String,
        /// In characters.
        max_length: usize,
        #[serde(default)]
        default: Option<String>,
        /// Whether an argument may begin with it where it begins with `-`.
        #[serde(default)]
        leading_dash: bool,
    },
    /// Whether an argument is there.
    Flag {
        description: String,
        /// The argument that stands for true.
        on: String,
        /// The argument that stands for false; none when absent.
        #[serde(default)]
        off: Option<String>,
        #[serde(default)]
        default: bool,
    },
}

/// A value as a request gives it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ParamValue {
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl ParamValue {
    /// Refuses what no parameter takes.
    pub fn check_form(&self) -> Result<(), String> {
        match self {
            Self::Text(text) if text.chars().count() > MOST_TEXT => {
                Err(format!("a text of {} characters is longer than {MOST_TEXT}", text.chars().count()))
            }
            Self::Text(text) if text.chars().any(char::is_control) => Err("a text with a control character".into()),
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

/// Says whether `name` is of up to `most` bytes, each passing `letter` or, after the first, one of `more`.
pub fn is_name(name: &str, most: usize, letter: impl Fn(u8) -> bool, more: &[u8]) -> bool {
    let mut bytes = name.bytes();
    name.len() <= most && bytes.next().is_some_and(&letter) && bytes.all(|byte| letter(byte) || more.contains(&byte))
}

/// Says whether `name` has the form of a parameter's name.
pub fn is_param(name: &str) -> bool {
    is_name(name, 32, |byte| byte.is_ascii_lowercase(), b"_0123456789")
}

/// The pattern as it is applied: to the whole text.
fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(&format!(r"\A(?:{pattern})\z")).size_limit(MOST_PATTERN).build()
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

    /// Its value where a request names none.
    pub fn default(&self) -> Option<ParamValue> {
        match self {
            Self::Int { default, .. } => default.map(ParamValue::Int),
            Self::Float { default, .. } => default.map(ParamValue::Float),
            Self::Enum { default, .. } | Self::String { default, .. } => default.clone().map(ParamValue::Text),
            Self::Flag { default, .. } => Some(ParamValue::Flag(*default)),
        }
    }

    /// Refuses a parameter that no value fits, and a default that does not fit it.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Int { min, max, .. } if min > max => return Err(format!("min {min} is above max {max}")),
            Self::Float { min, max, .. } if !(min <= max && min.is_finite() && max.is_finite()) => {
                return Err(format!("min {min} and max {max} are no bounds"));
            }
            Self::Enum { values, .. } => {
                if values.is_empty() {
                    return Err("values: there is none".into());
                }
                if let Some(value) = values.iter().find(|value| value.is_empty() || value.chars().any(char::is_control)) {
                    return Err(format!("values: {value:?} is no value"));
                }
            }
            Self::String { pattern, max_length, .. } => {
                compiled(pattern).map_err(|_| format!("pattern: {pattern:?} is no regular expression"))?;
                if !(1..=MOST_TEXT).contains(max_length) {
                    return Err(format!("max_length: {max_length} is not between 1 and {MOST_TEXT}"));
                }
            }
            Self::Flag { on, off, .. } => {
                if on.is_empty() || std::iter::once(on).chain(off).any(|text| text.contains('\0')) {
                    return Err("on: it is no argument".into());
                }
            }
            Self::Int { .. } | Self::Float { .. } => {}
        }
        match self.default() {
            Some(default) => self.text(&default).map(|_| ()).map_err(|why| format!("default: {why}")),
            None => Ok(()),
        }
    }

    /// The text that `value` stands for in an argument; `None`: the argument is left out.
    pub fn text(&self, value: &ParamValue) -> Result<Option<String>, String> {
        value.check_form()?;
        let within = |fits: bool, min: &dyn fmt::Display, max: &dyn fmt::Display| {
            if fits { Ok(Some(value.to_string())) } else { Err(format!("{value} is not between {min} and {max}")) }
        };
        match (self, value) {
            (Self::Int { min, max, .. }, ParamValue::Int(number)) => within((min..=max).contains(&number), min, max),
            // As JSON Schema understands it, 3.0 is an integer, too.
            (Self::Int { .. }, ParamValue::Float(number)) if number.fract() == 0.0 && number.abs() < 9e15 => {
                self.text(&ParamValue::Int(*number as i64))
            }
            (Self::Float { min, max, .. }, ParamValue::Float(number)) => within((min..=max).contains(&number), min, max),
            (Self::Float { min, max, .. }, ParamValue::Int(number)) => {
                within((*min..=*max).contains(&(*number as f64)), min, max)
            }
            (Self::Enum { values, .. }, ParamValue::Text(text)) if values.contains(text) => Ok(Some(text.clone())),
            (Self::Enum { values, .. }, ParamValue::Text(text)) => Err(format!("{text:?} is none of {}", values.join(", "))),
            (Self::String { pattern, max_length, .. }, ParamValue::Text(text)) => {
                if text.chars().count() > *max_length {
                    return Err(format!("a text of {} characters is longer than {max_length}", text.chars().count()));
                }
                let fits = compiled(pattern).is_ok_and(|pattern| pattern.is_match(text));
                if fits { Ok(Some(text.clone())) } else { Err(format!("{text:?} does not match {pattern}")) }
            }
            (Self::Flag { on, .. }, ParamValue::Flag(true)) => Ok(Some(on.clone())),
            (Self::Flag { off, .. }, ParamValue::Flag(false)) => Ok(off.clone()),
            (Self::Int { .. }, _) => Err("a whole number is wanted".into()),
            (Self::Float { .. }, _) => Err("a number is wanted".into()),
            (Self::Enum { .. } | Self::String { .. }, _) => Err("a text is wanted".into()),
            (Self::Flag { .. }, _) => Err("true or false is wanted".into()),
        }
    }

    /// Whether an argument that begins with its value may begin with a dash. Numbers and chosen words are the operator's own.
    pub fn may_lead_with_dash(&self) -> bool {
        !matches!(self, Self::String { leading_dash: false, .. })
    }
}
