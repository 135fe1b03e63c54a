//! Page that compares two runs.

use axum::{Extension, extract::State};
use llmprof_core::domain::ids::RunId;
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
        error::{ApiError, ErrorCode},
        extract::params::{Params, parse_id},
        state::App,
    },
    store::Filter,
};

/// Maximum number of offered runs.
const MAX_OFFERED: u32 = 50;
/// Newest runs in which a part of an id is searched.
const MAX_SEARCHED: u32 = 500;
/// Characters of a whole id.
const ID_LENGTH: usize = 36;

/// The two runs of the form: their ids, or the start or the end of each, as pages show it; empty
/// if not chosen.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
    let (a, b) = (find(app, &query.a).await?, find(app, &query.b).await?);
    diff::compare(app, (a, b), None, |diff| diff.page()).await
}

/// The run of an id, or of a part of one.
async fn find(app: &App, id: &str) -> Result<RunId, ApiError> {
    let is_digit = |it: u8| it.is_ascii_hexdigit() || it == b'-';
    if id.len() >= ID_LENGTH || !id.bytes().all(is_digit) {
        return parse_id(&id.to_ascii_lowercase());
    }
    let runs = app.store.list(&Filter::default(), None, MAX_SEARCHED).await?;
    matching(&id.to_ascii_lowercase(), runs.iter().map(|run| run.id))
}

/// The only id that starts or ends with `part`.
fn matching(part: &str, ids: impl Iterator<Item = RunId>) -> Result<RunId, ApiError> {
    let found: Vec<(RunId, String)> = ids
        .map(|id| (id, id.to_string()))
        .filter(|(_, text)| text.starts_with(part) || text.ends_with(part))
        .collect();
    match found.as_slice() {
        [(id, _)] => Ok(*id),
        [] => {
            let message =
                format!("no run {part} among the {MAX_SEARCHED} newest runs; enter the whole id");
            Err(ApiError::new(ErrorCode::RunNotFound, message))
        }
        [(_, first), (_, second), ..] => {
            let message = format!(
                "ambiguous id {part}: {} runs have it, such as {first} and {second}; enter more \
                 characters",
                found.len()
            );
            Err(ApiError::new(ErrorCode::InvalidParameter, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_id_is_the_only_run_that_starts_or_ends_with_it() {
        let ids = ["019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10", "019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d11"]
            .map(|id| id.parse::<RunId>().unwrap());
        let find = |part: &str| matching(part, ids.into_iter());
        assert_eq!(find("2b7d11").unwrap(), ids[1]);
        assert_eq!(find("019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10").unwrap(), ids[0]);
        let refused = |part: &str| find(part).unwrap_err().message().to_owned();
        assert!(refused("019a").starts_with("ambiguous id 019a: 2 runs have it, such as 019a9f3e"));
        let unknown = "no run 7d12 among the 500 newest runs; enter the whole id";
        assert_eq!(refused("7d12"), unknown);
    }
}
