//! The audit log: caller, action, time and address, one JSON line each, in a file next to the
//! database and separate from the logs.
//!
//! Lines are only added. A line contains no token and nothing of a request's body.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The file's name in the data folder.
const FILE: &str = "audit.jsonl";
/// Bytes at the end of the file that are read.
const TAIL: u64 = 4 << 20;

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
    /// Path of the request, or a token's name.
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
            at: format!("{:.3}", jiff::Timestamp::now()),
            who: None,
            address: None,
            action: action.into(),
            target: target.into(),
            status: None,
            request_id: None,
        }
    }
}

/// The file. Clones share it; other processes may add to it as well.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<Mutex<File>>);

impl AuditLog {
    /// Opens the log of a data folder, readable by its owner only; creates it if absent.
    pub fn open(data: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(data.join(FILE))?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Adds a line, in one write.
    pub fn add(&self, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }

    /// The newest `count` entries, newest first. Unreadable lines, such as one cut off by a power
    /// cut, are skipped.
    pub fn newest(&self, count: usize) -> io::Result<Vec<AuditEntry>> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = file.seek(SeekFrom::End(0))?.saturating_sub(TAIL);
        file.seek(SeekFrom::Start(from))?;
        let mut tail = Vec::new();
        (&mut *file).take(TAIL).read_to_end(&mut tail)?;
        drop(file);
        let lines = tail.split(|byte| *byte == b'\n').rev();
        Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).take(count).collect())
    }
}
