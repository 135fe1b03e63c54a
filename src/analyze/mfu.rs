//! Use of the device's arithmetic and of its memory, per stage and for the whole pass.
//!
//! MFU = FLOPs that the work needs / (time x peak FLOP/s) (PaLM, arXiv 2204.02311, appendix B), against the maker's figure, against
//! what this very device reached in a plain matrix product, and against the maker's figure at the clocks that were observed. A result above
//! 100 % is an error of some input: it is refused with a finding, never shown.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

mod operators;

pub use self::operators::{OperatorMfu, operator_mfu};
use super::{
    cost::Cost,
    events::Events,
    limits::Limits,
    operators::Operators,
    stages::{PREFILL, STAGES, Stages},
    stats::{percent, ratio},
};
use crate::run::{Finding, Severity};

/// Scope of a row over all stages.
pub const WHOLE: &str = "model";
/// By so much a use may pass 100 %, in points: clocks and times are read with some error.
pub const TOLERANCE_PCT: f64 = 1.0;

/// Achieved rates of one scope, beside what the device could do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MfuRecord {
    /// A stage, or `model` for all of them.
    #[schema(example = "prefill")]
    pub scope: String,
    /// FLOPs per repeat.
    pub flops: u64,
    /// `counted` from the operators that ran, or `modelled` from the architecture where not every call was recorded.
    #[schema(example = "counted")]
    pub flops_source: String,
    /// Mean time per repeat.
    pub ms: f64,
    pub flops_per_s: Option<f64>,
    /// Of the maker's dense peak, percent.
    pub datasheet_pct: Option<f64>,
    /// Of the matrix product measured on this device, percent.
    pub measured_pct: Option<f64>,
    /// Of the maker's peak at the mean SM clock of the stage, percent; `null` where clocks were not sampled.
    #[serde(default)]
    pub clocked_pct: Option<f64>,
    /// Bytes per repeat that operators read and wrote, each operand once; `null` where not every call was recorded.
    pub bytes: Option<u64>,
    pub bytes_per_s: Option<f64>,
    /// Of the maker's memory bandwidth, percent.
    pub datasheet_bandwidth_pct: Option<f64>,
    /// Of the copy measured on this device, percent; above 100 the operands came from caches.
    pub measured_bandwidth_pct: Option<f64>,
    /// Of the maker's memory bandwidth at the mean memory clock of the stage, percent.
    #[serde(default)]
    pub clocked_bandwidth_pct: Option<f64>,
    /// Peak FLOP/s at the mean SM clock of the stage.
    #[serde(default)]
    pub clocked_flops_per_s: Option<f64>,
    /// Mean SM clock beside the plain pass, MHz.
    #[serde(default)]
    pub sm_mhz: Option<f64>,
}

/// What the device can do at most, and how that is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ceilings {
    /// Device that the datasheet is of; `null` when it is not in the table of devices.
    pub device: Option<String>,
    pub datasheet_flops_per_s: Option<f64>,
    pub datasheet_bytes_per_s: Option<f64>,
    /// Where the maker's figures were printed.
    pub datasheet_source: Option<String>,
    pub measured_flops_per_s: Option<f64>,
    pub measured_bytes_per_s: Option<f64>,
    /// SM clock that the datasheet's peak is for, MHz; `null` where it is not in the table of devices.
    #[serde(default)]
    pub datasheet_mhz: Option<f64>,
    /// Number format of the matrix products.
    #[schema(example = "bf16")]
    pub dtype: String,
}

/// MFU per scope.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mfu {
    pub rows: Vec<MfuRecord>,
    pub ceilings: Option<Ceilings>,
    /// Operators that multiply or move, longest first.
    pub operators: Vec<OperatorMfu>,
    pub findings: Vec<Finding>,
}

/// Computes achieved rates, and their share of each known ceiling.
pub fn mfu(events: &Events, stages: &Stages, operators: &Operators, cost: Option<&Cost>, limits: &Limits) -> Mfu {
    let Some(start) = events.start else { return Mfu::default() };
    let dtype = start.dtype.as_str();
    let ceilings = Ceilings {
        device: limits.peaks.map(|peaks| peaks.name.clone()),
        datasheet_flops_per_s: limits.datasheet_flops(dtype),
        datasheet_bytes_per_s: limits.datasheet_bytes(),
        datasheet_source: limits.peaks.map(|peaks| peaks.source.clone()),
        measured_flops_per_s: limits.measured_flops(dtype),
        measured_bytes_per_s: limits.measured_bytes(),
        datasheet_mhz: limits.peaks.and_then(|peaks| peaks.boost_mhz(dtype)),
        dtype: dtype.to_owned(),
    };

    let mut rows: Vec<MfuRecord> = Vec::new();
    for stage in STAGES {
        let Some(timing) = stages.row(stage) else { continue };
        let work = operators.work.get(stage);
        let repeats = u64::from(timing.ms.n);
        let modelled = cost.map(|cost| if stage == PREFILL { cost.prefill_flops } else { cost.decode_flops });
        let counted = work.filter(|work| work.flops > 0);
        let (flops, source) = match (counted, modelled) {
            (Some(work), _) => (work.flops / repeats, "counted"),
            (None, Some(flops)) => (flops, "modelled"),
            (None, None) => continue,
        };
        rows.push(row(stage, flops, source, timing.ms.mean, counted.map(|work| work.bytes / repeats)));
    }
    if rows.len() == stages.rows.len() && !rows.is_empty() {
        let bytes = rows.iter().map(|row| row.bytes).sum();
        let source = if rows.iter().all(|row| row.flops_source == "counted") { "counted" } else { "modelled" };
        let ms = rows.iter().map(|row| row.ms).sum();
        rows.push(row(WHOLE, rows.iter().map(|row| row.flops).sum(), source, ms, bytes));
    }

    // Over all stages a limit is the mean of theirs, by their time.
    let over_time = |row: &MfuRecord, of: &dyn Fn(&str) -> Option<f64>| match row.scope.as_str() {
        WHOLE => {
            let all: Option<Vec<(f64, f64)>> = stages.rows.iter().map(|it| Some((of(&it.stage)?, it.ms.mean))).collect();
            let (sum, ms) = all?.into_iter().fold((0.0, 0.0), |(sum, all), (value, ms)| (sum + value * ms, all + ms));
            ratio(sum, ms)
        }
        stage => of(stage),
    };
    let mut findings = Vec::new();
    for row in &mut rows {
        row.sm_mhz = over_time(row, &|stage| limits.sm_mhz(stage));
        row.clocked_flops_per_s = over_time(row, &|stage| limits.clocked_flops(dtype, stage));
        let clocked_bytes = over_time(row, &|stage| limits.clocked_bytes(stage));
        let mut share = |ceiling: Option<f64>, of: &str| {
            let pct = percent(row.flops_per_s?, ceiling?)?;
            possible(&row.scope, pct, of, &mut findings)
        };
        row.datasheet_pct = share(ceilings.datasheet_flops_per_s, "the datasheet's peak FLOP/s");
        row.measured_pct = share(ceilings.measured_flops_per_s, "the measured matrix product");
        row.clocked_pct = share(row.clocked_flops_per_s, "the datasheet's peak at the clocks that were seen");
        // Bytes are counted per operand, caches serve part of them: more than memory gives is possible, and says just that.
        let bandwidth = |ceiling: Option<f64>| percent(row.bytes_per_s?, ceiling?);
        row.datasheet_bandwidth_pct = bandwidth(ceilings.datasheet_bytes_per_s);
        row.measured_bandwidth_pct = bandwidth(ceilings.measured_bytes_per_s);
        row.clocked_bandwidth_pct = bandwidth(clocked_bytes);
    }
    Mfu { rows, ceilings: Some(ceilings), operators: vec![], findings }
}

/// A use that can be; one above 100 % becomes a finding.
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
    Finding::new("mfu_impossible", Severity::Critical, format!("{scope} would reach {pct:.1} % of {of}, which cannot be."))
        .with("scope", scope)
        .with("percent", format!("{pct:.1}"))
        .with("of", of)
        .advise("Do not use this figure: check the device's name, the number format and the ceiling's operand sizes.")
}
