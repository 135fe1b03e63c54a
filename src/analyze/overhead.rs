//! What tracing cost: stage times under nsys over those of the plain pass.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{stages::Stages, stats::percent};

/// One stage's time, plain and traced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverheadRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    pub plain_ms: f64,
    pub traced_ms: f64,
    /// `100 (traced - plain) / plain`; below zero when the difference drowns in noise.
    pub overhead_pct: Option<f64>,
}

/// Compares the stages of the two passes.
pub fn overhead(plain: &Stages, traced: &Stages) -> Vec<OverheadRecord> {
    let compare = |row: &super::stages::StageTiming| {
        let (plain_ms, traced_ms) = (row.ms.mean, traced.row(&row.stage)?.ms.mean);
        let overhead_pct = percent(traced_ms - plain_ms, plain_ms);
        Some(OverheadRecord { stage: row.stage.clone(), plain_ms, traced_ms, overhead_pct })
    };
    plain.rows.iter().filter_map(compare).collect()
}
