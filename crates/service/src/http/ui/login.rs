//! Login with a token, which starts a session: the browser stores its value in a cookie that
//! scripts cannot read and other sites cannot send, and never stores the token.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};

use super::{
    assets::ASSETS,
    forms::{self, Button, field},
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
/// Name of the cookie with the session's value, before the port.
const COOKIE: &str = "llmprof_session";
/// Prefix with which browsers accept a cookie over encrypted connections and from this host only.
const HOST_PREFIX: &str = "__Host-";
/// Cookie of earlier versions, which contained the token.
const OLD_COOKIE: &str = "llmprof_token";

/// The access rule of a page that needs no token; `None` for other paths.
pub fn access_rule(path: &str) -> Option<AccessRule> {
    match path {
        LOGIN => Some(AccessRule::OpenAudited),
        LOGOUT => Some(AccessRule::Open),
        path if path.starts_with(ASSETS) => Some(AccessRule::Open),
        _ => None,
    }
}

/// The value in the session's cookie.
pub fn session(headers: &HeaderMap, encrypted: bool) -> Option<&str> {
    let expected = cookie_name(headers, encrypted);
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs =
        cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, value)| *name == expected && !value.is_empty()).map(|(_, value)| value)
}

/// Name of the cookie, with the port of the request: a browser sends a cookie to all ports of its
/// host, so services on several ports need several names.
fn cookie_name(headers: &HeaderMap, encrypted: bool) -> String {
    let prefix = if encrypted { HOST_PREFIX } else { "" };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()) {
        Some(port) => format!("{prefix}{COOKIE}_{port}"),
        None => format!("{prefix}{COOKIE}"),
    }
}

/// The page to return to after login.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
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

/// Returns `next` if it is a page of this service, else `/`.
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
    let is_logged_in = match session(&headers, app.access.is_encrypted()) {
        Some(session) => app.access.is_logged_in(&app.store, session).await,
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
    let cookie = cookie_name(request.headers(), app.access.is_encrypted());
    let fields = forms::read(request).await?;
    forms::check(&fields, &["token", "next"])?;
    let token = field(&fields, "token").trim();
    let next = own_page(field(&fields, "next").trim()).to_owned();
    let (caller, session) = match app.access.log_in(&app.store, address, token).await {
        Ok(started) => started,
        Err(refused) if refused.code() == ErrorCode::Unauthenticated => {
            let problem = Some(refused.message().to_owned());
            let page = LoginView { problem, next, reload: false }.render()?;
            return Ok(page.with_status(refused.code().status()).into_response());
        }
        Err(refused) => return Err(refused),
    };
    let mut response = Redirect::to(&next).into_response();
    set_cookie(&mut response, &app, &format!("{cookie}={session}"));
    set_cookie(&mut response, &app, &format!("{OLD_COOKIE}=; Max-Age=0"));
    // The guard records the caller in the audit log.
    response.extensions_mut().insert(caller);
    Ok(response)
}

/// `POST /ui/logout`
pub async fn log_out(State(app): State<App>, headers: HeaderMap, _: Button) -> Response {
    let encrypted = app.access.is_encrypted();
    if let Some(session) = session(&headers, encrypted) {
        app.access.log_out(session);
    }
    let mut response = Redirect::to(LOGIN).into_response();
    let cookie = format!("{}=; Max-Age=0", cookie_name(&headers, encrypted));
    set_cookie(&mut response, &app, &cookie);
    response
}

/// Stores a cookie in the browser until it is closed or by its own age, out of reach of scripts and
/// other sites.
fn set_cookie(response: &mut Response, app: &App, cookie: &str) {
    let secure = if app.access.is_encrypted() { "; Secure" } else { "" };
    let cookie = format!("{cookie}; Path=/; HttpOnly; SameSite=Strict{secure}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_named_by_port_and_encryption() {
        let name = |host: &str, encrypted| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            cookie_name(&headers, encrypted)
        };
        assert_eq!(name("localhost:8080", false), "llmprof_session_8080");
        assert_eq!(name("[::1]:8443", true), "__Host-llmprof_session_8443");
        assert_eq!(name("[::1]", false), "llmprof_session");
        assert_eq!(name("llmprof.example", true), "__Host-llmprof_session");
        assert_eq!(cookie_name(&HeaderMap::new(), true), "__Host-llmprof_session");
    }

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
