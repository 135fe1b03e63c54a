//! `GET /runs/{a}/diff/{b}`: what changed from one run to another.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    App,
    error::{ApiError, ErrorCode},
    forms::{self, Format},
    request::{self, Params},
    runs::find,
};
use crate::{
    artifact::layout,
    report::diff::{RunDiff, Stored, run_diff, stored},
    run::RunId,
};

/// The form of the answer.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// `html`, `md` or `json`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(html|md|json)$")]
    format: Option<Format>,
    /// Ids of up to 20 earlier runs of the same kind as `a`, separated by commas: the noise between runs is taken from them.
    #[param(
        max_length = 739,
        pattern = "^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(,[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}){0,19})?$"
    )]
    history: Option<String>,
}

/// Earlier runs that a comparison takes at most: each report is read whole.
const MAX_HISTORY: usize = 20;

/// Compare two runs: whether they may be compared, then what changed by stage, operator and kernel
///
/// What changed most comes first. A change counts where Welch's t-test finds it; without `history` a change of a kernel by at most 5 %
/// gets no verdict.
#[utoipa::path(get, path = "/runs/{a}/diff/{b}", tag = "artifacts", operation_id = "diff_runs",
    params(("a" = RunId, Path), ("b" = RunId, Path), DiffQuery),
    responses((status = 200, description = "The comparison, as HTML, Markdown or JSON by `format` or `Accept`",
        content((String = "text/html"), (String = "text/markdown"), (RunDiff = "application/json")))))]
pub async fn diff(
    State(app): State<App>,
    ids: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<DiffQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path((a, b)) = ids.map_err(|rejection| ApiError::new(ErrorCode::InvalidParameter, rejection.body_text()))?;
    let (a, b) = (request::parse(&a)?, request::parse(&b)?);
    let format = forms::wanted(query.format, &headers, &[Format::Html, Format::Md, Format::Json])?;
    let history = history(query.history.as_deref().unwrap_or_default())?;
    let text = compare(&app, (a, b), &history, move |diff| match format {
        Format::Html => diff.html(),
        Format::Md => diff.markdown(),
        Format::Json | Format::Csv => diff.json(),
    });
    Ok(forms::answer(format, text.await?))
}

/// Reads ids that are separated by commas.
fn history(text: &str) -> Result<Vec<RunId>, ApiError> {
    let ids: Vec<RunId> = text.split(',').filter(|id| !id.is_empty()).map(request::parse).collect::<Result<_, _>>()?;
    if ids.len() > MAX_HISTORY {
        let message = format!("history has {} runs; at most {MAX_HISTORY} are read", ids.len());
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    Ok(ids)
}

/// Compares two ended runs and renders the result by `render`.
pub(super) async fn compare<T: Send + 'static>(
    app: &App,
    (a, b): (RunId, RunId),
    history: &[RunId],
    render: impl FnOnce(&RunDiff) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let (a, b) = (read(app, a).await?, read(app, b).await?);
    let mut earlier = Vec::new();
    for id in history {
        earlier.push(read(app, *id).await?);
    }
    // Tables of hundreds of rows are laid out: not on a thread that answers others.
    let rendered = tokio::task::spawn_blocking(move || render(&run_diff(&a, &b, &earlier)));
    rendered.await.map_err(|error| ApiError::internal(&error))
}

async fn read(app: &App, id: RunId) -> Result<Stored, ApiError> {
    let run = find(app, id).await?;
    if !run.state.is_final() {
        return Err(ApiError::new(ErrorCode::RunNotFinished, format!("run {id} has not ended; follow it at /runs/{id}/events")));
    }
    let unavailable = |why: String| ApiError::new(ErrorCode::ReportUnavailable, format!("run {id} cannot be compared: {why}"));
    let Some(report) = file(app, id, layout::REPORT_JSON).await? else {
        return Err(unavailable(format!("it ended {} without a report", run.state)));
    };
    let kernels = file(app, id, layout::KERNELS_JSON).await?;
    stored(&report, kernels.as_deref()).map_err(|error| unavailable(crate::chain(&error)))
}

/// The bytes of a file that the store lists for the run.
pub(super) async fn file(app: &App, id: RunId, name: &str) -> Result<Option<Vec<u8>>, ApiError> {
    if app.store.artifact(id, name).await?.is_none() {
        return Ok(None);
    }
    let bytes = tokio::fs::read(app.runs.join(id.to_string()).join(name)).await;
    bytes.map(Some).map_err(|error| ApiError::internal(&error))
}
