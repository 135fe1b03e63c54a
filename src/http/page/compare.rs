//! Two runs compared: which two, and what changed.

use axum::{Extension, extract::State};
use minijinja::value::Value;
use serde::{Deserialize, Serialize};

use super::{Page, PageError};
use crate::{
    http::{
        App,
        access::Caller,
        diff,
        error::ApiError,
        request::{self, Params},
        runs::{self, RunSummary},
    },
    store::Filter,
};

/// Runs that are offered.
const OFFERED: u32 = 50;

/// The two runs, as the form sends them: empty where none is chosen.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    a: String,
    b: String,
}

#[derive(Serialize)]
struct Compared<'a> {
    asked: &'a Asked,
    /// Recent runs that have ended.
    runs: Vec<RunSummary>,
    problem: Option<String>,
    /// What changed.
    diff: Option<Value>,
}

/// `GET /ui/diff`
pub async fn compare(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    asked: Result<Params<Asked>, ApiError>,
) -> Result<Page, PageError> {
    let Params(Asked { a, b }) = asked?;
    let asked = Asked { a: a.trim().to_owned(), b: b.trim().to_owned() };
    let chosen = !asked.a.is_empty() && !asked.b.is_empty();
    let told: Result<Option<Value>, ApiError> = if chosen { between(&app, &asked).await.map(Some) } else { Ok(None) };
    let mut runs = runs::page(&app, &Filter::default(), None, OFFERED).await?.runs;
    runs.retain(|run| run.state.is_final());
    let status = told.as_ref().err().map(|error| error.code().status());
    let problem = told.as_ref().err().map(|error| error.message().to_owned());
    let compared = Compared { asked: &asked, runs, problem, diff: told.unwrap_or_default() };
    let page = Page::of(Some(&caller), "diff.html", compared)?;
    Ok(match status {
        Some(status) => page.with(status),
        None => page,
    })
}

async fn between(app: &App, asked: &Asked) -> Result<Value, ApiError> {
    let (a, b) = (request::parse(&asked.a)?, request::parse(&asked.b)?);
    diff::compare(app, (a, b), &[], |diff| diff.page()).await
}
