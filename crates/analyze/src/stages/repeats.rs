//! Variation of each operator's time over the measured repeats: the noise level for comparing two
//! runs.
//!
//! Times are host times of leaf operators. Calls inside a replayed graph have no host time.

use std::collections::BTreeMap;

use foldhash::HashMap;
use llmprof_core::domain::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::{
    events::Events,
    operators::{MODULE, rolled_paths::RolledPaths},
    stats::Spread,
};

/// One operator in one stage, layers rolled up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorRepeats {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.self_attn.qkv_proj"))]
    pub path: String,
    #[cfg_attr(feature = "schema", schema(example = "linear"))]
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
    let mut paths = RolledPaths::default();
    let mut numbered: HashMap<(&str, u32, &str), PerRepeat> = HashMap::default();
    for call in
        events.calls.iter().filter(|call| !call.warmup && !call.captured && call.op != MODULE)
    {
        let key = (call.stage.as_str(), paths.number(&call.path), call.op.as_str());
        let (calls, times) = numbered.entry(key).or_default();
        *calls += 1;
        *times.entry(call.repeat).or_default() += Nanos(call.end_ns - call.start_ns);
    }
    let of_path =
        |((stage, path, op), sums): ((_, u32, _), _)| ((stage, paths.path(path), op), sums);
    let sums: BTreeMap<(&str, &str, &str), PerRepeat> = numbered.into_iter().map(of_path).collect();
    let mut all: Vec<OperatorRepeats> = sums
        .into_iter()
        .filter_map(|((stage, path, op), (calls, times))| {
            let ms = Spread::of(times.into_values().map(Nanos::as_ms))?;
            let (stage, path, op) = (stage.into(), path.into(), op.into());
            Some(OperatorRepeats { stage, path, op, calls, ms })
        })
        .collect();
    all.sort_by(|a, b| b.ms.mean.total_cmp(&a.ms.mean));
    all
}
