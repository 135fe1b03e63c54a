//! Which kernels the device's time went to, and in which stage each was launched.
//!
//! A range closes when the host returns, and its kernels run later: a kernel belongs to the stage that was open, on the launching
//! thread, when the call that launched it began (joined by correlation id and process).

mod rows;
mod stages;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{classes::Classes, counters::KernelCounters, launches::Launches, scopes::NONE, spans::Spans};
use crate::trace::{kernel::Kernel, nsys::NsysTrace};

pub use crate::trace::stage::WARMUP;

/// Stage of kernels that a runner of ours launched outside every stage: weights, ceilings.
pub const SETUP: &str = "setup";
/// Stage of what lies outside the ranges that were asked for: summed, never in a top list.
pub const OUTSIDE: &str = "outside the included ranges";

/// Launches of one kernel in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelRecord {
    /// The function's name, without template arguments and parameters.
    #[schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT")]
    pub kernel_name: String,
    /// The whole name of those that took most of the time.
    pub full_name: String,
    /// Full names in this row. Where one of them has 10 % of the time that the short name takes in
    /// the stage, each has a row of its own.
    #[schema(example = 1)]
    #[serde(default, alias = "full_names")]
    pub name_variants: u64,
    /// What most of its time does: `gemm`, `attention`, `norm`, `softmax`, `elementwise`, `copy`, `reduce`, `moe`, `sort`, `conv`, or
    /// `other` where the name tells nothing.
    #[schema(example = "gemm")]
    pub class: String,
    /// Whose kernel it is; `null` where the name does not tell.
    #[schema(example = "cublas")]
    pub engine: Option<String>,
    /// Index of the device; `null` when several ran it.
    #[schema(example = 0)]
    pub device: Option<u32>,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = 12.0)]
    pub total_ms: f64,
    #[schema(example = 48)]
    pub calls: u64,
    /// `total_ms / calls`.
    #[schema(example = 0.25)]
    pub mean_ms: f64,
    /// Single launches, nanoseconds.
    pub launch_ns: Spans,
    /// Blocks of the grid of most launches.
    #[schema(value_type = Vec<u32>, example = json!([4, 24, 1]))]
    pub grid: [u32; 3],
    /// Threads of a block of most launches.
    #[schema(value_type = Vec<u32>, example = json!([384, 1, 1]))]
    pub block: [u32; 3],
    /// Registers per thread of most launches.
    #[schema(example = 168)]
    pub registers: u32,
    /// Distinct grids and blocks.
    #[schema(example = 1)]
    pub geometries: u64,
    /// Share of the stage's kernel time, percent; `null` where the capture lacks kernels of the stage.
    pub share_pct: Option<f64>,
    /// What ncu read of it; `null` when it was not profiled, or where another row has its name and geometry.
    pub counters: Option<KernelCounters>,
    /// Grids and blocks of the row, to tell counters of its variants apart.
    #[serde(skip)]
    pub configs: BTreeSet<Geometry>,
}

/// Grid and block.
pub type Geometry = ([u32; 3], [u32; 3]);

/// Launches of one full name in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FullKernelRecord {
    /// With template arguments and parameters.
    pub full_name: String,
    #[schema(example = "vectorized_elementwise_kernel")]
    pub kernel_name: String,
    #[schema(example = "elementwise")]
    pub class: String,
    #[schema(example = "torch")]
    pub engine: Option<String>,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    pub total_ms: f64,
    pub calls: u64,
    /// `total_ms / calls`.
    pub mean_ms: f64,
    /// Single launches, nanoseconds.
    pub launch_ns: Spans,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Device time of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageKernels {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Kernels that are recorded.
    pub launches: u64,
    /// Sum over recorded kernels; `null` where the capture lacks some of the stage, as is `busy_ms`.
    pub kernel_ms: Option<f64>,
    /// Time in which at least one kernel, copy, fill or whole-traced graph of the stage ran: per device over all streams, summed
    /// over devices. An upper bound where `graph_launches` is above zero.
    pub busy_ms: Option<f64>,
    /// Launches of CUDA graphs that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub graph_launches: u64,
    /// Sum over those launches, each from its start to its end on the device.
    #[serde(default)]
    pub graph_ms: f64,
}

/// Time of one class of kernels in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = "gemm")]
    pub class: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Share of the stage's recorded kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Kernels of the traced pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kernels {
    /// One record per stage and name, longest total first; warm-up and set-up included.
    pub records: Vec<KernelRecord>,
    /// One record per stage and full name, longest total first; warm-up and set-up included.
    pub full: Vec<FullKernelRecord>,
    pub stages: Vec<StageKernels>,
    /// By stage, longest first.
    pub classes: Vec<ClassRecord>,
    /// Share of all kernel time whose class is known, percent.
    pub classified_pct: Option<f64>,
    /// Kernels whose launching call is not in the trace, so that no stage can be told.
    pub orphans: u64,
}

/// Whether kernels of a stage were measured: those of warm-up and set-up were not.
pub fn is_measured(stage: &str) -> bool {
    ![WARMUP, SETUP, OUTSIDE].contains(&stage)
}

impl Kernels {
    /// Records of measured work, longest total first.
    pub fn measured(&self) -> impl Iterator<Item = &KernelRecord> {
        self.records.iter().filter(|record| is_measured(&record.stage))
    }

    /// Records of measured work by full name, longest total first.
    pub fn measured_full(&self) -> impl Iterator<Item = &FullKernelRecord> {
        self.full.iter().filter(|record| is_measured(&record.stage))
    }

    /// Removes what is computed from all kernels of the stages that `is_partial` names.
    pub fn withhold(&mut self, is_partial: impl Fn(&str) -> bool) {
        self.classified_pct = None;
        for it in self.stages.iter_mut().filter(|it| is_partial(&it.stage)) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
        self.records.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
        self.full.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
        self.classes.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
    }

    /// Kernel time of a stage; `None` where it launched nothing or kernels are missing.
    pub fn stage_ms(&self, stage: &str) -> Option<f64> {
        self.stages.iter().find(|it| it.stage == stage)?.kernel_ms
    }
}

/// A kernel and the stage that launched it, empty outside all of them; `None` when the launching call is not in the trace.
pub(super) type Launched<'a> = (Kernel, Option<&'a str>);

/// Every kernel of a capture with its stage, in the order of the trace.
pub(super) fn launched<'a>(trace: &'a NsysTrace, launches: &'a Launches) -> impl Iterator<Item = Launched<'a>> {
    let stage = |&(call, instance): &(u32, u32)| (call != NONE).then(|| launches.stage(instance));
    trace.kernels.iter().zip(launches.kernels.iter().map(stage))
}

/// Launches of one kind in one stage.
#[derive(Clone, Copy, Default)]
struct Tally {
    calls: u64,
    ns: i64,
}

/// Sums the kernels of one capture by stage and name.
pub fn kernels(trace: &NsysTrace, launches: &Launches) -> Kernels {
    let mut tallies =
        rows::Tallies { trace, launches, cells: vec![Tally::default(); trace.kernels.kinds().len() * launches.numbers()] };
    let mut orphans = 0;
    for (at, kernel) in trace.kernels.iter().enumerate() {
        orphans += u64::from(launches.kernels[at].0 == NONE);
        let cell = tallies.cell_of(at);
        let tally = &mut tallies.cells[cell];
        tally.calls += 1;
        tally.ns = tally.ns.saturating_add(kernel.ns());
    }
    let stages = stages::stage_kernels(trace, launches, &tallies.cells);
    let mut classes = Classes::default();
    let records = tallies.records(&stages, &mut classes);
    let full = tallies.full(&stages, &mut classes);
    let (classes, classified_pct) = tallies.classes(&stages, &mut classes);
    Kernels { records, full, stages, classes, classified_pct, orphans }
}

#[cfg(test)]
pub(super) mod tests;
