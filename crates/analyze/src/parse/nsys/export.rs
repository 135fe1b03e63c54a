//! Queries over an export, whose contents are not trusted.
//!
//! The file is opened read-only and immutable; views, triggers and virtual tables never run. No
//! query returns more rows than the file has room for, so a damaged file with cycles ends in an
//! error.

use std::time::Duration;

use rayon::prelude::*;
use rusqlite::{Connection, ErrorCode, Result, Row, RowIndex, types::ValueRef};

use super::{
    super::{ParseError, capture_path::CapturePath},
    columns::{fit, lacking, stored},
    layout::{ColumnError, Layout, RowNumbers, RowSource, layout},
    open::{bound, brief, check_header, connect, real_tables},
    pages::{Broken, Number, Pages, Record},
};

/// Tables of records: an export has at least one of them, and the strings.
const RECORDS: [&str; 6] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "NVTX_EVENTS",
    "OSRT_API",
    "TARGET_INFO_SESSION_START_TIME",
];
/// Minimum length of a row, bytes.
const ROW_BYTES: u64 = 4;

/// Parts of a table for each core that scans it.
const PARTS_PER_CORE: usize = 4;

/// Maximum number of tables: an export has about a hundred.
const MAX_TABLES: usize = 10_000;
/// Maximum number of rows of a table: an hour of eager decoding launches 20 million kernels by 60
/// million calls. A crafted row takes as much memory as it has bytes in the file.
const MAX_ROWS: u64 = 64 << 20;
/// Maximum time to read one export: the largest take several minutes. A damaged file may have
/// cycles.
const MAX_TIME: Duration = Duration::from_secs(600);

/// Rows of one part of a table.
pub trait TablePart<const N: usize>: Send {
    /// Adds one row. To be inlined: a part has millions of rows, and most of them hardly matter.
    fn take(&mut self, row: &RowNumbers<N>) -> Result<(), ColumnError>;
}

/// An open export.
pub struct Export {
    file: CapturePath,
    db: Connection,
    tables: Vec<String>,
    max_rows: u64,
}

impl Export {
    /// Opens the export in `file`.
    pub fn open(file: &CapturePath) -> Result<Self, ParseError> {
        let (bytes, path) = (check_header(file)?, file.shown());
        let query = |what| {
            move |source| ParseError::Query { path: path.into(), what, source: brief(source) }
        };
        let db = connect(file.data()).map_err(query("the header"))?;
        let tables = real_tables(&db).map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                let what =
                    "its schema takes longer to read, or more memory, than that of any export"
                        .into();
                ParseError::Foreign { path: path.into(), what }
            }
            _ => query("the list of tables")(source),
        })?;
        bound(&db, MAX_TIME).map_err(query("the list of tables"))?;
        let export =
            Self { file: file.clone(), db, tables, max_rows: (bytes / ROW_BYTES).min(MAX_ROWS) };
        if export.tables.len() > MAX_TABLES {
            return Err(export.foreign("more tables than any export has"));
        }
        if export.facts_table().is_none() && !export.has_records() {
            return Err(export.foreign(
                "an SQLite database, but not an export of nsys (nsys export --type sqlite \
                 REPORT.nsys-rep); pass such an export",
            ));
        }
        Ok(export)
    }

    /// Names of its tables.
    pub fn tables(&self) -> &[String] {
        &self.tables
    }

    /// Metadata of the export: tool, versions, options.
    pub fn facts(&self) -> Result<Vec<(String, String)>, ParseError> {
        let Some(table) = self.facts_table() else { return Ok(Vec::new()) };
        let sql = include_str!("sql/meta.sql").replace("META_DATA_EXPORT", table);
        self.rows(table, &sql, |row| Ok((string(row, "name")?, string(row, "value")?)))
    }

    /// The name of the table of metadata, which changed between 2022.4 and 2023.4.
    fn facts_table(&self) -> Option<&'static str> {
        ["META_DATA_EXPORT", "EXPORT_META_DATA"]
            .into_iter()
            .find(|name| self.tables.iter().any(|table| table == name))
    }

    /// Returns true if it has the tables of an export: versions of 2021 had no metadata.
    fn has_records(&self) -> bool {
        let has = |name: &str| self.tables.iter().any(|table| table == name);
        has("StringIds") && RECORDS.iter().any(|name| has(name))
    }

    /// Columns among `wanted` that `table` lacks; none if the export lacks the table.
    pub fn lacks<'a>(
        &self,
        table: &'static str,
        wanted: &[&'a str],
    ) -> Result<Vec<&'a str>, ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(Vec::new());
        }
        let query = |source| ParseError::Query {
            path: self.file.shown().into(),
            what: table,
            source: brief(source),
        };
        let columns = stored(&self.db, table).map_err(query)?;
        Ok(wanted.iter().filter(|column| !columns.contains(**column)).copied().collect())
    }

    /// The error that `table` lacks `column`, which is required.
    pub fn without(&self, table: &str, column: &str) -> ParseError {
        self.foreign(&format!(
            "{table} lacks the column {column}: export the report again with the nsys that took it"
        ))
    }

    /// All rows of a query over `table`; none if the export lacks the table.
    pub fn rows<T>(
        &self,
        table: &'static str,
        sql: &str,
        mut value: impl FnMut(&Row) -> Result<T>,
    ) -> Result<Vec<T>, ParseError> {
        let mut rows = Vec::new();
        self.each(table, sql, |row| value(row).map(|value| rows.push(value)))?;
        Ok(rows)
    }

    /// Calls `take` with each row of a query over `table`, in which `{column}` is null if the table
    /// lacks the column.
    pub fn each(
        &self,
        table: &'static str,
        sql: &str,
        mut take: impl FnMut(&Row) -> Result<()>,
    ) -> Result<(), ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(());
        }
        let failed = |source| ParseError::Query {
            path: self.file.shown().into(),
            what: table,
            source: brief(source),
        };
        let columns = stored(&self.db, table).map_err(failed)?;
        let mut count = 0;
        let mut query = || {
            let mut statement = self.db.prepare(&fit(sql, &columns))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()?
                && count <= self.max_rows
            {
                count += 1;
                take(row)?;
            }
            Ok(())
        };
        query().map_err(|source| match lacking(&source, sql, &columns) {
            Some(column) => self.without(table, column),
            None => failed(source),
        })?;
        self.bounded(table, count)
    }

    /// Calls `take` with the integers of `columns` in each row of `table`. A missing column is
    /// null; a value that is not an integer is an error. For tables with millions of rows: pages of
    /// an ordinary table are read directly; other tables are queried.
    pub fn scan<const N: usize>(
        &self,
        table: &'static str,
        columns: [&'static str; N],
        mut take: impl FnMut(&RowNumbers<N>) -> Result<(), ColumnError>,
    ) -> Result<(), ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(());
        }
        let (mut odd, mut count) = (None, 0);
        let mut next = |row: RowSource<N>| {
            count += 1;
            odd = take(&RowNumbers::new(&columns, row)).err();
            odd.is_none() && count <= self.max_rows
        };
        let query = |source| ParseError::Query {
            path: self.file.shown().into(),
            what: table,
            source: brief(source),
        };
        let read = |source| ParseError::Read { path: self.file.shown().into(), source };
        let pages = Pages::open(self.file.data()).map_err(read)?;
        match (pages, layout(&self.db, table, columns).map_err(query)?) {
            (Some(mut pages), Some(Layout { root, places })) => {
                match pages.rows(root, places, |record| next(RowSource::Page(record))) {
                    Ok(()) => {}
                    Err(Broken::Io(error)) => return Err(read(error)),
                    Err(Broken::Page(page)) => {
                        return Err(self.foreign(&format!("damaged: page {page}, of {table}")));
                    }
                }
            }
            _ => {
                let sql = format!("select {{{}}} from \"{table}\"", columns.join("}, {"));
                let mut all = || {
                    let mut statement = self.db.prepare(&fit(&sql, &stored(&self.db, table)?))?;
                    let mut rows = statement.query([])?;
                    let mut row = [Number::Null; N];
                    while let Some(found) = rows.next()? {
                        for (at, number) in row.iter_mut().enumerate() {
                            *number = match found.get_ref(at)? {
                                ValueRef::Null => Number::Null,
                                ValueRef::Integer(value) => Number::Is(value),
                                _ => Number::Other,
                            };
                        }
                        if !next(RowSource::Query(&row)) {
                            break;
                        }
                    }
                    Ok(())
                };
                all().map_err(query)?;
            }
        }
        if let Some(odd) = odd {
            return Err(self.no_number(table, odd, &format!("row {count}"))?);
        }
        self.bounded(table, count)
    }

    /// Scans a table as [`Self::scan`] does, in parts on all cores, each from a value of `new`.
    /// Returns the values in the order of the rows; a scanned table may have more rows than others.
    pub fn scan_parts<const N: usize, T: TablePart<N>>(
        &self,
        table: &'static str,
        columns: [&'static str; N],
        new: impl Fn() -> T + Sync,
    ) -> Result<Vec<T>, ParseError> {
        let query = |source| ParseError::Query {
            path: self.file.shown().into(),
            what: table,
            source: brief(source),
        };
        let read = |source| ParseError::Read { path: self.file.shown().into(), source };
        let exists = self.tables.iter().any(|name| name == table);
        let found = if exists { layout(&self.db, table, columns).map_err(query)? } else { None };
        let (Some(mut pages), Some(Layout { root, places })) =
            (Pages::open(self.file.data()).map_err(read)?, found)
        else {
            let mut all = new();
            self.scan(table, columns, |row| all.take(row))?;
            return Ok(vec![all]);
        };
        let broken = |broken| match broken {
            Broken::Io(error) => read(error),
            Broken::Page(page) => self.foreign(&format!("damaged: page {page}, of {table}")),
        };
        let leaves = pages.leaves(root).map_err(broken)?;
        let length = leaves.len().div_ceil(PARTS_PER_CORE * rayon::current_num_threads()).max(1);
        // The connection is of one thread; the parts read only the file.
        let path = self.file.data();
        let part = |leaves: &[u32]| {
            let (mut value, mut odd) = (new(), None);
            let next = |record: &Record<N>| {
                odd = value.take(&RowNumbers::new(&columns, RowSource::Page(record))).err();
                odd.is_none()
            };
            let pages = Pages::open(path).map_err(Broken::Io)?;
            if let Some(mut pages) = pages {
                pages.rows_of(leaves, places, next)?;
            }
            Ok((value, odd))
        };
        let parts: Vec<_> = leaves.par_chunks(length).map(part).collect();
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            let (value, odd) = part.map_err(broken)?;
            if let Some(odd) = odd {
                return Err(self.no_number(table, odd, "a row")?);
            }
            values.push(value);
        }
        Ok(values)
    }

    /// The error that a row has no number in a column.
    fn no_number(
        &self,
        table: &'static str,
        ColumnError(column): ColumnError,
        row: &str,
    ) -> Result<ParseError, ParseError> {
        if self.lacks(table, &[column])? == [column] {
            return Ok(self.without(table, column));
        }
        Ok(self
            .foreign(&format!("damaged: no number that fits in {row} of {table}, column {column}")))
    }

    /// Refuses a table with more rows than the file has room for.
    fn bounded(&self, table: &str, count: u64) -> Result<(), ParseError> {
        if count > self.max_rows {
            return Err(self.foreign(&format!(
                "damaged, or too long: {table} has more than {} rows",
                self.max_rows
            )));
        }
        Ok(())
    }

    /// The error that the file is not a valid export.
    pub fn foreign(&self, what: &str) -> ParseError {
        ParseError::Foreign { path: self.file.shown().into(), what: what.into() }
    }
}

/// A text column; an empty string for null; invalid UTF-8 is replaced.
pub fn string(row: &Row, column: impl RowIndex) -> Result<String> {
    match row.get_ref(column)? {
        ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Null => Ok(String::new()),
        other => Err(rusqlite::Error::InvalidColumnType(0, "a text".into(), other.data_type())),
    }
}
