//! Compression of responses with gzip or Zstandard, if a client accepts it.
//!
//! Texts only: bundles and captures are compressed already, ranges keep their offsets, and events
//! must leave as they occur.

use axum::{
    extract::Request,
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
/// The unencoded form with the least preference.
const IDENTITY_LAST: &str = "identity;q=0.001";

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

/// Adds the unencoded form to the encodings that a client accepts, with the least preference. A
/// client that refuses it and all others would get 406 from the layer, after its request was
/// executed.
pub async fn accept_identity(mut request: Request) -> Request {
    if !request.headers().contains_key(header::ACCEPT_ENCODING) {
        return request;
    }
    let values = request.headers().get_all(header::ACCEPT_ENCODING).iter();
    let codings = values.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let accepted: Vec<&str> = codings
        .map(str::trim)
        .filter(|coding| !coding.is_empty() && !refuses_identity(coding))
        .chain([IDENTITY_LAST])
        .collect();
    if let Ok(accepted) = HeaderValue::try_from(accepted.join(", ")) {
        request.headers_mut().insert(header::ACCEPT_ENCODING, accepted);
    }
    request
}

/// Returns true for `identity;q=0`.
fn refuses_identity(coding: &str) -> bool {
    let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
    let weight = weight.trim().get(2..).map(|it| it.trim().parse::<f32>());
    let is_accepted = matches!(weight, Some(Ok(weight)) if weight > 0.0);
    name.trim().eq_ignore_ascii_case("identity") && !is_accepted
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
    fn only_a_weight_of_zero_refuses_the_unencoded_form() {
        for refused in ["identity;q=0", "Identity; Q=0.000", "identity;q=", "identity;"] {
            assert!(refuses_identity(refused), "{refused}");
        }
        for kept in ["identity", "identity;q=1", "identity; q=0.1", "gzip;q=0", "*;q=0", ""] {
            assert!(!refuses_identity(kept), "{kept}");
        }
    }

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
