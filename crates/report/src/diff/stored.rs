//! Stored reports that are compared.

use llmprof_analyze::kernels::KernelRecord;
use llmprof_core::domain::ids::RunId;

use crate::profile::{KernelsFile, LLMProfileReport, SCHEMA_VERSION};

/// Reason why a stored report cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    #[error("not a report of a run: {0}")]
    NotAReport(#[from] serde_json::Error),
    #[error(
        "schema version {found} is newer than {SCHEMA_VERSION}, the newest known; use a newer \
         llmprof"
    )]
    TooNew { found: u64 },
}

/// The stored files of a run that a comparison needs.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredReport {
    pub report: LLMProfileReport,
    /// All kernels; if the file is missing, the report's longest ones replace them.
    pub kernels: Option<Vec<KernelRecord>>,
}

/// Reads a stored file with its fields under their current names.
pub type ReadJson = fn(&[u8]) -> Result<serde_json::Value, serde_json::Error>;

/// Reads `report.json` and, if it exists, `kernels.json`.
pub fn stored(
    report: &[u8],
    kernels: Option<&[u8]>,
    read: ReadJson,
) -> Result<StoredReport, StoredError> {
    let value = read(report)?;
    match value["schema_version"].as_u64() {
        Some(found) if found > u64::from(SCHEMA_VERSION) => {
            return Err(StoredError::TooNew { found });
        }
        _ => {}
    }
    let kernels = kernels
        .map(|bytes| serde_json::from_value::<KernelsFile>(read(bytes)?))
        .transpose()?
        .map(|file| file.kernels);
    Ok(StoredReport { report: serde_json::from_value(value)?, kernels })
}

impl StoredReport {
    /// The name of a capture without an id.
    pub(super) fn name(&self) -> Option<String> {
        self.report.run_id.0.is_nil().then(|| self.report.spec.name().to_owned())
    }
}

/// A run by its id, or a capture by its name.
pub(super) fn subject(id: RunId, name: Option<&str>) -> String {
    name.map_or_else(|| format!("run {id}"), |name| format!("capture {name}"))
}
