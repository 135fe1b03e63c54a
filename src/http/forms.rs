//! The form that a client wants an answer in: by `?format=`, else by `Accept`.
//!
//! Knows media types and nothing of what is answered.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    artifacts::CONTENT_POLICY,
    error::{ApiError, ErrorCode},
};

/// A form that a table comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Json,
    Md,
    Csv,
    Html,
}

impl Format {
    const fn media(self) -> (&'static str, &'static str) {
        match self {
            Self::Json => ("application", "json"),
            Self::Md => ("text", "markdown"),
            Self::Csv => ("text", "csv"),
            Self::Html => ("text", "html"),
        }
    }
}

/// The form of an answer that comes in `offered`, the first of them the one by default.
pub fn wanted(format: Option<Format>, headers: &HeaderMap, offered: &[Format]) -> Result<Format, ApiError> {
    let names =
        || offered.iter().map(|it| it.media()).map(|(kind, form)| format!("{kind}/{form}")).collect::<Vec<_>>().join(", ");
    let refused = || ApiError::new(ErrorCode::NotAcceptable, format!("this comes as {}", names()));
    if let Some(format) = format {
        return if offered.contains(&format) { Ok(format) } else { Err(refused()) };
    }
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    let forms: Vec<_> = offered.iter().map(|it| (it.media().0, it.media().1, *it)).collect();
    choose(accept, &forms).ok_or_else(refused)
}

/// A text in its form.
pub fn answer(format: Format, text: String) -> Response {
    let kind = match format {
        Format::Json => "application/json",
        Format::Md => "text/markdown; charset=utf-8",
        Format::Csv => "text/csv; charset=utf-8",
        Format::Html => "text/html; charset=utf-8",
    };
    let mut response =
        ([(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::VARY, HeaderValue::from_static("accept"))], text)
            .into_response();
    if format == Format::Html {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_POLICY));
    }
    response
}

/// What stands for the form that `accept` likes best; `None` when it takes none of them. Of forms liked alike, the first.
pub fn choose<T: Copy>(accept: &str, forms: &[(&str, &str, T)]) -> Option<T> {
    let quality = |kind: &str, form: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let (range_kind, range_form) = parts.next()?.split_once('/')?;
            let closeness = match (range_kind == kind, range_form == form) {
                (true, true) => 2,
                (true, false) if range_form == "*" => 1,
                (false, _) if range_kind == "*" && range_form == "*" => 0,
                _ => return None,
            };
            let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok())?;
            Some((closeness, quality))
        };
        // The closest range decides, not the most generous one.
        accept.split(',').filter_map(of).max_by_key(|(closeness, _)| *closeness).map_or(0.0, |(_, quality): (i32, f64)| quality)
    };
    let mut best: Option<(f64, T)> = None;
    for (kind, form, of) in forms {
        let quality = quality(kind, form);
        if quality > best.map_or(0.0, |(best, _)| best) {
            best = Some((quality, *of));
        }
    }
    best.map(|(_, of)| of)
}
