//! What the host has, lacks, and how to get it.

use axum::{Extension, extract::State};

use super::{Page, PageError};
use crate::http::{App, access::Caller, doctor as api};

/// `GET /ui/doctor`
pub async fn doctor(State(app): State<App>, Extension(caller): Extension<Caller>) -> Result<Page, PageError> {
    let checkup = api::doctor(State(app)).await?.0;
    Ok(Page::of(Some(&caller), "doctor.html", checkup)?)
}
