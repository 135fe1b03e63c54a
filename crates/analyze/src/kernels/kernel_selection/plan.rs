//! The selection as a value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Launches to profile with ncu, by process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CounterPlan {
    /// Stages with kernels, in execution order.
    pub stages: Vec<SelectedStage>,
    pub processes: Vec<CounterProcess>,
    /// Every geometry of the selected kernels, longest first.
    pub pairs: Vec<KernelPair>,
    /// Divisor of decode: only its first 1/`part` runs under ncu, which takes less time and limits
    /// the number of geometries.
    pub part: u32,
    /// The sample to which all of this belongs; absent for a run with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
}

/// A stage to profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelectedStage {
    /// Empty for all kernels of a program without stages.
    pub stage: String,
    /// The stage's range in ncu syntax; absent if ncu does not accept its name, and if the stage is
    /// inferred from steps without ranges.
    pub range: Option<String>,
    /// In the profiled sample, as the next one.
    pub kernel_ms: f64,
    /// Share of the stage's kernel time taken by the kernels and geometries to profile, percent.
    pub planned_pct: Option<f64>,
}

/// Launches of one ncu process, which profiles the first launches of each grid, block and shared
/// memory of these kernels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CounterProcess {
    /// Short names.
    pub kernels: Vec<String>,
    /// Linker symbols by which ncu selects the kernels; empty if the capture lacks them, and ncu
    /// selects by short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub symbols: Vec<String>,
    /// Launches that it profiles.
    pub launches: usize,
    /// Stages of these launches.
    pub stages: Vec<String>,
}

/// Launches of one kernel with one geometry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelPair {
    pub kernel: String,
    /// From [`llmprof_core::trace::names::signature`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signature: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Index of the process that profiles it; absent if it does not run in the profiled part, and
    /// if kernels are selected by short names and another instantiation with this geometry runs
    /// before it.
    pub process: Option<usize>,
    /// Time in each stage, milliseconds.
    pub ms: BTreeMap<String, f64>,
    /// The part of `ms` in launches that take about as long as the launches to profile.
    pub like_ms: BTreeMap<String, f64>,
}

impl KernelPair {
    pub(super) fn total_ms(&self) -> f64 {
        self.ms.values().sum()
    }
}
