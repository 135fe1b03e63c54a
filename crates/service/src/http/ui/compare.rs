//! Page that compares two runs.

use axum::{Extension, extract::State};
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::page::HtmlPage;
use crate::{
    http::{
        api::{
            diff,
            runs::{RunSummary, list},
        },
        auth::access::Caller,
        error::ApiError,
        extract::params::{Params, parse_id},
        state::App,
    },
    store::Filter,
};

/// Maximum number of offered runs.
const MAX_OFFERED: u32 = 50;

/// The two runs of the form; empty if not chosen.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct ComparePageQuery {
    a: String,
    b: String,
}

#[derive(Serialize)]
struct CompareView<'a> {
    query: &'a ComparePageQuery,
    /// Recent runs that have ended.
    runs: Vec<RunSummary>,
    problem: Option<String>,
    diff: Option<Value>,
}

/// `GET /ui/diff`
pub async fn compare(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Params(ComparePageQuery { a, b }): Params<ComparePageQuery>,
) -> Result<HtmlPage, ApiError> {
    let query = ComparePageQuery { a: a.trim().to_owned(), b: b.trim().to_owned() };
    let is_complete = !query.a.is_empty() && !query.b.is_empty();
    let diff: Result<Option<Value>, ApiError> =
        if is_complete { render_diff(&app, &query).await.map(Some) } else { Ok(None) };
    let mut runs = list::page(&app, &Filter::default(), None, MAX_OFFERED).await?.runs;
    runs.retain(|run| run.state.is_final());
    let status = diff.as_ref().err().map(|error| error.code().status());
    let problem = diff.as_ref().err().map(|error| error.message().to_owned());
    let view = CompareView { query: &query, runs, problem, diff: diff.unwrap_or_default() };
    let page = HtmlPage::render(Some(&caller), "diff.html", view)?;
    Ok(match status {
        Some(status) => page.with_status(status),
        None => page,
    })
}

async fn render_diff(app: &App, query: &ComparePageQuery) -> Result<Value, ApiError> {
    let (a, b) = (parse_id(&query.a)?, parse_id(&query.b)?);
    diff::compare(app, (a, b), None, |diff| diff.page()).await
}
