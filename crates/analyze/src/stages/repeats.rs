//! Variation of each operator's time over the measured repeats: the noise level for comparing two
//! runs.
//!
//! Times are host times of leaf operators. Calls inside a replayed graph have no host time.

use std::collections::BTreeMap;

use llmprof_core::domain::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::{
    events::{Events, TimedCall},
    limited::{Limited, Summed, sort_kept},
    operators::{
        MODULE,
        call_kinds::{CallKey, CallKinds},
        grown,
    },
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
pub fn repeats(events: &Events) -> Limited<OperatorRepeats> {
    let mut kinds = CallKinds::default();
    let mut sums: Vec<PerRepeat> = Vec::new();
    let is_measured = |it: &TimedCall| !it.of.warmup && !it.of.captured && it.of.op != MODULE;
    for call in events.calls.iter().filter(is_measured) {
        let (calls, times) = grown(&mut sums, kinds.of(&call).rolled);
        *calls += 1;
        *times.entry(call.repeat).or_default() += Nanos(call.ns());
    }
    let [_, keys] = kinds.into_keys();
    let mut all: Vec<(CallKey, u64, Spread)> = Vec::with_capacity(keys.len());
    for (key, (calls, times)) in keys.into_iter().zip(sums) {
        if let Some(ms) = Spread::of(times.into_values().map(Nanos::as_ms)) {
            all.push((key, calls, ms));
        }
    }
    sort_kept(&mut all, |a, b| b.2.mean.total_cmp(&a.2.mean).then_with(|| a.0.cmp(&b.0)));
    Limited::of(all.into_iter().map(|(CallKey { stage, path, op }, calls, ms)| OperatorRepeats {
        stage: stage.into_owned(),
        path: path.into_owned(),
        op: op.into_owned(),
        calls,
        ms,
    }))
}

impl Summed for OperatorRepeats {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
    }
}
