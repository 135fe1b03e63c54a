//! Sampled figures as the report has them: of kernels, stages and operators.

use std::collections::BTreeMap;

use llmprof_core::trace::gpu_metrics::GpuMetric;
use serde::{Deserialize, Serialize};

use crate::kernels::counters::Like;

/// A sampled metric of a kernel or operator, percent of the device's peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledValue {
    pub pct: f64,
    /// Half of the 95 % interval, percentage points, at most 10.
    pub half_width: f64,
    /// Number of its group of adjacent kernels within the stage and metric; `null` in no group.
    #[serde(default)]
    pub group: Option<u64>,
    /// True if the value is the mean of the group, whose kernels samples cannot separate.
    #[serde(default)]
    pub is_group_mean: bool,
}

/// Sampled metrics by name: `sms_active`, `sm_issue`, `tensor_active`, `warps_in_flight`,
/// `dram_read`, `dram_write`, `pcie_rx`, `pcie_tx`.
pub type SampledValues = BTreeMap<GpuMetric, SampledValue>;

/// Sampled metrics of one kernel with one grid and block in one stage: of its launches of similar
/// duration. Those below 3/4 and above 4/3 of the mean of all are apart, with at least 5 % of the
/// time each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledKernel {
    pub stage: String,
    /// Index of the device.
    pub device: u32,
    pub kernel_name: String,
    /// Blocks of the grid; `null`, as is `block`, for a CUDA graph traced as a whole.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<u32>>))]
    pub grid: Option<[u32; 3]>,
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<u32>>))]
    pub block: Option<[u32; 3]>,
    /// Launches and time in the sampled passes.
    pub calls: u64,
    pub total_ms: f64,
    /// `total_ms / calls`.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
    /// Samples of the stage whose period overlaps the kernel.
    pub samples: u64,
    /// True if other kernels ran at the same time: intervals contain the values if the time is
    /// divided among them, and if it is not.
    pub is_concurrent: bool,
    /// Those that are resolved; a missing one is not zero.
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, SampledValue>))]
    pub metrics: SampledValues,
    /// The launches.
    #[serde(skip)]
    pub like: Option<Like>,
}

/// A sampled metric of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledStageValue {
    /// Mean while kernels of the stage run, percent of the device's peak.
    pub pct: f64,
    /// Half of the 95 % interval, percentage points.
    pub half_width: f64,
    /// Share of the kernel time whose kernels have a value of their own, percent.
    pub alone_pct: Option<f64>,
    /// Share of the kernel time whose kernels share a value with adjacent ones, percent.
    pub grouped_pct: Option<f64>,
    /// Share of the kernel time without a value, percent.
    pub unresolved_pct: Option<f64>,
}

/// Sampled metrics of one stage on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledStage {
    pub stage: String,
    pub device: u32,
    /// Kernel time in the sampled passes; times of kernels that run at once are added, whereas a
    /// mean is over the time in which any of them runs.
    pub kernel_ms: f64,
    /// Samples whose period has work of only this stage; of more than 500,000 an even part.
    pub samples: u64,
    /// Mean clock of the SMs over those samples.
    pub sm_clock_mhz: Option<f64>,
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, SampledStageValue>))]
    pub metrics: BTreeMap<GpuMetric, SampledStageValue>,
}

/// Sampled metrics of one operator in one stage, over all its kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SampledOperator {
    pub stage: String,
    pub device: u32,
    /// Module path or range, layers rolled up.
    #[cfg_attr(feature = "schema", schema(example = "decoder.layers.*.self_attn.q_proj"))]
    pub path: String,
    /// Time of its kernels and graphs in the sampled passes, enclosed operators included.
    pub total_ms: f64,
    /// Those whose interval over all its kernels is narrow.
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, SampledValue>))]
    pub metrics: SampledValues,
}
