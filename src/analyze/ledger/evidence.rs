//! Counters and samples of kernels, as evidence for causes.

use std::collections::BTreeMap;

use super::LedgerInput;
use crate::{
    analyze::{
        Analysis,
        kernels::{counters::CounterRecord, gemms::GemmRecord},
        sampled::figures::SampledKernel,
        stats::{percent, ratio},
    },
    trace::{counter::CounterValues, environment::Gpu, gpu_metrics::GpuMetric},
};

/// Share of the tiles with results, percent, by stage, kernel and grid.
pub type TileFills = BTreeMap<(String, String, [u32; 3]), f64>;

/// Fills of the kernels of joined GEMMs. Of several shapes with one grid the largest counts: the
/// rest of the tiles is empty in all of them.
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

/// Stage, kernel, grid and block.
type Launch<'a> = (&'a str, &'a str, [u32; 3], [u32; 3]);

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
}

impl Waves {
    pub fn text(self) -> String {
        let share = format!("{:.1} %", self.count * 100.0);
        match (self.count < 1.0, self.by_grid) {
            (true, true) => format!("blocks on {share} of the SMs at most"),
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
    /// Tensor activity, percent.
    pub tensor_pct: Option<f64>,
    /// Share of the GPU's tiles with results, percent.
    pub tile_fill_pct: Option<f64>,
    /// Share of the time in which device memory or tensor cores work at their peak, percent.
    pub sampled_peak_pct: Option<f64>,
    /// Use of the SMs, as sampled; complete where issue slots were sampled.
    pub sampled: SampledUse,
}

/// Use of the GPU in the time of a kernel, as sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SampledUse {
    /// Share of the SMs with work, percent.
    pub sms_pct: Option<f64>,
    /// Share of the issue slots in use, percent.
    pub issue_pct: Option<f64>,
    /// Bytes of device memory over its peak, percent.
    pub dram_pct: Option<f64>,
    /// Warps over those that the SMs with work can hold, percent.
    pub occupancy_pct: Option<f64>,
}

/// Evidence on all kernels.
pub struct KernelEvidence<'a> {
    counters: BTreeMap<Launch<'a>, &'a CounterRecord>,
    sampled: BTreeMap<Launch<'a>, &'a SampledKernel>,
    tile_fill: &'a TileFills,
    gpu: Option<&'a Gpu>,
    datasheet_bytes: Option<f64>,
}

impl<'a> KernelEvidence<'a> {
    pub fn of(analysis: &'a Analysis, input: &'a LedgerInput, gpu: Option<&'a Gpu>) -> Self {
        let counted = |it: &'a CounterRecord| {
            Some(((it.stage.as_str(), it.kernel_name.as_str(), it.grid?, it.block?), it))
        };
        let sampled = |it: &'a SampledKernel| {
            Some(((it.stage.as_str(), it.kernel_name.as_str(), it.grid?, it.block?), it))
        };
        Self {
            counters: analysis.counters.iter().filter_map(counted).collect(),
            sampled: analysis.sampled.kernels.iter().filter_map(sampled).collect(),
            tile_fill: &input.tile_fill,
            gpu,
            datasheet_bytes: input.ceilings.datasheet_bytes(),
        }
    }

    /// Evidence on a launch; its pass is empty where there is none.
    pub fn launch(&self, launch: Launch) -> LaunchEvidence<'a> {
        let (stage, kernel, grid, block) = launch;
        let counted = self.counters.get(&launch).copied();
        let sampled = self.sampled.get(&launch).copied();
        let mut found = LaunchEvidence {
            tile_fill_pct: self.tile_fill.get(&(stage.into(), kernel.into(), grid)).copied(),
            ..LaunchEvidence::default()
        };
        if let Some(it) = sampled {
            found.pass = "gpu_metrics";
            found.samples = it.samples;
            found.bytes = self.sampled_bytes(it);
            found.tensor_pct = metric(it, GpuMetric::TensorActive);
            found.sampled = sampled_use(it);
            found.sampled_peak_pct =
                [found.sampled.dram_pct, found.tensor_pct].into_iter().flatten().reduce(f64::max);
        }
        if let Some(it) = counted {
            let values = &it.values;
            found.pass = "ncu";
            found.samples = it.profiled;
            let cold = values.dram_bytes.map(|bytes| LaunchBytes { bytes, is_cold: true });
            found.bytes = found.bytes.or(cold);
            found.tensor_pct = values.tensor_pct.or(found.tensor_pct);
            found.waves = self.waves(values, grid, block);
            found.counters = Some(values);
        }
        found.waves = found.waves.or_else(|| self.few_blocks(grid));
        found
    }

    /// Bytes of a launch from sampled rates; `None` where they are the mean of several kernels.
    fn sampled_bytes(&self, it: &SampledKernel) -> Option<LaunchBytes> {
        let own = |wanted: GpuMetric| it.metrics.get(&wanted).filter(|value| !value.is_group_mean);
        let pct = own(GpuMetric::DramRead)?.pct + own(GpuMetric::DramWrite)?.pct;
        let seconds = ratio(it.total_ms / 1e3, it.calls as f64)?;
        let bytes = self.datasheet_bytes? * pct.max(0.0) / 100.0 * seconds;
        Some(LaunchBytes { bytes, is_cold: false })
    }

    /// Blocks of a launch over the blocks that all SMs hold at the occupancy that its resources
    /// allow.
    fn waves(&self, values: &CounterValues, grid: [u32; 3], block: [u32; 3]) -> Option<Waves> {
        let (sms, warps_per_sm) = (self.gpu?.sm_count?, self.gpu?.warps_per_sm?);
        let warps = (count(block) / 32.0).ceil();
        let resident = values.theoretical_occupancy_pct? / 100.0 * f64::from(warps_per_sm);
        let blocks_per_sm = (ratio(resident, warps)?).round().max(1.0);
        let count = ratio(count(grid), blocks_per_sm * f64::from(sms))?;
        Some(Waves { count, by_grid: false })
    }

    /// A grid with fewer blocks than SMs leaves SMs without one, whatever a block needs.
    fn few_blocks(&self, grid: [u32; 3]) -> Option<Waves> {
        let count = ratio(count(grid), f64::from(self.gpu?.sm_count?)).filter(|it| *it < 1.0)?;
        Some(Waves { count, by_grid: true })
    }
}

fn count(sides: [u32; 3]) -> f64 {
    sides.into_iter().map(f64::from).product()
}

fn sampled_use(it: &SampledKernel) -> SampledUse {
    let sms_pct = metric(it, GpuMetric::SmsActive);
    let dram = metric(it, GpuMetric::DramRead).zip(metric(it, GpuMetric::DramWrite));
    let warps = metric(it, GpuMetric::WarpsInFlight).zip(sms_pct);
    SampledUse {
        sms_pct,
        issue_pct: metric(it, GpuMetric::SmIssue),
        dram_pct: dram.map(|(read, write)| (read + write).min(100.0)),
        occupancy_pct: warps.and_then(|(warps, sms)| percent(warps.min(sms), sms)),
    }
}

/// A sampled metric of a kernel.
fn metric(it: &SampledKernel, wanted: GpuMetric) -> Option<f64> {
    Some(it.metrics.get(&wanted)?.pct.clamp(0.0, 100.0))
}
