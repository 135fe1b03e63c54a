//! Page with the form that imports captures.

use axum::{
    Extension,
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::domain::dtype::Dtype;
use serde::Serialize;

use super::{
    forms::{Labels, labelled},
    page::HtmlPage,
};
use crate::http::{
    api::captures::{FormTexts, import},
    auth::access::Caller,
    error::ApiError,
    extract::body::header_text,
    state::App,
};

/// Fields of several values, separated by commas.
const LISTS: [&str; 4] = ["label", "stage", "include_ranges", "exclude_ranges"];

/// Labels of the fields.
pub(super) const LABELS: &Labels = &[
    ("model", "Name of the model"),
    ("labels", "Labels"),
    ("label", "Labels"),
    ("revision", "Revision"),
    ("stage", "Ranges that are a stage"),
    ("include_ranges", "Only in these ranges"),
    ("exclude_ranges", "Not in these ranges"),
    ("model_config", "Configured model"),
    ("prompt_tokens", "Prompt tokens"),
    ("new_tokens", "New tokens"),
    ("batch", "Sequences at the same time"),
    ("dtype", "Dtype"),
];

#[derive(Serialize)]
struct ImportView<'a> {
    /// Names of configured models.
    models: Vec<&'a str>,
    dtypes: &'static [Dtype],
    /// True while a pass measures, for which the check of the files waits.
    measuring: bool,
    /// Longest wait for a pass, seconds.
    max_wait_s: u64,
    /// Reason why the import was refused.
    problem: Option<&'a str>,
}

/// `GET /ui/import`
pub async fn form(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<HtmlPage, ApiError> {
    show(&app, &caller, None)
}

/// `POST /ui/import`: queues the import and redirects to its run.
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    match import(&app, &caller, vec![], (&headers, body), given).await {
        Ok(accepted) => {
            let run = header_text(accepted.headers(), header::LOCATION);
            Ok(Redirect::to(&format!("/ui{run}")).into_response())
        }
        Err(refused) => {
            let problem = labelled(refused.message(), LABELS);
            let page = show(&app, &caller, Some(&problem))?;
            Ok(page.with_status(refused.code().status()).into_response())
        }
    }
}

/// The fields without empty ones, which browsers send too; lists as a field of each value.
fn given(texts: FormTexts) -> FormTexts {
    let mut fields = Vec::new();
    for (name, text) in texts {
        let values: Vec<&str> =
            if LISTS.contains(&name.as_str()) { text.split(',').collect() } else { vec![&text] };
        let values = values.into_iter().map(str::trim).filter(|it| !it.is_empty());
        fields.extend(values.map(|value| (name.clone(), value.to_owned())));
    }
    fields
}

fn show(app: &App, caller: &Caller, problem: Option<&str>) -> Result<HtmlPage, ApiError> {
    let models = app.models.values().map(|model| model.name.as_str()).collect();
    let (measuring, max_wait_s) = (app.measuring.is_active(), app.upload_wait().as_secs());
    let view = ImportView { models, dtypes: Dtype::ALL, measuring, max_wait_s, problem };
    HtmlPage::render(Some(caller), "import.html", view)
}
