//! The pages that people look at, at `/` and under `/ui/`: server-rendered, readable without a script.
//!
//! A page asks what the API asks and shows what the API answers; it decides nothing of its own. What it shows is text of `view`,
//! where every value is escaped.

mod alignment;
mod alignments;
mod assets;
mod compare;
mod doctor;
mod entered;
mod home;
mod login;
mod run;
mod storage;
mod table;
mod view;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use serde::Serialize;

use super::{
    App,
    access::Caller,
    error::{ApiError, ErrorCode},
    request,
};
use crate::store::Role;

pub(super) const LOGIN: &str = "/ui/login";
pub(super) const LOGOUT: &str = "/ui/logout";
/// Style and script, which anybody may read.
pub(super) const ASSETS: &str = "/ui/assets/";
/// Name of the cookie that keeps the token of whoever logged in.
pub(super) const COOKIE: &str = "llmprof_token";

/// What a page may do in a browser: show what is ours and send its forms to us.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Bytes of a form.
const MAX_FORM: usize = 1 << 16;

/// The routes of the pages. They are no part of the contract.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/", get(home::home))
        .route("/ui", get(async || Redirect::to("/")))
        .route("/ui/", get(async || Redirect::to("/")))
        .route("/ui/runs", post(home::submit).get(async || Redirect::to("/")))
        .route("/ui/runs/{run_id}", get(run::run))
        .route("/ui/runs/{run_id}/cancel", post(run::cancel).get(run::back))
        .route("/ui/runs/{run_id}/delete", post(run::delete).get(run::back))
        .route("/ui/runs/{run_id}/tables/{table}", get(table::table))
        .route("/ui/runs/{run_id}/pin", post(run::pin).get(run::back))
        .route("/ui/runs/{run_id}/unpin", post(run::unpin).get(run::back))
        .route("/ui/alignments", get(alignments::list).post(alignments::submit))
        .route("/ui/alignments/{alignment_id}", get(alignment::alignment))
        .route("/ui/alignments/{alignment_id}/delete", post(alignment::delete).get(alignment::back))
        .route("/ui/storage", get(storage::storage))
        .route("/ui/diff", get(compare::compare))
        .route("/ui/doctor", get(doctor::doctor))
        .route(LOGIN, get(login::form).post(login::enter))
        .route(LOGOUT, post(login::leave))
        .route("/ui/assets/{name}", get(assets::asset))
        .route("/ui/{*rest}", get(missing))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .with_state(app)
}

/// What is around every page.
#[derive(Debug, Clone, Serialize)]
struct Frame {
    /// The token's name; none where no token was asked for.
    who: Option<String>,
    /// Whether who looks may submit runs.
    submits: bool,
    style: &'static str,
    script: &'static str,
    version: &'static str,
}

impl Frame {
    fn of(caller: Option<&Caller>) -> Self {
        Self {
            who: caller.and_then(|caller| caller.name.clone()),
            submits: caller.is_some_and(|caller| caller.role >= Role::Submitter),
            style: assets::style(),
            script: assets::script(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// An answer that is a page.
struct Page(StatusCode, String);

impl Page {
    /// Lays `page` out by the template of this name.
    fn of(caller: Option<&Caller>, template: &str, page: impl Serialize) -> Result<Self, ApiError> {
        let text = view::render(template, Frame::of(caller), page).map_err(|error| ApiError::internal(&error))?;
        Ok(Self(StatusCode::OK, text))
    }

    /// The same page under the status of what went wrong.
    fn with(self, status: StatusCode) -> Self {
        Self(status, self.1)
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let headers: [(HeaderName, HeaderValue); 4] = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            // Who has logged out leaves nothing behind in the browser.
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            // A form that tells no origin could not be told from another site's.
            (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        ];
        (self.0, headers, self.1).into_response()
    }
}

/// An error as a page.
struct PageError(ApiError);

impl<E: Into<ApiError>> From<E> for PageError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// What a page of an error shows.
#[derive(Serialize)]
struct Wrong<'a> {
    status: u16,
    reason: &'static str,
    message: &'a str,
    request_id: String,
}

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let status = self.0.code().status();
        let wrong = Wrong {
            status: status.as_u16(),
            reason: status.canonical_reason().unwrap_or("Error"),
            message: self.0.message(),
            request_id: request::id(),
        };
        match Page::of(None, "error.html", wrong) {
            Ok(page) => over(self.0.into_response(), page.with(status).into_response()),
            Err(error) => error.into_response(),
        }
    }
}

/// A page in the place of an error's body, with what else the error says: when to come again, how to be let in.
fn over(error: Response, page: Response) -> Response {
    let (mut parts, body) = page.into_parts();
    for (name, value) in error.headers() {
        if matches!(*name, header::RETRY_AFTER | header::WWW_AUTHENTICATE) {
            parts.headers.insert(name, value.clone());
        }
    }
    Response::from_parts(parts, body)
}

/// Answers a request that reaches no handler: a page for whoever looks at pages, the API's error for everybody else.
pub(super) fn refuse(uri: &Uri, headers: &HeaderMap, refused: ApiError) -> Response {
    if uri.path() != "/" && !uri.path().starts_with("/ui/") {
        return refused.into_response();
    }
    if refused.code() == ErrorCode::Unauthenticated {
        return login::asked(uri, headers, refused);
    }
    PageError(refused).into_response()
}

async fn missing(uri: Uri) -> PageError {
    PageError(ApiError::new(ErrorCode::RouteNotFound, format!("there is no page {}", uri.path())))
}
