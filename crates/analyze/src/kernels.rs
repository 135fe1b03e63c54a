//! Device time by kernel, and the stage in which each kernel was launched.
//!
//! A range closes when the host returns, while its kernels run later: a kernel belongs to the stage
//! open on the launching thread when its launching call started (joined by correlation id and
//! process).

pub mod call_sites;
pub mod counters;
pub mod durations;
pub mod function_names;
pub mod gemm_tiles;
pub mod gemms;
pub mod kernel_classes;
pub mod kernel_selection;
pub mod nsys_sums;
mod rows;
mod stages;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    kernels::{counters::KernelCounters, durations::Tally, kernel_classes::ClassCache},
    timeline::{
        capture::Capture,
        duration_stats::DurationStats,
        step_states::LEFT_OUT,
        withheld::{TimelineFigure, Withheld},
    },
};
use llmprof_core::trace::kernel::TracedKernel;
pub use llmprof_core::trace::stage::WARMUP;

/// Stage of kernels that the model runner launched outside all stages: weights, ceilings.
pub const SETUP: &str = "setup";
/// Stage of work outside the included ranges: summed, but not in any top list.
pub const OUTSIDE: &str = "outside the included ranges";

/// Launches of one kernel in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KernelRecord {
    /// The function's name, without template arguments and parameters.
    #[cfg_attr(feature = "schema", schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"))]
    pub kernel_name: String,
    /// The full name with the longest total time.
    pub full_name: String,
    /// Number of full names in this row. If one of them takes 10 % of the short name's time in the
    /// stage, each has a row of its own.
    #[cfg_attr(feature = "schema", schema(example = 1))]
    #[serde(default)]
    pub name_variants: u64,
    /// Class with the most time: `gemm`, `attention`, `norm`, `softmax`, `elementwise`, `copy`,
    /// `reduce`, `moe`, `sort`, `conv`, or `other` if the name matches no pattern.
    #[cfg_attr(feature = "schema", schema(example = "gemm"))]
    pub class: String,
    /// Library of the kernel; `null` if the name matches no pattern.
    #[cfg_attr(feature = "schema", schema(example = "cublas"))]
    pub engine: Option<String>,
    /// Index of the device; `null` when several devices ran it.
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub device: Option<u32>,
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = 12.0))]
    pub total_ms: f64,
    #[cfg_attr(feature = "schema", schema(example = 48))]
    pub calls: u64,
    /// `total_ms / calls`.
    #[cfg_attr(feature = "schema", schema(example = 0.25))]
    pub mean_ms: f64,
    /// Durations of single launches, nanoseconds.
    pub launch_ns: DurationStats,
    /// The most frequent grid, in blocks.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<u32>, example = json!([4, 24, 1])))]
    pub grid: [u32; 3],
    /// The most frequent block, in threads.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<u32>, example = json!([384, 1, 1])))]
    pub block: [u32; 3],
    /// Registers per thread of the most frequent launch.
    #[cfg_attr(feature = "schema", schema(example = 168))]
    pub registers: u32,
    /// Number of distinct grids and blocks.
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub launch_configs: u64,
    /// Share of the stage's kernel time, percent; `null` if the capture lacks kernels of the stage.
    pub share_pct: Option<f64>,
    /// ncu counters; `null` when it was not profiled, or if the profiled launches may be of another
    /// row.
    pub counters: Option<KernelCounters>,
    /// Grids, blocks and full names of the row, for matching counters to variants.
    #[serde(skip)]
    pub configs: BTreeSet<LaunchConfig>,
    #[serde(skip)]
    pub full_names: Vec<String>,
}

/// Grid and block.
pub type LaunchConfig = ([u32; 3], [u32; 3]);

/// Launches of one full name in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FullKernelRecord {
    /// Name with template arguments and parameters.
    pub full_name: String,
    #[cfg_attr(feature = "schema", schema(example = "vectorized_elementwise_kernel"))]
    pub kernel_name: String,
    #[cfg_attr(feature = "schema", schema(example = "elementwise"))]
    pub class: String,
    #[cfg_attr(feature = "schema", schema(example = "torch"))]
    pub engine: Option<String>,
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub total_ms: f64,
    pub calls: u64,
    /// `total_ms / calls`.
    pub mean_ms: f64,
    /// Durations of single launches, nanoseconds.
    pub launch_ns: DurationStats,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Device time of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageKernels {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Recorded kernels.
    pub launches: u64,
    /// Sum over recorded kernels; `null`, as is `busy_ms`, if the capture lacks kernels of the
    /// stage.
    pub kernel_ms: Option<f64>,
    /// Time in which at least one kernel, copy, fill or whole-traced graph of the stage ran on any
    /// stream, summed over devices. An upper bound if `graph_launches` is above zero.
    pub busy_ms: Option<f64>,
    /// Launches of CUDA graphs traced as a whole: their kernels are not recorded.
    #[serde(default)]
    pub graph_launches: u64,
    /// Sum over those launches, each from start to end on the device.
    #[serde(default)]
    pub graph_ms: f64,
}

/// Time of one class of kernels in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClassRecord {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = "gemm"))]
    pub class: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Share of the stage's recorded kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Kernels of the traced pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelTimes {
    /// One record per stage and name, longest total first; warm-up and set-up included.
    pub records: Vec<KernelRecord>,
    /// One record per stage and full name, longest total first; warm-up and set-up included.
    pub full: Vec<FullKernelRecord>,
    pub stages: Vec<StageKernels>,
    /// By stage, longest first.
    pub classes: Vec<ClassRecord>,
    /// Share of all kernel time with a known class, percent.
    pub classified_pct: Option<f64>,
    /// Kernels without a launching call in the trace, whose stage is unknown.
    pub orphans: u64,
}

/// True for the stages of ranges whose work is not measured: warm-up, and steps that are left out.
pub fn is_unmeasured_range(stage: &str) -> bool {
    [WARMUP, LEFT_OUT].contains(&stage)
}

/// Returns true for a stage of measured work: not warm-up, set-up, outside the included ranges or
/// of steps that are left out.
pub fn is_measured(stage: &str) -> bool {
    !is_unmeasured_range(stage) && ![SETUP, OUTSIDE].contains(&stage)
}

impl KernelTimes {
    /// Records of measured work, longest total first.
    pub fn measured(&self) -> impl Iterator<Item = &KernelRecord> {
        self.records.iter().filter(|record| is_measured(&record.stage))
    }

    /// Records of measured work by full name, longest total first.
    pub fn measured_full(&self) -> impl Iterator<Item = &FullKernelRecord> {
        self.full.iter().filter(|record| is_measured(&record.stage))
    }

    /// Removes sums over all kernels of a stage, and shares of them, that are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        if withheld.has_in_capture(TimelineFigure::ClassifiedShare) {
            self.classified_pct = None;
        }
        let without: BTreeSet<&str> = withheld.stages_without(TimelineFigure::KernelTime).collect();
        let lacks = |stage: &str| without.contains(stage);
        for it in self.stages.iter_mut().filter(|it| lacks(&it.stage)) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
        self.records.iter_mut().filter(|it| lacks(&it.stage)).for_each(|it| it.share_pct = None);
        self.full.iter_mut().filter(|it| lacks(&it.stage)).for_each(|it| it.share_pct = None);
        self.classes.iter_mut().filter(|it| lacks(&it.stage)).for_each(|it| it.share_pct = None);
    }

    /// Kernel time of a stage; `None` if it launched nothing or kernels are missing.
    pub fn stage_ms(&self, stage: &str) -> Option<f64> {
        self.stages.iter().find(|it| it.stage == stage)?.kernel_ms
    }
}

/// A kernel and its stage, empty outside all stages; `None` without a launching call in the trace.
pub(super) type LaunchedKernel<'a> = (TracedKernel<'a>, Option<&'a str>);

/// All kernels of a capture with their stages, in trace order.
pub(super) fn launched<'a>(capture: &'a Capture<'a>) -> impl Iterator<Item = LaunchedKernel<'a>> {
    capture.kernels().map(|(kernel, join)| (kernel, capture.stage_of(join)))
}

/// Sums the kernels of one capture by stage and name.
pub fn kernels(capture: &Capture) -> KernelTimes {
    let mut tallies = rows::KernelTallies {
        capture,
        cells: vec![Tally::default(); capture.trace.kernels.kinds().len() * capture.stage_count()],
    };
    let mut orphans = 0;
    for ((kind, kernel), join) in capture.kernels_by_kind() {
        orphans += u64::from(!join.has_call());
        let cell = tallies.cell_of(kind, join.instance);
        let tally = &mut tallies.cells[cell];
        tally.calls += 1;
        tally.ns = tally.ns.saturating_add(kernel.ns());
    }
    let stages = stages::stage_kernels(capture, &tallies.cells);
    let mut classes = ClassCache::default();
    let groups = tallies.groups();
    let records = tallies.records(&groups.short, &stages, &mut classes);
    let full = tallies.full(&groups.full, &stages, &mut classes);
    let (classes, classified_pct) = tallies.classes(&stages, &mut classes);
    KernelTimes { records, full, stages, classes, classified_pct, orphans }
}

#[cfg(test)]
pub(super) mod tests;
