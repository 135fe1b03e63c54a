//! Hardware counters of single kernel launches, as ncu read them.
//!
//! A launch is replayed many times to read them all, so nothing here times the workload. What was not read is absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One launch that ncu profiled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LaunchCounters {
    /// The tool's number of the launch, within its process.
    pub id: u64,
    /// Stage whose ncu process profiled it.
    pub stage: String,
    /// Short name, as [`super::names::base_name`] gives it.
    pub kernel: String,
    /// As ncu printed it.
    pub full_name: String,
    /// Blocks of the grid; absent where the page does not print them.
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; absent where the page does not print them.
    pub block: Option<[u32; 3]>,
    pub values: CounterValues,
}

/// What the counters of one launch say. Percentages are of the peak that the device could sustain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CounterValues {
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Time of one replay with cold caches, which is not the time in the workload.
    pub duration_ns: Option<f64>,
    /// Busiest unit of the multiprocessors.
    pub sm_pct: Option<f64>,
    /// Busiest unit of the memory system.
    pub memory_pct: Option<f64>,
    /// Device memory.
    pub dram_pct: Option<f64>,
    pub l1_hit_pct: Option<f64>,
    pub l2_hit_pct: Option<f64>,
    /// Warps that were resident, of those that a multiprocessor holds.
    pub achieved_occupancy_pct: Option<f64>,
    /// The same, as registers, shared memory and block size allow.
    pub theoretical_occupancy_pct: Option<f64>,
    /// Cycles in which the tensor pipe worked.
    pub tensor_pct: Option<f64>,
    /// Bytes read from and written to device memory.
    pub dram_bytes: Option<f64>,
    /// Floating-point operations by number format of the operands, a multiply-add as two; `tensor_*` ran on tensor cores.
    pub flops: BTreeMap<String, f64>,
    /// Whether `flops` holds those of the tensor cores too.
    pub flops_complete: bool,
    /// Why warps waited, longest first.
    pub stalls: Vec<Stall>,
}

/// One reason for which warps waited.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stall {
    #[schema(example = "long_scoreboard")]
    pub reason: String,
    /// Warps that waited for it per issued instruction.
    pub warps_per_issue: f64,
    /// Share of all warps that were resident then, percent.
    pub share_pct: f64,
}

impl CounterValues {
    /// All operations; `None` when those of a unit that worked were not counted.
    pub fn total_flops(&self) -> Option<f64> {
        self.flops_complete.then(|| self.flops.values().sum())
    }

    /// Operations per byte of device memory.
    pub fn arithmetic_intensity(&self) -> Option<f64> {
        let bytes = self.dram_bytes.filter(|bytes| *bytes > 0.0)?;
        Some(self.total_flops()? / bytes)
    }
}
