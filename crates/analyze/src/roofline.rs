//! Roofline placement of profiled kernels: FLOPs per byte against FLOP/s.
//!
//! Only from ncu counters: intensity = FLOPs / DRAM bytes, achieved = FLOPs / duration of the
//! replay, roof = min(peak FLOP/s, intensity x peak bytes/s), ridge = peak FLOP/s / peak bytes/s
//! (Williams, Waterman, Patterson: "Roofline", CACM 52(4), 2009). Additions and products count as
//! one FLOP, multiply-adds as two, packed ones twice that, and tensor core operations as counted by
//! the device (Nsight Compute, section SpeedOfLight_RooflineChart). Kernels with operations that
//! were not counted have no point.

use std::collections::BTreeMap;

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::counter::UncountedOperations,
};
use serde::{Deserialize, Serialize};

use super::{
    kernels::KernelTimes,
    stats::{percent, ratio},
};
use crate::{
    kernels::counters::{CounterRecord, launch_configs},
    roofline::{ceilings::DeviceCeilings, mfu::TOLERANCE_PCT},
};

/// Max utilisation of compute and memory, percent, of a latency-bound kernel: the threshold of
/// Nsight Compute's rule SOLBottleneck.
pub const LATENCY_BELOW_PCT: f64 = 60.0;
/// Min utilisation, percent, of a unit near its roof: the threshold of the same rule.
pub const AT_ROOF_PCT: f64 = 80.0;

/// One roof of the device: a compute limit of one dtype over a memory limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Roof {
    /// `datasheet`, or `measured` by the runner on this device.
    #[cfg_attr(feature = "schema", schema(example = "datasheet"))]
    pub source: String,
    #[cfg_attr(feature = "schema", schema(example = "bf16"))]
    pub dtype: String,
    pub flops_per_s: f64,
    pub bytes_per_s: f64,
    /// Intensity above which compute is the limit rather than memory.
    #[cfg_attr(feature = "schema", schema(example = 206.0))]
    pub ridge_flops_per_byte: f64,
}

/// The resource that limits a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KernelBound {
    /// SM utilisation is higher, at 60 % or more.
    Compute,
    /// Memory utilisation is higher, at 60 % or more.
    Memory,
    /// Both are below 60 %.
    Latency,
}

impl KernelBound {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Latency => "latency",
        }
    }
}

/// One instantiation of a kernel in one stage, summed over its profiled launch configurations, each
/// weighted by its launches in the timeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RooflinePoint {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub kernel_name: String,
    /// Name with template arguments and parameters, as ncu prints it.
    #[serde(default)]
    pub full_name: String,
    /// Launches profiled by ncu.
    pub profiled: u64,
    /// Distinct grids and blocks among them.
    pub launch_configs: u64,
    /// Time of these configurations in the timeline; `null` without launches there.
    pub timeline_total_ms: Option<f64>,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
    /// Mean duration of a replayed launch.
    pub replay_ns: Option<f64>,
    /// FLOPs of a launch; `null` when an active unit's operations were not counted.
    pub flops: Option<f64>,
    /// Dtype of most FLOPs, prefixed with `tensor_` for tensor cores.
    #[cfg_attr(feature = "schema", schema(example = "tensor_bf16"))]
    pub format: Option<String>,
    /// Dtype of the roof that applies; `null` if no roof is known for `format`.
    #[cfg_attr(feature = "schema", schema(example = "bf16"))]
    pub roof_dtype: Option<String>,
    /// Bytes of device memory read and written by a launch.
    pub dram_bytes: Option<f64>,
    /// Arithmetic intensity.
    pub flops_per_byte: Option<f64>,
    pub flops_per_s: Option<f64>,
    pub bytes_per_s: Option<f64>,
    /// Percent of the datasheet's roof at this intensity.
    pub datasheet_pct: Option<f64>,
    /// Percent of the measured roof at this intensity; above 100 when the kernel exceeds the
    /// measured copy or product.
    pub measured_pct: Option<f64>,
    /// Utilisation of the busiest SM unit, percent of its sustained peak.
    pub sm_pct: Option<f64>,
    /// Utilisation of the busiest memory unit, caches included.
    pub memory_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    /// `null` if the utilisation of compute or memory is unknown.
    pub bound: Option<KernelBound>,
    /// Reason for a missing intensity.
    pub missing: Option<String>,
}

/// The roofs of a device and the profiled kernels.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Roofline {
    /// Device of the datasheet; `null` when it is not in the table of devices.
    pub device: Option<String>,
    pub roofs: Vec<Roof>,
    /// Longest in the timeline first.
    pub points: Vec<RooflinePoint>,
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Places the profiled kernels under the device's roofs.
pub fn roofline(
    counters: &[CounterRecord],
    kernels: &KernelTimes,
    ceilings: &DeviceCeilings,
) -> Roofline {
    if counters.is_empty() {
        return Roofline::default();
    }
    let mut groups: BTreeMap<(&str, &str, &str), Vec<&CounterRecord>> = BTreeMap::new();
    for it in counters {
        groups.entry((&it.stage, &it.kernel_name, &it.signature)).or_default().push(it);
    }
    let mut findings = Vec::new();
    let mut points: Vec<RooflinePoint> = groups
        .values()
        .map(|records| {
            let mut point = point(records);
            let stage_ms = kernels.stage_ms(&point.stage);
            point.share_pct =
                stage_ms.and_then(|stage_ms| percent(point.timeline_total_ms?, stage_ms));
            place(&mut point, ceilings, &mut findings);
            point
        })
        .collect();
    let time = |point: &RooflinePoint| point.timeline_total_ms.unwrap_or(0.0);
    points.sort_by(|a, b| time(b).total_cmp(&time(a)));
    Roofline {
        device: ceilings.peaks.map(|peaks| peaks.name.clone()),
        roofs: roofs(ceilings),
        points,
        findings,
    }
}

fn roofs(ceilings: &DeviceCeilings) -> Vec<Roof> {
    let roof = |source: &str, dtype: &str, flops: Option<f64>, bytes: Option<f64>| {
        let (flops_per_s, bytes_per_s) = (flops?, bytes?);
        let ridge_flops_per_byte = ratio(flops_per_s, bytes_per_s)?;
        Some(Roof {
            source: source.into(),
            dtype: dtype.into(),
            flops_per_s,
            bytes_per_s,
            ridge_flops_per_byte,
        })
    };
    let of = |dtype: &str| {
        let datasheet =
            roof("datasheet", dtype, ceilings.datasheet_flops(dtype), ceilings.datasheet_bytes());
        [
            datasheet,
            roof("measured", dtype, ceilings.measured_flops(dtype), ceilings.measured_bytes()),
        ]
    };
    ceilings.dtypes().into_iter().flat_map(of).flatten().collect()
}

/// The dtype of the roof for operations of `format`. Packed half-precision arithmetic outside
/// tensor cores has none: the f16 peak is for tensor cores.
fn roof_dtype(format: &str) -> Option<&'static str> {
    match format {
        "tensor_bf16" => Some("bf16"),
        "tensor_fp16" => Some("f16"),
        "fp32" => Some("f32"),
        _ => None,
    }
}

/// Sums the launch configurations of one instantiation in one stage. A value missing from one of
/// them is missing from the sum.
fn point(records: &[&CounterRecord]) -> RooflinePoint {
    let in_timeline = records.iter().all(|it| it.timeline_calls.is_some());
    let weight = |it: &CounterRecord| {
        it.timeline_calls.filter(|_| in_timeline).unwrap_or(it.profiled) as f64
    };
    let launches: f64 = records.iter().map(|it| weight(it)).sum();
    let sum = |field: &dyn Fn(&CounterRecord) -> Option<f64>| -> Option<f64> {
        let all: Option<f64> = records.iter().map(|it| Some(field(it)? * weight(it))).sum();
        ratio(all?, launches)
    };
    // Utilisation is averaged over time: weighted by the duration of the launches.
    let weighted = |field: fn(&CounterRecord) -> Option<f64>| -> Option<f64> {
        let parts: Option<Vec<(f64, f64)>> = records
            .iter()
            .map(|it| Some((field(it)?, it.values.duration_ns? * weight(it))))
            .collect();
        let (top, total) = parts?
            .into_iter()
            .fold((0.0, 0.0), |(top, total), (value, ns)| (top + value * ns, total + ns));
        ratio(top, total)
    };
    let mut formats: BTreeMap<&str, f64> = BTreeMap::new();
    for record in records {
        for (format, flops) in &record.values.flops {
            *formats.entry(format).or_default() += flops * weight(record);
        }
    }
    let dominant = formats
        .into_iter()
        .filter(|(_, flops)| *flops > 0.0)
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(format, _)| format);
    let (replay_ns, dram_bytes) =
        (sum(&|it| it.values.duration_ns), sum(&|it| it.values.dram_bytes));
    let flops = sum(&|it| it.values.total_flops());
    let seconds = replay_ns.map(|ns| ns / 1e9);
    let (sm_pct, memory_pct, dram_pct) = (
        weighted(|it| it.values.sm_pct),
        weighted(|it| it.values.memory_pct),
        weighted(|it| it.values.dram_pct),
    );
    RooflinePoint {
        stage: records[0].stage.clone(),
        kernel_name: records[0].kernel_name.clone(),
        full_name: records[0].full_name.clone(),
        profiled: records.iter().map(|it| it.profiled).sum(),
        launch_configs: launch_configs(records),
        timeline_total_ms: records
            .iter()
            .filter_map(|it| it.timeline_total_ms)
            .reduce(|a, b| a + b),
        replay_ns,
        flops,
        format: dominant.filter(|_| flops.is_some()).map(str::to_owned),
        dram_bytes,
        flops_per_byte: flops.zip(dram_bytes).and_then(|(flops, bytes)| ratio(flops, bytes)),
        flops_per_s: flops.zip(seconds).and_then(|(flops, seconds)| ratio(flops, seconds)),
        bytes_per_s: dram_bytes.zip(seconds).and_then(|(bytes, seconds)| ratio(bytes, seconds)),
        sm_pct,
        memory_pct,
        dram_pct,
        achieved_occupancy_pct: weighted(|it| it.values.achieved_occupancy_pct),
        bound: bound(sm_pct, memory_pct.or(dram_pct)),
        missing: missing(records, dram_bytes),
        ..RooflinePoint::default()
    }
}

/// Compute or memory, whichever has the higher utilisation, unless both are low.
fn bound(sm_pct: Option<f64>, memory_pct: Option<f64>) -> Option<KernelBound> {
    let (sm, memory) = (sm_pct?, memory_pct?);
    Some(match sm.max(memory) {
        max if max < LATENCY_BELOW_PCT => KernelBound::Latency,
        _ if sm >= memory => KernelBound::Compute,
        _ => KernelBound::Memory,
    })
}

fn missing(records: &[&CounterRecord], dram_bytes: Option<f64>) -> Option<String> {
    let is_uncounted =
        |operations| records.iter().any(|it| it.values.uncounted == Some(operations));
    let why = if is_uncounted(UncountedOperations::TensorCores) {
        "Its tensor core operations were not counted (sm__ops_path_tensor_src_*)."
    } else if is_uncounted(UncountedOperations::HalfPrecision) {
        "Its half-precision operations may be loads of constants."
    } else if records.iter().any(|it| !it.values.flops_complete) {
        "Its operations were not counted: use the sections and metrics of mode deep."
    } else if dram_bytes.is_none() {
        "Its device memory traffic was not counted."
    } else if dram_bytes == Some(0.0) {
        "It accessed no device memory: caches served all accesses."
    } else {
        return None;
    };
    Some(why.into())
}

/// Computes the point's shares of the roofs. A share far above 100 % of the datasheet's roof is
/// removed with a finding, because some input must be wrong.
fn place(point: &mut RooflinePoint, ceilings: &DeviceCeilings, findings: &mut Vec<Finding>) {
    let Some(dtype) = point.format.as_deref().and_then(roof_dtype) else { return };
    point.roof_dtype = ceilings.dtypes().contains(&dtype).then(|| dtype.to_owned());
    let (Some(intensity), Some(achieved)) = (point.flops_per_byte, point.flops_per_s) else {
        return;
    };
    let share =
        |flops: Option<f64>, bytes: Option<f64>| percent(achieved, flops?.min(intensity * bytes?));
    point.measured_pct = share(ceilings.measured_flops(dtype), ceilings.measured_bytes());
    match share(ceilings.datasheet_flops(dtype), ceilings.datasheet_bytes()) {
        Some(pct) if pct > 100.0 + TOLERANCE_PCT => findings.push(impossible(point, dtype, pct)),
        known => point.datasheet_pct = known,
    }
}

fn impossible(point: &RooflinePoint, dtype: &str, pct: f64) -> Finding {
    let message = format!(
        "{} in {} would reach {pct:.1} % of the datasheet's {dtype} roof, which is impossible.",
        point.kernel_name, point.stage
    );
    Finding::new(catalogue::ROOFLINE_IMPOSSIBLE, message)
        .with("percent", format!("{pct:.1}"))
        .with("FLOP/B", format!("{:.2}", point.flops_per_byte.unwrap_or_default()))
        .with("FLOP/s", format!("{:.3e}", point.flops_per_s.unwrap_or_default()))
        .with("format", point.format.as_deref().unwrap_or_default())
}

pub mod ceilings;
pub mod limits;
pub mod mfu;
#[cfg(test)]
mod tests;
