//! Distinct experts used by each MoE layer, compared with an even router.
//!
//! A router that collapses onto few experts makes decode look cheaper than it is: fewer weights are
//! read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{events::Events, stats::Spread};

/// Distinct experts of one layer per forward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExpertUse {
    pub layer: u32,
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub stage: String,
    /// Distinct experts per forward.
    pub distinct: Spread,
    /// Number of experts in the layer.
    pub total: u32,
    /// Expected number with an even, independent choice of `top_k` per token; `null` without the
    /// model's `top_k`.
    pub expected: Option<f64>,
}

/// Summarises the routing of measured forwards: all prompt tokens in prefill, one token of each
/// sequence in decode.
pub fn experts(events: &Events, top_k: Option<usize>) -> Vec<ExpertUse> {
    let mut seen: BTreeMap<(String, u32), (u32, Vec<f64>)> = BTreeMap::new();
    for forward in events.experts.iter().filter(|forward| !forward.warmup) {
        let layer = seen.entry((forward.stage.clone(), forward.layer)).or_default();
        layer.0 = forward.total;
        layer.1.push(f64::from(forward.distinct));
    }
    let prompt = events.start.map(|start| start.prompt_tokens);
    let mut uses: Vec<ExpertUse> = seen
        .into_iter()
        .filter_map(|((stage, layer), (total, distinct))| {
            let tokens =
                if stage == crate::stages::PREFILL { prompt } else { Some(events.batch()) };
            let expected = tokens
                .zip(top_k)
                .and_then(|(tokens, top_k)| expected_distinct(total, top_k, tokens));
            Some(ExpertUse { layer, stage, distinct: Spread::of(distinct)?, total, expected })
        })
        .collect();
    uses.sort_by_key(|it| (it.stage != crate::stages::PREFILL, it.layer));
    uses
}

/// `E (1 - (1 - k/E)^n)`: expected distinct experts of `E` when `n` tokens choose `k` each, evenly
/// and independently.
fn expected_distinct(total: u32, top_k: usize, tokens: u64) -> Option<f64> {
    let (total, top_k) = (f64::from(total), top_k as f64);
    (total > 0.0 && top_k <= total)
        .then(|| total * (1.0 - (1.0 - top_k / total).powf(tokens as f64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_hits_its_top_k_and_many_hit_all() {
        assert!((expected_distinct(64, 6, 1).unwrap() - 6.0).abs() < 1e-9);
        assert!(expected_distinct(64, 6, 1000).unwrap() > 63.99);
        assert_eq!(expected_distinct(0, 6, 1), None);
    }
}
