//! The list of captured graphs that vLLM writes next to their traces, `execution_details.json`: a
//! list of `{"file": ..., "batch_size": 8, "mode": "FULL"}`.

use std::io::Read as _;

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
    let mut text = Vec::new();
    open::open(file).ok()?.take(MAX_BYTES + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 > MAX_BYTES {
        return None;
    }
    let details: Vec<CaptureDetails> = serde_json::from_slice(&text).ok()?;
    (!details.is_empty()).then(|| details.into_iter().map(|it| it.batch_size).collect())
}
