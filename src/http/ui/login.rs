//! Login with a token, which the browser stores in a cookie that scripts cannot read and other
//! sites cannot send.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};

use super::{
    assets::ASSETS,
    forms::{self, field},
    page::HtmlPage,
};
use crate::http::{
    auth::guard::AccessRule,
    error::{ApiError, ErrorCode},
    extract::params::Params,
    state::App,
};

pub(super) const LOGIN: &str = "/ui/login";
pub(super) const LOGOUT: &str = "/ui/logout";
/// Name of the cookie with the token.
const COOKIE: &str = "llmprof_token";

/// The access rule of a page that needs no token; `None` for other paths.
pub fn access_rule(path: &str) -> Option<AccessRule> {
    match path {
        LOGIN => Some(AccessRule::OpenAudited),
        LOGOUT => Some(AccessRule::Open),
        path if path.starts_with(ASSETS) => Some(AccessRule::Open),
        _ => None,
    }
}

/// The token in the cookie.
pub fn browser_token(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, token)| *name == COOKIE && !token.is_empty()).map(|(_, token)| token)
}

/// The page to return to after login.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoginQuery {
    next: String,
}

#[derive(Serialize)]
struct LoginView {
    /// Reason why the token was refused.
    problem: Option<String>,
    /// The page to return to.
    next: String,
    /// True if the browser must reload, to send its cookie.
    reload: bool,
}

impl LoginView {
    fn render(self) -> Result<HtmlPage, ApiError> {
        HtmlPage::render(None, "login.html", self)
    }
}

/// Returns `next` if it is a page of this service, and `/` otherwise.
fn own_page(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let own = next.starts_with("/ui/") || next.starts_with("/?");
    if plain && own && !next.starts_with(LOGIN) { next } else { "/" }
}

/// The login form in place of a page that requires a token.
///
/// A browser sends no cookie when it follows a link from another site. It reloads the form from its
/// own address, now with the cookie, and continues to the page.
pub(super) fn in_place_of(
    uri: &Uri,
    headers: &HeaderMap,
    refused: &ApiError,
) -> Result<HtmlPage, ApiError> {
    let has_cookie = headers.contains_key(header::COOKIE);
    let is_cross_site = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site");
    let view = LoginView {
        problem: has_cookie.then(|| refused.message().to_owned()),
        next: own_page(uri.path_and_query().map_or("/", |it| it.as_str())).to_owned(),
        reload: is_cross_site && !has_cookie,
    };
    view.render()
}

/// `GET /ui/login`
pub async fn form(
    State(app): State<App>,
    Params(query): Params<LoginQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let next = own_page(&query.next).to_owned();
    let is_logged_in = match browser_token(&headers) {
        Some(token) => app.access.token(&app.store, token).await.is_ok(),
        None => false,
    };
    if is_logged_in || !app.access.requires_token(&app.store).await? {
        return Ok(Redirect::to(&next).into_response());
    }
    Ok(LoginView { problem: None, next, reload: false }.render()?.into_response())
}

/// `POST /ui/login`
pub async fn log_in(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let address = app.access.address(request.extensions(), request.headers());
    let fields = forms::read(request).await?;
    let token = field(&fields, "token").trim();
    let next = own_page(field(&fields, "next").trim()).to_owned();
    // Other characters cannot be in a token, and must not be in a cookie.
    let plain =
        !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let secret = if plain { token } else { "" };
    let caller = match app.access.log_in(&app.store, address, secret).await {
        Ok(caller) => caller,
        Err(refused) if refused.code() == ErrorCode::Unauthenticated => {
            let problem = Some(refused.message().to_owned());
            let page = LoginView { problem, next, reload: false }.render()?;
            return Ok(page.with_status(refused.code().status()).into_response());
        }
        Err(refused) => return Err(refused),
    };
    let mut response = Redirect::to(&next).into_response();
    set_cookie(&mut response, &app, token, "");
    // The guard records the caller in the audit log.
    response.extensions_mut().insert(caller);
    Ok(response)
}

/// `POST /ui/logout`
pub async fn log_out(State(app): State<App>) -> Response {
    let mut response = Redirect::to(LOGIN).into_response();
    set_cookie(&mut response, &app, "", "; Max-Age=0");
    response
}

/// Stores `token` in the browser until it is closed, or removes it.
fn set_cookie(response: &mut Response, app: &App, token: &str, expiry: &str) {
    let secure = if app.access.is_encrypted() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{expiry}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::own_page;

    #[test]
    fn a_login_returns_to_pages_of_this_service_only() {
        for page in ["/ui/runs/1", "/ui/diff?a=1&b=2", "/?state=failed"] {
            assert_eq!(own_page(page), page);
        }
        for other in [
            "",
            "//evil.example",
            "https://evil.example",
            "/\\evil.example",
            "/ui/\\x",
            "/ui/\r\nset-cookie: a=b",
            "/ui/login?next=/",
            "/runs",
        ] {
            assert_eq!(own_page(other), "/", "{other:?}");
        }
    }
}
