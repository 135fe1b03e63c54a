//! Compression of responses with gzip or Zstandard, if a client accepts it.
//!
//! Texts only: bundles and captures are compressed already, ranges keep their offsets, and events
//! must leave as they occur.

use axum::{
    http::{Extensions, HeaderMap, HeaderValue, StatusCode, Version, header},
    response::Response,
};
use tower_http::{
    CompressionLevel,
    compression::{
        CompressionLayer,
        predicate::{And, Predicate as _, SizeAbove},
    },
};

/// Bytes below which compression saves no packet.
const MIN_BYTES: u64 = 1024;

type IsCompressible = fn(StatusCode, Version, &HeaderMap, &Extensions) -> bool;

/// The layer, at the level that costs least while a pass measures.
pub fn layer() -> CompressionLayer<And<SizeAbove, IsCompressible>> {
    let is_compressible: IsCompressible = is_compressible;
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(SizeAbove::new(MIN_BYTES).and(is_compressible))
}

fn is_compressible(status: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    let is_text = kind.starts_with("text/") && kind != "text/event-stream";
    let is_data = matches!(kind, "application/json" | "application/yaml" | "image/svg+xml");
    let is_part =
        status == StatusCode::PARTIAL_CONTENT || headers.contains_key(header::CONTENT_RANGE);
    (is_text || is_data) && !is_part
}

/// Weakens the ETag of a compressed response: its bytes differ from the file's, so that a range of
/// the file cannot continue it.
pub async fn weaken_etag(mut response: Response) -> Response {
    let headers = response.headers_mut();
    if !headers.contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    let etag = headers.get(header::ETAG).and_then(|etag| etag.to_str().ok());
    let weak = etag.filter(|etag| !etag.starts_with("W/")).map(|etag| format!("W/{etag}"));
    if let Some(Ok(weak)) = weak.map(HeaderValue::try_from) {
        headers.insert(header::ETAG, weak);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_compressed_and_streams_ranges_and_archives_are_not() {
        let cases = [
            ("application/json", 200, true),
            ("text/html; charset=utf-8", 200, true),
            ("image/svg+xml", 404, true),
            ("text/csv; charset=utf-8", 206, false),
            ("text/event-stream", 200, false),
            ("application/zstd", 200, false),
            ("application/gzip", 200, false),
            ("image/png", 200, false),
            ("application/octet-stream", 200, false),
        ];
        for (kind, status, expected) in cases {
            let headers =
                HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            let status = StatusCode::from_u16(status).unwrap();
            let compressed =
                is_compressible(status, Version::HTTP_11, &headers, &Extensions::new());
            assert_eq!(compressed, expected, "{kind} {status}");
        }
    }
}
