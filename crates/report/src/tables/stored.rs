//! Stored tables: found by name in `tables.jsonl`, filtered, sorted, and written as JSON or CSV.
//!
//! Reads what a run stored; computes nothing.

use std::cmp::Ordering;

use llmprof_core::domain::ids::RunId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    csv::{CsvTable, stored_cell},
    filter::{self, NotANumber, RowFilter},
    schema::ColumnKind,
};

/// A table without its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TableHead {
    #[cfg_attr(feature = "schema", schema(example = "kernels"))]
    pub name: String,
    /// Columns, units in their names. A dot separates a field from the record that contains it, as
    /// in `launch_ns.mean`.
    #[cfg_attr(feature = "schema", schema(example = json!(["kernel_name", "launch_ns.mean"])))]
    pub columns: Vec<String>,
    /// Number of rows.
    pub total: u64,
    /// Number of rows that the last row sums, in a table of more than 10,000 rows; absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
}

/// The tables of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TableList {
    pub run_id: RunId,
    pub tables: Vec<TableHead>,
}

/// Rows of one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TableRows {
    pub run_id: RunId,
    #[cfg_attr(feature = "schema", schema(example = "kernels"))]
    pub table: String,
    pub columns: Vec<String>,
    /// Rows that match the filter, before the limit.
    pub total: u64,
    /// Number of rows that the last row of the whole table sums, in a table of more than 10,000
    /// rows: no filter finds them one by one. Absent if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<u64>,
    /// Each with every column; `null` if it is unknown.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub rows: Vec<Map<String, Value>>,
}

/// One table, as a line of the file contains it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredTable {
    pub name: String,
    schema_version: u32,
    pub columns: Vec<String>,
    /// One per column; none in version 1.
    #[serde(default)]
    kinds: Vec<ColumnKind>,
    total: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left_out: Option<u64>,
    pub rows: Vec<Vec<Value>>,
}

/// The requested rows and their order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowSelection {
    /// Rows that match all of them.
    pub filters: Vec<RowFilter>,
    /// Rows with this text in any cell, in any case.
    pub text: Option<String>,
    /// A column; descending after a `-`.
    pub sort: Option<String>,
    pub limit: Option<usize>,
}

/// A column that a table lacks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("table {table} has no column {column}")]
pub struct NoColumn {
    table: String,
    column: String,
}

/// A selection that does not apply to a table.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SelectionError {
    #[error(transparent)]
    NoColumn(#[from] NoColumn),
    #[error(transparent)]
    NotANumber(#[from] NotANumber),
}

/// Current name of a column that a stored table may have under an old one.
pub type ColumnAlias = fn(table: &str, column: &str) -> Option<String>;

/// Reads the heads of all stored tables.
pub fn heads(stored: &[u8], alias: ColumnAlias) -> Result<Vec<TableHead>, serde_json::Error> {
    stored
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut head: TableHead = serde_json::from_slice(line)?;
            rename(&head.name, &mut head.columns, alias);
            Ok(head)
        })
        .collect()
}

/// Reads the stored table of this name.
pub fn find(
    stored: &[u8],
    name: &str,
    alias: ColumnAlias,
) -> Result<Option<StoredTable>, serde_json::Error> {
    let start = format!("{{\"name\":{},", Value::from(name));
    let mut lines = stored.split(|byte| *byte == b'\n');
    let Some(line) = lines.find(|line| line.starts_with(start.as_bytes())) else { return Ok(None) };
    let mut table: StoredTable = serde_json::from_slice(line)?;
    rename(&table.name, &mut table.columns, alias);
    Ok(Some(table))
}

fn rename(table: &str, columns: &mut [String], alias: ColumnAlias) {
    for column in columns {
        if let Some(current) = alias(table, column) {
            *column = current;
        }
    }
}

impl StoredTable {
    /// Applies filters, order and limit.
    pub fn select(mut self, wanted: &RowSelection) -> Result<Self, SelectionError> {
        let numbers = self.number_columns();
        for filter in &wanted.filters {
            if let Some(column) = self.column(&filter.column)? {
                let test = filter.test(numbers[column])?;
                self.rows.retain(|row| test.matches(&row[column]));
            }
        }
        if let Some(text) = &wanted.text {
            let text = text.to_lowercase();
            self.rows.retain(|row| row.iter().any(|cell| filter::contains(cell, &text)));
        }
        if let Some(sort) = &wanted.sort {
            let (name, falling) =
                sort.strip_prefix('-').map_or((sort.as_str(), false), |name| (name, true));
            if let Some(column) = self.column(name)? {
                self.rows.sort_by(|a, b| order(&a[column], &b[column], falling));
            }
        }
        self.total = self.rows.len() as u64;
        self.rows.truncate(wanted.limit.unwrap_or(usize::MAX));
        Ok(self)
    }

    /// The index of a column; `None` in an empty table of version 1, which has no columns.
    fn column(&self, name: &str) -> Result<Option<usize>, NoColumn> {
        let place = self.columns.iter().position(|column| column == name);
        if place.is_none() && !self.columns.is_empty() {
            return Err(NoColumn { table: self.name.clone(), column: name.into() });
        }
        Ok(place)
    }

    /// Marks the columns of numbers: by the schema, or by the cells if version 1 stored none.
    pub fn number_columns(&self) -> Vec<bool> {
        let by_cells = |at: usize| self.rows.iter().any(|row| row[at].is_number());
        (0..self.columns.len())
            .map(|at| self.kinds.get(at).map_or_else(|| by_cells(at), |kind| kind.is_number()))
            .collect()
    }

    /// For spreadsheets: lists inside a cell are JSON.
    pub fn csv(&self) -> String {
        if self.columns.is_empty() {
            return "\n".to_owned();
        }
        let mut text = CsvTable::new(&self.columns);
        self.rows.iter().for_each(|row| text.row(row.iter().map(stored_cell)));
        text.finish()
    }

    /// For programs: a record per row.
    pub fn json(self, run_id: RunId) -> TableRows {
        let Self { name, columns, total, left_out, rows, .. } = self;
        let rows = rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect();
        TableRows { run_id, table: name, columns, total, left_out, rows }
    }
}

/// Numbers by size, texts by letters; unknown cells come last in both directions.
fn order(a: &Value, b: &Value, falling: bool) -> Ordering {
    let known = match (a, b) {
        (Value::Null, _) | (_, Value::Null) => return a.is_null().cmp(&b.is_null()),
        (Value::Number(a), Value::Number(b)) => {
            a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default())
        }
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => a.to_string().cmp(&b.to_string()),
    };
    if falling { known.reverse() } else { known }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table() -> StoredTable {
        let line = json!({
            "name": "kernels",
            "schema_version": 1,
            "columns": ["stage", "name", "of.x", "of.y", "grid", "ms"],
            "total": 3,
            "rows": [
                ["prefill", "=a,\"b\"", null, null, [1, 2], 2.0],
                ["decode", "c", 1, null, [], null],
                ["decode", "d", 3, 4, [], 10],
            ],
        });
        find(line.to_string().as_bytes(), "kernels", |_, _| None).unwrap().unwrap()
    }

    fn names(selected: &StoredTable) -> Vec<&str> {
        selected.rows.iter().filter_map(|row| row[1].as_str()).collect()
    }

    #[test]
    fn nested_fields_are_columns_and_unknown_cells_are_empty() {
        let csv = table().csv();
        let rows: Vec<&str> = csv.lines().collect();
        assert_eq!(
            rows,
            [
                "stage,name,of.x,of.y,grid,ms",
                "prefill,\"'=a,\"\"b\"\"\",,,\"[1,2]\",2.0",
                "decode,c,1,,[],",
                "decode,d,3,4,[],10"
            ]
        );
    }

    #[test]
    fn rows_are_filtered_sorted_and_limited_and_total_counts_the_matches() {
        let select = |stage: Option<&str>, sort: Option<&str>, limit| {
            table().select(&RowSelection {
                filters: stage.map(|stage| RowFilter::equal("stage", stage)).into_iter().collect(),
                text: None,
                sort: sort.map(Into::into),
                limit,
            })
        };
        let largest = select(None, Some("-ms"), Some(2)).unwrap();
        assert_eq!((names(&largest), largest.total), (vec!["d", "=a,\"b\""], 3));
        assert_eq!(
            names(&select(Some("decode"), Some("ms"), None).unwrap()),
            ["d", "c"],
            "unknown cells come last"
        );
        assert_eq!(select(Some("none"), None, None).unwrap().total, 0);
        assert_eq!(
            select(None, Some("-price"), None).unwrap_err().to_string(),
            "table kernels has no column price"
        );
    }

    #[test]
    fn rows_match_every_filter_and_the_text() {
        let select = |filters: &[&str], text: Option<&str>| {
            let filters = filters.iter().map(|it| it.parse().unwrap()).collect();
            let text = text.map(Into::into);
            table().select(&RowSelection { filters, text, ..RowSelection::default() })
        };
        let found = |filters: &[&str], text| names(&select(filters, text).unwrap()).join(" ");
        assert_eq!(found(&["stage=decode", "ms=5.."], None), "d");
        assert_eq!(found(&["ms="], None), "c");
        assert_eq!(found(&[], Some("DECODE")), "c d");
        assert_eq!(found(&["of.x=1"], Some("decode")), "c");
        assert!(matches!(select(&["price=1"], None), Err(SelectionError::NoColumn(_))));
        assert!(matches!(select(&["ms=much"], None), Err(SelectionError::NotANumber(_))));
    }

    #[test]
    fn an_empty_table_of_version_1_has_no_columns_to_miss() {
        let line =
            json!({ "name": "gemms", "schema_version": 1, "columns": [], "total": 0, "rows": [] });
        let empty = find(line.to_string().as_bytes(), "gemms", |_, _| None).unwrap().unwrap();
        let wanted = RowSelection {
            filters: vec![RowFilter::equal("stage", "prefill")],
            text: Some("x".into()),
            sort: Some("m".into()),
            limit: Some(1),
        };
        assert_eq!(empty.select(&wanted).unwrap().csv(), "\n");
    }

    #[test]
    fn old_columns_have_their_current_names() {
        let alias: ColumnAlias =
            |table, column| (table == "kernels" && column == "ms").then(|| "total_ms".to_owned());
        let line = serde_json::to_string(&table()).unwrap();
        let read = find(line.as_bytes(), "kernels", alias).unwrap().unwrap();
        assert_eq!(read.columns[5], "total_ms");
        assert_eq!(heads(line.as_bytes(), alias).unwrap()[0].columns[5], "total_ms");
        assert_eq!(find(line.as_bytes(), "kernel", alias).unwrap(), None);
    }
}
