//! The tables of a run's analysis: the list, and each one as JSON or CSV.
//!
//! Serves what the run stored when it ended; analyses nothing.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::HeaderMap,
    response::Response,
};
use llmprof_analyze::parse::aliases;
use llmprof_core::{
    domain::{ids::RunId, json_numbers::Within},
    layout,
};
use llmprof_report::tables::{
    filter::{InvalidFilter, RowFilter},
    stage_table,
    stored::{self, RowSelection, SelectionError, StoredTable, TableList, TableRows},
};
use utoipa::{IntoParams, ToSchema};

use super::{
    report::example_report,
    runs::{example, find_ended, listed, read_listed},
};
use crate::{
    http::{
        error::{
            ApiError, ErrorCode,
            responses::{
                GuardedErrors, InvalidParameter, NotAcceptable, ReportUnavailable, RunNotFound,
                StoredFile, TableNotFound, TableUnavailable,
            },
        },
        extract::{
            content_negotiation::{self, TableFormat},
            params::{Params, RunPath, parse_id},
        },
        state::App,
    },
    runtime,
};

const MAX_TEXT: usize = 200;
const MAX_FILTERS: usize = 16;
const MAX_FILTER: usize = 300;

/// A condition on a column: `COLUMN=VALUE` (an empty value: unknown), `COLUMN!=VALUE`,
/// `COLUMN~TEXT` (contains, in any case), or of numbers `COLUMN=MIN..MAX` (either may be missing).
#[derive(Debug, Clone, ToSchema)]
#[schema(
    pattern = r"^[A-Za-z0-9_.]+(=|!=|~)[^\u0000-\u001f\u007f-\u009f]*$",
    max_length = 300,
    example = "launch_ns.mean=1000.."
)]
pub struct TableFilter(String);

/// Filters, order, limit and form of the rows.
#[derive(Debug, Default, Clone, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TableQuery {
    /// Only rows of this stage, in tables with a column `stage`.
    #[param(max_length = 200)]
    stage: Option<String>,
    /// Only rows that match; several may be given.
    #[param(rename = "where", max_items = 16, required = false)]
    filters: Vec<TableFilter>,
    /// Only rows with this text in any cell, in any case.
    #[param(max_length = 200)]
    q: Option<String>,
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

impl TableQuery {
    /// Reads a query, in which only `where` may be repeated.
    fn parse(pairs: Vec<(String, String)>) -> Result<Self, ApiError> {
        let (mut query, mut limit, mut format) = (Self::default(), None, None);
        for (name, value) in pairs {
            let field = match name.as_str() {
                "where" => {
                    query.filters.push(TableFilter(value));
                    continue;
                }
                "stage" => &mut query.stage,
                "q" => &mut query.q,
                "sort" => &mut query.sort,
                "limit" => &mut limit,
                "format" => &mut format,
                _ => {
                    return Err(invalid(format!(
                        "unknown parameter {name:.40?}; \
                         expected stage, where, q, sort, limit or format"
                    )));
                }
            };
            if field.replace(value).is_some() {
                return Err(invalid(format!("{name}: given more than once")));
            }
        }
        let number = |text: String| Within::<1, 1_000_000>::named("limit", &text).map_err(invalid);
        query.limit = limit.map(number).transpose()?;
        query.format = format.as_deref().map(table_format).transpose()?;
        Ok(query)
    }

    /// The selected rows, within the bounds of the contract.
    fn selection(&self) -> Result<RowSelection, ApiError> {
        let too_long = |text: &&String| text.chars().count() > MAX_TEXT;
        if [&self.stage, &self.q, &self.sort].into_iter().flatten().any(|it| too_long(&it)) {
            return Err(invalid(format!("stage, q and sort have at most {MAX_TEXT} characters")));
        }
        let texts = &self.filters;
        if texts.len() > MAX_FILTERS || texts.iter().any(|text| text.0.chars().count() > MAX_FILTER)
        {
            return Err(invalid(format!(
                "at most {MAX_FILTERS} filters, each of at most {MAX_FILTER} characters"
            )));
        }
        let stage = self.stage.iter().map(|stage| Ok(RowFilter::equal("stage", stage)));
        let filters = texts.iter().map(|text| text.0.parse().map_err(|error| refused(&error)));
        Ok(RowSelection {
            filters: stage.chain(filters).collect::<Result<_, _>>()?,
            text: self.q.clone().filter(|text| !text.is_empty()),
            sort: self.sort.clone(),
            limit: self.limit.map(|limit| limit as usize),
        })
    }
}

fn refused(error: &InvalidFilter) -> ApiError {
    invalid(error.to_string())
}

fn table_format(text: &str) -> Result<TableFormat, ApiError> {
    match text {
        "json" => Ok(TableFormat::Json),
        "csv" => Ok(TableFormat::Csv),
        "md" => Ok(TableFormat::Md),
        "html" => Ok(TableFormat::Html),
        _ => Err(invalid(format!("invalid format {text:.20?}; expected json or csv"))),
    }
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
        GuardedErrors, InvalidParameter, RunNotFound, ReportUnavailable, StoredFile))]
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
/// CSV has the same columns; a list inside a cell is JSON there. Filters of several columns:
/// `?where=stage=prefill&where=kernel_name~gemm&where=total_ms=0.5..&sort=-total_ms&limit=10`.
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
        GuardedErrors, InvalidParameter, TableNotFound, NotAcceptable, TableUnavailable,
        StoredFile))]
pub async fn table(
    State(app): State<App>,
    path: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let Path((id, name)) = path.map_err(|rejection| invalid(rejection.body_text()))?;
    let id = parse_id(&id)?;
    let query = TableQuery::parse(query)?;
    let wanted = query.selection()?;
    let format = content_negotiation::requested_format(
        query.format,
        &headers,
        &[TableFormat::Json, TableFormat::Csv],
    )?;
    let stored = stored(&app, id).await?;
    // A long table takes time to read, sort and write: not on a thread that serves others.
    let text = runtime::blocking(move || {
        let table = read(&stored, id, &name)?;
        let rows = table.select(&wanted).map_err(|error| unfit(&error, id))?;
        match format {
            TableFormat::Csv => Ok(rows.csv()),
            _ => serde_json::to_string(&rows.json(id)).map_err(|error| ApiError::internal(&error)),
        }
    });
    let text = text.await.map_err(|error| ApiError::internal(&error))??;
    Ok(content_negotiation::respond(format, text))
}

/// The error of a selection that does not apply to the table.
fn unfit(error: &SelectionError, id: RunId) -> ApiError {
    match error {
        SelectionError::NoColumn(error) => {
            let message = format!("{error}; see /runs/{id}/tables");
            ApiError::new(ErrorCode::ColumnNotFound, message)
        }
        SelectionError::NotANumber(error) => {
            ApiError::new(ErrorCode::FilterUnfit, error.to_string())
        }
    }
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
    let Some(artifact) = listed(app, id, layout::TABLES).await? else {
        let message = format!(
            "run {id} ended {} without tables; its files are at /runs/{id}/artifacts",
            run.state
        );
        return Err(ApiError::new(ErrorCode::ReportUnavailable, message));
    };
    read_listed(app, id, &artifact).await
}
