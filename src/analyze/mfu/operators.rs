//! Use of arithmetic and of memory by each operator, layers rolled up.
//!
//! On a GPU the time is that of the operator's own kernels in the traced pass, on the CPU its own host time in the plain one. An operator
//! whose time is not known has no row: a launching call says nothing of the work.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{TOLERANCE_PCT, possible};
use crate::{
    analyze::{
        limits::Limits,
        operators::{OperatorRecord, Operators},
        stats::{percent, ratio},
    },
    run::{Finding, Severity},
};

/// Achieved rates of one operator in one stage beside three ceilings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperatorMfu {
    #[schema(example = "decoder.layers.*.self_attn.q_proj")]
    pub path: String,
    #[schema(example = "linear")]
    pub op: String,
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = "bf16")]
    pub dtype: String,
    /// `kernels` of the traced pass, or `host` time of the plain one.
    #[schema(example = "kernels")]
    pub time_of: String,
    /// Its own time, without what it encloses, over all repeats of that pass.
    #[serde(alias = "self_ms")]
    pub exclusive_ms: f64,
    /// Of the stage's time of that kind, percent.
    #[serde(alias = "share_pct")]
    pub exclusive_pct: Option<f64>,
    /// `null` for an operator that multiplies nothing.
    pub flops_per_s: Option<f64>,
    /// Operands and results, each once.
    pub bytes_per_s: Option<f64>,
    /// Operations per byte of operands and results.
    pub flops_per_byte: Option<f64>,
    /// Of the maker's peak, percent.
    pub datasheet_pct: Option<f64>,
    /// Of the matrix product measured on this device, percent; `null` where it did better.
    pub measured_pct: Option<f64>,
    /// Of the maker's peak at the mean SM clock of the stage, percent.
    pub clocked_pct: Option<f64>,
    /// Of the maker's memory bandwidth, percent; above 100 the operands came from caches, as in the next two.
    pub datasheet_bandwidth_pct: Option<f64>,
    pub measured_bandwidth_pct: Option<f64>,
    pub clocked_bandwidth_pct: Option<f64>,
}

/// Sets each operator beside the ceilings, longest first. `on_cpu` tells whose time the host's is.
pub fn operator_mfu(operators: &Operators, limits: &Limits, on_cpu: bool, findings: &mut Vec<Finding>) -> Vec<OperatorMfu> {
    let mut rows: Vec<OperatorMfu> = operators.leaves().filter_map(|it| row(it, limits, on_cpu, findings)).collect();
    rows.sort_by(|a, b| b.exclusive_ms.total_cmp(&a.exclusive_ms));
    // What was measured is no bound of physics: better than it is told, as one finding, and no use of it is.
    let over: Vec<(usize, f64)> =
        (0..rows.len()).filter_map(|at| Some((at, rows[at].measured_pct.filter(|pct| *pct > 100.0 + TOLERANCE_PCT)?))).collect();
    if let Some((best, pct)) = over.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) {
        findings.push(surpassed(&rows[best], pct, over.len()));
    }
    over.iter().for_each(|(at, _)| rows[*at].measured_pct = None);
    rows
}

fn surpassed(best: &OperatorMfu, pct: f64, count: usize) -> Finding {
    let message =
        format!("{} in {} did better than the matrix product that was measured, at {pct:.1} % of it.", best.path, best.stage);
    Finding::new("ceiling_surpassed", Severity::Info, message)
        .with("operators", count)
        .with("operator ms", format!("{:.3}", best.exclusive_ms))
        .with("of", best.time_of.as_str())
}

fn row(it: &OperatorRecord, limits: &Limits, on_cpu: bool, findings: &mut Vec<Finding>) -> Option<OperatorMfu> {
    let (time_of, exclusive_ms, exclusive_pct, flops_per_s, bytes_per_s) = match &it.device {
        Some(device) => ("kernels", device.exclusive_ms, device.exclusive_pct, device.flops_per_s, device.bytes_per_s),
        None if on_cpu => ("host", it.exclusive_ms?, it.exclusive_pct, it.flops_per_s, it.bytes_per_s),
        None => return None,
    };
    flops_per_s.or(bytes_per_s)?;
    let scope = format!("{} in {}", it.path, it.stage);
    let mut share = |ceiling: Option<f64>, of: &str| possible(&scope, percent(flops_per_s?, ceiling?)?, of, findings);
    let bandwidth = |ceiling: Option<f64>| percent(bytes_per_s?, ceiling?);
    Some(OperatorMfu {
        datasheet_pct: share(limits.datasheet_flops(&it.dtype), "the datasheet's peak FLOP/s"),
        measured_pct: percent(flops_per_s.unwrap_or(f64::NAN), limits.measured_flops(&it.dtype).unwrap_or(f64::NAN)),
        clocked_pct: share(limits.clocked_flops(&it.dtype, &it.stage), "the datasheet's peak at the clocks that were seen"),
        datasheet_bandwidth_pct: bandwidth(limits.datasheet_bytes()),
        measured_bandwidth_pct: bandwidth(limits.measured_bytes()),
        clocked_bandwidth_pct: bandwidth(limits.clocked_bytes(&it.stage)),
        path: it.path.clone(),
        op: it.op.clone(),
        stage: it.stage.clone(),
        dtype: it.dtype.clone(),
        time_of: time_of.into(),
        exclusive_ms,
        exclusive_pct,
        flops_per_s,
        bytes_per_s,
        flops_per_byte: ratio(it.flops as f64, it.bytes as f64).filter(|it| *it > 0.0),
    })
}
