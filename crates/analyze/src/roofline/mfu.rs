//! Compute and memory utilisation per stage and for the whole pass.
//!
//! MFU = required FLOPs / (time x peak FLOP/s) (PaLM, arXiv 2204.02311, appendix B), relative to
//! the datasheet's peak, to a matrix product measured on this device, and to the datasheet's peak
//! at observed clocks. A result above 100 % means that some input is wrong: it is removed with a
//! finding.

use serde::{Deserialize, Serialize};

mod operators;

pub use self::operators::{OperatorMfu, operator_mfu};
use llmprof_core::domain::finding::{Finding, catalogue};

use crate::{
    model_work::StageFlops,
    operators::Operators,
    roofline::ceilings::DeviceCeilings,
    stages::{PREFILL, STAGES, Stages, in_sentence},
    stats::{percent, ratio},
    timeline::gpu::StageGpus,
};

/// Scope of the row over all stages.
pub const ALL_STAGES: &str = "model";
/// Tolerance above 100 %, in points, for errors in clocks and times.
pub const TOLERANCE_PCT: f64 = 1.0;

/// Achieved rates of one scope, with the device's ceilings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MfuRecord {
    /// A stage, or `model` for all stages.
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub scope: String,
    /// FLOPs per repeat, on one GPU: the mean over the GPUs that a repeat uses.
    pub flops: u64,
    /// `counted` from the operators that ran, or `modelled` from the architecture if some calls
    /// were not recorded.
    #[cfg_attr(feature = "schema", schema(example = "counted"))]
    pub flops_source: String,
    /// Mean time per repeat.
    pub ms: f64,
    pub flops_per_s: Option<f64>,
    /// Percent of the datasheet's dense peak.
    pub datasheet_pct: Option<f64>,
    /// Percent of the matrix product measured on this device.
    pub measured_pct: Option<f64>,
    /// Percent of the datasheet's peak at the stage's mean SM clock; `null` without clock samples.
    #[serde(default)]
    pub clocked_pct: Option<f64>,
    /// Bytes per repeat read and written by operators on one GPU, each operand once; `null` if some
    /// calls were not recorded.
    pub bytes: Option<u64>,
    pub bytes_per_s: Option<f64>,
    /// Percent of the datasheet's memory bandwidth.
    pub datasheet_bandwidth_pct: Option<f64>,
    /// Percent of the copy measured on this device; above 100 when caches served operands.
    pub measured_bandwidth_pct: Option<f64>,
    /// Percent of the datasheet's memory bandwidth at the stage's mean memory clock.
    #[serde(default)]
    pub clocked_bandwidth_pct: Option<f64>,
    /// Peak FLOP/s at the stage's mean SM clock.
    #[serde(default)]
    pub clocked_flops_per_s: Option<f64>,
    /// Mean SM clock during the unprofiled pass, MHz.
    #[serde(default)]
    pub sm_mhz: Option<f64>,
}

/// Peak rates of the device, with their sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Ceilings {
    /// Device of the datasheet; `null` when it is not in the table of devices.
    pub device: Option<String>,
    pub datasheet_flops_per_s: Option<f64>,
    pub datasheet_bytes_per_s: Option<f64>,
    /// Source of the datasheet's figures.
    pub datasheet_source: Option<String>,
    pub measured_flops_per_s: Option<f64>,
    pub measured_bytes_per_s: Option<f64>,
    /// SM clock of the datasheet's peak, MHz; `null` if it is not in the table of devices.
    #[serde(default)]
    pub datasheet_mhz: Option<f64>,
    /// Dtype of the matrix products.
    #[cfg_attr(feature = "schema", schema(example = "bf16"))]
    pub dtype: String,
}

/// MFU per scope.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mfu {
    pub rows: Vec<MfuRecord>,
    pub ceilings: Option<Ceilings>,
    /// Operators with FLOPs or memory traffic, longest first.
    pub operators: Vec<OperatorMfu>,
    pub findings: Vec<Finding>,
}

/// Computes achieved rates, and their share of each known ceiling; `dtype` is the products' dtype.
/// Ceilings are of one GPU, so FLOPs and bytes are divided by the GPUs of an instance.
pub fn mfu(
    dtype: &str,
    (stages, gpus): (&Stages, &StageGpus),
    operators: &Operators,
    modelled: Option<StageFlops>,
    ceilings: &DeviceCeilings,
) -> Mfu {
    let peaks = Ceilings {
        device: ceilings.peaks.map(|peaks| peaks.name.clone()),
        datasheet_flops_per_s: ceilings.datasheet_flops(dtype),
        datasheet_bytes_per_s: ceilings.datasheet_bytes(),
        datasheet_source: ceilings.peaks.map(|peaks| peaks.source.clone()),
        measured_flops_per_s: ceilings.measured_flops(dtype),
        measured_bytes_per_s: ceilings.measured_bytes(),
        datasheet_mhz: ceilings.peaks.and_then(|peaks| peaks.boost_mhz(dtype)),
        dtype: dtype.to_owned(),
    };
    let mut rows = work_rows((stages, gpus), operators, modelled);
    let mut findings = Vec::new();
    for row in &mut rows {
        let over_stages =
            |ceiling: &dyn Fn(&str) -> Option<f64>| scope_mean(&row.scope, stages, ceiling);
        let sm_mhz = over_stages(&|stage| ceilings.sm_mhz(stage));
        let clocked_flops = over_stages(&|stage| ceilings.clocked_flops(dtype, stage));
        let clocked_bytes = over_stages(&|stage| ceilings.clocked_bytes(stage));
        (row.sm_mhz, row.clocked_flops_per_s) = (sm_mhz, clocked_flops);
        let mut share = |ceiling: Option<f64>, of: &str| {
            let pct = percent(row.flops_per_s?, ceiling?)?;
            possible(in_sentence(&row.scope), pct, of, &mut findings)
        };
        row.datasheet_pct = share(peaks.datasheet_flops_per_s, "the datasheet's peak FLOP/s");
        row.measured_pct = share(peaks.measured_flops_per_s, "the measured matrix product");
        row.clocked_pct = share(clocked_flops, "the datasheet's peak at the observed clocks");
        // Bytes are counted per operand: caches may serve some.
        let bandwidth = |ceiling: Option<f64>| percent(row.bytes_per_s?, ceiling?);
        row.datasheet_bandwidth_pct = bandwidth(peaks.datasheet_bytes_per_s);
        row.measured_bandwidth_pct = bandwidth(peaks.measured_bytes_per_s);
        row.clocked_bandwidth_pct = bandwidth(clocked_bytes);
    }
    Mfu { rows, ceilings: Some(peaks), operators: vec![], findings }
}

/// Work and rates of each stage, and of all stages together.
fn work_rows(
    (stages, gpus): (&Stages, &StageGpus),
    operators: &Operators,
    modelled: Option<StageFlops>,
) -> Vec<MfuRecord> {
    let mut rows: Vec<MfuRecord> = Vec::new();
    for stage in STAGES {
        let Some(timing) = stages.row(stage) else { continue };
        let work = operators.work.get(stage);
        // A model's work is known on one GPU only.
        let shares = f64::from(timing.ms.n) * gpus.gpus_of_instance(stage);
        let share = |amount: u64| (amount as f64 / shares) as u64;
        let modelled =
            modelled.and_then(|it| if stage == PREFILL { it.prefill } else { it.decode });
        let counted = work.filter(|work| work.flops > 0);
        let (flops, source) = match (counted, modelled) {
            (Some(work), _) => (share(work.flops), "counted"),
            (None, Some(flops)) if flops > 0 => (flops, "modelled"),
            (None, _) => continue,
        };
        let bytes = counted.map(|work| share(work.bytes)).filter(|bytes| *bytes > 0);
        rows.push(row(stage, flops, source, timing.ms.mean, bytes));
    }
    if rows.len() == stages.rows.len() && !rows.is_empty() {
        // Counts of a corrupt capture may exceed 64 bits.
        let bytes = rows.iter().try_fold(0, |sum: u64, row| Some(sum.saturating_add(row.bytes?)));
        let flops = rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.flops));
        let all_counted = rows.iter().all(|row| row.flops_source == "counted");
        let source = if all_counted { "counted" } else { "modelled" };
        let ms = rows.iter().map(|row| row.ms).sum();
        rows.push(row(ALL_STAGES, flops, source, ms, bytes));
    }
    rows
}

/// A ceiling of a scope; over all stages, the mean of their ceilings weighted by time.
fn scope_mean(scope: &str, stages: &Stages, ceiling: &dyn Fn(&str) -> Option<f64>) -> Option<f64> {
    if scope != ALL_STAGES {
        return ceiling(scope);
    }
    let weighted: Option<Vec<(f64, f64)>> =
        stages.rows.iter().map(|it| Some((ceiling(&it.stage)?, it.ms.mean))).collect();
    let (sum, ms) = weighted?
        .into_iter()
        .fold((0.0, 0.0), |(sum, all), (value, ms)| (sum + value * ms, all + ms));
    ratio(sum, ms)
}
/// Returns a share of a ceiling; one above 100 % becomes a finding instead.
fn possible(scope: &str, pct: f64, of: &str, findings: &mut Vec<Finding>) -> Option<f64> {
    if pct <= 100.0 + TOLERANCE_PCT {
        return Some(pct);
    }
    findings.push(impossible(scope, pct, of));
    None
}

fn row(scope: &str, flops: u64, source: &str, ms: f64, bytes: Option<u64>) -> MfuRecord {
    let per_second = |amount: u64| ratio(amount as f64 * 1e3, ms);
    MfuRecord {
        scope: scope.into(),
        flops,
        flops_source: source.into(),
        ms,
        flops_per_s: per_second(flops),
        datasheet_pct: None,
        measured_pct: None,
        bytes,
        bytes_per_s: bytes.and_then(per_second),
        datasheet_bandwidth_pct: None,
        measured_bandwidth_pct: None,
        clocked_pct: None,
        clocked_bandwidth_pct: None,
        clocked_flops_per_s: None,
        sm_mhz: None,
    }
}

fn impossible(scope: &str, pct: f64, of: &str) -> Finding {
    let message = format!("{scope} would reach {pct:.1} % of {of}, which is impossible.");
    Finding::new(catalogue::MFU_IMPOSSIBLE, message)
        .with("scope", scope)
        .with("percent", format!("{pct:.1}"))
        .with("of", of)
        .advise(
            "Do not use this figure: check the device's name, the dtype and the operand sizes of \
             the measured ceiling.",
        )
}
