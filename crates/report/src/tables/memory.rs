//! Device memory by stage and operator.

use llmprof_analyze::{Analysis, memory::MemoryRecord};

use super::{
    report_table::ReportTable,
    samples::first_sample_note,
    schema::{TableColumn, bytes, count, text},
};
use crate::format::scaled;

/// Columns of [`MemoryRecord`].
pub fn columns() -> Vec<TableColumn<MemoryRecord>> {
    vec![
        text("stage", "Stage", |it| (&it.stage).into()),
        text("path", "Operator", |it: &MemoryRecord| (&it.path).into())
            .shown(|it| if it.path.is_empty() { "all".into() } else { it.path.clone() }),
        text("op", "Kind", |it| (&it.op).into()),
        count("calls", "Calls", |it| it.calls.into()),
        bytes("peak_bytes", "Peak", |it| it.peak_bytes.into()),
        bytes("needed_bytes", "Needed", |it| it.needed_bytes.into()),
        bytes("kept_bytes", "Kept", |it: &MemoryRecord| it.kept_bytes.into())
            .shown(|it| scaled(it.kept_bytes as f64, "B")),
    ]
}

/// Device memory: stages first, then operators with the largest need.
pub fn memory(analysis: &Analysis) -> ReportTable {
    let caption = "Memory of tensors and graphs on the device, as the runner's allocator counts it \
                   when the host allocates and frees; in one more execution with one decode step \
                   after the unprofiled pass. Peak: in use at most. Needed: in addition to what \
                   was in use at the start of a call. Kept: still in use after all calls. The \
                   memory of the driver and of libraries is not included.";
    let shown = ["stage", "path", "op", "calls", "peak_bytes", "needed_bytes", "kept_bytes"];
    let mut table =
        ReportTable::of("memory", "Device Memory", caption, (&columns(), &shown), &analysis.memory);
    if !table.rows.is_empty() {
        table.notes.extend(first_sample_note(analysis, "The device memory"));
    }
    table
}
