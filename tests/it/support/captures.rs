//! Captures of the fixtures.

use std::{fs::File, path::Path};

use anyhow::Result;
use rusqlite::Connection;

pub const MOCK: &str = "hf-llama-attention-mock";
pub const E2E: &str = "hf-llama-e2e";

/// One capture, unpacked and changed by plain SQL.
pub fn capture(name: &str, path: &Path, sql: &str) -> Result<()> {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/captures")
        .join(format!("{name}.sqlite.zst"));
    zstd::stream::copy_decode(File::open(packed)?, File::create(path)?)?;
    if !sql.is_empty() {
        Connection::open(path)?.execute_batch(sql)?;
    }
    Ok(())
}
