//! The tables of a run's analysis: the list, and each one as JSON or CSV.
//!
//! Serves what the run stored when it ended; analyses nothing.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    report::example_report,
    runs::{example, find_ended, read_listed},
};
use crate::{
    artifact::layout,
    domain::ids::RunId,
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InvalidParameter, NotAcceptable, ReportUnavailable, RunNotFound,
                TableNotFound,
            },
        },
        extract::{
            content_negotiation::{self, TableFormat},
            params::{Params, RunPath, parse_id},
        },
        state::App,
    },
    parse::aliases,
    report::tables::{
        stage_table,
        stored::{self, RowSelection, StoredTable, TableList, TableRows},
    },
};

const MAX_ROWS: u32 = 1_000_000;
const MAX_TEXT: usize = 200;

/// Filter, order, limit and form of the rows.
#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TableQuery {
    /// Rows of this stage alone, in tables with a column `stage`.
    #[param(max_length = 200)]
    stage: Option<String>,
    /// A column to sort by; descending after a `-`. The stored order when absent, in most tables by
    /// descending time.
    #[param(pattern = "^-?[A-Za-z0-9_.]+$", max_length = 200)]
    sort: Option<String>,
    /// Maximum number of rows; all when absent.
    #[param(minimum = 1, maximum = 1000000)]
    limit: Option<u32>,
    /// `json` or `csv`; by `Accept` when absent.
    #[param(value_type = Option<String>, pattern = "^(json|csv)$")]
    format: Option<TableFormat>,
}

/// The table of stages in the example's report, as a run stores it.
fn example_tables() -> String {
    stage_table(&example_report().stages).line()
}

/// The example's list of tables.
fn example_list() -> TableList {
    let tables = stored::heads(example_tables().as_bytes(), |_, _| None).unwrap_or_default();
    TableList { run_id: example::id(), tables }
}

/// The first stage of the example's report.
fn example_table() -> Option<StoredTable> {
    let first = RowSelection { limit: Some(1), ..RowSelection::default() };
    let stages = stored::find(example_tables().as_bytes(), "stages", |_, _| None).ok()??;
    stages.select(&first).ok()
}

/// List the tables of a run's analysis with their columns and numbers of rows
#[utoipa::path(get, path = "/runs/{run_id}/tables", tag = "artifacts", operation_id = "list_tables",
    params(("run_id" = RunId, Path)),
    responses(
        (status = 200, description = "Every table, without its rows", body = TableList,
            example = json!(example_list())),
        GuardedErrors, InvalidParameter, RunNotFound, ReportUnavailable))]
pub async fn list(
    State(app): State<App>,
    RunPath(id): RunPath,
) -> Result<Json<TableList>, ApiError> {
    let stored = stored(&app, id).await?;
    let tables = stored::heads(&stored, aliases::column);
    Ok(Json(TableList { run_id: id, tables: tables.map_err(|error| ApiError::internal(&error))? }))
}

/// Read one table of a run's analysis, all rows or some
///
/// CSV has the same columns; a list inside a cell is JSON there.
#[utoipa::path(get, path = "/runs/{run_id}/tables/{table}", tag = "artifacts",
    operation_id = "get_table",
    params(
        ("run_id" = RunId, Path),
        ("table" = String, Path, description = "A name of the list", min_length = 1),
        TableQuery),
    responses(
        (status = 200, description = "The rows, as JSON or CSV by `format` or `Accept`",
            content(
                (TableRows = "application/json",
                    example = json!(example_table().map(|table| table.json(example::id())))),
                (String = "text/csv",
                    example = json!(example_table().map(|table| table.csv()))))),
        GuardedErrors, InvalidParameter, TableNotFound, NotAcceptable, ReportUnavailable))]
pub async fn table(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<TableQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path((id, name)) = path.map_err(|rejection| invalid(rejection.body_text()))?;
    let id = parse_id(&id)?;
    if let Some(limit) = query.limit.filter(|limit| !(1..=MAX_ROWS).contains(limit)) {
        return Err(invalid(format!("limit {limit} is out of range; expected 1 to {MAX_ROWS}")));
    }
    if [&query.stage, &query.sort].into_iter().flatten().any(|text| text.chars().count() > MAX_TEXT)
    {
        return Err(invalid(format!("stage and sort have at most {MAX_TEXT} characters")));
    }
    let format = content_negotiation::requested_format(
        query.format,
        &headers,
        &[TableFormat::Json, TableFormat::Csv],
    )?;
    let stored = stored(&app, id).await?;
    let wanted = RowSelection {
        stage: query.stage,
        sort: query.sort,
        limit: query.limit.map(|limit| limit as usize),
    };
    // A long table takes time to read, sort and write: not on a thread that serves others.
    let text = tokio::task::spawn_blocking(move || {
        let table = read(&stored, id, &name)?;
        let rows = table.select(&wanted).map_err(|error| invalid(error.to_string()))?;
        match format {
            TableFormat::Csv => Ok(rows.csv()),
            _ => serde_json::to_string(&rows.json(id)).map_err(|error| ApiError::internal(&error)),
        }
    });
    let text = text.await.map_err(|error| ApiError::internal(&error))??;
    Ok(content_negotiation::respond(format, text))
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidParameter, message)
}

/// Reads one of a run's stored tables.
pub(crate) fn read(stored: &[u8], id: RunId, name: &str) -> Result<StoredTable, ApiError> {
    stored::find(stored, name, aliases::column)
        .map_err(|error| ApiError::internal(&error))?
        .ok_or_else(|| {
            let message = format!("run {id} has no table {name:?}; see /runs/{id}/tables");
            ApiError::new(ErrorCode::TableNotFound, message)
        })
}

/// Reads the file of tables that an ended run left.
pub(crate) async fn stored(app: &App, id: RunId) -> Result<Vec<u8>, ApiError> {
    let run = find_ended(app, id).await?;
    if app.store.artifact(id, layout::TABLES).await?.is_none() {
        let message = format!(
            "run {id} ended {} without tables; its files are at /runs/{id}/artifacts",
            run.state
        );
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    }
    read_listed(app, id, layout::TABLES).await
}
