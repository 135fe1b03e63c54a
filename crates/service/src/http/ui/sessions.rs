//! Page of sessions: servers that stay, with their states and runs.
//!
//! Sessions are started by the API; the page lists and ends them.

use axum::{Extension, extract::State, response::Redirect};
use serde::Serialize;

use super::{forms::Button, page::HtmlPage};
use crate::http::{
    api::sessions::{self, SessionView},
    auth::access::Caller,
    error::ApiError,
    extract::params::SessionPath,
    state::App,
};

#[derive(Serialize)]
struct SessionsPage {
    sessions: Vec<SessionRow>,
}

#[derive(Serialize)]
struct SessionRow {
    session: SessionView,
    is_active: bool,
    /// True if the caller may end it.
    may_end: bool,
}

/// `GET /ui/sessions`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<HtmlPage, ApiError> {
    let row = |session: SessionView| {
        let is_active = !session.state.is_final();
        let may_end = is_active && caller.may_change(session.owner.as_deref());
        SessionRow { session, is_active, may_end }
    };
    let sessions = sessions::page(&app).await?.sessions.into_iter().map(row).collect();
    HtmlPage::render(Some(&caller), "sessions.html", SessionsPage { sessions })
}

/// `POST /ui/sessions/{session_id}/end`
pub async fn end(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    SessionPath(id): SessionPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    sessions::request_end(&app, &caller, id).await?;
    Ok(Redirect::to("/ui/sessions"))
}

/// `GET` of a button's address: redirects to the list.
pub async fn back() -> Redirect {
    Redirect::to("/ui/sessions")
}
