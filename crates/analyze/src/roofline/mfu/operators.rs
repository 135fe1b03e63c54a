//! Compute and memory utilisation of each operator, layers rolled up.
//!
//! On a GPU the time is the time of the operator's own kernels in the traced pass, on the CPU its
//! own host time in the unprofiled pass. An operator without a known time has no row: launching
//! calls do not measure the work.

use llmprof_core::domain::finding::{Finding, catalogue};
use serde::{Deserialize, Serialize};

use super::{TOLERANCE_PCT, possible};
use crate::{
    operators::{OperatorRecord, Operators},
    roofline::ceilings::DeviceCeilings,
    stages::in_stage,
    stats::{percent, ratio},
};

/// Achieved rates of one operator in one stage, with three ceilings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OperatorMfu {
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.self_attn.q_proj"))]
    pub path: String,
    #[cfg_attr(feature = "schema", schema(example = "linear"))]
    pub op: String,
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = "bf16"))]
    pub dtype: String,
    /// `kernels` of the traced pass, or `host` time of the unprofiled pass.
    #[cfg_attr(feature = "schema", schema(example = "kernels"))]
    pub time_of: String,
    /// Time without enclosed operators, over all repeats of that pass.
    pub exclusive_ms: f64,
    /// Share of the stage's time of that kind, percent.
    pub exclusive_pct: Option<f64>,
    /// `null` for an operator without FLOPs.
    pub flops_per_s: Option<f64>,
    /// Operands and results, each counted once; `null` above the device's bandwidth.
    pub bytes_per_s: Option<f64>,
    /// FLOPs per byte of operands and results.
    pub flops_per_byte: Option<f64>,
    /// Percent of the datasheet's peak.
    pub datasheet_pct: Option<f64>,
    /// Percent of the matrix product measured on this device; `null` when the operator exceeds it.
    pub measured_pct: Option<f64>,
    /// Percent of the datasheet's peak at the stage's mean SM clock.
    pub clocked_pct: Option<f64>,
    /// Percent of the datasheet's memory bandwidth.
    pub datasheet_bandwidth_pct: Option<f64>,
    /// Percent of the copy measured on this device; above 100 when caches served operands, as in
    /// the next.
    pub measured_bandwidth_pct: Option<f64>,
    pub clocked_bandwidth_pct: Option<f64>,
}

/// Computes the shares of the ceilings for each operator, longest first. `on_cpu` selects host
/// time.
pub fn operator_mfu(
    operators: &Operators,
    ceilings: &DeviceCeilings,
    on_cpu: bool,
    findings: &mut Vec<Finding>,
) -> Vec<OperatorMfu> {
    let mut rows: Vec<OperatorMfu> =
        operators.leaves().filter_map(|it| row(it, ceilings, on_cpu, findings)).collect();
    rows.sort_by(|a, b| b.exclusive_ms.total_cmp(&a.exclusive_ms));
    // A measured product is not a physical limit: operators above it lose the share and make one
    // finding.
    let over: Vec<(usize, f64)> = (0..rows.len())
        .filter_map(|at| {
            Some((at, rows[at].measured_pct.filter(|pct| *pct > 100.0 + TOLERANCE_PCT)?))
        })
        .collect();
    if let Some((best, pct)) = over.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)) {
        findings.push(surpassed(&rows[best], pct, over.len()));
    }
    over.iter().for_each(|(at, _)| rows[*at].measured_pct = None);
    rows
}

fn surpassed(best: &OperatorMfu, pct: f64, count: usize) -> Finding {
    let message = format!(
        "{} exceeds the measured matrix product, at {pct:.1} % of it.",
        in_stage(&best.path, &best.stage)
    );
    Finding::new(catalogue::CEILING_SURPASSED, message)
        .with("operators", count)
        .with("operator ms", format!("{:.3}", best.exclusive_ms))
        .with("of", best.time_of.as_str())
}

fn row(
    it: &OperatorRecord,
    ceilings: &DeviceCeilings,
    on_cpu: bool,
    findings: &mut Vec<Finding>,
) -> Option<OperatorMfu> {
    let (time_of, exclusive_ms, exclusive_pct, flops_per_s, bytes_per_s) = match &it.device {
        Some(device) => (
            "kernels",
            device.exclusive_ms,
            device.exclusive_pct,
            device.flops_per_s,
            device.bytes_per_s,
        ),
        None if on_cpu => {
            ("host", it.exclusive_ms?, it.exclusive_pct, it.flops_per_s, it.bytes_per_s)
        }
        None => return None,
    };
    flops_per_s.or(bytes_per_s)?;
    let scope = in_stage(&it.path, &it.stage);
    let mut share = |ceiling: Option<f64>, of: &str| {
        possible(&scope, percent(flops_per_s?, ceiling?)?, of, findings)
    };
    let bandwidth = |ceiling: Option<f64>| percent(bytes_per_s?, ceiling?);
    Some(OperatorMfu {
        datasheet_pct: share(ceilings.datasheet_flops(&it.dtype), "the datasheet's peak FLOP/s"),
        measured_pct: percent(
            flops_per_s.unwrap_or(f64::NAN),
            ceilings.measured_flops(&it.dtype).unwrap_or(f64::NAN),
        ),
        clocked_pct: share(
            ceilings.clocked_flops(&it.dtype, &it.stage),
            "the datasheet's peak at the observed clocks",
        ),
        datasheet_bandwidth_pct: bandwidth(ceilings.datasheet_bytes()),
        measured_bandwidth_pct: bandwidth(ceilings.measured_bytes()),
        clocked_bandwidth_pct: bandwidth(ceilings.clocked_bytes(&it.stage)),
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
