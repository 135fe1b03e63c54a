//! The id of a request, in its response, its errors and the service's log.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use uuid::Uuid;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LENGTH: usize = 64;

tokio::task_local! {
    static ID: String;
}

/// Returns the id of the current request; empty outside a request.
pub fn current() -> String {
    ID.try_with(Clone::clone).unwrap_or_default()
}

/// Gives the request an id, the client's if it is well-formed, and copies it to the response.
pub async fn identify(request: Request, next: Next) -> Response {
    let well_formed = |id: &&str| {
        (1..=MAX_LENGTH).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    let sent = request.headers().get(HEADER).and_then(|value| value.to_str().ok());
    let id = sent.filter(well_formed).map_or_else(|| Uuid::now_v7().to_string(), str::to_owned);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let start = std::time::Instant::now();
    let mut response = ID.scope(id.clone(), next.run(request)).await;
    let (status, ms) = (response.status().as_u16(), start.elapsed().as_millis());
    tracing::debug!(%method, path, status, request_id = id, ms, "request answered");
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}
