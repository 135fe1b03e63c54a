//! Page of one alignment: state, verdict with its checks, files.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::{
    domain::{ids::AlignmentId, run_files::ArtifactRecord, state::StepRecord},
    layout,
};
use serde::Serialize;

use super::{alignment_form::is_expressible, forms::Button, page::HtmlPage};
use crate::{
    artifact::journal,
    http::{
        api::alignments::{self as api, AlignmentView},
        auth::access::Caller,
        error::ApiError,
        extract::params::AlignmentPath,
        state::App,
    },
    runtime,
};

/// Bytes read from the end of the journal, more than an attempt writes.
const JOURNAL_TAIL: u64 = 1 << 16;

#[derive(Serialize)]
struct AlignmentPageView {
    alignment: AlignmentView,
    ended: bool,
    /// True if the caller may delete the alignment.
    may_change: bool,
    /// True if the form can submit the same alignment again.
    repeatable: bool,
    /// Steps of the last attempt.
    steps: Vec<StepRecord>,
    artifacts: Vec<ArtifactRecord>,
    has_report: bool,
}

/// `GET /ui/alignments/{alignment_id}`
pub async fn alignment(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    AlignmentPath(id): AlignmentPath,
) -> Result<HtmlPage, ApiError> {
    let alignment = AlignmentView::from(api::find(&app, id).await?);
    let artifacts = app.store.alignment_artifacts(id).await?;
    let report = format!("{}.html", layout::ALIGNMENT);
    let view = AlignmentPageView {
        ended: alignment.state.is_final(),
        may_change: caller.may_change(alignment.owner.as_deref()),
        repeatable: is_expressible(&alignment.spec),
        steps: read_steps(&app, id).await,
        has_report: artifacts.iter().any(|it| it.path == report),
        artifacts,
        alignment,
    };
    HtmlPage::render(Some(&caller), "alignment.html", view)
}

/// The steps of the last attempt.
async fn read_steps(app: &App, id: AlignmentId) -> Vec<StepRecord> {
    let folder = app.alignments.join(id.to_string());
    let events = match runtime::blocking(move || journal::tail(&folder, JOURNAL_TAIL))
        .await
        .map_err(std::io::Error::other)
    {
        Ok(Ok(events)) => events,
        Ok(Err(error)) | Err(error) => {
            tracing::warn!(alignment = %id, %error, "cannot read an alignment's journal");
            return Vec::new();
        }
    };
    journal::last_steps(events)
}

/// `POST /ui/alignments/{alignment_id}/delete`
pub async fn delete(
    state: State<App>,
    caller: Extension<Caller>,
    path: AlignmentPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    api::delete(state, caller, path).await?;
    Ok(Redirect::to("/ui/alignments"))
}

/// `GET` of a button's address: redirects to the alignment's page.
pub async fn back(AlignmentPath(id): AlignmentPath) -> Response {
    Redirect::to(&format!("/ui/alignments/{id}")).into_response()
}
