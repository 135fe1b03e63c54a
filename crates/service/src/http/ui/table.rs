//! One table of a run's analysis: filtered, sorted, a page at a time.

use std::collections::BTreeSet;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
};
use llmprof_core::domain::json_numbers::{MAX_EXACT, Within};
use llmprof_report::tables::{
    filter::RowFilter,
    stored::{RowSelection, SelectionError, StoredTable},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::page::HtmlPage;
use crate::{
    http::{
        api::tables,
        auth::access::Caller,
        error::{ApiError, ErrorCode},
        extract::params::{Params, bad_path, parse_id},
        state::App,
    },
    runtime,
};

/// Rows on a page.
const ROWS: usize = 100;
/// Characters that fit a narrow column.
const NARROW: usize = 20;
/// Characters of a search text.
const MAX_TEXT: usize = 200;

/// Filter and order as the form sends them; empty if nothing is requested.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TablePageQuery {
    stage: String,
    /// Text in any cell of the row.
    q: String,
    /// A column; descending after a `-`.
    sort: String,
    /// From 1.
    #[serde(deserialize_with = "Within::<1, MAX_EXACT>::optional_parameter")]
    page: Option<usize>,
}

/// Values of the page's template.
#[derive(Debug, Serialize)]
struct TableView {
    run_id: String,
    name: String,
    query: TablePageQuery,
    /// Stages of the rows; none if the table has no such column.
    stages: BTreeSet<String>,
    columns: Vec<TableViewColumn>,
    rows: Vec<Vec<Value>>,
    /// Rows of the table, and those that match.
    total: usize,
    matches: usize,
    page: usize,
    pages: usize,
}

#[derive(Debug, Serialize)]
struct TableViewColumn {
    name: String,
    number: bool,
    /// Some cell is a long text.
    wide: bool,
    /// `ascending` or `descending` if the rows are sorted by it.
    sorted: Option<&'static str>,
    /// The order after a click on the head.
    next: String,
}

/// `GET /ui/runs/{run_id}/tables/{table}`
pub async fn table(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<(String, String)>, PathRejection>,
    Params(query): Params<TablePageQuery>,
) -> Result<HtmlPage, ApiError> {
    let invalid = |message: String| ApiError::new(ErrorCode::InvalidParameter, message);
    let Path((id, name)) = path.map_err(bad_path)?;
    let id = parse_id(&id)?;
    if [&query.stage, &query.q, &query.sort].into_iter().any(|text| text.chars().count() > MAX_TEXT)
    {
        return Err(invalid(format!("stage, q and sort have at most {MAX_TEXT} characters")));
    }
    let stored = tables::stored(&app, id).await?;
    let view = runtime::blocking(move || {
        let table = tables::read(&stored, id, &name)?;
        view(id.to_string(), table, query).map_err(|error| invalid(error.to_string()))
    });
    let view = view.await.map_err(|error| ApiError::internal(&error))??;
    HtmlPage::render(Some(&caller), "table.html", view)
}

/// Filters, sorts and cuts.
fn view(
    run_id: String,
    table: StoredTable,
    query: TablePageQuery,
) -> Result<TableView, SelectionError> {
    let (name, total) = (table.name.clone(), table.rows.len());
    let stage = table.columns.iter().position(|column| column == "stage");
    let stages =
        table.rows.iter().filter_map(|row| row[stage?].as_str()).filter(|stage| !stage.is_empty());
    let stages = stages.map(str::to_owned).collect();
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let numbers = table.number_columns();
    let filters = some(&query.stage).map(|stage| RowFilter::equal("stage", &stage));
    let table = table.select(&RowSelection {
        filters: filters.into_iter().collect(),
        text: some(&query.q),
        sort: some(&query.sort),
        limit: None,
    })?;
    let matches = table.rows.len();
    let pages = matches.div_ceil(ROWS).max(1);
    let page = query.page.unwrap_or(1).clamp(1, pages);
    let rows: Vec<Vec<Value>> = table.rows.into_iter().skip((page - 1) * ROWS).take(ROWS).collect();
    let columns = table.columns.into_iter().zip(numbers).enumerate();
    let columns = columns
        .map(|(at, (name, number))| TableViewColumn {
            wide: is_wide(&rows, at),
            ..column(name, number, &query.sort)
        })
        .collect();
    Ok(TableView { run_id, name, query, stages, columns, rows, total, matches, page, pages })
}

/// A first click sorts numbers in descending and texts in ascending order; another click reverses.
fn column(name: String, number: bool, sort: &str) -> TableViewColumn {
    let (by, falling) = sort.strip_prefix('-').map_or((sort, false), |by| (by, true));
    let sorted = (by == name).then_some(if falling { "descending" } else { "ascending" });
    let fall = if sorted.is_some() { !falling } else { number };
    TableViewColumn {
        next: if fall { format!("-{name}") } else { name.clone() },
        name,
        number,
        wide: false,
        sorted,
    }
}

fn is_wide(rows: &[Vec<Value>], at: usize) -> bool {
    rows.iter().any(|row| match &row[at] {
        Value::String(text) => text.chars().count() > NARROW,
        Value::Array(list) => list.len() > 1,
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use llmprof_report::tables::stored;

    use super::*;

    fn table(rows: usize) -> StoredTable {
        let rows: Vec<Value> = (0..rows)
            .map(|at| {
                serde_json::json!([
                    if at % 2 == 0 { "prefill" } else { "decode" },
                    format!("K{at}"),
                    at
                ])
            })
            .collect();
        let line = serde_json::json!({
            "name": "kernels",
            "schema_version": 2,
            "columns": ["stage", "kernel_name", "total_ms"],
            "kinds": ["text", "text", "ms"],
            "total": rows.len(),
            "rows": rows,
        });
        stored::find(line.to_string().as_bytes(), "kernels", |_, _| None).unwrap().unwrap()
    }

    fn query(stage: &str, q: &str, sort: &str, page: Option<usize>) -> TablePageQuery {
        TablePageQuery { stage: stage.into(), q: q.into(), sort: sort.into(), page }
    }

    #[test]
    fn rows_are_filtered_by_stage_and_text_sorted_and_paged() {
        let shown = view("1".into(), table(250), query("", "", "-total_ms", Some(3))).unwrap();
        assert_eq!(
            (shown.matches, shown.page, shown.pages, shown.rows.len(), &shown.rows[49][2]),
            (250, 3, 3, 50, &Value::from(0))
        );
        let shown = view("1".into(), table(250), query("decode", "k24", "", Some(99))).unwrap();
        let names: Vec<_> = shown.rows.iter().map(|row| row[1].as_str().unwrap()).collect();
        assert_eq!(
            (names, shown.total, shown.page),
            (vec!["K241", "K243", "K245", "K247", "K249"], 250, 1)
        );
        assert!(view("1".into(), table(1), query("", "", "price", None)).is_err());
    }

    #[test]
    fn a_column_is_sorted_the_useful_way_first_and_then_reversed() {
        let next = |sort: &str| {
            view("1".into(), table(1), query("", "", sort, None))
                .unwrap()
                .columns
                .into_iter()
                .map(|it| it.next)
                .collect::<Vec<_>>()
        };
        assert_eq!(next(""), ["stage", "kernel_name", "-total_ms"]);
        assert_eq!(next("-total_ms"), ["stage", "kernel_name", "total_ms"]);
        assert_eq!(next("kernel_name"), ["stage", "-kernel_name", "-total_ms"]);
    }
}
