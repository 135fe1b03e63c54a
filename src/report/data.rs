//! Every table of a report as data: whole, flat, for programs and spreadsheets.
//!
//! A list of records in the report is a table under the same name, so that a new one needs no word here. Kept as one line of JSON a table:
//! whoever wants one reads one. Filters and sorts what is stored; computes nothing.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{csv::quoted, profile::LLMProfileReport};
use crate::run::RunId;

/// Version of a stored line; it grows when a field changes its meaning or goes away.
const TABLE_VERSION: u32 = 1;
/// Lists that the report cuts and names so; here they are whole.
const RENAMED: [(&str, &str); 1] = [("kernels_topk", "kernels")];

/// What a table is, without its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TableHead {
    #[schema(example = "kernels")]
    pub name: String,
    /// Columns, units in their names; none where the table is empty. A record inside a record is told by a dot: `launch_ns.mean`.
    #[schema(example = json!(["kernel_name", "launch_ns.mean"]))]
    pub columns: Vec<String>,
    /// Rows that there are.
    pub total: u64,
}

/// The tables of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TableList {
    pub run_id: RunId,
    pub tables: Vec<TableHead>,
}

/// Rows of one table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TableRows {
    pub run_id: RunId,
    #[schema(example = "kernels")]
    pub table: String,
    pub columns: Vec<String>,
    /// Rows that fit the filter, before the limit.
    pub total: u64,
    /// Each with every column; `null` where it is not known.
    #[schema(value_type = Vec<Object>)]
    pub rows: Vec<Map<String, Value>>,
}

/// One table, as a line of the file holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataTable {
    pub name: String,
    schema_version: u32,
    pub columns: Vec<String>,
    total: u64,
    pub rows: Vec<Vec<Value>>,
}

/// Which rows are wanted, and in which order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selection {
    /// Rows of this stage alone.
    pub stage: Option<String>,
    /// A column; the largest first after a `-`.
    pub sort: Option<String>,
    pub limit: Option<usize>,
}

/// A column that a table lacks.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the table {table} has no column {column}")]
pub struct NoColumn {
    table: String,
    column: String,
}

/// Every list of records in a report, a line each.
pub fn lines(report: &LLMProfileReport) -> String {
    let report = serde_json::to_value(report).expect("plain values with string keys always serialise");
    let mut text = String::new();
    for (name, records) in lists(&report) {
        let name = RENAMED.iter().find(|(cut, _)| *cut == name).map_or(name, |(_, whole)| (*whole).to_owned());
        let table = DataTable::of(name, records);
        text += &serde_json::to_string(&table).expect("plain values always serialise");
        text.push('\n');
    }
    text
}

/// Lists of records in a report, and in the records that it holds itself.
fn lists(report: &Value) -> Vec<(String, &[Value])> {
    let mut found = Vec::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        match value {
            // An empty list does not tell what it is a list of: at the top all but the narrative are of records.
            Value::Array(list) if list.first().map_or(name != "notes", Value::is_object) => found.push((name.clone(), &list[..])),
            Value::Object(fields) => {
                for (part, value) in fields {
                    if let Some(list) = value.as_array().filter(|list| list.first().is_some_and(Value::is_object)) {
                        found.push((format!("{name}.{part}"), &list[..]));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// What the stored tables are.
pub fn heads(stored: &[u8]) -> Result<Vec<TableHead>, serde_json::Error> {
    stored.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(serde_json::from_slice).collect()
}

/// The stored table of this name.
pub fn find(stored: &[u8], name: &str) -> Result<Option<DataTable>, serde_json::Error> {
    let begins = format!("{{\"name\":{},", Value::from(name));
    let mut lines = stored.split(|byte| *byte == b'\n');
    lines.find(|line| line.starts_with(begins.as_bytes())).map(serde_json::from_slice).transpose()
}

impl DataTable {
    /// Flattens records into rows.
    fn of(name: String, records: &[Value]) -> Self {
        let flat: Vec<Vec<(String, &Value)>> = records
            .iter()
            .map(|record| {
                let mut fields = Vec::new();
                flatten(record, String::new(), &mut fields);
                fields
            })
            .collect();
        let mut columns: Vec<String> = Vec::new();
        for fields in &flat {
            let mut at = 0;
            for (column, _) in fields {
                // Records of one kind name their fields in one order, so the place is nearly always the next one.
                match columns.get(at) == Some(column) {
                    true => at += 1,
                    false => match columns.iter().position(|known| known == column) {
                        Some(place) => at = place + 1,
                        None => {
                            columns.insert(at, column.clone());
                            at += 1;
                        }
                    },
                }
            }
        }
        // A record that is not known in one row and is in another: its fields are the columns.
        let parts = columns.clone();
        columns
            .retain(|column| !parts.iter().any(|part| part.strip_prefix(column.as_str()).is_some_and(|it| it.starts_with('.'))));
        let row = |fields: Vec<(String, &Value)>| {
            let mut fields: Map<String, Value> = fields.into_iter().map(|(column, value)| (column, value.clone())).collect();
            columns.iter().map(|column| fields.get_mut(column).map(Value::take).unwrap_or_default()).collect()
        };
        let rows: Vec<Vec<Value>> = flat.into_iter().map(row).collect();
        Self { name, schema_version: TABLE_VERSION, columns, total: rows.len() as u64, rows }
    }

    /// The rows that are wanted.
    pub fn select(mut self, wanted: &Selection) -> Result<Self, NoColumn> {
        if let Some(stage) = &wanted.stage
            && let Some(column) = self.column("stage")?
        {
            self.rows.retain(|row| row[column] == stage.as_str());
        }
        if let Some(sort) = &wanted.sort {
            let (name, falling) = sort.strip_prefix('-').map_or((sort.as_str(), false), |name| (name, true));
            if let Some(column) = self.column(name)? {
                self.rows.sort_by(|a, b| order(&a[column], &b[column], falling));
            }
        }
        self.total = self.rows.len() as u64;
        self.rows.truncate(wanted.limit.unwrap_or(usize::MAX));
        Ok(self)
    }

    /// The place of a column; none where the table is empty and so has none.
    fn column(&self, name: &str) -> Result<Option<usize>, NoColumn> {
        let place = self.columns.iter().position(|column| column == name);
        if place.is_none() && !self.columns.is_empty() {
            return Err(NoColumn { table: self.name.clone(), column: name.into() });
        }
        Ok(place)
    }

    /// For spreadsheets: lists inside a cell are told as JSON.
    pub fn csv(&self) -> String {
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        let head = line(self.columns.iter().map(|column| quoted(column)).collect());
        let rows = self.rows.iter().map(|row| line(row.iter().map(cell).collect()));
        std::iter::once(head).chain(rows).collect()
    }

    /// For programs: a record per row.
    pub fn json(self, run_id: RunId) -> TableRows {
        let Self { name, columns, total, rows, .. } = self;
        let rows = rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect();
        TableRows { run_id, table: name, columns, total, rows }
    }
}

/// The fields of a record, those of records inside it named by their path. A list is one field.
fn flatten<'a>(value: &'a Value, path: String, into: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(value, if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, into);
            }
        }
        _ => into.push((path, value)),
    }
}

/// Numbers by size, texts by letters; what is not known comes last either way.
fn order(a: &Value, b: &Value, falling: bool) -> Ordering {
    let known = match (a, b) {
        (Value::Null, _) | (_, Value::Null) => return a.is_null().cmp(&b.is_null()),
        (Value::Number(a), Value::Number(b)) => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        _ => a.to_string().cmp(&b.to_string()),
    };
    if falling { known.reverse() } else { known }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => quoted(text),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => quoted(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table() -> DataTable {
        DataTable::of(
            "kernels".into(),
            &[
                json!({ "stage": "prefill", "name": "=a,\"b\"", "of": null, "grid": [1, 2], "ms": 2.0 }),
                json!({ "stage": "decode", "name": "c", "of": { "x": 1, "y": null }, "grid": [], "ms": null }),
                json!({ "stage": "decode", "name": "d", "of": { "x": 3, "y": 4 }, "grid": [], "ms": 10 }),
            ],
        )
    }

    fn names(selected: &DataTable) -> Vec<&str> {
        selected.rows.iter().filter_map(|row| row[1].as_str()).collect()
    }

    #[test]
    fn a_record_inside_a_record_is_columns_and_one_that_is_not_known_is_empty() {
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
    fn rows_are_filtered_sorted_and_cut_and_the_total_tells_how_many_fit() {
        let select = |stage: Option<&str>, sort: Option<&str>, limit| {
            table().select(&Selection { stage: stage.map(Into::into), sort: sort.map(Into::into), limit })
        };
        let largest = select(None, Some("-ms"), Some(2)).unwrap();
        assert_eq!((names(&largest), largest.total), (vec!["d", "=a,\"b\""], 3));
        assert_eq!(names(&select(Some("decode"), Some("ms"), None).unwrap()), ["d", "c"], "what is not known comes last");
        assert_eq!(select(Some("none"), None, None).unwrap().total, 0);
        assert_eq!(select(None, Some("-price"), None).unwrap_err().to_string(), "the table kernels has no column price");
    }

    #[test]
    fn an_empty_table_has_no_columns_to_miss() {
        let empty = DataTable::of("gemms".into(), &[]);
        let wanted = Selection { stage: Some("prefill".into()), sort: Some("m".into()), limit: Some(1) };
        assert_eq!(empty.select(&wanted).unwrap().csv(), "\n");
    }

    #[test]
    fn every_list_of_records_in_a_report_is_found_again_by_its_name() {
        let text = include_str!("../../tests/golden/gpu-report.json");
        let report: Value = serde_json::from_str(text).unwrap();
        let stored = lines(&serde_json::from_str(text).unwrap());
        let heads = heads(stored.as_bytes()).unwrap();
        for (name, list) in report.as_object().unwrap().iter().filter(|(name, value)| value.is_array() && *name != "notes") {
            let name = if name == "kernels_topk" { "kernels" } else { name };
            let head = heads.iter().find(|head| head.name == name).unwrap_or_else(|| panic!("{name} is no table"));
            let table = find(stored.as_bytes(), name).unwrap().unwrap();
            assert_eq!((head.total, table.rows.len()), (list.as_array().unwrap().len() as u64, list.as_array().unwrap().len()));
            assert!(table.rows.iter().all(|row| row.len() == head.columns.len()) && table.columns == head.columns, "{name}");
        }
        assert!(heads.iter().any(|head| head.name == "costs.modules"));
        assert_eq!(find(stored.as_bytes(), "kernel").unwrap(), None);
    }
}
