//! Page with the checks of the host.

use axum::{Extension, extract::State};

use super::page::HtmlPage;
use crate::http::{api::doctor as api, auth::access::Caller, error::ApiError, state::App};

/// `GET /ui/doctor`
pub async fn doctor(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<HtmlPage, ApiError> {
    let checkup = api::doctor(State(app)).await?.0;
    HtmlPage::render(Some(&caller), "doctor.html", checkup)
}
