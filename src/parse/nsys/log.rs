//! What SQLite leaves beside a database that is still written, or was not closed: rows that the file itself lacks.
//!
//! Format: <https://www.sqlite.org/fileformat2.html>, sections 1.3.3 and 4.1.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::super::ParseError;
use crate::run::{Finding, Severity};

/// Bytes of a write-ahead log without a single frame.
const EMPTY_LOG: u64 = 32;

/// Refuses a database with a log beside it: its rows are not in the file.
pub fn refuse(path: &Path) -> Result<(), ParseError> {
    for (ending, least, what) in [("-wal", EMPTY_LOG, "write-ahead log"), ("-journal", 0, "rollback journal")] {
        let log = beside(path, ending);
        let Some(bytes) = fs::metadata(&log).ok().map(|meta| meta.len()).filter(|bytes| *bytes > least) else { continue };
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = format!(
            "a {what} lies beside it ({name}, {bytes} bytes), so the file alone lacks rows: close the program that has it open, \
             or run `sqlite3 FILE 'pragma wal_checkpoint(truncate)'` where both lie, and read it again"
        );
        return Err(ParseError::Foreign { path: path.into(), what });
    }
    Ok(())
}

/// The finding that rows may be missing, of a database that a write-ahead log belongs to, wherever that is.
pub fn finding(path: &Path) -> io::Result<Option<Finding>> {
    let mut header = Vec::new();
    File::open(path)?.take(20).read_to_end(&mut header)?;
    // Offset 19: the version that is needed to read it; 2 is that of the log.
    Ok((header.get(19) == Some(&2)).then(|| {
        let message = "The export is in SQLite's write-ahead mode: rows that were only in its -wal file are missing here.";
        let advice =
            "If a -wal file lay beside it, run `sqlite3 FILE 'pragma wal_checkpoint(truncate)'` there and import it again.";
        Finding::new("nsys_export_wal", Severity::Info, message).advise(advice)
    }))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
