//! Opens the file of an export: read-only, immutable, and within limits of time and memory.

use std::{
    fmt::Write as _,
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, Result, config::DbConfig, limits::Limit};

use super::{
    super::{
        ParseError,
        capture_path::CapturePath,
        foreign::{self, COPY_AGAIN, HEAD},
        stored::open_own,
    },
    export::string,
};

/// Length of the header of an SQLite file, bytes.
const HEADER: usize = 100;
/// Maximum length of an SQLite message in an error, characters.
const MAX_MESSAGE: usize = 200;
/// Maximum length of a text, bytes: far beyond any name, option or environment.
const MAX_TEXT: i32 = 16 << 20;
/// Maximum time to read the schema: a crafted one may take hours.
const OPEN_TIME: Duration = Duration::from_secs(10);
/// Maximum memory of SQLite for one export, whose schema it keeps in memory, bytes.
const MAX_HEAP: i64 = 1 << 30;
/// Instructions of SQLite's machine between two checks of clock and memory: some microseconds.
const STEPS: i32 = 1_000;

/// Shortens an error to one line: SQLite quotes all of a damaged schema, which is untrusted text.
pub(super) fn brief(error: rusqlite::Error) -> rusqlite::Error {
    let rusqlite::Error::SqliteFailure(code, Some(message)) = error else { return error };
    let line = message.lines().next().unwrap_or_default();
    let short: String = line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect();
    rusqlite::Error::SqliteFailure(code, Some(short))
}

/// Refuses a foreign or truncated file by its header, before SQLite reads it. Returns the file's
/// length.
pub(super) fn check_header(file: &CapturePath) -> Result<u64, ParseError> {
    let read = |source| ParseError::Read { path: file.shown().into(), source };
    let refuse = |what: String| Err(ParseError::Foreign { path: file.shown().into(), what });
    let opened = open_own(file.data()).map_err(read)?;
    let length = opened.metadata().map_err(read)?.len();
    let mut header = Vec::new();
    opened.take(HEAD).read_to_end(&mut header).map_err(read)?;
    if header.is_empty() {
        return refuse(foreign::EMPTY.into());
    }
    if !header.starts_with(foreign::SQLITE) {
        return refuse(foreign::not_an_export(file, &header));
    }
    if header.len() < HEADER {
        return refuse(format!("cut short: {length} of at least 512 bytes; {COPY_AGAIN}"));
    }
    // Offsets 16 and 28 of the file format: the page size (1 means 65,536), and the size of the
    // database in pages.
    let page = match u16::from_be_bytes([header[16], header[17]]) {
        1 => 65_536,
        page => u64::from(page),
    };
    let pages = u64::from(u32::from_be_bytes([header[28], header[29], header[30], header[31]]));
    if length < page * pages {
        return refuse(format!("cut short: {length} of {} bytes; {COPY_AGAIN}", page * pages));
    }
    Ok(length)
}

/// SQLite opens the file a second time, and like `open_own` follows no link in its path.
pub(super) fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
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
    db.execute_batch(
        "pragma query_only = on; pragma cell_size_check = on; pragma mmap_size = 0; \
                      pragma temp_store = memory;",
    )?;
    Ok(db)
}

/// Interrupts the connection when it takes too long or too much memory.
pub(super) fn bound(db: &Connection, time: Duration) -> Result<()> {
    let (deadline, max) = (Instant::now() + time, heap() + MAX_HEAP);
    db.progress_handler(STEPS, Some(move || Instant::now() > deadline || heap() > max))
}

/// Memory of SQLite in this process, bytes.
pub(super) fn heap() -> i64 {
    // SAFETY: the function reads a counter, takes no pointer, and may be called at any time.
    unsafe { rusqlite::ffi::sqlite3_memory_used() }
}

/// The path as a URI that declares the file immutable: SQLite takes no lock and creates no files.
pub(super) fn uri(path: &Path) -> String {
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

/// Ordinary tables, without views, shadow and virtual tables.
pub(super) fn real_tables(db: &Connection) -> Result<Vec<String>> {
    let mut statement = db.prepare(
        "select name from pragma_table_list where schema = 'main' and type = 'table' order by name",
    )?;
    let names = statement.query_map([], |row| string(row, 0))?;
    names.filter(|name| !name.as_ref().is_ok_and(|name| name.starts_with("sqlite_"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_odd_characters_is_no_option() {
        assert_eq!(
            uri(Path::new("/a b/c?mode=rwc#d%e")),
            "file:/a%20b/c%3fmode%3drwc%23d%25e?mode=ro&immutable=1"
        );
    }
}
