//! Variation of each operator's time over the measured repeats: the noise level for comparing two
//! runs.
//!
//! Times are host times of leaf operators. Calls inside a replayed graph have no host time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    analyze::{
        events::Events,
        operators::{MODULE, collapse},
        stats::Spread,
    },
    domain::units::Nanos,
};

/// One operator in one stage, layers rolled up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperatorRepeats {
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = "decoder.layers.*.self_attn.qkv_proj")]
    pub path: String,
    #[schema(example = "linear")]
    pub op: String,
    /// Calls over all repeats.
    pub calls: u64,
    /// Milliseconds per repeat.
    pub ms: Spread,
}

/// Calls over all repeats, and time by repeat.
type PerRepeat = (u64, BTreeMap<u32, Nanos>);

/// Sums each operator's calls by repeat, longest mean first.
pub fn repeats(events: &Events) -> Vec<OperatorRepeats> {
    let mut sums: BTreeMap<(&str, String, &str), PerRepeat> = BTreeMap::new();
    for call in
        events.calls.iter().filter(|call| !call.warmup && !call.captured && call.op != MODULE)
    {
        let (calls, times) = sums.entry((&call.stage, collapse(&call.path), &call.op)).or_default();
        *calls += 1;
        *times.entry(call.repeat).or_default() += Nanos(call.end_ns - call.start_ns);
    }
    let mut all: Vec<OperatorRepeats> = sums
        .into_iter()
        .filter_map(|((stage, path, op), (calls, times))| {
            let ms = Spread::of(times.into_values().map(Nanos::as_ms))?;
            Some(OperatorRepeats { stage: stage.into(), path, op: op.into(), calls, ms })
        })
        .collect();
    all.sort_by(|a, b| b.ms.mean.total_cmp(&a.ms.mean));
    all
}
