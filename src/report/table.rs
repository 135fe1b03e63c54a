//! A table as a value: built once, shown as Markdown and as HTML.
//!
//! Cells are plain text; the template that shows them escapes them. A table without rows says why.

use serde::Serialize;

/// One table of a report.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// Anchor in the HTML report.
    pub id: &'static str,
    pub title: &'static str,
    /// What the rows are, and how they are measured.
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Vec<String>>,
    /// Remarks below the table.
    pub notes: Vec<String>,
    /// Why there are no rows, and what would give some.
    pub gap: Option<Gap>,
}

/// A column's head; numbers are set to the right.
#[derive(Debug, Clone, Serialize)]
pub struct Column {
    pub title: &'static str,
    pub number: bool,
}

/// Why a table is empty.
#[derive(Debug, Clone, Serialize)]
pub struct Gap {
    pub why: String,
    pub remedy: String,
}

impl Table {
    /// Makes an empty table; a title that begins with `#` heads a column of numbers.
    pub fn new(id: &'static str, title: &'static str, caption: impl Into<String>, columns: &[&'static str]) -> Self {
        let column = |title: &&'static str| match title.strip_prefix('#') {
            Some(title) => Column { title, number: true },
            None => Column { title, number: false },
        };
        let columns = columns.iter().map(column).collect();
        Self { id, title, caption: caption.into(), columns, rows: vec![], notes: vec![], gap: None }
    }

    /// Adds one row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.title);
        self.rows.push(cells);
    }

    /// Says why there are no rows, if there are none.
    pub fn or_gap(mut self, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        if self.rows.is_empty() {
            self.gap = Some(Gap { why: why.into(), remedy: remedy.into() });
        }
        self
    }

    /// The same table with its first `limit` rows, and a note on the rest.
    pub fn first(mut self, limit: usize, rest: &str) -> Self {
        let all = self.rows.len();
        if all > limit {
            self.rows.truncate(limit);
            self.notes.push(format!("{limit} of {all} rows; {rest}."));
        }
        self
    }
}
