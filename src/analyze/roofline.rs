//! Where each profiled kernel lies under the device's roof: operations per byte against operations per second.
//!
//! From ncu's counters alone: intensity = FLOPs / DRAM bytes, achieved = FLOPs / duration of the replay, roof = min(peak FLOP/s, intensity
//! x peak bytes/s), ridge = peak FLOP/s / peak bytes/s (Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009). FLOPs are additions
//! and products as one, multiply-adds as two, packed ones twice that, and those of the tensor cores as the device counts them (Nsight
//! Compute's sections SpeedOfLight_RooflineChart). Where the tensor cores worked uncounted there is no point.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    counters::CounterRecord,
    kernels::Kernels,
    limits::Limits,
    mfu::TOLERANCE_PCT,
    stats::{percent, ratio},
};
use crate::run::{Finding, Severity};

/// Below this use of both compute and memory, percent, a kernel waits for neither: the border that Nsight Compute's rule SOLBottleneck
/// takes for latency.
pub const LATENCY_BELOW_PCT: f64 = 60.0;
/// From this use on, percent, a unit is near its roof: the border of the same rule.
pub const AT_ROOF_PCT: f64 = 80.0;

/// One roof of the device: a limit of arithmetic in one number format over one of memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Roof {
    /// `datasheet`, or `measured` by the runner on this device.
    #[schema(example = "datasheet")]
    pub source: String,
    #[schema(example = "bf16")]
    pub dtype: String,
    pub flops_per_s: f64,
    pub bytes_per_s: f64,
    /// Operations per byte from which on arithmetic limits and not memory.
    #[schema(example = 206.0)]
    pub ridge_flops_per_byte: f64,
}

/// What limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The multiprocessors are the busier unit, at 60 % or more.
    Compute,
    /// The memory system is, at 60 % or more.
    Memory,
    /// Both are below 60 %.
    Latency,
}

impl Bound {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Latency => "latency",
        }
    }
}

/// One kernel in one stage, its profiled geometries together, each weighing as often as it ran in the timeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RooflinePoint {
    #[schema(example = "decode_all")]
    pub stage: String,
    pub kernel_name: String,
    /// Launches that ncu profiled.
    pub profiled: u64,
    /// Grids and blocks among them.
    pub geometries: u64,
    /// Time of these geometries in the timeline; `null` where it holds none.
    pub timeline_total_ms: Option<f64>,
    /// Of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
    /// Mean duration of a replayed launch.
    pub replay_ns: Option<f64>,
    /// Operations of a launch; `null` where those of a unit that worked were not counted.
    pub flops: Option<f64>,
    /// Number format of most of them, those of the tensor cores as `tensor_*`.
    #[schema(example = "tensor_bf16")]
    pub format: Option<String>,
    /// Number format of the roof that it stands under; `null` where no roof is known for `format`.
    #[schema(example = "bf16")]
    pub roof_dtype: Option<String>,
    /// Bytes of device memory that a launch read and wrote.
    pub dram_bytes: Option<f64>,
    /// Arithmetic intensity.
    pub flops_per_byte: Option<f64>,
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Of the datasheet's roof at this intensity, percent.
    pub datasheet_pct: Option<f64>,
    /// Of the measured roof at this intensity, percent; above 100 it did better than the copy or product that was measured.
    pub measured_pct: Option<f64>,
    /// Busiest unit of the multiprocessors, percent of what it sustains.
    pub sm_pct: Option<f64>,
    /// Busiest unit of the memory system, caches included.
    pub memory_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    /// `null` where use of compute or memory was not read.
    pub bound: Option<Bound>,
    /// Why it has no intensity.
    pub missing: Option<String>,
}

/// The roofs of a device and what was profiled under them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Roofline {
    /// Device that the datasheet is of; `null` when it is not in the table of devices.
    pub device: Option<String>,
    pub roofs: Vec<Roof>,
    /// Longest in the timeline first.
    pub points: Vec<RooflinePoint>,
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Places what was profiled under the device's roofs.
pub fn roofline(counters: &[CounterRecord], kernels: &Kernels, limits: &Limits) -> Roofline {
    if counters.is_empty() {
        return Roofline::default();
    }
    let mut groups: BTreeMap<(&str, &str), Vec<&CounterRecord>> = BTreeMap::new();
    counters.iter().for_each(|it| groups.entry((&it.stage, &it.kernel_name)).or_default().push(it));
    let mut findings = Vec::new();
    let mut points: Vec<RooflinePoint> = groups
        .values()
        .map(|records| {
            let mut point = point(records);
            let stage_ms = kernels.stage_ms(&point.stage);
            point.share_pct = stage_ms.and_then(|stage_ms| percent(point.timeline_total_ms?, stage_ms));
            place(&mut point, limits, &mut findings);
            point
        })
        .collect();
    let long = |point: &RooflinePoint| point.timeline_total_ms.unwrap_or(0.0);
    points.sort_by(|a, b| long(b).total_cmp(&long(a)));
    Roofline { device: limits.peaks.map(|peaks| peaks.name.clone()), roofs: roofs(limits), points, findings }
}

fn roofs(limits: &Limits) -> Vec<Roof> {
    let roof = |source: &str, dtype: &str, flops: Option<f64>, bytes: Option<f64>| {
        let (flops_per_s, bytes_per_s) = (flops?, bytes?);
        let ridge_flops_per_byte = ratio(flops_per_s, bytes_per_s)?;
        Some(Roof { source: source.into(), dtype: dtype.into(), flops_per_s, bytes_per_s, ridge_flops_per_byte })
    };
    let of = |dtype: &str| {
        let datasheet = roof("datasheet", dtype, limits.datasheet_flops(dtype), limits.datasheet_bytes());
        [datasheet, roof("measured", dtype, limits.measured_flops(dtype), limits.measured_bytes())]
    };
    limits.dtypes().into_iter().flat_map(of).flatten().collect()
}

/// The number format of the roof that operations of `format` have. Packed half-precision arithmetic outside tensor cores has none: the
/// figures for f16 are of tensor cores.
fn roof_dtype(format: &str) -> Option<&'static str> {
    match format {
        "tensor_bf16" => Some("bf16"),
        "tensor_fp16" => Some("f16"),
        "fp32" => Some("f32"),
        _ => None,
    }
}

/// Sums the geometries of one kernel in one stage. What one of them lacks, the sum lacks.
fn point(records: &[&CounterRecord]) -> RooflinePoint {
    let in_timeline = records.iter().all(|it| it.timeline_calls.is_some());
    let weight = |it: &CounterRecord| it.timeline_calls.filter(|_| in_timeline).unwrap_or(it.profiled) as f64;
    let launches: f64 = records.iter().map(|it| weight(it)).sum();
    let sum = |field: &dyn Fn(&CounterRecord) -> Option<f64>| -> Option<f64> {
        let all: Option<f64> = records.iter().map(|it| Some(field(it)? * weight(it))).sum();
        ratio(all?, launches)
    };
    // Shares of peak are of time: they weigh by how long their launches took.
    let busy = |field: fn(&CounterRecord) -> Option<f64>| -> Option<f64> {
        let parts: Option<Vec<(f64, f64)>> =
            records.iter().map(|it| Some((field(it)?, it.values.duration_ns? * weight(it)))).collect();
        let (top, whole) = parts?.into_iter().fold((0.0, 0.0), |(top, whole), (value, ns)| (top + value * ns, whole + ns));
        ratio(top, whole)
    };
    let mut formats: BTreeMap<&str, f64> = BTreeMap::new();
    for record in records {
        for (format, flops) in &record.values.flops {
            *formats.entry(format).or_default() += flops * weight(record);
        }
    }
    let most = formats.into_iter().filter(|(_, flops)| *flops > 0.0).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(format, _)| format);
    let (replay_ns, dram_bytes) = (sum(&|it| it.values.duration_ns), sum(&|it| it.values.dram_bytes));
    let flops = sum(&|it| it.values.total_flops());
    let seconds = replay_ns.map(|ns| ns / 1e9);
    let (sm_pct, memory_pct, dram_pct) =
        (busy(|it| it.values.sm_pct), busy(|it| it.values.memory_pct), busy(|it| it.values.dram_pct));
    RooflinePoint {
        stage: records[0].stage.clone(),
        kernel_name: records[0].kernel_name.clone(),
        profiled: records.iter().map(|it| it.profiled).sum(),
        geometries: records.len() as u64,
        timeline_total_ms: records.iter().filter_map(|it| it.timeline_total_ms).reduce(|a, b| a + b),
        replay_ns,
        flops,
        format: most.filter(|_| flops.is_some()).map(str::to_owned),
        dram_bytes,
        flops_per_byte: flops.zip(dram_bytes).and_then(|(flops, bytes)| ratio(flops, bytes)),
        flops_per_s: flops.zip(seconds).and_then(|(flops, seconds)| ratio(flops, seconds)),
        bytes_per_s: dram_bytes.zip(seconds).and_then(|(bytes, seconds)| ratio(bytes, seconds)),
        sm_pct,
        memory_pct,
        dram_pct,
        achieved_occupancy_pct: busy(|it| it.values.achieved_occupancy_pct),
        bound: bound(sm_pct, memory_pct.or(dram_pct)),
        missing: missing(records, dram_bytes),
        ..RooflinePoint::default()
    }
}

/// Compute or memory, whichever is the busier, where one of them is busy at all.
fn bound(sm_pct: Option<f64>, memory_pct: Option<f64>) -> Option<Bound> {
    let (sm, memory) = (sm_pct?, memory_pct?);
    Some(match sm.max(memory) {
        most if most < LATENCY_BELOW_PCT => Bound::Latency,
        _ if sm >= memory => Bound::Compute,
        _ => Bound::Memory,
    })
}

fn missing(records: &[&CounterRecord], dram_bytes: Option<f64>) -> Option<String> {
    let why = if records.iter().any(|it| it.values.tensor_pct.is_some_and(|pct| pct > 0.0) && !it.values.flops_complete) {
        "Its tensor cores worked and their operations were not counted (sm__ops_path_tensor_src_*)."
    } else if records.iter().any(|it| !it.values.flops_complete) {
        "Its operations were not counted: add the section SpeedOfLight_RooflineChart and the counters of mode deep."
    } else if dram_bytes.is_none() {
        "Its bytes of device memory were not counted."
    } else if dram_bytes == Some(0.0) {
        "It moved no byte of device memory: caches served it."
    } else {
        return None;
    };
    Some(why.into())
}

/// Sets the point beside the roofs. More than the datasheet's roof is an error of some input: it is refused.
fn place(point: &mut RooflinePoint, limits: &Limits, findings: &mut Vec<Finding>) {
    let Some(dtype) = point.format.as_deref().and_then(roof_dtype) else { return };
    point.roof_dtype = limits.dtypes().contains(&dtype).then(|| dtype.to_owned());
    let (Some(intensity), Some(achieved)) = (point.flops_per_byte, point.flops_per_s) else { return };
    let share = |flops: Option<f64>, bytes: Option<f64>| percent(achieved, flops?.min(intensity * bytes?));
    point.measured_pct = share(limits.measured_flops(dtype), limits.measured_bytes());
    match share(limits.datasheet_flops(dtype), limits.datasheet_bytes()) {
        Some(pct) if pct > 100.0 + TOLERANCE_PCT => findings.push(impossible(point, dtype, pct)),
        known => point.datasheet_pct = known,
    }
}

fn impossible(point: &RooflinePoint, dtype: &str, pct: f64) -> Finding {
    let message = format!(
        "{} in {} would reach {pct:.1} % of the datasheet's {dtype} roof, which cannot be.",
        point.kernel_name, point.stage
    );
    Finding::new("roofline_impossible", Severity::Critical, message)
        .with("percent", format!("{pct:.1}"))
        .with("FLOP/B", format!("{:.2}", point.flops_per_byte.unwrap_or_default()))
        .with("FLOP/s", format!("{:.3e}", point.flops_per_s.unwrap_or_default()))
        .with("format", point.format.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
