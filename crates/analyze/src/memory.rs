//! Device memory by stage and operator, from the runner's own allocator.
//!
//! The records are of one execution after the unprofiled pass. Layers are rolled up; calls of one
//! path in one stage share a record.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{events::Events, operators::rolled_paths::collapse};

/// Device memory of a stage, or of the calls of one operator in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryRecord {
    /// Name of the range.
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    /// Module path, layers rolled up; empty for the whole range.
    pub path: String,
    /// `module`, `linear`, ...; empty for a range.
    pub op: String,
    pub calls: u64,
    /// Highest number of bytes in use for tensors and graphs during a call.
    pub peak_bytes: u64,
    /// Highest number of bytes that a call needs in addition to those in use when it starts.
    pub needed_bytes: u64,
    /// Bytes in use after the calls minus before, summed: results, caches.
    pub kept_bytes: i64,
}

/// Memory of ranges, then of operators, each with the largest need first.
pub fn memory(events: &Events) -> Vec<MemoryRecord> {
    let mut sums: BTreeMap<(&str, String), MemoryRecord> = BTreeMap::new();
    for it in &events.memory {
        let path = collapse(&it.path).into_owned();
        let record = sums.entry((&it.stage, path.clone())).or_insert_with(|| MemoryRecord {
            stage: it.stage.clone(),
            path,
            op: it.op.clone(),
            ..MemoryRecord::default()
        });
        record.calls += 1;
        record.peak_bytes = record.peak_bytes.max(it.peak_bytes);
        record.needed_bytes =
            record.needed_bytes.max(it.peak_bytes.saturating_sub(it.before_bytes));
        let kept = i128::from(it.after_bytes) - i128::from(it.before_bytes);
        record.kept_bytes =
            record.kept_bytes.saturating_add(i64::try_from(kept).unwrap_or_default());
    }
    let mut records: Vec<MemoryRecord> = sums.into_values().collect();
    records.sort_by(|a, b| {
        (!a.path.is_empty()).cmp(&!b.path.is_empty()).then(b.needed_bytes.cmp(&a.needed_bytes))
    });
    records
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::event::{Event, MemoryUse};

    use super::*;

    #[test]
    fn layers_are_rolled_up_and_stages_come_first() {
        let used = |stage: &str, path: &str, bytes: [u64; 3]| {
            let [before_bytes, peak_bytes, after_bytes] = bytes;
            let op = if path.is_empty() { "" } else { "linear" };
            Event::Memory(MemoryUse {
                stage: stage.into(),
                path: path.into(),
                op: op.into(),
                before_bytes,
                peak_bytes,
                after_bytes,
            })
        };
        let events = [
            used("prefill", "layers.0.q", [100, 150, 110]),
            used("prefill", "layers.1.q", [110, 140, 105]),
            used("prefill", "layers.0.up", [100, 190, 100]),
            used("prefill", "", [90, 190, 95]),
            used("decode_all", "", [95, 96, 95]),
        ];
        let found: Vec<_> = memory(&Events::of(&events))
            .into_iter()
            .map(|it| (it.stage, it.path, it.calls, it.peak_bytes, it.needed_bytes, it.kept_bytes))
            .collect();
        let row = |stage: &str, path: &str, figures: (u64, u64, u64, i64)| {
            let (calls, peak, needed, kept) = figures;
            (stage.to_owned(), path.to_owned(), calls, peak, needed, kept)
        };
        assert_eq!(
            found,
            [
                row("prefill", "", (1, 190, 100, 5)),
                row("decode_all", "", (1, 96, 1, 0)),
                row("prefill", "layers.*.up", (1, 190, 90, 0)),
                row("prefill", "layers.*.q", (2, 150, 50, 5)),
            ]
        );
    }
}
