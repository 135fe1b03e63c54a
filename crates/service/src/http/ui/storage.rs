//! Page with stored runs and their planned packing and removal.

use axum::{Extension, extract::State};

use super::page::HtmlPage;
use crate::http::{api::retention as api, auth::access::Caller, error::ApiError, state::App};

/// `GET /ui/storage`
pub async fn storage(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<HtmlPage, ApiError> {
    let retention = api::retention(State(app)).await?.0;
    HtmlPage::render(Some(&caller), "storage.html", retention)
}
