//! One table of a run's analysis: filtered, sorted, a page at a time.

use std::collections::BTreeSet;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Page, PageError};
use crate::{
    http::{
        App,
        access::Caller,
        error::{ApiError, ErrorCode},
        request::{self, Params},
        tables,
    },
    report::data::{self, DataTable, Selection},
};

/// Rows on a page.
const ROWS: usize = 100;
/// Characters that fit a narrow column.
const LONG: usize = 20;
/// Characters of a text to look for.
const MAX_TEXT: usize = 200;

/// Which rows, as the form sends them: empty where nothing is asked.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct Asked {
    stage: String,
    /// Text that a cell of the row holds.
    q: String,
    /// A column; the largest first after a `-`.
    sort: String,
    /// From 1.
    page: Option<usize>,
}

/// What the page shows.
#[derive(Debug, Serialize)]
struct Shown {
    run_id: String,
    name: String,
    asked: Asked,
    /// Stages that rows are of; none where the table tells no stages.
    stages: BTreeSet<String>,
    columns: Vec<Column>,
    rows: Vec<Vec<Value>>,
    /// Rows of the table, and those that fit.
    total: usize,
    fit: usize,
    page: usize,
    pages: usize,
}

#[derive(Debug, Serialize)]
struct Column {
    name: String,
    number: bool,
    /// Some cell is a long text.
    wide: bool,
    /// `ascending` or `descending` where the rows are sorted by it.
    sorted: Option<&'static str>,
    /// What a click sorts by.
    next: String,
}

/// `GET /ui/runs/{run_id}/tables/{table}`
pub async fn table(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    path: Result<Path<(String, String)>, PathRejection>,
    asked: Result<Params<Asked>, ApiError>,
) -> Result<Page, PageError> {
    let wrong = |message: String| ApiError::new(ErrorCode::InvalidParameter, message);
    let Path((id, name)) = path.map_err(|rejection| wrong(rejection.body_text()))?;
    let id = request::parse(&id)?;
    let Params(asked) = asked?;
    if [&asked.stage, &asked.q, &asked.sort].into_iter().any(|text| text.chars().count() > MAX_TEXT) {
        return Err(wrong(format!("at most {MAX_TEXT} characters are looked for")).into());
    }
    let stored = tables::stored(&app, id).await?;
    let read = tokio::task::spawn_blocking(move || {
        let Some(table) = data::find(&stored, &name).map_err(|error| ApiError::internal(&error))? else {
            return Err(ApiError::new(ErrorCode::TableNotFound, format!("the run has no table {name}; its page lists them")));
        };
        show(id.to_string(), table, asked).map_err(|error| ApiError::new(ErrorCode::InvalidParameter, error.to_string()))
    });
    let shown = read.await.map_err(|error| ApiError::internal(&error))??;
    Ok(Page::of(Some(&caller), "table.html", shown)?)
}

/// Filters, sorts and cuts.
fn show(run_id: String, table: DataTable, asked: Asked) -> Result<Shown, data::NoColumn> {
    let (name, total) = (table.name.clone(), table.rows.len());
    let stage = table.columns.iter().position(|column| column == "stage");
    let stages = table.rows.iter().filter_map(|row| row[stage?].as_str()).filter(|stage| !stage.is_empty());
    let stages = stages.map(str::to_owned).collect();
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let numbers: Vec<bool> = (0..table.columns.len()).map(|at| table.rows.iter().any(|row| row[at].is_number())).collect();
    let mut table = table.select(&Selection { stage: some(&asked.stage), sort: some(&asked.sort), limit: None })?;
    if !asked.q.is_empty() {
        let wanted = asked.q.to_lowercase();
        table.rows.retain(|row| row.iter().any(|cell| holds(cell, &wanted)));
    }
    let fit = table.rows.len();
    let pages = fit.div_ceil(ROWS).max(1);
    let page = asked.page.unwrap_or(1).clamp(1, pages);
    let rows: Vec<Vec<Value>> = table.rows.into_iter().skip((page - 1) * ROWS).take(ROWS).collect();
    let columns = table.columns.into_iter().zip(numbers).enumerate();
    let columns =
        columns.map(|(at, (name, number))| Column { wide: wide(&rows, at), ..column(name, number, &asked.sort) }).collect();
    Ok(Shown { run_id, name, asked, stages, columns, rows, total, fit, page, pages })
}

/// A first click shows the largest numbers and the first letters; another one turns the order round.
fn column(name: String, number: bool, sort: &str) -> Column {
    let (by, falling) = sort.strip_prefix('-').map_or((sort, false), |by| (by, true));
    let sorted = (by == name).then_some(if falling { "descending" } else { "ascending" });
    let fall = if sorted.is_some() { !falling } else { number };
    Column { next: if fall { format!("-{name}") } else { name.clone() }, name, number, wide: false, sorted }
}

fn wide(rows: &[Vec<Value>], at: usize) -> bool {
    rows.iter().any(|row| match &row[at] {
        Value::String(text) => text.chars().count() > LONG,
        Value::Array(list) => list.len() > 1,
        _ => false,
    })
}

fn holds(cell: &Value, wanted: &str) -> bool {
    match cell {
        Value::Null => false,
        Value::String(text) => text.to_lowercase().contains(wanted),
        other => other.to_string().to_lowercase().contains(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: usize) -> DataTable {
        let rows: Vec<Value> = (0..rows)
            .map(|at| serde_json::json!([if at % 2 == 0 { "prefill" } else { "decode" }, format!("K{at}"), at]))
            .collect();
        let line = serde_json::json!({ "name": "kernels", "schema_version": 1, "columns": ["stage", "kernel", "ms"], "total": rows.len(), "rows": rows });
        data::find(line.to_string().as_bytes(), "kernels").unwrap().unwrap()
    }

    fn asked(stage: &str, q: &str, sort: &str, page: Option<usize>) -> Asked {
        Asked { stage: stage.into(), q: q.into(), sort: sort.into(), page }
    }

    #[test]
    fn rows_are_found_by_stage_and_text_sorted_and_shown_a_page_at_a_time() {
        let shown = show("1".into(), table(250), asked("", "", "-ms", Some(3))).unwrap();
        assert_eq!((shown.fit, shown.page, shown.pages, shown.rows.len(), &shown.rows[49][2]), (250, 3, 3, 50, &Value::from(0)));
        let shown = show("1".into(), table(250), asked("decode", "k24", "", Some(99))).unwrap();
        let names: Vec<_> = shown.rows.iter().map(|row| row[1].as_str().unwrap()).collect();
        assert_eq!((names, shown.total, shown.page), (vec!["K241", "K243", "K245", "K247", "K249"], 250, 1));
        assert!(show("1".into(), table(1), asked("", "", "price", None)).is_err());
    }

    #[test]
    fn a_column_is_sorted_the_useful_way_first_and_then_turned_round() {
        let next = |sort: &str| {
            show("1".into(), table(1), asked("", "", sort, None))
                .unwrap()
                .columns
                .into_iter()
                .map(|it| it.next)
                .collect::<Vec<_>>()
        };
        assert_eq!(next(""), ["stage", "kernel", "-ms"]);
        assert_eq!(next("-ms"), ["stage", "kernel", "ms"]);
        assert_eq!(next("kernel"), ["stage", "-kernel", "-ms"]);
    }
}
