//! Page with all alignments, and the form that submits one.

use axum::{
    Extension,
    extract::{Request, State},
    response::{IntoResponse, Redirect, Response},
};
use llmprof_core::domain::{alignment::AlignmentState, ids::RunId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    alignment_form::{AlignmentForm, LABELS, SELECTORS},
    forms::{self, non_empty, parse_name},
    page::HtmlPage,
};
use crate::{
    http::{
        api::{
            alignments::{
                self as api, AlignmentList,
                submit::{self, has_timeline},
            },
            runs::{RunSummary, list as run_list},
        },
        auth::access::Caller,
        error::ApiError,
        extract::params::{Params, parse_id},
        state::App,
    },
    store::{AlignmentFilter, Filter},
};

/// Alignments per page.
const PAGE_ALIGNMENTS: u32 = 20;
/// Recent runs that are searched for a timeline.
const MAX_OFFERED: u32 = 50;

/// Filter of the list, and initial values of the form. Browsers send empty fields too.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlignmentsPageQuery {
    state: String,
    run: String,
    cursor: String,
    /// Runs that the form selects.
    mock: String,
    e2e: String,
    /// The alignment to submit again, with which the new one is compared.
    again: String,
}

#[derive(Serialize)]
struct AlignmentsView<'a> {
    list: AlignmentList,
    query: &'a AlignmentsPageQuery,
    filtered: bool,
    states: &'static [AlignmentState],
    /// Runs of the form: recent ones with a timeline, and those that it selects.
    runs: Vec<RunSummary>,
    selectors: [(&'static str, &'static str); 3],
    entered: &'a AlignmentForm,
    /// Reason why the submission was refused.
    problem: Option<&'a str>,
    /// Key of this form: submitting it twice queues one alignment.
    key: Uuid,
}

/// `GET /ui/alignments`
pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(query): Params<AlignmentsPageQuery>,
) -> Result<HtmlPage, ApiError> {
    let entered = match query.again.trim() {
        "" => AlignmentForm::of_runs(&query.mock, &query.e2e),
        id => {
            let before = api::find(&app, parse_id(id)?).await?;
            let mut form = AlignmentForm::from_spec(&before.spec);
            if before.state == AlignmentState::Succeeded {
                form.set_previous(id);
            }
            form
        }
    };
    show(&app, &caller, &query, &entered, None).await
}

/// `POST /ui/alignments`: queues the form's alignment and redirects to its page.
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    let fields = forms::read(request).await?;
    let checked = forms::check(&fields, &forms::names_of::<AlignmentForm>());
    let fields: Map<String, Value> =
        fields.into_iter().map(|(field, text)| (field, text.into())).collect();
    let entered: AlignmentForm =
        serde_json::from_value(fields.into()).map_err(|error| ApiError::internal(&error))?;
    let submitted = async {
        checked?;
        entered.check()?;
        let body = entered.body().to_string();
        let key = forms::idempotency_key(entered.key(), &body);
        submit::queue(&app, caller.clone(), body.as_bytes(), Some(key)).await
    };
    match submitted.await {
        Ok(queued) => Ok(Redirect::to(&format!("/ui/alignments/{}", queued.id)).into_response()),
        Err(refused) => {
            let problem = forms::labelled(refused.message(), LABELS);
            let query = AlignmentsPageQuery::default();
            let page = show(&app, &caller, &query, &entered, Some(&problem)).await?;
            Ok(page.with_status(refused.code().status()).into_response())
        }
    }
}

async fn show(
    app: &App,
    caller: &Caller,
    query: &AlignmentsPageQuery,
    entered: &AlignmentForm,
    problem: Option<&str>,
) -> Result<HtmlPage, ApiError> {
    let state = parse_name("state", &query.state)?;
    let run = non_empty(&query.run).map(|id| parse_id::<RunId>(&id)).transpose()?;
    let cursor = non_empty(&query.cursor);
    let filter = AlignmentFilter { state, run };
    let view = AlignmentsView {
        list: api::page(app, filter, cursor.as_deref(), PAGE_ALIGNMENTS).await?,
        query,
        filtered: state.is_some() || run.is_some(),
        states: AlignmentState::ALL,
        runs: offered_runs(app, entered.runs()).await?,
        selectors: SELECTORS,
        entered,
        problem,
        key: Uuid::now_v7(),
    };
    HtmlPage::render(Some(caller), "alignments.html", view)
}

/// Recent runs with a timeline, and the `selected` ones that exist.
async fn offered_runs(app: &App, selected: [&str; 2]) -> Result<Vec<RunSummary>, ApiError> {
    let mut offered = Vec::new();
    for run in run_list::page(app, &Filter::default(), None, MAX_OFFERED).await?.runs {
        if run.state.is_final() && has_timeline(app, run.run_id).await? {
            offered.push(run);
        }
    }
    for id in selected.into_iter().filter_map(|id| parse_id::<RunId>(id.trim()).ok()) {
        if !offered.iter().any(|run| run.run_id == id)
            && let Some(run) = app.store.run(id).await?
        {
            offered.push(run.into());
        }
    }
    Ok(offered)
}
