//! Responses that are pages: a template in its frame, and errors rendered for browsers.

use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Serialize;

use super::{assets, login, view};
use crate::{
    http::{
        auth::access::Caller,
        error::{ApiError, ErrorCode},
        extract::content_negotiation::requested,
        request_id,
    },
    store::Role,
};

/// Content policy of a page: the service's own styles, scripts, images and forms.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; \
                           img-src 'self' data:; connect-src 'self'; form-action 'self'; \
                           base-uri 'none'; frame-ancestors 'none'";

/// Frame of every page.
#[derive(Debug, Clone, Serialize)]
struct Frame {
    /// The token's name; `None` if no token is required.
    user: Option<String>,
    /// True if the caller may submit runs.
    may_submit: bool,
    style: &'static str,
    script: &'static str,
    icon: &'static str,
    version: &'static str,
}

impl Frame {
    fn of(caller: Option<&Caller>) -> Self {
        Self {
            user: caller.and_then(|caller| caller.name.clone()),
            may_submit: caller.is_some_and(|caller| caller.role >= Role::Submitter),
            style: assets::style(),
            script: assets::script(),
            icon: assets::icon(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// A rendered page with its status.
pub(super) struct HtmlPage(StatusCode, String);

impl HtmlPage {
    /// Renders `page` with a template.
    pub(super) fn render(
        caller: Option<&Caller>,
        template: &str,
        page: impl Serialize,
    ) -> Result<Self, ApiError> {
        let text = view::render(template, Frame::of(caller), page)
            .map_err(|error| ApiError::internal(&error))?;
        Ok(Self(StatusCode::OK, text))
    }

    /// The same page with another status.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self(status, self.1)
    }
}

impl IntoResponse for HtmlPage {
    fn into_response(self) -> Response {
        let headers: [(HeaderName, HeaderValue); 4] = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
            // After logging out, the browser has no copy.
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            // Forms must send their origin, which the guard checks.
            (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        ];
        (self.0, headers, self.1).into_response()
    }
}

#[derive(Serialize)]
struct ErrorView<'a> {
    status: u16,
    reason: &'static str,
    message: &'a str,
    request_id: String,
}

/// Middleware that renders the errors of page paths as pages, and 401 as the login form. An unknown
/// path is a page for clients that prefer one.
pub async fn render_errors(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_page = path == "/" || path.starts_with("/ui/");
    let is_unknown = request.extensions().get::<MatchedPath>().is_none();
    if !(is_page || is_unknown && request.method().is_safe() && prefers_page(request.headers())) {
        return next.run(request).await;
    }
    let (uri, headers) = (request.uri().clone(), request.headers().clone());
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    let page = match error.code() {
        ErrorCode::Unauthenticated => login::in_place_of(&uri, &headers, &error),
        _ => error_page(&error),
    };
    match page {
        Ok(page) => with_error_headers(page.with_status(error.code().status()), &response),
        Err(error) => error.into_response(),
    }
}

/// Returns true if `Accept` prefers HTML to JSON, as browsers do.
fn prefers_page(headers: &HeaderMap) -> bool {
    let offered = [("application", "json", false), ("text", "html", true)];
    requested(headers, &offered).unwrap_or(false)
}

fn error_page(error: &ApiError) -> Result<HtmlPage, ApiError> {
    let status = error.code().status();
    let view = ErrorView {
        status: status.as_u16(),
        reason: status.canonical_reason().unwrap_or("Error"),
        message: error.message(),
        request_id: request_id::current(),
    };
    HtmlPage::render(None, "error.html", view)
}

/// The page with the headers of the error that it replaces.
fn with_error_headers(page: HtmlPage, error: &Response) -> Response {
    let mut response = page.into_response();
    for name in [header::RETRY_AFTER, header::WWW_AUTHENTICATE] {
        if let Some(value) = error.headers().get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}
