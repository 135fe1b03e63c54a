//! Bounds that the contract sets on values of a request.

use std::{fmt::Display, ops::RangeInclusive};

use crate::http::error::{ApiError, ErrorCode};

/// Refuses a `value` of a body outside `range`.
pub fn check_range<T: PartialOrd + Display>(
    name: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ApiError> {
    in_range(ErrorCode::InvalidRequest, name, value, range)
}

/// Refuses a `value` of a body whose length in characters is outside `range`.
pub fn check_length(name: &str, value: &str, range: RangeInclusive<usize>) -> Result<(), ApiError> {
    check_range(&format!("length of {name}"), value.chars().count(), range)
}

/// The `limit` of a list, refused outside 1 to `max`.
pub fn limit(value: Option<u32>, default: u32, max: u32) -> Result<u32, ApiError> {
    let limit = value.unwrap_or(default);
    in_range(ErrorCode::InvalidParameter, "limit", limit, 1..=max)?;
    Ok(limit)
}

fn in_range<T: PartialOrd + Display>(
    code: ErrorCode,
    name: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), ApiError> {
    if range.contains(&value) {
        return Ok(());
    }
    let message = format!("{name}: {value} is not between {} and {}", range.start(), range.end());
    Err(ApiError::new(code, message))
}
