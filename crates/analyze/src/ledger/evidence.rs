//! Counters and samples of kernels, as evidence for causes.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    counter::CounterValues, environment::Gpu, gpu_metrics::GpuMetric, timeline::Timeline,
};

use super::{
    LedgerInput,
    sampled_values::{LaunchValue, SampledLaunch, sampled_launches},
};
use crate::{
    Analysis,
    kernels::{counters::CounterRecord, gemms::GemmRecord},
    stats::{percent, ratio},
};

/// Share of the tiles with results, percent, by stage, kernel and grid.
pub type TileFills = BTreeMap<(String, String, [u32; 3]), f64>;

/// Fills of the kernels of joined GEMMs. If several shapes have one grid, the largest fill counts:
/// the rest of the tiles is empty in all of them.
pub fn tile_fills(gemms: &[GemmRecord]) -> TileFills {
    let mut fills = TileFills::new();
    for gemm in gemms {
        let (Some(kernel), Some((grid, _)), Some(fill)) =
            (&gemm.kernel_name, gemm.launch, gemm.tile_fill_pct)
        else {
            continue;
        };
        let known = fills.entry((gemm.stage.clone(), kernel.clone(), grid)).or_insert(fill);
        *known = known.max(fill);
    }
    fills
}

/// Pass of samples of the GPU.
pub const SAMPLED_PASS: &str = "gpu_metrics";
/// First compute capability with tensor cores.
const FIRST_WITH_TENSOR_CORES: u32 = 7;

/// Stage, kernel, grid and block.
pub type Launch<'a> = (&'a str, &'a str, [u32; 3], [u32; 3]);

/// Bytes of device memory of one launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchBytes {
    pub bytes: f64,
    /// Counted by replays with cold caches, which read all operands from device memory.
    pub is_cold: bool,
}

/// Blocks of a grid over those that the GPU holds at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Waves {
    pub count: f64,
    /// True if the number of blocks per SM is unknown and 1 is assumed, of a grid with fewer blocks
    /// than SMs: `count` is then an upper bound.
    pub by_grid: bool,
    /// The maker's word for the units that blocks run on.
    pub units: &'static str,
}

impl Waves {
    pub fn text(self) -> String {
        let share = format!("{:.1} %", self.count * 100.0);
        match (self.count < 1.0, self.by_grid) {
            (true, true) => format!("blocks on {share} of the {} at most", self.units),
            (true, false) => format!("{share} of the blocks that the GPU can hold"),
            (false, _) => format!("{:.2} waves of blocks", self.count),
        }
    }
}

/// Evidence on one kernel with one grid and block in one stage.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LaunchEvidence<'a> {
    /// `ncu`, `gpu_metrics`, or empty.
    pub pass: &'static str,
    /// Profiled launches, or samples.
    pub samples: u64,
    pub bytes: Option<LaunchBytes>,
    pub counters: Option<&'a CounterValues>,
    pub waves: Option<Waves>,
    /// Tensor activity, percent; 0 on a GPU without tensor cores.
    pub tensor_pct: Option<f64>,
    /// Share of the GPU's tiles with results, percent.
    pub tile_fill_pct: Option<f64>,
    pub sampled_peak: Option<SampledPeak>,
    pub sampled: SampledUse,
}

/// Share of the time in which device memory or tensor cores work at their peak, as sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledPeak {
    pub dram_pct: f64,
    pub tensor_pct: f64,
    pub samples: u64,
    /// True if one of them is the mean of adjacent kernels.
    pub is_group_mean: bool,
}

impl SampledPeak {
    pub fn pct(self) -> f64 {
        self.dram_pct.max(self.tensor_pct)
    }

    pub fn text(self) -> String {
        let of = if self.is_group_mean { ", in the mean of adjacent kernels" } else { "" };
        let Self { dram_pct, tensor_pct, .. } = self;
        format!("device memory {dram_pct:.0} %, tensor cores {tensor_pct:.0} % of the peak{of}")
    }
}

/// Use of the GPU in the time of a kernel, as sampled; only values of the kernel's own.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SampledUse {
    /// Share of the SMs with work, percent.
    pub sms_pct: Option<f64>,
    /// Share of the issue slots in use, percent.
    pub issue_pct: Option<f64>,
    /// Bytes of device memory over its peak, percent.
    pub dram_pct: Option<f64>,
    /// Warps over those that the SMs with work can hold, percent; both known to within a half.
    pub occupancy_pct: Option<f64>,
}

/// Evidence on all kernels.
pub struct KernelEvidence<'a> {
    /// By launch, then by signature.
    counters: BTreeMap<Launch<'a>, BTreeMap<&'a str, Vec<&'a CounterRecord>>>,
    sampled: BTreeMap<Launch<'a>, Vec<SampledLaunch>>,
    /// Stages with kernels on a GPU without samples.
    unsampled: &'a BTreeSet<String>,
    /// Samples of each stage, over all GPUs.
    stage_samples: BTreeMap<&'a str, u64>,
    tile_fill: &'a TileFills,
    gpu: Option<&'a Gpu>,
    units: &'static str,
    datasheet_bytes: Option<f64>,
}

impl<'a> KernelEvidence<'a> {
    pub fn of(analysis: &'a Analysis, input: &'a LedgerInput, gpu: Option<&'a Gpu>) -> Self {
        let mut counters: BTreeMap<Launch, BTreeMap<&str, Vec<&CounterRecord>>> = BTreeMap::new();
        for it in &analysis.counters {
            let Some((grid, block)) = it.grid.zip(it.block) else { continue };
            let launch = (it.stage.as_str(), it.kernel_name.as_str(), grid, block);
            counters.entry(launch).or_default().entry(&it.signature).or_default().push(it);
        }
        let mut stage_samples = BTreeMap::new();
        for it in &analysis.sampled.stages {
            *stage_samples.entry(it.stage.as_str()).or_default() += it.samples;
        }
        Self {
            counters,
            sampled: sampled_launches(&analysis.sampled.kernels),
            unsampled: &analysis.sampled.unsampled,
            stage_samples,
            tile_fill: &input.tile_fill,
            gpu,
            units: if input.nsys.is_some_and(Timeline::calls_hip) { "CUs" } else { "SMs" },
            datasheet_bytes: input.ceilings.datasheet_bytes(),
        }
    }

    /// Returns true if ncu profiled an instantiation of a template: others have other counters.
    pub fn has_counters_by_signature(&self, launch: Launch) -> bool {
        self.counters.get(&launch).is_some_and(|it| it.keys().any(|it| !it.is_empty()))
    }

    /// Evidence on launches that take `mean_ns`, of the kernel with this signature, empty if
    /// counters do not depend on it; its pass is empty if there is none.
    pub fn launch(&self, launch: Launch, signature: &str, mean_ns: i64) -> LaunchEvidence<'a> {
        let (stage, kernel, grid, block) = launch;
        let records = self.counters.get(&launch).and_then(|it| it.get(signature));
        let stands = |it: &&&CounterRecord| it.like.is_none_or(|like| like.has(mean_ns));
        let counted = records.and_then(|all| all.iter().find(stands)).copied();
        let is_sampled = !self.unsampled.contains(stage);
        let sampled = self.sampled.get(&launch).filter(|_| is_sampled);
        let sampled = sampled.and_then(|all| all.iter().find(|it| it.has(mean_ns)));
        let sampled = sampled.filter(|it| it.is_resolved());
        let mut found = LaunchEvidence {
            tile_fill_pct: self.tile_fill.get(&(stage.into(), kernel.into(), grid)).copied(),
            tensor_pct: (!self.has_tensor_cores()).then_some(0.0),
            ..LaunchEvidence::default()
        };
        if let Some(it) = sampled {
            found.pass = SAMPLED_PASS;
            found.samples = it.samples;
            found.bytes = self.sampled_bytes(it);
            found.tensor_pct = it.own(GpuMetric::TensorActive).map(pct).or(found.tensor_pct);
            found.sampled = sampled_use(it);
            found.sampled_peak = self.sampled_peak(it);
        }
        if let Some(it) = counted {
            let values = &it.values;
            found.pass = "ncu";
            found.samples = it.profiled;
            let cold = values.dram_bytes.map(|bytes| LaunchBytes { bytes, is_cold: true });
            found.bytes = found.bytes.or(cold);
            found.tensor_pct = values.tensor_pct.or(found.tensor_pct);
            found.counters = Some(values);
        }
        // Its resources and blocks do not depend on the duration.
        let any = counted.or_else(|| records?.first().copied());
        found.waves = any.and_then(|it| self.waves(&it.values, grid, block));
        found.waves = found.waves.or_else(|| self.few_blocks(grid));
        found
    }

    /// Samples of a stage; `None` if it was not sampled.
    pub fn stage_samples(&self, stage: &str) -> Option<u64> {
        self.stage_samples.get(stage).copied()
    }

    /// True unless the GPU is known to have none.
    fn has_tensor_cores(&self) -> bool {
        let capability = self.gpu.and_then(|gpu| gpu.compute_capability.as_deref());
        let major = capability.and_then(|it| it.split('.').next()?.parse::<u32>().ok());
        major.is_none_or(|major| major >= FIRST_WITH_TENSOR_CORES)
    }

    /// Bytes of a launch from sampled rates; `None` if they are the mean of several kernels.
    fn sampled_bytes(&self, it: &SampledLaunch) -> Option<LaunchBytes> {
        // A launch that ran alongside others moved its bytes in less than all of that time.
        if it.is_concurrent {
            return None;
        }
        let pct = it.own(GpuMetric::DramRead)?.pct + it.own(GpuMetric::DramWrite)?.pct;
        let seconds = ratio(it.total_ms / 1e3, it.calls as f64)?;
        let bytes = self.datasheet_bytes? * pct / 100.0 * seconds;
        Some(LaunchBytes { bytes, is_cold: false })
    }

    /// Use of device memory and tensor cores; `None` unless both are known.
    fn sampled_peak(&self, it: &SampledLaunch) -> Option<SampledPeak> {
        let (read, write) = (it.any(GpuMetric::DramRead)?, it.any(GpuMetric::DramWrite)?);
        let none = LaunchValue { pct: 0.0, half_width: 0.0, is_group_mean: false };
        let without = (!self.has_tensor_cores()).then_some(none);
        let tensor = it.any(GpuMetric::TensorActive).or(without)?;
        Some(SampledPeak {
            dram_pct: (read.pct + write.pct).min(100.0),
            tensor_pct: tensor.pct,
            samples: it.samples,
            is_group_mean: [read, write, tensor].iter().any(|it| it.is_group_mean),
        })
    }

    /// Blocks of a launch over the blocks that all SMs hold at the occupancy that its resources
    /// allow.
    fn waves(&self, values: &CounterValues, grid: [u32; 3], block: [u32; 3]) -> Option<Waves> {
        let (sms, warps_per_sm) = (self.gpu?.sm_count?, self.gpu?.warps_per_sm?);
        let warps = (count(block) / 32.0).ceil();
        let resident = values.theoretical_occupancy_pct? / 100.0 * f64::from(warps_per_sm);
        let blocks_per_sm = (ratio(resident, warps)?).round().max(1.0);
        let count = ratio(count(grid), blocks_per_sm * f64::from(sms))?;
        Some(Waves { count, by_grid: false, units: self.units })
    }

    /// A grid with fewer blocks than SMs leaves SMs without one, whatever a block needs.
    fn few_blocks(&self, grid: [u32; 3]) -> Option<Waves> {
        let count = ratio(count(grid), f64::from(self.gpu?.sm_count?)).filter(|it| *it < 1.0)?;
        Some(Waves { count, by_grid: true, units: self.units })
    }
}

fn count(sides: [u32; 3]) -> f64 {
    sides.into_iter().map(f64::from).product()
}

fn pct(value: LaunchValue) -> f64 {
    value.pct
}

fn sampled_use(it: &SampledLaunch) -> SampledUse {
    let sms = it.own(GpuMetric::SmsActive);
    let dram = it.own(GpuMetric::DramRead).zip(it.own(GpuMetric::DramWrite));
    let warps = it.own(GpuMetric::WarpsInFlight).zip(sms);
    let is_narrow = |it: LaunchValue| it.half_width <= it.pct / 2.0;
    let warps = warps.filter(|(warps, sms)| is_narrow(*warps) && is_narrow(*sms));
    SampledUse {
        sms_pct: sms.map(pct),
        issue_pct: it.own(GpuMetric::SmIssue).map(pct),
        dram_pct: dram.map(|(read, write)| (read.pct + write.pct).min(100.0)),
        occupancy_pct: warps.and_then(|(warps, sms)| percent(warps.pct.min(sms.pct), sms.pct)),
    }
}
