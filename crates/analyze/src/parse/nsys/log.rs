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

use super::super::{
    ParseError,
    capture_path::{CapturePath, file_name},
    stored::open_own,
};

/// Bytes of a write-ahead log without a single frame.
const EMPTY_LOG: u64 = 32;

/// Refuses a database with a log next to it or to the link that names it: the rows of the log are
/// not in the file.
pub fn refuse(file: &CapturePath) -> Result<(), ParseError> {
    for (ending, least, what) in
        [("-wal", EMPTY_LOG, "write-ahead log"), ("-journal", 0, "rollback journal")]
    {
        let logs = [file.shown(), file.data()].map(|path| sibling(path, ending));
        let mut sizes = logs.iter().filter_map(|log| Some((log, fs::metadata(log).ok()?.len())));
        let Some((log, bytes)) = sizes.find(|(_, bytes)| *bytes > least) else {
            continue;
        };
        let name = file_name(log);
        let what = format!(
            "a {what} lies next to it ({name}, {bytes} bytes), so the file alone lacks rows; close \
             the program that has it open, or run `sqlite3 FILE 'pragma \
             wal_checkpoint(truncate)'` where both are, and read it again"
        );
        return Err(ParseError::Foreign { path: file.shown().into(), what });
    }
    Ok(())
}

/// The finding that rows may be missing, for a database in write-ahead mode.
pub fn finding(path: &Path) -> io::Result<Option<Finding>> {
    let mut header = Vec::new();
    open_own(path)?.take(20).read_to_end(&mut header)?;
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
