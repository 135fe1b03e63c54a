//! The audit log: caller, action, time and address, one JSON line each, in files next to the
//! database and separate from the logs.
//!
//! Lines are only added. A line contains no token and nothing of a request's body. Requests that
//! were refused to unknown callers are in files of their own, so that a flood of them displaces no
//! other entry.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Names of the files in the data folder, without extensions: of known callers, and of refusals.
const NAMES: [&str; 2] = ["audit", "audit-refused"];
/// Bytes at the end of a file that are read.
const TAIL: u64 = 4 << 20;
/// Characters of `action` and `target`.
const MAX_TEXT: usize = 200;

/// One action of a caller, or its refusal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// RFC 3339, UTC.
    pub at: String,
    /// The token's name; `null`: no token was required, or none was valid.
    pub who: Option<String>,
    /// Address of the caller; `null`: the command line on the host.
    pub address: Option<String>,
    /// Method and route of the request; on the command line `token create` or `token revoke`.
    #[schema(example = "POST /runs")]
    pub action: String,
    /// Path of the request, or a token's name. After 200 characters it is cut and ends with its
    /// length: `/runs/aaa… (60000 bytes)`; likewise `action`.
    pub target: String,
    /// Status of the response; `null`: the command line.
    pub status: Option<u16>,
    /// As in the response's header and in the log; `null`: the command line.
    pub request_id: Option<String>,
}

impl AuditEntry {
    /// An action now on the host itself.
    pub fn on_host(action: &str, target: &str) -> Self {
        Self {
            at: format!("{:.6}", jiff::Timestamp::now()),
            who: None,
            address: None,
            action: cut(action),
            target: cut(target),
            status: None,
            request_id: None,
        }
    }

    /// Returns true if a caller without a valid token was refused.
    fn is_refused(&self) -> bool {
        self.who.is_none() && self.status.is_some_and(|status| (400..500).contains(&status))
    }
}

/// The first [`MAX_TEXT`] characters, with the length of a longer text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

/// Limits of the files for known callers, and of the files for refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditLimits {
    /// A file that would become larger is renamed: `audit.jsonl` to `audit.1.jsonl` and so on.
    pub file_bytes: u64,
    /// Number of files; the oldest is removed.
    pub files: u32,
}

/// The log. Clones share it; other processes may add to it as well.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<[Mutex<LogFiles>; 2]>);

/// Files of one name: the current one, and older ones with numbers.
#[derive(Debug)]
struct LogFiles {
    folder: PathBuf,
    name: &'static str,
    limits: Option<AuditLimits>,
    current: File,
}

impl AuditLog {
    /// Opens the log of a data folder, readable by its owner only, to add to it; creates it if
    /// absent.
    pub fn open(data: &Path) -> io::Result<Self> {
        Self::open_with(data, None)
    }

    /// The same, and renames and removes files by `limits`. One process at a time does so: the
    /// service.
    pub fn open_limited(data: &Path, limits: AuditLimits) -> io::Result<Self> {
        Self::open_with(data, Some(limits))
    }

    fn open_with(data: &Path, limits: Option<AuditLimits>) -> io::Result<Self> {
        let open = |name| LogFiles::open(data, name, limits).map(Mutex::new);
        let [known, refused] = NAMES;
        Ok(Self(Arc::new([open(known)?, open(refused)?])))
    }

    /// The files of the log in `folder`.
    pub fn files(folder: &Path) -> Vec<PathBuf> {
        let paths = |name| {
            let path = move |number| folder.join(file_name(name, number));
            let current = Some(path(0)).filter(|path| path.is_file());
            current.into_iter().chain((1..).map(path).take_while(|path| path.is_file()))
        };
        NAMES.into_iter().flat_map(paths).collect()
    }

    /// Adds a line, in one write.
    pub fn add(&self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let files = &self.0[usize::from(entry.is_refused())];
        files.lock().unwrap_or_else(PoisonError::into_inner).add(&line)
    }

    /// The newest `count` entries, newest first. Unreadable lines, such as one cut off by a power
    /// cut, are skipped.
    pub fn newest(&self, count: usize) -> io::Result<Vec<AuditEntry>> {
        let [known, refused] = &*self.0;
        let read = |files: &Mutex<LogFiles>| {
            let files = files.lock().unwrap_or_else(PoisonError::into_inner);
            files.newest(count).map(|entries| entries.into_iter().peekable())
        };
        let (mut known, mut refused) = (read(known)?, read(refused)?);
        let merged = std::iter::from_fn(|| match (known.peek(), refused.peek()) {
            (Some(known_entry), Some(entry)) if known_entry.at < entry.at => refused.next(),
            (Some(_), _) => known.next(),
            (None, _) => refused.next(),
        });
        Ok(merged.take(count).collect())
    }
}

impl LogFiles {
    fn open(folder: &Path, name: &'static str, limits: Option<AuditLimits>) -> io::Result<Self> {
        let current = open_file(&folder.join(file_name(name, 0)))?;
        Ok(Self { folder: folder.to_owned(), name, limits, current })
    }

    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if let Some(limits) = self.limits {
            let bytes = self.current.metadata()?.len();
            if bytes > 0 && bytes + line.len() as u64 > limits.file_bytes {
                self.rotate(limits.files)?;
            }
        }
        self.current.write_all(line)
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(file_name(self.name, number))
    }

    /// Renames every file to the next number, removes those beyond `files`, and opens a new one.
    fn rotate(&mut self, files: u32) -> io::Result<()> {
        let mut last = files.max(1) - 1;
        // More files than now, if the limit was lowered.
        while self.path(last + 1).is_file() {
            last += 1;
        }
        for number in (0..=last).rev() {
            let path = self.path(number);
            let moved = if number + 1 < files.max(1) {
                fs::rename(&path, self.path(number + 1))
            } else {
                fs::remove_file(&path)
            };
            match moved {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.current = open_file(&self.path(0))?;
        Ok(())
    }

    /// The newest `count` entries, newest first.
    fn newest(&self, count: usize) -> io::Result<Vec<AuditEntry>> {
        let mut entries = Vec::new();
        for number in 0.. {
            let tail = match File::open(self.path(number)) {
                Ok(file) => tail(file)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            };
            let lines = tail.split(|byte| *byte == b'\n').rev();
            let left = count - entries.len();
            entries.extend(
                lines.filter_map(|line| serde_json::from_slice::<AuditEntry>(line).ok()).take(left),
            );
            if entries.len() >= count {
                break;
            }
        }
        Ok(entries)
    }
}

/// The current file has the number 0.
fn file_name(name: &str, number: u32) -> String {
    match number {
        0 => format!("{name}.jsonl"),
        number => format!("{name}.{number}.jsonl"),
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn tail(mut file: File) -> io::Result<Vec<u8>> {
    let from = file.seek(SeekFrom::End(0))?.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    Ok(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(who: Option<&str>, status: u16, target: &str) -> AuditEntry {
        AuditEntry {
            who: who.map(str::to_owned),
            status: Some(status),
            ..AuditEntry::on_host("POST /runs", target)
        }
    }

    fn targets(log: &AuditLog, count: usize) -> Vec<String> {
        log.newest(count).unwrap().into_iter().map(|entry| entry.target).collect()
    }

    #[test]
    fn a_long_path_is_cut_and_marked() {
        let path = format!("/{}", "ä".repeat(60_000));
        let entry = AuditEntry::on_host(&"X".repeat(60_000), &path);
        assert_eq!(entry.target, format!("/{}… (120001 bytes)", "ä".repeat(199)));
        assert!(serde_json::to_vec(&entry).unwrap().len() < 1000);
        let whole = "x".repeat(MAX_TEXT);
        assert_eq!(AuditEntry::on_host("a", &whole).target, whole);
    }

    #[test]
    fn files_are_bounded_in_size_and_number_and_all_of_them_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let limits = AuditLimits { file_bytes: 1000, files: 3 };
        let log = AuditLog::open_limited(dir.path(), limits).unwrap();
        for number in 0..100 {
            log.add(&entry(Some("ann"), 202, &number.to_string())).unwrap();
        }
        let files = AuditLog::files(dir.path());
        let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["audit.jsonl", "audit.1.jsonl", "audit.2.jsonl", "audit-refused.jsonl"]);
        let mut kept = 0;
        for path in &files {
            let bytes = fs::metadata(path).unwrap().len();
            assert!(bytes <= 1000, "{}: {bytes} bytes", path.display());
            kept += fs::read_to_string(path).unwrap().lines().count();
        }
        assert!(kept > 10);
        let newest: Vec<_> = (100 - kept..100).rev().map(|number| number.to_string()).collect();
        assert_eq!(targets(&log, 1000), newest);
        assert_eq!(targets(&log, 2), newest[..2]);
        // A lower limit applies to older files too.
        let log = AuditLog::open_limited(dir.path(), AuditLimits { files: 1, ..limits }).unwrap();
        for number in 0..20 {
            log.add(&entry(Some("ann"), 202, &number.to_string())).unwrap();
        }
        assert_eq!(AuditLog::files(dir.path()).len(), 2);
    }

    #[test]
    fn a_flood_of_refusals_displaces_no_entry_of_a_known_caller() {
        let dir = tempfile::tempdir().unwrap();
        let limits = AuditLimits { file_bytes: 1000, files: 2 };
        let log = AuditLog::open_limited(dir.path(), limits).unwrap();
        log.add(&entry(Some("ann"), 202, "kept")).unwrap();
        for number in 0..1000 {
            log.add(&entry(None, 401, &number.to_string())).unwrap();
        }
        log.add(&entry(None, 202, "where no token is required")).unwrap();
        let targets = targets(&log, 1000);
        assert_eq!(targets[0], "where no token is required");
        assert_eq!(targets[1], "999");
        assert_eq!(targets.last().unwrap(), "kept");
        assert!(targets.len() < 20, "{targets:?}");
    }
}
