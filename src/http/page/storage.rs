//! What is kept, what will be packed or removed, when and why.

use axum::{Extension, extract::State};

use super::{Page, PageError};
use crate::http::{App, access::Caller, retention as api};

/// `GET /ui/storage`
pub async fn storage(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Page, PageError> {
    let kept = api::retention(State(app)).await?.0;
    Ok(Page::of(Some(&caller), "storage.html", kept)?)
}
