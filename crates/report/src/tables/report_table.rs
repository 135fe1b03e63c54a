//! A table of text for people: built once, shown as Markdown and as HTML.
//!
//! Cells are unescaped: the templates escape them. An empty table states the reason.

use std::borrow::Cow;

use serde::Serialize;

use super::schema::TableColumn;
use crate::links::RowLink;

/// One table of a report.
#[derive(Debug, Clone, Serialize)]
pub struct ReportTable {
    /// Anchor in the HTML report.
    pub id: &'static str,
    pub title: &'static str,
    /// Meaning and source of the rows.
    pub caption: String,
    pub columns: Vec<ReportColumn>,
    pub rows: Vec<Vec<String>>,
    /// Stage and kernel, or stage and operator, of each row; empty if rows are not linked.
    #[serde(skip)]
    pub subjects: Vec<(String, String)>,
    /// Links of each row; empty if there are none.
    pub links: Vec<Vec<RowLink>>,
    /// Remarks below the table.
    pub notes: Vec<String>,
    /// Reason for the lack of rows, and the remedy.
    pub gap: Option<Gap>,
}

/// Head of a column; numbers are aligned to the right.
#[derive(Debug, Clone, Serialize)]
pub struct ReportColumn {
    pub title: Cow<'static, str>,
    pub number: bool,
}

/// Reason why a table is empty.
#[derive(Debug, Clone, Serialize)]
pub struct Gap {
    pub why: String,
    pub remedy: String,
}

impl ReportTable {
    /// Creates an empty table of plain texts; a title with a leading `#` heads a column of numbers.
    pub fn new<T: Into<Cow<'static, str>> + Clone>(
        id: &'static str,
        title: &'static str,
        caption: impl Into<String>,
        columns: &[T],
    ) -> Self {
        let column = |title: &T| {
            let title: Cow<'static, str> = title.clone().into();
            match title.strip_prefix('#') {
                Some(head) => ReportColumn { title: head.to_owned().into(), number: true },
                None => ReportColumn { title, number: false },
            }
        };
        let columns = columns.iter().map(column).collect();
        Self {
            id,
            title,
            caption: caption.into(),
            columns,
            rows: vec![],
            subjects: vec![],
            links: vec![],
            notes: vec![],
            gap: None,
        }
    }

    /// Creates a table of the schema's columns called `shown`, in that order.
    pub fn of<'a, R: 'a>(
        id: &'static str,
        title: &'static str,
        caption: impl Into<String>,
        (schema, shown): (&[TableColumn<R>], &[&str]),
        records: impl IntoIterator<Item = &'a R>,
    ) -> Self {
        let column = |name: &&str| {
            *schema
                .iter()
                .find(|column| column.name == *name)
                .expect("reports show columns of the schema: tests render every table")
        };
        let chosen: Vec<TableColumn<R>> = shown.iter().map(column).collect();
        let mut table = Self::new::<&'static str>(id, title, caption, &[]);
        table.columns = chosen
            .iter()
            .map(|it| ReportColumn { title: it.title.into(), number: it.kind.is_number() })
            .collect();
        table.rows = records
            .into_iter()
            .map(|record| chosen.iter().map(|column| column.text(record)).collect())
            .collect();
        table
    }

    /// Adds one row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        debug_assert_eq!(cells.len(), self.columns.len(), "{}", self.title);
        self.rows.push(cells);
    }

    /// Sets the stage and the kernel or operator of each row.
    pub fn about<'a>(mut self, subjects: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let owned = |(stage, name): (&str, &str)| (stage.to_owned(), name.to_owned());
        self.subjects = subjects.into_iter().map(owned).collect();
        self
    }

    /// The id of a row in the HTML report.
    pub fn anchor(&self, row: usize) -> String {
        format!("{}-{}", self.id, row + 1)
    }

    /// Adds a remark.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// States the reason and the remedy if there are no rows.
    pub fn or_gap(mut self, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        if self.rows.is_empty() {
            self.gap = Some(Gap { why: why.into(), remedy: remedy.into() });
        }
        self
    }

    /// Keeps the first `limit` rows, with a note on the rest.
    pub fn first(mut self, limit: usize, rest: &str) -> Self {
        let all = self.rows.len();
        if all > limit {
            self.rows.truncate(limit);
            self.subjects.truncate(limit);
            self.notes.push(format!("{limit} of {all} rows; {rest}."));
        }
        self
    }
}
