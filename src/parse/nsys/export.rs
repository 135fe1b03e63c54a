//! Opens an export and runs queries over it, trusting nothing that it says of itself.
//!
//! The file is opened read-only as one that nobody changes; no view, trigger or virtual table of it ever runs. No query returns
//! more rows than the file could hold, so that a damaged file that leads in circles ends in an error too.

use std::{
    fmt::Write as _,
    fs::File,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, Result, Row, RowIndex, config::DbConfig, limits::Limit, types::ValueRef};

use super::{
    super::ParseError,
    columns::{fit, lacking, stored},
    pages::{Broken, Number, Pages},
};

/// What each SQLite file begins with.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Tables of what was recorded: an export has one of them, and the strings.
const RECORDS: [&str; 6] = [
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "NVTX_EVENTS",
    "OSRT_API",
    "TARGET_INFO_SESSION_START_TIME",
];
/// Fewest bytes that a row of any of our tables takes.
const ROW_BYTES: u64 = 4;

/// Most tables: an export has about a hundred.
const MAX_TABLES: usize = 10_000;
/// Longest complaint of SQLite that is told, characters.
const MAX_SAID: usize = 200;
/// Longest text that is read, bytes: far more than any name, option or environment takes.
const MAX_TEXT: i32 = 16 << 20;
/// Most rows of a table: far beyond the largest captures, and a few gigabytes of memory. A crafted row takes more room there than in the file.
const MAX_ROWS: u64 = 32 << 20;
/// Most time that one export is read: several minutes of work on the largest that fit. A damaged file could lead in circles for ever.
const MOST_TIME: Duration = Duration::from_secs(600);
/// Most time until its tables are known: a schema may be crafted so that reading it takes hours.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// Most memory that SQLite takes for one export, whose schema it keeps whole, bytes.
const MAX_HEAP: i64 = 1 << 30;
/// Steps of SQLite's machine between two looks at the clock and at the memory: some microseconds.
const STEPS: i32 = 1_000;

/// An open export.
pub struct Export {
    path: PathBuf,
    db: Connection,
    tables: Vec<String>,
    most_rows: u64,
}

impl Export {
    /// Opens the export in `path`, or says why it is none.
    pub fn open(path: &Path) -> Result<Self, ParseError> {
        let bytes = check_header(path)?;
        let query = |what| move |source| ParseError::Query { path: path.into(), what, source: brief(source) };
        let db = connect(path).map_err(query("the header"))?;
        let tables = real_tables(&db).map_err(|source| match source.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => {
                let what = "its schema takes longer to read, or more memory, than that of any export".into();
                ParseError::Foreign { path: path.into(), what }
            }
            _ => query("the list of tables")(source),
        })?;
        bound(&db, MOST_TIME).map_err(query("the list of tables"))?;
        let export = Self { path: path.into(), db, tables, most_rows: (bytes / ROW_BYTES).min(MAX_ROWS) };
        if export.tables.len() > MAX_TABLES {
            return Err(export.foreign("more tables than any export has"));
        }
        if export.facts_table().is_none() && !export.has_records() {
            return Err(export.foreign("an SQLite database, but no export of nsys"));
        }
        Ok(export)
    }

    /// Names of the tables that it holds.
    pub fn tables(&self) -> &[String] {
        &self.tables
    }

    /// What the export says of itself: tool, versions, options.
    pub fn facts(&self) -> Result<Vec<(String, String)>, ParseError> {
        let Some(table) = self.facts_table() else { return Ok(Vec::new()) };
        let sql = include_str!("sql/meta.sql").replace("META_DATA_EXPORT", table);
        self.rows(table, &sql, |row| Ok((string(row, "name")?, string(row, "value")?)))
    }

    /// Its name changed between 2022.4 and 2023.4.
    fn facts_table(&self) -> Option<&'static str> {
        ["META_DATA_EXPORT", "EXPORT_META_DATA"].into_iter().find(|name| self.tables.iter().any(|table| table == name))
    }

    /// Says whether its tables are those of an export: versions of 2021 left out what it says of itself.
    fn has_records(&self) -> bool {
        let has = |name: &str| self.tables.iter().any(|table| table == name);
        has("StringIds") && RECORDS.iter().any(|name| has(name))
    }

    /// Columns among `wanted` that `table` lacks; none when the export lacks the table.
    pub fn lacks<'a>(&self, table: &'static str, wanted: &[&'a str]) -> Result<Vec<&'a str>, ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(Vec::new());
        }
        let query = |source| ParseError::Query { path: self.path.clone(), what: table, source: brief(source) };
        let columns = stored(&self.db, table).map_err(query)?;
        Ok(wanted.iter().filter(|column| !columns.contains(**column)).copied().collect())
    }

    /// The error that `table` lacks `column`, without which nothing of it can be read.
    fn without(&self, table: &str, column: &str) -> ParseError {
        self.foreign(&format!("{table} lacks the column {column}: export the report again with the nsys that took it"))
    }

    /// All rows of a query over `table`; none when the export lacks the table.
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

    /// Calls `take` with each row of a query over `table`, in which `{column}` is null where the table lacks the column.
    pub fn each(&self, table: &'static str, sql: &str, mut take: impl FnMut(&Row) -> Result<()>) -> Result<(), ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(());
        }
        let failed = |source| ParseError::Query { path: self.path.clone(), what: table, source: brief(source) };
        let columns = stored(&self.db, table).map_err(failed)?;
        let mut count = 0;
        let mut query = || {
            let mut statement = self.db.prepare(&fit(sql, &columns))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()?
                && count <= self.most_rows
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

    /// Calls `take` with the whole numbers of each row of `table`: those of `columns`, in that order. A column that the table lacks is
    /// null; one that holds anything else than whole numbers is an error. For tables of millions of rows: the pages of an ordinary table
    /// are read without SQLite's machine, and only one that is not ordinary is queried.
    pub fn scan<const N: usize>(
        &self,
        table: &'static str,
        columns: [&'static str; N],
        mut take: impl FnMut(&Numbers<N>) -> Result<(), Odd>,
    ) -> Result<(), ParseError> {
        if !self.tables.iter().any(|name| name == table) {
            return Ok(());
        }
        let (mut odd, mut count) = (None, 0);
        let mut next = |row: &[Number; N]| {
            count += 1;
            odd = take(&Numbers { columns: &columns, row }).err();
            odd.is_none() && count <= self.most_rows
        };
        let query = |source| ParseError::Query { path: self.path.clone(), what: table, source: brief(source) };
        let read = |source| ParseError::Read { path: self.path.clone(), source };
        let pages = Pages::open(&self.path).map_err(read)?;
        match (pages, layout(&self.db, table, columns).map_err(query)?) {
            (Some(mut pages), Some(Layout { root, places })) => match pages.rows(root, places, next) {
                Ok(()) => {}
                Err(Broken::Io(error)) => return Err(read(error)),
                Err(Broken::Page(page)) => return Err(self.foreign(&format!("damaged: page {page}, of {table}"))),
            },
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
                        if !next(&row) {
                            break;
                        }
                    }
                    Ok(())
                };
                all().map_err(query)?;
            }
        }
        if let Some(Odd(column)) = odd {
            if self.lacks(table, &[column])? == [column] {
                return Err(self.without(table, column));
            }
            return Err(self.foreign(&format!("damaged: no number that fits in row {count} of {table}, column {column}")));
        }
        self.bounded(table, count)
    }

    /// No table has more rows than the file could hold.
    fn bounded(&self, table: &str, count: u64) -> Result<(), ParseError> {
        if count > self.most_rows {
            return Err(self.foreign(&format!("damaged, or too long: {table} has more than {} rows", self.most_rows)));
        }
        Ok(())
    }

    /// The error that the file is not what it should be.
    pub fn foreign(&self, what: &str) -> ParseError {
        ParseError::Foreign { path: self.path.clone(), what: what.into() }
    }
}

/// The error in one short line: SQLite quotes a damaged schema whole, and that is text from outside.
fn brief(error: rusqlite::Error) -> rusqlite::Error {
    let rusqlite::Error::SqliteFailure(code, Some(said)) = error else { return error };
    let line = said.lines().next().unwrap_or_default();
    let short: String = line.chars().filter(|c| !c.is_control()).take(MAX_SAID).collect();
    rusqlite::Error::SqliteFailure(code, Some(short))
}

/// A text column as it is, an empty string for null, with anything that is no UTF-8 replaced.
pub fn string(row: &Row, column: impl RowIndex) -> Result<String> {
    match row.get_ref(column)? {
        ValueRef::Text(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Null => Ok(String::new()),
        other => Err(rusqlite::Error::InvalidColumnType(0, "a text".into(), other.data_type())),
    }
}

/// Looks at the first bytes: a foreign or cut file is told apart before SQLite sees it. Returns the file's length.
fn check_header(path: &Path) -> Result<u64, ParseError> {
    let read = |source| ParseError::Read { path: path.into(), source };
    let foreign = |what: String| Err(ParseError::Foreign { path: path.into(), what });
    let file = File::open(path).map_err(read)?;
    let length = file.metadata().map_err(read)?.len();
    let mut header = Vec::new();
    file.take(100).read_to_end(&mut header).map_err(read)?;
    if header.is_empty() {
        return foreign("empty".into());
    }
    if header.len() < 100 || !header.starts_with(MAGIC) {
        return foreign("not an SQLite database".into());
    }
    // Offsets 16 and 28 of the file format: the page size, where 1 means 65,536, and the size of the database in pages.
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        page => u64::from(page),
    };
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    if length < page * pages {
        return foreign(format!("cut short: {length} of {} bytes", page * pages));
    }
    Ok(length)
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(uri(path), flags)?;
    for (config, on) in [
        (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
        (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
    ] {
        db.set_db_config(config, on)?;
    }
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_TEXT)?;
    bound(&db, OPEN_TIME)?;
    db.execute_batch("pragma query_only = on; pragma cell_size_check = on; pragma mmap_size = 0; pragma temp_store = memory;")?;
    Ok(db)
}

/// Ends what the connection does from now on when it takes too long, or too much memory.
fn bound(db: &Connection, time: Duration) -> Result<()> {
    let (deadline, most) = (Instant::now() + time, heap() + MAX_HEAP);
    db.progress_handler(STEPS, Some(move || Instant::now() > deadline || heap() > most))
}

/// Bytes that SQLite holds in this process, for whomever.
fn heap() -> i64 {
    // SAFETY: it reads a counter, takes no pointer, and may be called at any time.
    unsafe { rusqlite::ffi::sqlite3_memory_used() }
}

/// The path as a URI, on which SQLite is told that the file does not change: it takes no lock and makes no file beside it.
fn uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-_./".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02x}");
        }
    }
    uri + "?mode=ro&immutable=1"
}

/// Tables that are rows in the file, and no views, shadow or virtual tables.
fn real_tables(db: &Connection) -> Result<Vec<String>> {
    let mut statement =
        db.prepare("select name from pragma_table_list where schema = 'main' and type = 'table' order by name")?;
    let names = statement.query_map([], |row| string(row, 0))?;
    names.filter(|name| !name.as_ref().is_ok_and(|name| name.starts_with("sqlite_"))).collect()
}

/// The numbers of one row.
pub struct Numbers<'a, const N: usize> {
    columns: &'a [&'static str; N],
    row: &'a [Number; N],
}

/// The column that holds what its kind of row does not have.
pub struct Odd(&'static str);

impl<const N: usize> Numbers<'_, N> {
    /// The number in the column at `at`, if there is one.
    pub fn some<T: TryFrom<i64>>(&self, at: usize) -> Result<Option<T>, Odd> {
        match self.row[at] {
            Number::Null => Ok(None),
            Number::Is(value) => T::try_from(value).map(Some).map_err(|_| Odd(self.columns[at])),
            Number::Other => Err(Odd(self.columns[at])),
        }
    }

    /// The number in the column at `at`.
    pub fn get<T: TryFrom<i64>>(&self, at: usize) -> Result<T, Odd> {
        self.some(at)?.ok_or(Odd(self.columns[at]))
    }
}

/// How the rows of an ordinary table lie in the file.
struct Layout<const N: usize> {
    /// Its first page.
    root: u32,
    /// Where in a record each column stands that is asked for and there is.
    places: [Option<usize>; N],
}

/// The layout of `table`, if what is asked for stands in its records as it is: not for keys, generated columns and defaults.
fn layout<const N: usize>(db: &Connection, table: &str, columns: [&str; N]) -> Result<Option<Layout<N>>> {
    let mut places = [None; N];
    let ordinary = db.query_row("select not wr from pragma_table_list(?1) where schema = 'main'", [table], |row| row.get(0))?;
    let mut plain: bool = ordinary;
    let mut statement = db.prepare("select name, type, dflt_value is null and pk = 0, hidden = 0 from pragma_table_xinfo(?1)")?;
    let mut rows = statement.query([table])?;
    let mut at = 0;
    while let Some(row) = rows.next()? {
        let (name, kind) = (string(row, 0)?, string(row, 1)?);
        plain &= row.get::<_, bool>(3)?;
        if let Some(asked) = columns.iter().position(|column| *column == name) {
            plain &= row.get(2)? && kind.to_ascii_uppercase().contains("INT");
            places[asked] = Some(at);
        }
        at += 1;
    }
    let root: i64 =
        db.query_row("select rootpage from sqlite_schema where type = 'table' and name = ?1", [table], |row| row.get(0))?;
    Ok(u32::try_from(root).ok().filter(|_| plain).map(|root| Layout { root, places }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_odd_characters_is_no_option() {
        assert_eq!(uri(Path::new("/a b/c?mode=rwc#d%e")), "file:/a%20b/c%3fmode%3drwc%23d%25e?mode=ro&immutable=1");
    }
}
