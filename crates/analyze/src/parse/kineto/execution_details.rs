//! The list of captured graphs that vLLM writes next to their traces, `execution_details.json`: a
//! list of `{"file": ..., "batch_size": 8, "mode": "FULL"}`.

use llmprof_core::domain::bounded_read::read_bounded;
use serde::Deserialize;

use super::open;
use crate::parse::capture_path::CapturePath;

/// Maximum size of a list, bytes: thousands of graphs.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct CaptureDetails {
    batch_size: u64,
    #[serde(rename = "mode")]
    _mode: String,
}

/// Batches of the graphs that a file lists; `None` if it is not such a list.
pub fn batches(file: &CapturePath) -> Option<Vec<u64>> {
    let text = read_bounded(open::open(file).ok()?, MAX_BYTES).ok()?;
    let details: Vec<CaptureDetails> = serde_json::from_slice(&text).ok()?;
    (!details.is_empty()).then(|| details.into_iter().map(|it| it.batch_size).collect())
}
