//! One alignment: where it stands, its verdict with the checks that led to it, and what it left.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use serde::Serialize;

use super::{Page, PageError, alignments::can_ask};
use crate::{
    artifact::{journal, layout},
    http::{
        App,
        access::Caller,
        alignments::{self as api, AlignmentView},
        error::ApiError,
        request::AlignmentPath,
    },
    run::{AlignmentId, ArtifactRecord, StepRecord},
    store::Role,
};

/// Bytes of the journal's end that are looked through for steps: an attempt writes less.
const TAIL: u64 = 1 << 16;

/// What the page shows.
#[derive(Serialize)]
struct Shown {
    alignment: AlignmentView,
    ended: bool,
    /// Whether who looks may delete it.
    acts: bool,
    /// Whether the form can ask the same again.
    again: bool,
    /// Of the last attempt.
    steps: Vec<StepRecord>,
    artifacts: Vec<ArtifactRecord>,
    /// Whether it left a report.
    report: bool,
}

/// `GET /ui/alignments/{alignment_id}`
pub async fn alignment(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    path: Result<AlignmentPath, ApiError>,
) -> Result<Page, PageError> {
    let AlignmentPath(id) = path?;
    let alignment = AlignmentView::from(api::find(&app, id).await?);
    let artifacts = app.store.alignment_artifacts(id).await?;
    let mine = alignment.owner.is_some() && alignment.owner == caller.name && caller.role >= Role::Submitter;
    let shown = Shown {
        ended: alignment.state.is_final(),
        acts: caller.role == Role::Admin || mine,
        again: can_ask(&alignment.spec),
        steps: steps(&app, id).await,
        report: artifacts.iter().any(|it| it.path == format!("{}.html", layout::ALIGNMENT)),
        artifacts,
        alignment,
    };
    Ok(Page::of(Some(&caller), "alignment.html", shown)?)
}

/// The steps of the last attempt.
async fn steps(app: &App, id: AlignmentId) -> Vec<StepRecord> {
    let dir = app.alignments.join(id.to_string());
    let events = match tokio::task::spawn_blocking(move || journal::tail(&dir, TAIL)).await.map_err(std::io::Error::other) {
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
    path: Result<AlignmentPath, ApiError>,
) -> Result<Redirect, PageError> {
    api::delete(state, caller, path?).await?;
    Ok(Redirect::to("/ui/alignments"))
}

/// Leads to the alignment's page whoever comes back to the address of its button.
pub async fn back(path: Result<AlignmentPath, ApiError>) -> Result<Response, PageError> {
    let AlignmentPath(id) = path?;
    Ok(Redirect::to(&format!("/ui/alignments/{id}")).into_response())
}
