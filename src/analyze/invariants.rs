//! What no figure of an analysis may contradict, whatever its capture holds.
//!
//! A figure that breaks an invariant is left out (`None`), and a finding names it, its value and the likely cause. The table is
//! [`INVARIANTS`]; each field of the report whose name ends in `_pct` is in it or in [`UNBOUNDED`], which a test holds to the contract.
//! Other relations hold by construction, and property tests over mutated captures hold the code to them:
//!
//! | relation | of |
//! |---|---|
//! | busy + other + idle = window | each stage on each GPU, and in total |
//! | idle = host + copy + sync + unknown | the same |
//! | a total is the sum over its GPUs | busy, idle and window of a stage |
//! | busy time is the same in every table | stages, GPUs per stage, processes of one GPU each |
//! | kernels of a stage are those of its records, classes and processes | calls and time |
//! | busy and idle of a step fit into its window, once for each GPU | the decode step |
//! | own time is at most total time | operators on the device |

mod shares;

use std::collections::BTreeMap;

use self::shares::each_share;
use super::{Analysis, device::DevicePeaks, gpu::EarlyStart, power::Power};
use crate::{
    run::{Finding, Severity},
    trace::{
        Trace,
        counter::{CounterValues, LaunchCounters},
    },
};

/// How far apart the clocks of host and device may lie before times of one are not compared with times of the other, nanoseconds.
pub const CLOCK_TOLERANCE_NS: i64 = 1_000;
/// By so much, in points, a share may leave its range through rounding.
const ROUNDING_PCT: f64 = 1e-6;
/// By so much, in points, a counter may pass 100 %: ncu reads its parts in several passes, whose clocks and caches differ
/// (Nsight Compute, Profiling Guide, "Range and Precision").
const PASSES_PCT: f64 = 5.0;
/// Registers that a thread can have (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MAX_REGISTERS: u32 = 255;
/// By so much, as a factor, bytes over time of a replay may pass the datasheet's bandwidth, and a clock the highest one.
const LIMIT_FACTOR: f64 = 1.1;

/// One invariant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Invariant {
    pub id: &'static str,
    /// Fields of the report that it binds, each as `Schema.field`.
    pub figures: &'static [&'static str],
    /// What holds for each of them.
    pub holds: &'static str,
    /// What most likely made a figure that breaks it.
    pub cause: &'static str,
    /// What to do then.
    pub remedy: &'static str,
}

/// Every invariant that inputs can break.
pub const INVARIANTS: &[Invariant] = &[
    Invariant {
        id: "counter_share",
        figures: &[
            "CounterValues.sm_pct",
            "CounterValues.memory_pct",
            "CounterValues.dram_pct",
            "CounterValues.l1_hit_pct",
            "CounterValues.l2_hit_pct",
            "CounterValues.achieved_occupancy_pct",
            "CounterValues.theoretical_occupancy_pct",
            "CounterValues.tensor_pct",
            "Stall.share_pct",
        ],
        holds: "a share of what the device sustains lies between 0 and 100 %, and at most 5 points above it",
        cause: "the ncu page was written with other decimal signs or units than it was read with, or is damaged",
        remedy: "Print the page again: LC_ALL=C ncu --import REPORT --csv --page details --print-units base.",
    },
    Invariant {
        id: "counter_limit",
        figures: &["CounterValues.registers", "CounterValues.dram_bytes", "CounterValues.duration_ns", "CounterValues.flops"],
        holds: "a counter is not negative, a thread has at most 255 registers, and bytes over the time of the replay are at most 1.1 \
                times the datasheet's bandwidth",
        cause: "the ncu page was written with other decimal signs or units than it was read with, or is of another device",
        remedy: "Print the page again: LC_ALL=C ncu --import REPORT --csv --page details --print-units base.",
    },
    Invariant {
        id: "clock_limit",
        figures: &["StagePower.sm_mhz", "StagePower.memory_mhz"],
        holds: "a mean clock is at most 1.1 times the highest clock of the device",
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
        holds: "what a call launches starts at most 1 us before the call does",
        cause: "the clocks of host and GPU contradict each other in this capture, or its times are damaged",
        remedy: "Take the capture again with an nsys as new as the driver. Durations of kernels are of one clock and are kept.",
    },
    Invariant {
        id: "share",
        figures: &[
            "StageTiming.share_pct",
            "StageNote.share_pct",
            "OperatorRecord.inclusive_pct",
            "OperatorRecord.exclusive_pct",
            "OperatorDevice.inclusive_pct",
            "OperatorDevice.exclusive_pct",
            "StageWork.covered_pct",
            "KernelRecord.share_pct",
            "FullKernelRecord.share_pct",
            "ClassRecord.share_pct",
            "LLMProfileReport.classified_pct",
            "KernelCounters.covered_pct",
            "Region.share_pct",
            "RegionClass.share_pct",
            "RegionCounters.covered_pct",
            "RooflinePoint.share_pct",
            "GemmRecord.share_pct",
            "OperatorMfu.exclusive_pct",
            "StageGpu.busy_pct",
            "StageGpu.launch_bound_pct",
            "Power.busy_pct",
            "StagePower.throttled_pct",
            "ReasonShare.share_pct",
        ],
        holds: "a share of a whole lies between 0 and 100 %",
        cause: "part and whole were measured by different clocks, or parts that ran at the same time were summed",
        remedy: "Compare the times themselves, which are kept.",
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
        cause: "a counter of one of the kernels is wrong",
        remedy: "Look at the kernel's counters by geometry.",
    },
];

/// Fields in percent that may pass 100 or fall below 0, and why; those of uses of a ceiling are refused above 101 % by rules of their own
/// (`mfu_impossible`, `roofline_impossible`, `ceiling_surpassed`).
pub const UNBOUNDED: &[(&str, &str)] = &[
    ("Change.change_pct", "a figure may more than double between two runs"),
    ("OverheadRecord.overhead_pct", "tracing may more than double a time, and its effect may drown in noise"),
    ("AlignmentKernelSide.share_pct", "a kernel's time over a sum that contains it"),
    ("AlignmentPower.throttled_pct", "StagePower.throttled_pct, which is bounded"),
    ("StagePower.reading_pct", "a reading may last longer than a stage"),
    ("MfuRecord.datasheet_pct", "refused above 101 % by the rule mfu_impossible"),
    ("MfuRecord.measured_pct", "refused above 101 % by the rule mfu_impossible"),
    ("MfuRecord.clocked_pct", "refused above 101 % by the rule mfu_impossible"),
    ("MfuRecord.datasheet_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("MfuRecord.measured_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("MfuRecord.clocked_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("OperatorMfu.datasheet_pct", "refused above 101 % by the rule mfu_impossible"),
    ("OperatorMfu.measured_pct", "refused above 101 % by the rule ceiling_surpassed"),
    ("OperatorMfu.clocked_pct", "refused above 101 % by the rule mfu_impossible"),
    ("OperatorMfu.datasheet_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("OperatorMfu.measured_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("OperatorMfu.clocked_bandwidth_pct", "operands are counted each time, and caches may serve them"),
    ("RooflinePoint.datasheet_pct", "refused above 101 % by the rule roofline_impossible"),
    ("RooflinePoint.measured_pct", "the products that were measured are no bound: another kernel may do better"),
];

/// A figure that broke an invariant and was left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    pub figure: &'static str,
    /// Kernel, stage or operator that it was of.
    pub of: String,
    pub value: f64,
}

/// Figures that broke an invariant and were left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Violations {
    pub figures: Vec<Violation>,
    early: Vec<EarlyStart>,
}

impl Violations {
    /// Leaves out `value` where it lies outside `0..=max`, or is not a number.
    fn bound(&mut self, figure: &'static str, of: impl FnOnce() -> String, value: &mut Option<f64>, max: f64) {
        let Some(found) = *value else { return };
        if !(0.0..=max).contains(&found) {
            self.figures.push(Violation { figure, of: of(), value: found });
            *value = None;
        }
    }

    /// The counters of launches without those that cannot be on this device.
    pub fn counters(&mut self, launches: &[LaunchCounters], peaks: Option<&DevicePeaks>) -> Vec<LaunchCounters> {
        let mut kept = launches.to_vec();
        for launch in &mut kept {
            let of = if launch.stage.is_empty() { String::new() } else { format!(" in {}", launch.stage) };
            let of = format!("{}{of}", launch.kernel);
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
            self.figures.push(Violation { figure: "CounterValues.registers", of: name(), value: registers.into() });
            values.registers = None;
        }
        self.bound("CounterValues.duration_ns", name, &mut values.duration_ns, f64::MAX);
        let seconds = values.duration_ns.map(|ns| ns / 1e9);
        let max = peaks.zip(seconds).map(|(peaks, seconds)| peaks.bytes_per_s() * seconds * LIMIT_FACTOR);
        self.bound("CounterValues.dram_bytes", name, &mut values.dram_bytes, max.unwrap_or(f64::MAX));
        if let Some(flops) = values.flops.values().copied().find(|flops| !(0.0..=f64::MAX).contains(flops)) {
            self.figures.push(Violation { figure: "CounterValues.flops", of: name(), value: flops });
            values.flops.clear();
            values.flops_complete = false;
        }
    }

    /// Leaves out clocks that the device cannot have.
    pub fn clocks(&mut self, power: &mut Power) {
        let max = |mhz: Option<u32>| mhz.map_or(f64::MAX, |mhz| f64::from(mhz) * LIMIT_FACTOR);
        let (sm, memory) = (max(power.device.max_sm_mhz), max(power.device.max_memory_mhz));
        for stage in &mut power.stages {
            self.bound("StagePower.sm_mhz", || stage.stage.clone(), &mut stage.sm_mhz, sm);
            self.bound("StagePower.memory_mhz", || stage.stage.clone(), &mut stage.memory_mhz, memory);
        }
    }

    /// Leaves out shares that cannot be, and notes what the walk over the capture left out.
    pub fn shares(&mut self, analysis: &mut Analysis) {
        self.early.clone_from(&analysis.stage_gpu.early);
        each_share(analysis, &mut |figure, of, value| {
            let counter = INVARIANTS.iter().any(|it| it.id == "counter_mean" && it.figures.contains(&figure));
            let slack = if counter { PASSES_PCT } else { ROUNDING_PCT };
            self.bound(figure, || of.to_owned(), value, 100.0 + slack);
            // What rounding alone carried over an end is the end.
            *value = value.map(|share| if counter { share } else { share.min(100.0) });
        });
    }
}

type Counter = (&'static str, fn(&mut CounterValues) -> &mut Option<f64>);

/// Counters that are shares.
const COUNTERS: [Counter; 8] = [
    ("CounterValues.sm_pct", |it| &mut it.sm_pct),
    ("CounterValues.memory_pct", |it| &mut it.memory_pct),
    ("CounterValues.dram_pct", |it| &mut it.dram_pct),
    ("CounterValues.l1_hit_pct", |it| &mut it.l1_hit_pct),
    ("CounterValues.l2_hit_pct", |it| &mut it.l2_hit_pct),
    ("CounterValues.achieved_occupancy_pct", |it| &mut it.achieved_occupancy_pct),
    ("CounterValues.theoretical_occupancy_pct", |it| &mut it.theoretical_occupancy_pct),
    ("CounterValues.tensor_pct", |it| &mut it.tensor_pct),
];

/// A finding for each figure that was left out, with the value that is farthest off.
pub fn findings(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let mut figures: BTreeMap<&str, Vec<&Violation>> = BTreeMap::new();
    for it in &analysis.violations.figures {
        figures.entry(it.figure).or_default().push(it);
    }
    let broken = |(figure, all): (&str, Vec<&Violation>)| {
        let worst = all.iter().max_by(|a, b| a.value.abs().total_cmp(&b.value.abs()))?;
        let invariant = INVARIANTS.iter().find(|it| it.figures.contains(&figure))?;
        let of = if worst.of.is_empty() { String::new() } else { format!(" of {}", worst.of) };
        let message = format!("{figure}{of} would be {:.1}: {}. It is left out.", worst.value, invariant.holds);
        let found = Finding::new("figure_impossible", Severity::Warning, message).with("figures left out", all.len());
        let found = found.with("value", format!("{:.1}", worst.value)).with("cause", invariant.cause);
        Some(found.advise(invariant.remedy))
    };
    let early = analysis.violations.early.iter().filter_map(early);
    early.chain(figures.into_iter().filter_map(broken)).collect()
}

fn early(it: &EarlyStart) -> Option<Finding> {
    let invariant = INVARIANTS.iter().find(|it| it.id == "work_after_launch")?;
    let message = format!(
        "{} kernels, copies or graphs of {} start before the call that launched them, by up to {:.3} ms: the stage's window, busy and \
         idle time, and a decode step with such work, are left out.",
        it.count,
        it.stage,
        it.worst_ns as f64 / 1e6,
    );
    let found = Finding::new("figure_impossible", Severity::Warning, message).with("stage", &it.stage).with("early", it.count);
    Some(found.with("cause", invariant.cause).advise(invariant.remedy))
}

#[cfg(test)]
mod tests;
