//! Bounds on figures that hold for every capture.
//!
//! A figure that violates an invariant is removed (`None`), and a finding names it, its value and
//! the likely cause. [`INVARIANTS`] is the table; each report field whose name ends in `_pct` is
//! listed there or in [`UNBOUNDED`], which a test checks against the contract. Other relations hold
//! by construction and are tested with properties over mutated captures:
//!
//! | relation | scope |
//! |---|---|
//! | busy + other + idle = window | each stage on each GPU, and in total |
//! | idle = host + copy + sync + unknown | the same |
//! | a total is the sum over its GPUs | busy, idle and window of a stage |
//! | busy time is equal in all tables | stages, GPUs per stage, processes of one GPU each |
//! | kernels of a stage equal the kernels of its records, classes and processes | calls and time |
//! | busy and idle time of a step fit into its window, per GPU | the decode step |
//! | exclusive time is at most total time | operators on the device |
//! | a rate is at most 101 % of the device's peak | operators, stages, products, kernels |
//! | the rows of the ledger add up to the measured time, in ns | stages |

mod shares;
mod unbounded;

use std::collections::BTreeMap;

use self::shares::visit_shares;
pub use self::unbounded::UNBOUNDED;
use llmprof_core::{
    domain::{
        device_peaks::DevicePeaks,
        digits::{self, figure},
        finding::{Finding, Severity, catalogue},
    },
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters},
    },
};

use super::{Analysis, power::Power};
use crate::{stages::in_sentence, timeline::gpu::EarlyStart};

/// Tolerance for rounding of a share, in points.
const ROUNDING_PCT: f64 = 1e-6;
/// Tolerance of a counter above 100 %, in points: ncu reads its parts in several passes, whose
/// clocks and caches differ (Nsight Compute, Profiling Guide, "Range and Precision").
const PASSES_PCT: f64 = 5.0;
/// Max registers per thread (CUDA C++ Programming Guide, "Technical Specifications per Compute
/// Capability").
const MAX_REGISTERS: u32 = 255;
/// Tolerance factor of the replay's bandwidth above the datasheet's, and of a clock above the max
/// clock.
const LIMIT_FACTOR: f64 = 1.1;

/// One invariant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Invariant {
    pub id: &'static str,
    /// Report fields bound by it, each as `Schema.field`.
    pub figures: &'static [&'static str],
    /// The condition.
    pub holds: &'static str,
    /// The most likely cause of a violation.
    pub cause: &'static str,
    /// The action to take after a violation.
    pub remedy: &'static str,
}

/// All invariants that inputs can violate.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        id: "counter_share",
        figures: &[
            "CounterValues.sm_pct",
            "CounterValues.memory_pct",
            "CounterValues.dram_pct",
            "CounterValues.l2_pct",
            "CounterValues.achieved_occupancy_pct",
            "CounterValues.theoretical_occupancy_pct",
            "CounterValues.tensor_pct",
            "Stall.share_pct",
        ],
        holds: "a share of the device's sustained peak lies between 0 and 100 %, with a tolerance \
                of 5 points",
        cause: "the ncu page has unexpected decimal signs or units, or is damaged",
        remedy: "Print the page again: LC_ALL=C ncu --import REPORT --csv --page details \
                 --print-units base.",
    },
    Invariant {
        id: "hit_rate",
        figures: &["CounterValues.l1_hit_pct", "CounterValues.l2_hit_pct"],
        holds: "a hit rate lies between 0 and 100 %, with a tolerance of 5 points",
        cause: "ncu counts hits and accesses in different replays of the kernel, which vary where \
                it makes few of them",
        remedy: "Take the hit rate of longer kernels; where theirs are impossible as well, print \
                 the page again: LC_ALL=C ncu --import REPORT --csv --page details --print-units \
                 base.",
    },
    Invariant {
        id: "counter_limit",
        figures: &[
            "CounterValues.registers",
            "CounterValues.dram_bytes",
            "CounterValues.duration_ns",
            "CounterValues.flops",
        ],
        holds: "a counter is not negative, a thread has at most 255 registers, and bytes over the \
                time of the replay are at most 1.1 times the datasheet's bandwidth",
        cause: "the ncu page has unexpected decimal signs or units, or is of another device",
        remedy: "Print the page again: LC_ALL=C ncu --import REPORT --csv --page details \
                 --print-units base.",
    },
    Invariant {
        id: "clock_limit",
        figures: &["StagePower.sm_mhz", "StagePower.memory_mhz"],
        holds: "a mean clock is at most 1.1 times the device's max clock",
        cause: "the samples are of another device, or the driver reported a wrong clock",
        remedy: "Compare the clocks with nvidia-smi -q -d CLOCK.",
    },
    Invariant {
        id: "work_after_launch",
        figures: &[
            "StageGpu.window_ms",
            "StageGpu.busy_ms",
            "StageGpu.busy_pct",
            "StageGpu.other_ms",
            "StageGpu.idle_ms",
            "StageGpu.launch_bound_pct",
            "LLMProfileReport.decode_step",
        ],
        holds: "work starts at most 10 us before its launching call",
        cause: "the clocks of host and GPU are inconsistent in this capture, or its times are \
                damaged",
        remedy: "Record again with a newer profiler. Kernel durations use one clock and are kept.",
    },
    Invariant {
        id: "share",
        figures: &[
            "StageTiming.share_pct",
            "StageShare.wall_share_pct",
            "StageShare.device_share_pct",
            "StepBatch.busy_pct",
            "DeviceTotals.busy_pct",
            "DeviceTotals.min_busy_pct",
            "DeviceTotals.max_busy_pct",
            "StageNote.share_pct",
            "OperatorRecord.inclusive_pct",
            "OperatorRecord.exclusive_pct",
            "OperatorDevice.inclusive_pct",
            "OperatorDevice.exclusive_pct",
            "StageWork.covered_pct",
            "KernelRecord.share_pct",
            "GemmRecord.tile_fill_pct",
            "FullKernelRecord.share_pct",
            "ClassRecord.share_pct",
            "CallSite.share_pct",
            "LLMProfileReport.classified_pct",
            "KernelCounters.covered_pct",
            "Region.share_pct",
            "RegionClass.share_pct",
            "RegionCounters.covered_pct",
            "RooflinePoint.share_pct",
            "GemmRecord.share_pct",
            "SampledKernel.share_pct",
            "SampledStageValue.alone_pct",
            "SampledStageValue.grouped_pct",
            "SampledStageValue.unresolved_pct",
            "OperatorMfu.exclusive_pct",
            "StageGpu.busy_pct",
            "StageGpu.launch_bound_pct",
            "HostCpuTables.calls_on_core_pct",
            "HostThread.function_pct",
            "CoreTaker.share_pct",
            "GapFunction.share_pct",
            "Power.busy_pct",
            "StagePower.throttled_pct",
            "StagePower.gpu_active_pct",
            "StagePower.memory_active_pct",
            "ReasonShare.share_pct",
        ],
        holds: "a share lies between 0 and 100 %",
        cause: "part and total use different clocks, or parts that overlap were summed",
        remedy: "Compare the times, which are kept.",
    },
    Invariant {
        id: "counter_mean",
        figures: &[
            "KernelCounters.sm_pct",
            "KernelCounters.dram_pct",
            "KernelCounters.achieved_occupancy_pct",
            "KernelCounters.tensor_pct",
            "RegionCounters.sm_pct",
            "RegionCounters.memory_pct",
            "RegionCounters.dram_pct",
            "RegionCounters.l2_hit_pct",
            "RegionCounters.achieved_occupancy_pct",
            "RegionCounters.tensor_pct",
            "RooflinePoint.sm_pct",
            "RooflinePoint.memory_pct",
            "RooflinePoint.dram_pct",
            "RooflinePoint.achieved_occupancy_pct",
        ],
        holds: "a mean of counters lies in the range of the counters",
        cause: "a counter of one kernel is wrong",
        remedy: "Check the kernel's counters by launch configuration.",
    },
];

/// A figure that violated an invariant and was removed.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub figure: &'static str,
    /// Kernel, stage or operator of the figure.
    pub of: String,
    pub value: f64,
}

/// All removed figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Violations {
    pub figures: Vec<Violation>,
    early: Vec<EarlyStart>,
}

impl Violations {
    /// Removes `value` when it lies outside `0..=max` or is not a number.
    fn bound(
        &mut self,
        figure: &'static str,
        of: impl FnOnce() -> String,
        value: &mut Option<f64>,
        max: f64,
    ) {
        let Some(found) = *value else { return };
        if !(0.0..=max).contains(&found) {
            self.figures.push(Violation { figure, of: of(), value: found });
            *value = None;
        }
    }

    /// Returns the counters of launches without values that are impossible on this device.
    pub fn counters(
        &mut self,
        launches: &[LaunchCounters],
        peaks: Option<&DevicePeaks>,
    ) -> Vec<LaunchCounters> {
        let mut kept = launches.to_vec();
        for launch in &mut kept {
            let stage = if launch.stage.is_empty() {
                String::new()
            } else {
                format!(" in {}", in_sentence(&launch.stage))
            };
            let of = format!("{}{stage}", launch.kernel);
            self.values(&of, &mut launch.values, peaks);
        }
        kept
    }

    fn values(&mut self, of: &str, values: &mut CounterValues, peaks: Option<&DevicePeaks>) {
        let name = || of.to_owned();
        for (figure, field) in COUNTERS {
            self.bound(figure, name, field(values), 100.0 + PASSES_PCT);
        }
        values.stalls.retain(|stall| {
            let mut share = Some(stall.share_pct);
            self.bound("Stall.share_pct", name, &mut share, 100.0 + PASSES_PCT);
            share.is_some()
        });
        if let Some(registers) = values.registers.filter(|registers| *registers > MAX_REGISTERS) {
            self.figures.push(Violation {
                figure: "CounterValues.registers",
                of: name(),
                value: registers.into(),
            });
            values.registers = None;
        }
        self.bound("CounterValues.duration_ns", name, &mut values.duration_ns, f64::MAX);
        let seconds = values.duration_ns.map(|ns| ns / 1e9);
        let max =
            peaks.zip(seconds).map(|(peaks, seconds)| peaks.bytes_per_s() * seconds * LIMIT_FACTOR);
        self.bound(
            "CounterValues.dram_bytes",
            name,
            &mut values.dram_bytes,
            max.unwrap_or(f64::MAX),
        );
        if let Some(flops) =
            values.flops.values().copied().find(|flops| !(0.0..=f64::MAX).contains(flops))
        {
            self.figures.push(Violation {
                figure: "CounterValues.flops",
                of: name(),
                value: flops,
            });
            values.flops.clear();
            values.flops_complete = false;
            (values.uncounted, values.possible_constants) = (None, 0.0);
        }
    }

    /// Removes clocks above the device's max.
    pub fn clocks(&mut self, power: &mut Power) {
        let max = |mhz: Option<u32>| mhz.map_or(f64::MAX, |mhz| f64::from(mhz) * LIMIT_FACTOR);
        let (sm, memory) = (max(power.device.max_sm_mhz), max(power.device.max_memory_mhz));
        for stage in &mut power.stages {
            self.bound("StagePower.sm_mhz", || stage.stage.clone(), &mut stage.sm_mhz, sm);
            self.bound(
                "StagePower.memory_mhz",
                || stage.stage.clone(),
                &mut stage.memory_mhz,
                memory,
            );
        }
    }

    /// Removes impossible shares, and records early starts found by the GPU analysis.
    pub fn shares(&mut self, analysis: &mut Analysis) {
        self.early.clone_from(&analysis.stage_gpu.early);
        visit_shares(analysis, &mut |figure, of, value| {
            let counter =
                INVARIANTS.iter().any(|it| it.id == "counter_mean" && it.figures.contains(&figure));
            let slack = if counter { PASSES_PCT } else { ROUNDING_PCT };
            self.bound(figure, || of.to_owned(), value, 100.0 + slack);
            // A share that only rounding moved above 100 % is set to 100 %.
            *value = value.map(|share| if counter { share } else { share.min(100.0) });
        });
    }
}

type Counter = (&'static str, fn(&mut CounterValues) -> &mut Option<f64>);

/// Counters that are shares.
const COUNTERS: [Counter; 9] = [
    ("CounterValues.sm_pct", |it| &mut it.sm_pct),
    ("CounterValues.memory_pct", |it| &mut it.memory_pct),
    ("CounterValues.dram_pct", |it| &mut it.dram_pct),
    ("CounterValues.l1_hit_pct", |it| &mut it.l1_hit_pct),
    ("CounterValues.l2_hit_pct", |it| &mut it.l2_hit_pct),
    ("CounterValues.l2_pct", |it| &mut it.l2_pct),
    ("CounterValues.achieved_occupancy_pct", |it| &mut it.achieved_occupancy_pct),
    ("CounterValues.theoretical_occupancy_pct", |it| &mut it.theoretical_occupancy_pct),
    ("CounterValues.tensor_pct", |it| &mut it.tensor_pct),
];

/// Returns a finding for each kind of removed figure, with its most extreme value.
pub fn findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let mut figures: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
    for it in &analysis.violations.figures {
        figures.entry(it.figure).or_default().push(it);
    }
    let broken = |(figure, all): (&str, Vec<&Violation>)| {
        let worst = all.iter().max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()))?;
        let invariant = INVARIANTS.iter().find(|it| it.figures.contains(&figure))?;
        let of = if worst.of.is_empty() { String::new() } else { format!(" of {}", worst.of) };
        let message = format!(
            "{figure}{of} would be {:.1}: {}. It is omitted.",
            worst.value, invariant.holds
        );
        let found =
            Finding::new(catalogue::FIGURE_IMPOSSIBLE, message).with("omitted figures", all.len());
        let found =
            found.with("value", format!("{:.1}", worst.value)).with("cause", invariant.cause);
        Some(found.advise(invariant.remedy))
    };
    figures.into_iter().filter_map(broken).collect()
}

/// Returns a finding for each device on another clock than the host's, and for each other stage
/// with work that starts before its launch.
pub fn clocks(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let of_devices = trace.timeline.iter().flat_map(|it| it.clock_findings.clone());
    of_devices.chain(analysis.violations.early.iter().filter_map(early)).collect()
}

fn early(it: &EarlyStart) -> Option<Finding> {
    let invariant = INVARIANTS.iter().find(|it| it.id == "work_after_launch")?;
    let message = format!(
        "{} kernels, copies or graphs of {} start before their launching call, by up to {} ms: \
         the stage's window, busy and idle time, and decode steps with such work, are omitted.",
        digits::count(it.count),
        in_sentence(&it.stage),
        figure(it.worst_ns as f64 / 1e6),
    );
    let found = Finding::new(catalogue::DEVICE_CLOCK_DIFFERS, message)
        .severity(Severity::Critical)
        .with("stage", &it.stage)
        .with("early", it.count);
    Some(found.with("cause", invariant.cause).advise(invariant.remedy))
}

#[cfg(test)]
mod tests;
