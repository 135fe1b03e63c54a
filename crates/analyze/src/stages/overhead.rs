//! Tracing overhead: stage times under nsys compared with the unprofiled pass.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};
use serde::{Deserialize, Serialize};

use crate::{
    stages::{DECODE, Stages, in_sentence},
    stats::percent,
};

/// Overhead, percent, above which a finding is reported.
const HIGH_PCT: f64 = 25.0;

/// Time of one stage without and with tracing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OverheadRecord {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub plain_ms: f64,
    pub traced_ms: f64,
    /// `100 (traced - plain) / plain`; negative when noise exceeds the overhead.
    pub overhead_pct: Option<f64>,
    /// Decode steps in both times, where the traced pass made fewer than the unprofiled pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// Compares the stages of the two passes.
pub fn overhead(plain: &Stages, traced: &Stages) -> Vec<OverheadRecord> {
    let compare = |row: &crate::stages::StageTiming| {
        let (baseline_ms, traced_ms) = (row.ms.mean, traced.row(&row.stage)?.ms.mean);
        // A shorter traced decode is compared with the baseline's time for as many steps.
        let steps = traced.decode_steps.filter(|steps| {
            row.stage == DECODE && plain.decode_steps.is_some_and(|it| it > *steps)
        });
        let share = steps
            .zip(plain.decode_steps)
            .map_or(1.0, |(traced, plain)| traced as f64 / plain as f64);
        let plain_ms = baseline_ms * share;
        let overhead_pct = percent(traced_ms - plain_ms, plain_ms);
        Some(OverheadRecord { stage: row.stage.clone(), plain_ms, traced_ms, overhead_pct, steps })
    };
    plain.rows.iter().filter_map(compare).collect()
}

/// Findings on stages with high overhead, with lighter settings for this capture.
///
/// `replays` is true when decode already replays a CUDA graph.
pub fn findings(records: &[OverheadRecord], trace: &Trace, replays: bool) -> Vec<Finding> {
    let high = |record: &OverheadRecord| {
        let pct = record.overhead_pct.filter(|pct| *pct > HIGH_PCT)?;
        let message = format!("Tracing lengthened {} by {pct:.0} %.", in_sentence(&record.stage));
        Some(
            Finding::new(catalogue::OVERHEAD_HIGH, message)
                .with("stage", &record.stage)
                .with("unprofiled ms", format!("{:.3}", record.plain_ms))
                .with("traced ms", format!("{:.3}", record.traced_ms))
                .advise(format!(
                    "Use the capture for proportions, not for times. {}",
                    lighter_settings(trace, record.stage == DECODE && !replays)
                )),
        )
    };
    records.iter().filter_map(high).collect()
}

/// Lighter settings, derived from the contents of the capture.
fn lighter_settings(trace: &Trace, eager_decode: bool) -> String {
    let mut settings = Vec::new();
    if let Some(nsys) = &trace.nsys {
        if nsys.kernels.iter().any(|kernel| kernel.graph_node.is_some()) {
            settings.push("profiling.nsys.cuda_graph_trace graph (as in mode light)");
        }
        if !nsys.os_calls.is_empty() {
            settings.push("profiling.nsys.trace without osrt");
        }
        if eager_decode && nsys.kernels.iter().any(|kernel| kernel.graph_node.is_none()) {
            settings.push("decode as a CUDA graph, which is traced as one launch");
        }
    } else {
        settings.push("mode light");
    }
    if settings.is_empty() {
        return "The trace is already minimal: raise repeats to rule out noise.".into();
    }
    format!("Lighter settings: {}.", settings.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernels::tests::capture, stages::StageTiming, stats::Spread};

    fn decode(ms: f64, steps: u64) -> Stages {
        let spread = Spread { mean: ms, std: None, min: ms, max: ms, n: 1 };
        let row = StageTiming {
            stage: DECODE.into(),
            ms: spread,
            share_pct: None,
            tokens: None,
            tokens_per_s: None,
        };
        Stages { rows: vec![row], decode_steps: Some(steps), ..Stages::default() }
    }

    #[test]
    fn a_shorter_traced_decode_is_compared_over_the_same_number_of_steps() {
        let records = overhead(&decode(64.0, 64), &decode(20.0, 16));
        assert_eq!(
            (records[0].plain_ms, records[0].overhead_pct, records[0].steps),
            (16.0, Some(25.0), Some(16))
        );
        assert_eq!(overhead(&decode(64.0, 64), &decode(64.0, 64))[0].steps, None);
    }

    #[test]
    fn a_heavy_trace_lists_lighter_settings() {
        let records = overhead(&decode(10.0, 1), &decode(20.0, 1));
        let advice = |nsys| {
            let trace = Trace { nsys, ..Trace::default() };
            findings(&records, &trace, false).remove(0).advice.unwrap()
        };
        assert!(advice(None).contains("mode light"));
        let mut deep = capture("call 1 1 2..3\nkernel 1 gemm 5..6 7");
        deep.kernels = deep.kernels.map(|_, kernel| kernel.graph_node = Some(7));
        assert!(advice(Some(deep)).contains("cuda_graph_trace graph"));
        assert!(advice(Some(capture(""))).contains("already minimal"));
    }
}
