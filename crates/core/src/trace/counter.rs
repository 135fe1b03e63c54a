//! Hardware counters of single kernel launches, as reported by ncu.
//!
//! ncu replays a launch many times to read all counters, so no value here times the workload.
//! Counters that ncu did not collect are absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::stage::{StageRule, StageRules};

/// Share of possible constants in the other operations, percent, up to which they are left out.
const MAX_CONSTANTS_PCT: f64 = 10.0;

/// The counters of one profiled launch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchCounters {
    /// Launch id assigned by ncu, unique within its process.
    pub id: u64,
    /// Stage of the ncu pass that profiled the launch; empty if one pass profiles all stages.
    pub stage: String,
    /// The pass profiled one launch of each kernel and geometry in all stages together.
    #[serde(default)]
    pub all_stages: bool,
    /// Ranges open at the launch, outermost first; empty if the ncu page omits them.
    #[serde(default)]
    pub ranges: Vec<OpenRange>,
    /// Short name, from [`super::names::base_name`].
    pub kernel: String,
    /// Full name, as printed by ncu.
    pub full_name: String,
    /// The same from [`super::names::signature`].
    #[serde(default)]
    pub signature: String,
    /// Blocks of the grid; absent if the ncu page omits them.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; absent if the ncu page omits them.
    pub block: Option<[u32; 3]>,
    pub values: CounterValues,
}

/// Name of an NVTX range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRange {
    /// Empty for the default domain.
    pub domain: String,
    pub name: String,
}

impl LaunchCounters {
    /// The stage of the launch: the stage of its pass, else of its ranges; if several stages are
    /// open at once, the one of the first rule.
    pub fn stage_by<'a>(&'a self, rules: &'a StageRules) -> Option<&'a str> {
        if !self.stage.is_empty() {
            return Some(&self.stage);
        }
        let is_open = |rule: &&StageRule| {
            self.ranges.iter().any(|range| rule.matches(&range.name, &range.domain))
        };
        rules.stages.iter().find(is_open).map(StageRule::stage_of_work)
    }
}

/// Counter values of one launch. Percentages are of the device's sustained peak.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CounterValues {
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Duration of one replay with cold caches; not the time in the workload.
    pub duration_ns: Option<f64>,
    /// Utilisation of the busiest SM unit; of issue slots, pipes and tensor cores, unless ncu
    /// collected its section SpeedOfLight.
    pub sm_pct: Option<f64>,
    /// Utilisation of the busiest unit of the memory system; of DRAM, L2 and L1's data stage,
    /// unless ncu collected its section SpeedOfLight.
    pub memory_pct: Option<f64>,
    /// Utilisation of device memory bandwidth.
    pub dram_pct: Option<f64>,
    pub l1_hit_pct: Option<f64>,
    pub l2_hit_pct: Option<f64>,
    /// Throughput of the L2 cache.
    #[serde(default)]
    pub l2_pct: Option<f64>,
    /// Blocks over those that the device can hold at once.
    #[serde(default)]
    pub waves: Option<f64>,
    /// Achieved occupancy: resident warps over the SM's maximum.
    pub achieved_occupancy_pct: Option<f64>,
    /// Occupancy that registers, shared memory and block size allow.
    pub theoretical_occupancy_pct: Option<f64>,
    /// Cycles in which the tensor pipe was active.
    pub tensor_pct: Option<f64>,
    /// Bytes read from and written to device memory.
    pub dram_bytes: Option<f64>,
    /// Floating-point operations by dtype of the operands, a multiply-add counted as two;
    /// `tensor_*` ran on tensor cores.
    pub flops: BTreeMap<String, f64>,
    /// Half-precision operations that may be loads of constants; `flops` leaves them out.
    #[serde(default)]
    pub possible_constants: f64,
    /// True when `flops` includes the operations of all units, except half-precision ones that may
    /// be loads of constants, of at most 10 % of the others.
    pub flops_complete: bool,
    /// Operations that `flops` leaves out; `null` when it is complete, or nothing was counted.
    #[serde(default)]
    pub uncounted: Option<UncountedOperations>,
    /// Warp stall reasons, longest first.
    pub stalls: Vec<Stall>,
}

/// Operations of a launch that its counters do not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UncountedOperations {
    /// Operations of tensor cores, which were active.
    TensorCores,
    /// Half-precision multiply-adds outside tensor cores, which may be loads of constants.
    HalfPrecision,
}

impl UncountedOperations {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TensorCores => "tensor_cores",
            Self::HalfPrecision => "half_precision",
        }
    }
}

/// One warp stall reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Stall {
    #[cfg_attr(feature = "schema", schema(example = "long_scoreboard"))]
    pub reason: String,
    /// Stalled warps per issued instruction.
    pub warps_per_issue: f64,
    /// Share of all resident warps, percent.
    pub share_pct: f64,
}

impl CounterValues {
    /// Returns true if operations that may be loads of constants are few enough to leave out.
    pub fn has_few_constants(&self) -> bool {
        let flops: f64 = self.flops.values().sum();
        self.possible_constants <= flops * MAX_CONSTANTS_PCT / 100.0
    }

    /// Sum over all dtypes; `None` when it is incomplete.
    pub fn total_flops(&self) -> Option<f64> {
        self.flops_complete.then(|| self.flops.values().sum())
    }

    /// FLOPs per byte of device memory.
    pub fn arithmetic_intensity(&self) -> Option<f64> {
        let bytes = self.dram_bytes.filter(|bytes| *bytes > 0.0)?;
        Some(self.total_flops()? / bytes)
    }
}
