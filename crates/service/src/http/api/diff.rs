//! `GET /runs/{a}/diff/{b}`: changes from one run to another.

use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use llmprof_analyze::parse::aliases;
use llmprof_core::{domain::ids::RunId, layout};
use llmprof_report::diff::{RunDiff, StoredReport, run_diff, stored};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    report::example_report,
    runs::{find_ended, listed, read_listed},
    series::RECENT,
};
use crate::{
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InvalidParameter, NotAcceptable, ReportUnavailable, RunNotFound,
                StoredFile,
            },
        },
        extract::{
            content_negotiation::{self, TableFormat},
            params::{Params, bad_path, parse_id},
        },
        state::App,
    },
    runtime,
};

/// Format and history of a comparison.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// `html`, `md` or `json`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(html|md|json)$")]
    format: Option<TableFormat>,
    /// Ids of up to 20 other runs of the build of `a`, separated by commas, from which the noise
    /// between runs is estimated. When absent, the latest 5 of its series; when empty, none.
    #[param(
        max_length = 739,
        pattern = "^([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\
                   (,[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}){0,19})?$"
    )]
    history: Option<String>,
}

/// Maximum number of earlier runs, whose reports are read in full.
const MAX_HISTORY: usize = 20;
/// Maximum number of earlier runs when a request names none.
const DEFAULT_HISTORY: usize = 5;

/// The comparison of the example's report with itself, each list cut to its first record.
fn example() -> RunDiff {
    let run = StoredReport { report: example_report(), kernels: None };
    let mut compared = run_diff(&run, &run, &[]);
    compared.diff.checks.truncate(1);
    compared.diff.stages.truncate(1);
    compared
}

/// Compare two runs: their comparability, then changes by stage, operator and kernel
///
/// The largest changes come first. A change is significant by Welch's t-test; without other runs
/// of the build of `a`, a change of a kernel by at most 5 % has no verdict.
#[utoipa::path(get, path = "/runs/{a}/diff/{b}", tag = "artifacts", operation_id = "diff_runs",
    params(("a" = RunId, Path), ("b" = RunId, Path), DiffQuery),
    responses(
        (status = 200,
            description = "The comparison, as HTML, Markdown or JSON by `format` or `Accept`",
            content(
                (String = "text/html",
                    example = json!("<!doctype html>\n<html lang=\"en\">...</html>\n")),
                (String = "text/markdown", example =
                    json!("# From run 019a9f3e-6d1c-7c4e-9a51-3a8f0c2b7d10 to run ...\n")),
                (RunDiff = "application/json", example = json!(example())))),
        GuardedErrors, InvalidParameter, RunNotFound, NotAcceptable, ReportUnavailable,
        StoredFile))]
pub async fn diff(
    State(app): State<App>,
    ids: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<DiffQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path((a, b)) = ids.map_err(bad_path)?;
    let (a, b) = (parse_id(&a)?, parse_id(&b)?);
    let offered = [TableFormat::Json, TableFormat::Html, TableFormat::Md];
    let format = content_negotiation::requested_format(query.format, &headers, &offered)?;
    let history = query.history.as_deref().map(parse_history).transpose()?;
    let text = compare(&app, (a, b), history, move |diff| match format {
        TableFormat::Html => diff.html(),
        TableFormat::Md => diff.markdown(),
        TableFormat::Json | TableFormat::Csv => diff.json(),
    });
    Ok(content_negotiation::respond(format, text.await?))
}

/// Parses ids separated by commas.
fn parse_history(text: &str) -> Result<Vec<RunId>, ApiError> {
    let ids: Vec<RunId> =
        text.split(',').filter(|id| !id.is_empty()).map(parse_id).collect::<Result<_, _>>()?;
    if ids.len() > MAX_HISTORY {
        let message = format!("history: {} runs; at most {MAX_HISTORY} are allowed", ids.len());
        return Err(ApiError::new(ErrorCode::InvalidParameter, message));
    }
    Ok(ids)
}

/// Compares two ended runs and renders the result by `render`. `history` defaults to other runs of
/// `a`'s build.
pub(crate) async fn compare<T: Send + 'static>(
    app: &App,
    (a, b): (RunId, RunId),
    history: Option<Vec<RunId>>,
    render: impl FnOnce(&RunDiff) -> T + Send + 'static,
) -> Result<T, ApiError> {
    let history = match history {
        Some(history) => history,
        None => runs_of_build(app, a, b).await?,
    };
    let (a, b) = (read_report(app, a).await?, read_report(app, b).await?);
    let mut earlier = Vec::new();
    for id in history {
        earlier.push(read_report(app, id).await?);
    }
    // Rendering tables of hundreds of rows would block the async threads.
    let rendered = runtime::blocking(move || render(&run_diff(&a, &b, &earlier)));
    rendered.await.map_err(|error| ApiError::internal(&error))
}

/// Other runs of the build of `a` with a report: their variation is the noise between runs.
async fn runs_of_build(app: &App, a: RunId, b: RunId) -> Result<Vec<RunId>, ApiError> {
    let Some((_, point)) = app.store.points_of(&[a], false).await?.pop() else {
        return Ok(Vec::new());
    };
    let Some(series) = &point.series else { return Ok(Vec::new()) };
    let changes = app.store.change_points(series).await?;
    let build = point.build_key(&changes);
    let mut runs = Vec::new();
    for it in app.store.points(series, None, RECENT).await? {
        let is_other = it.run != a && it.run != b && it.build_key(&changes) == build;
        let has_report = is_other
            && runs.len() < DEFAULT_HISTORY
            && app.store.artifact(it.run, layout::REPORT_JSON).await?.is_some();
        runs.extend(has_report.then_some(it.run));
    }
    Ok(runs)
}

async fn read_report(app: &App, id: RunId) -> Result<StoredReport, ApiError> {
    let run = find_ended(app, id).await?;
    let unavailable = |reason: String| {
        let message = format!("run {id} cannot be compared: {reason}");
        ApiError::new(ErrorCode::ReportUnavailable, message)
    };
    let Some(report) = read_file(app, id, layout::REPORT_JSON).await? else {
        return Err(unavailable(format!("it ended {} without a report", run.state)));
    };
    let kernels = read_file(app, id, layout::KERNELS_JSON).await?;
    stored(&report, kernels.as_deref(), aliases::read)
        .map_err(|error| unavailable(llmprof_core::chain(&error)))
}

/// Returns the bytes of a file of the run; `None` if the run has no such file.
pub(crate) async fn read_file(
    app: &App,
    id: RunId,
    name: &str,
) -> Result<Option<Vec<u8>>, ApiError> {
    let Some(artifact) = listed(app, id, name).await? else { return Ok(None) };
    read_listed(app, id, &artifact).await.map(Some)
}
