//! Logging in with a token, which the browser then keeps in a cookie that no script reads and no other site sends.

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use serde::{Deserialize, Serialize};

use super::{COOKIE, LOGIN, Page, PageError, home, over};
use crate::http::{
    App,
    access::Caller,
    error::{ApiError, ErrorCode},
    request::Params,
};

/// Where to go once a token was shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Then {
    next: String,
}

/// What the form shows.
#[derive(Serialize)]
struct Login {
    /// What was wrong with the token that was entered.
    problem: Option<String>,
    /// Where to go afterwards.
    next: String,
    /// Whether the browser is sent on at once, to find out whether it keeps a token.
    bounce: bool,
}

/// One of our own pages, whatever a link asks for.
fn own(next: &str) -> &str {
    let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let ours = next.starts_with("/ui/") || next.starts_with("/?");
    if plain && ours && !next.starts_with(LOGIN) { next } else { "/" }
}

/// The form in the place of a page that needs a token.
///
/// A link on another site is followed without the cookie, even by who has one. Such a browser is sent to the form's own address,
/// with the cookie now, and from there on to the page.
pub fn asked(uri: &Uri, headers: &HeaderMap, refused: ApiError) -> Response {
    let next = own(uri.path_and_query().map_or("/", |it| it.as_str())).to_owned();
    let bounce = headers.get("sec-fetch-site").is_some_and(|site| site == "cross-site") && !headers.contains_key(header::COOKIE);
    let problem = headers.contains_key(header::COOKIE).then(|| refused.message().to_owned());
    match Page::of(None, "login.html", Login { problem, next, bounce }) {
        Ok(page) => over(refused.into_response(), page.with(ErrorCode::Unauthenticated.status()).into_response()),
        Err(error) => error.into_response(),
    }
}

/// `GET /ui/login`
pub async fn form(State(app): State<App>, then: Result<Params<Then>, ApiError>, sent: Request) -> Result<Response, PageError> {
    let next = own(&then?.0.next).to_owned();
    let required = app.access.required(&app.store).await?;
    if !required || app.access.kept(&app.store, sent.headers()).await.is_some() {
        return Ok(Redirect::to(&next).into_response());
    }
    Ok(Page::of(None, "login.html", Login { problem: None, next, bounce: false })?.into_response())
}

/// `POST /ui/login`
pub async fn enter(State(app): State<App>, sent: Request) -> Result<Response, PageError> {
    let address = app.access.address(sent.extensions(), sent.headers());
    let pairs = home::form(sent).await?;
    let field = |name: &str| pairs.iter().find(|(field, _)| field == name).map_or("", |(_, text)| text.trim());
    let (token, next) = (field("token"), own(field("next")).to_owned());
    // What a token cannot be is no cookie either.
    let plain = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let caller = match app.access.enter(&app.store, address, if plain { token } else { "" }).await {
        Ok(caller) => caller,
        Err(refused) if refused.code() == ErrorCode::Unauthenticated => {
            let login = Login { problem: Some(refused.message().to_owned()), next, bounce: false };
            return Ok(Page::of(None, "login.html", login)?.with(refused.code().status()).into_response());
        }
        Err(refused) => return Err(refused.into()),
    };
    let mut response = Redirect::to(&next).into_response();
    keep(&mut response, &app, token, "");
    response.extensions_mut().insert(caller);
    Ok(response)
}

/// `POST /ui/logout`
pub async fn leave(State(app): State<App>, Extension(_): Extension<Caller>) -> Response {
    let mut response = Redirect::to(LOGIN).into_response();
    keep(&mut response, &app, "", "; Max-Age=0");
    response
}

/// Has the browser keep `token` until it is closed, and send it to nobody else.
fn keep(response: &mut Response, app: &App, token: &str, until: &str) {
    let secure = if app.access.encrypted() { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{until}");
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::own;

    #[test]
    fn a_login_leads_to_a_page_of_ours_and_nowhere_else() {
        for page in ["/ui/runs/1", "/ui/diff?a=1&b=2", "/?state=failed"] {
            assert_eq!(own(page), page);
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
            assert_eq!(own(other), "/", "{other:?}");
        }
    }
}
