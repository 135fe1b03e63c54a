//! Pages of stored inputs: the list, and one set with its images and prompts.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::domain::inputs::{MAX_SAMPLE_IMAGES, MAX_SAMPLES};
use serde::{Deserialize, Serialize};

use super::{
    forms::{Button, non_empty},
    page::HtmlPage,
    run_inputs::{self, SampleView},
};
use crate::http::{
    api::inputs::{self as api, InputsList, InputsSummary},
    auth::access::Caller,
    error::ApiError,
    extract::params::{InputsPath, Params, parse_id},
    state::App,
};

/// Stored inputs per page.
const PAGE_INPUTS: u32 = 20;
/// Thumbnails of each in the list.
const LIST_THUMBNAILS: u32 = 3;

/// Page of the list.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InputsPageQuery {
    cursor: String,
}

#[derive(Serialize)]
struct InputsPageView {
    list: InputsList,
    query: InputsPageQuery,
    /// Days after which unused inputs are removed; 0: never.
    unused_days: u32,
    list_thumbnails: u32,
}

#[derive(Serialize)]
struct StoredInputsView {
    inputs: InputsSummary,
    samples: Vec<SampleView>,
    unused_days: u32,
    /// True if the caller may delete them.
    may_change: bool,
}

/// `GET /ui/inputs`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<InputsPageQuery>,
) -> Result<HtmlPage, ApiError> {
    let before = non_empty(&query.cursor).map(|id| parse_id(&id)).transpose()?;
    let view = InputsPageView {
        list: api::page(&app, before, PAGE_INPUTS).await?,
        query,
        unused_days: app.config.inputs.unused_days,
        list_thumbnails: LIST_THUMBNAILS,
    };
    HtmlPage::render(Some(&caller), "inputs.html", view)
}

/// `GET /ui/inputs/{inputs_id}`
pub async fn inputs(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    InputsPath(id): InputsPath,
) -> Result<HtmlPage, ApiError> {
    let (stored, set) = app.store.inputs(id).await?.ok_or_else(|| api::not_found(id))?;
    let view = StoredInputsView {
        may_change: caller.may_change(stored.owner.as_deref()),
        samples: run_inputs::samples_of(id, &set, (MAX_SAMPLES, MAX_SAMPLE_IMAGES)),
        unused_days: app.config.inputs.unused_days,
        inputs: stored.into(),
    };
    HtmlPage::render(Some(&caller), "stored_inputs.html", view)
}

/// `POST /ui/inputs/{inputs_id}/delete`
pub async fn delete(
    state: State<App>,
    caller: Extension<Caller>,
    path: InputsPath,
    _: Button,
) -> Result<Redirect, ApiError> {
    api::delete(state, caller, path).await?;
    Ok(Redirect::to("/ui/inputs"))
}

/// `GET` of a button's address: redirects to the inputs' page.
pub async fn back(InputsPath(id): InputsPath) -> Response {
    Redirect::to(&format!("/ui/inputs/{id}")).into_response()
}
