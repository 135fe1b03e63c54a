//! Bounds that the contract sets on values of a request.

use std::{fmt::Display, ops::RangeInclusive};

use crate::http::error::{ApiError, ErrorCode};

/// Refuses a `value` of a body outside `range`.
pub fn check_range<T: PartialOrd + Display>(
    name: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ApiError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{name}: {value} is not between {} and {}", range.start(), range.end());
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

/// Refuses a `value` of a body that has control characters, or whose length in characters is
/// outside `range`: a name, a label.
pub fn check_text(name: &str, value: &str, range: RangeInclusive<usize>) -> Result<(), ApiError> {
    check_length(name, value, range)?;
    if !value.chars().any(char::is_control) {
        return Ok(());
    }
    let message = format!("{name} {value:?} contains a control character");
    Err(ApiError::new(ErrorCode::InvalidRequest, message))
}

/// Refuses a `value` of a body whose length in characters is outside `range`.
pub fn check_length(name: &str, value: &str, range: RangeInclusive<usize>) -> Result<(), ApiError> {
    check_range(&format!("length of {name}"), value.chars().count(), range)
}
