//! The tables of a run's analysis: which there are, and each as JSON or CSV.
//!
//! Answers from what the run stored when it ended; nothing is analysed here.

use axum::{
    Json,
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
    request::{self, Params, RunPath},
    runs::find,
};
use crate::{
    artifact::layout,
    report::data::{self, Selection, TableList, TableRows},
    run::RunId,
};

const MAX_ROWS: u32 = 1_000_000;
const MAX_TEXT: usize = 200;

/// Which rows, in which form.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TableQuery {
    /// Rows of this stage alone, where the table tells stages.
    #[param(max_length = 200)]
    stage: Option<String>,
    /// A column to sort by, rising; falling after a `-`. As stored when absent: mostly the longest first.
    #[param(pattern = "^-?[A-Za-z0-9_.]+$", max_length = 200)]
    sort: Option<String>,
    /// Rows at most; all when absent.
    #[param(minimum = 1, maximum = 1000000)]
    limit: Option<u32>,
    /// `json` or `csv`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(json|csv)$")]
    format: Option<Format>,
}

/// List the tables of a run's analysis with their columns and how many rows they have
#[utoipa::path(get, path = "/runs/{run_id}/tables", tag = "artifacts", operation_id = "list_tables", params(("run_id" = RunId, Path)),
    responses((status = 200, description = "Every table, without its rows", body = TableList)))]
pub async fn list(State(app): State<App>, RunPath(id): RunPath) -> Result<Json<TableList>, ApiError> {
    let stored = stored(&app, id).await?;
    let tables = data::heads(&stored).map_err(|error| ApiError::internal(&error))?;
    Ok(Json(TableList { run_id: id, tables }))
}

/// Read one table of a run's analysis, whole or in part
///
/// CSV holds the same columns; a list inside a cell is JSON there.
#[utoipa::path(get, path = "/runs/{run_id}/tables/{table}", tag = "artifacts", operation_id = "get_table",
    params(("run_id" = RunId, Path), ("table" = String, Path, description = "As listed", min_length = 1), TableQuery),
    responses((status = 200, description = "The rows, as JSON or CSV by `format` or `Accept`",
        content((TableRows = "application/json"), (String = "text/csv")))))]
pub async fn table(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<TableQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path((id, name)) = path.map_err(|rejection| wrong(rejection.body_text()))?;
    let id = request::parse(&id)?;
    if query.limit.is_some_and(|limit| !(1..=MAX_ROWS).contains(&limit)) {
        return Err(wrong(format!("limit: 1 to {MAX_ROWS} are taken")));
    }
    if [&query.stage, &query.sort].into_iter().flatten().any(|text| text.chars().count() > MAX_TEXT) {
        return Err(wrong(format!("stage and sort: at most {MAX_TEXT} characters are taken")));
    }
    let format = forms::wanted(query.format, &headers, &[Format::Json, Format::Csv])?;
    let stored = stored(&app, id).await?;
    let wanted = Selection { stage: query.stage, sort: query.sort, limit: query.limit.map(|limit| limit as usize) };
    // A long table is read, sorted and told: not on a thread that answers others.
    let told = tokio::task::spawn_blocking(move || {
        let Some(table) = data::find(&stored, &name).map_err(|error| ApiError::internal(&error))? else {
            let message = format!("the run has no table {name}; they are listed at /runs/{id}/tables");
            return Err(ApiError::new(ErrorCode::TableNotFound, message));
        };
        let rows = table.select(&wanted).map_err(|error| wrong(error.to_string()))?;
        match format {
            Format::Csv => Ok(rows.csv()),
            _ => serde_json::to_string(&rows.json(id)).map_err(|error| ApiError::internal(&error)),
        }
    });
    Ok(forms::answer(format, told.await.map_err(|error| ApiError::internal(&error))??))
}

fn wrong(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidParameter, message)
}

/// The tables that an ended run left.
pub(super) async fn stored(app: &App, id: RunId) -> Result<Vec<u8>, ApiError> {
    let run = find(app, id).await?;
    if !run.state.is_final() {
        return Err(ApiError::new(ErrorCode::RunNotFinished, format!("the run has not ended; follow it at /runs/{id}/events")));
    }
    if app.store.artifact(id, layout::TABLES).await?.is_none() {
        let message = format!("the run ended {} without tables; its files are at /runs/{id}/artifacts", run.state);
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    }
    let bytes = tokio::fs::read(app.runs.join(id.to_string()).join(layout::TABLES)).await;
    bytes.map_err(|error| ApiError::internal(&error))
}
