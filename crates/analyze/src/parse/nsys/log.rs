//! Logs of SQLite next to a database that is still open or was not closed: they have rows that the
//! file lacks.
//!
//! Format: <https://www.sqlite.org/fileformat2.html>, sections 1.3.3 and 4.1.

use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use llmprof_core::domain::finding::{Finding, catalogue};

use super::super::{ParseError, stored::open_named};

/// Bytes of a write-ahead log without a single frame.
const EMPTY_LOG: u64 = 32;

/// Refuses a database with a log next to it, whose rows are not in the file.
pub fn refuse(path: &Path) -> Result<(), ParseError> {
    for (ending, least, what) in
        [("-wal", EMPTY_LOG, "write-ahead log"), ("-journal", 0, "rollback journal")]
    {
        let log = sibling(path, ending);
        let Some(bytes) =
            fs::metadata(&log).ok().map(|meta| meta.len()).filter(|bytes| *bytes > least)
        else {
            continue;
        };
        let name = log.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let what = format!(
            "a {what} lies next to it ({name}, {bytes} bytes), so the file alone lacks rows; close \
             the program that has it open, or run `sqlite3 FILE 'pragma \
             wal_checkpoint(truncate)'` where both are, and read it again"
        );
        return Err(ParseError::Foreign { path: path.into(), what });
    }
    Ok(())
}

/// The finding that rows may be missing, for a database in write-ahead mode.
pub fn finding(path: &Path) -> io::Result<Option<Finding>> {
    let mut header = Vec::new();
    open_named(path)?.take(20).read_to_end(&mut header)?;
    // Offset 19: the version required to read the file; 2 is write-ahead mode.
    Ok((header.get(19) == Some(&2)).then(|| {
        let message = "The export is in SQLite's write-ahead mode: rows that were only in its -wal \
                       file are missing.";
        let advice = "If there was a -wal file, run `sqlite3 FILE 'pragma \
                      wal_checkpoint(truncate)'` next to it and import the export again.";
        Finding::new(catalogue::NSYS_EXPORT_WAL, message).advise(advice)
    }))
}

fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
