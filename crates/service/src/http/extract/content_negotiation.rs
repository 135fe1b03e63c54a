//! The media type of a response: by `?format=`, else by `Accept`.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::http::error::{ApiError, ErrorCode};

/// Policy of documents made from a run's files: no scripts, no requests.
pub const DOCUMENT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox";

/// A format of a table or of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TableFormat {
    Json,
    Md,
    Csv,
    Html,
}

impl TableFormat {
    const fn media_type(self) -> (&'static str, &'static str) {
        match self {
            Self::Json => ("application", "json"),
            Self::Md => ("text", "markdown"),
            Self::Csv => ("text", "csv"),
            Self::Html => ("text", "html"),
        }
    }
}

/// Format of a report.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReportQuery {
    /// `html`, `md` or `json`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(html|md|json)$")]
    format: Option<TableFormat>,
}

impl ReportQuery {
    /// The requested format: programs that accept everything get data; browsers prefer HTML.
    pub fn format(&self, headers: &HeaderMap) -> Result<TableFormat, ApiError> {
        let offered = [TableFormat::Json, TableFormat::Html, TableFormat::Md];
        requested_format(self.format, headers, &offered)
    }
}

/// The requested format among the `offered` ones [default: the first].
pub fn requested_format(
    format: Option<TableFormat>,
    headers: &HeaderMap,
    offered: &[TableFormat],
) -> Result<TableFormat, ApiError> {
    let offered: Vec<_> = offered
        .iter()
        .map(|format| (format.media_type().0, format.media_type().1, *format))
        .collect();
    match format {
        None => requested(headers, &offered),
        Some(format) if offered.iter().any(|(.., it)| *it == format) => Ok(format),
        Some(_) => Err(not_acceptable(&offered)),
    }
}

/// The representation that `Accept` prefers among those `offered`.
pub fn requested<T: Copy>(headers: &HeaderMap, offered: &[(&str, &str, T)]) -> Result<T, ApiError> {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    preferred(accept, offered).ok_or_else(|| not_acceptable(offered))
}

fn not_acceptable<T>(offered: &[(&str, &str, T)]) -> ApiError {
    let types: Vec<String> =
        offered.iter().map(|(kind, subtype, _)| format!("{kind}/{subtype}")).collect();
    let message = format!("no acceptable representation; available: {}", types.join(", "));
    ApiError::new(ErrorCode::NotAcceptable, message)
}

/// A response of `text` in its format.
pub fn respond(format: TableFormat, text: String) -> Response {
    let media_type = match format {
        TableFormat::Json => "application/json",
        TableFormat::Md => "text/markdown; charset=utf-8",
        TableFormat::Csv => "text/csv; charset=utf-8",
        TableFormat::Html => "text/html; charset=utf-8",
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    let mut response = (headers, text).into_response();
    if format == TableFormat::Html {
        let policy = HeaderValue::from_static(DOCUMENT_POLICY);
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The value of the media type that `accept` prefers; `None` when it accepts none. The first of
/// those with equal quality.
pub fn preferred<T: Copy>(accept: &str, offered: &[(&str, &str, T)]) -> Option<T> {
    let quality = |kind: &str, subtype: &str| {
        let of = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            let (range_kind, range_subtype) = parts.next()?.split_once('/')?;
            let specificity = match (range_kind == kind, range_subtype == subtype) {
                (true, true) => 2,
                (true, false) if range_subtype == "*" => 1,
                (false, _) if range_kind == "*" && range_subtype == "*" => 0,
                _ => return None,
            };
            let quality = parts
                .find_map(|part| part.strip_prefix("q="))
                .map_or(Some(1.0), |q| q.parse().ok())?;
            Some((specificity, quality))
        };
        // The most specific range decides, not the one with the highest quality.
        accept
            .split(',')
            .filter_map(of)
            .max_by_key(|(specificity, _)| *specificity)
            .map_or(0.0, |(_, quality): (i32, f64)| quality)
    };
    let mut best: Option<(f64, T)> = None;
    for (kind, subtype, value) in offered {
        let quality = quality(kind, subtype);
        if quality > best.map_or(0.0, |(best, _)| best) {
            best = Some((quality, *value));
        }
    }
    best.map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_follows_accept() {
        let offered =
            [("text", "html", "html"), ("text", "markdown", "md"), ("application", "json", "json")];
        let cases = [
            ("*/*", Some("html")),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some("html")),
            ("text/markdown", Some("md")),
            ("application/json", Some("json")),
            ("application/json;q=0.5, text/markdown;q=0.9", Some("md")),
            ("text/*;q=0.1, application/json", Some("json")),
            ("text/html;q=0, */*", Some("md")),
            ("application/pdf", None),
            ("rubbish", None),
        ];
        for (accept, expected) in cases {
            assert_eq!(preferred(accept, &offered), expected, "{accept}");
        }
    }
}
