//! GPU state during each stage: busy, copying or idle, and the reasons for idle time.
//!
//! A stage's window is the span of its range ([`super::stage_spans`]): to the end of the range, or
//! of the last work that it launched if later; overlapping windows count once. Inside it a GPU is
//! *busy* while work launched by the stage runs on any stream, *other* while only other work
//! runs, and *idle* while nothing runs, so busy + other + idle = window. This holds per GPU:
//! each GPU has the windows of all stages of the processes that use it, or of the threads of a
//! process that drive a GPU each, and totals are sums over GPUs.
//!
//! An idle gap ends with the next work on the GPU and is explained by its launching call. Until the
//! call started, the launching thread was in a waiting call (*sync*), in a copying call
//! (*copy*), or elsewhere (*host*); until the call returned, the GPU waited for the launch itself
//! (*host*, or *copy* for a launched copy). Work that starts at most 10 us after the return is part
//! of the launch. Work that starts later, or was launched before the gap, was delayed for a reason
//! that the capture does not show (*unknown*).

mod cells;
mod gap_sums;
pub mod host_activity;
mod idle_gap;
pub mod in_gap;
mod launch_lengths;
pub mod long_calls;
mod named_gaps;
mod other_work;
mod overlap;
pub mod split;
pub mod step_idle;
mod waits;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::{
    cells::{EarlyStart, GpuCell},
    idle_gap::LaneEvent,
};
use llmprof_core::domain::units::Nanos;

use self::{
    cells::GpuCells,
    split::{GapReason, SplitSums, WindowSplits},
    step_idle::WantedSteps,
};
use super::{
    capture::Capture,
    open_at::operator_nests,
    step_states::LEFT_OUT,
    withheld::{ReasonSet, TimelineFigure, Withheld, WithheldReason},
};
use crate::{
    host_cpu::{Cores, GapTables, HostGaps},
    stats::{percent, ratio},
};

/// One stage of the traced pass on one GPU, or on all GPUs, summed over instances.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageGpu {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Index of the GPU; `null` in a total over several.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub device: Option<u32>,
    /// Number of GPUs in this row.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = 1))]
    pub devices: u64,
    /// Instances of the stage.
    pub instances: u64,
    /// Time from each start to the end of the last work that the stage launched, without the time
    /// in which it was queued behind the stage before; overlaps once; summed over GPUs. `null`, as
    /// are the times below, when no GPU work is recorded or when the clocks of host and GPU are
    /// inconsistent; `window_ms` alone is known if a graph ran meanwhile whose GPU is unknown.
    pub window_ms: Option<f64>,
    /// Time of the window in which a kernel, copy, fill or whole-traced graph of the stage ran, on
    /// any stream.
    pub busy_ms: Option<f64>,
    /// True when `busy_ms` is an upper bound and idle time a lower one: gaps inside whole-traced
    /// graphs are not visible.
    #[serde(default)]
    pub busy_is_upper_bound: bool,
    /// `busy_ms` of `window_ms`, percent.
    pub busy_pct: Option<f64>,
    /// Part of `busy_ms` in which at least two kernels or whole-traced graphs of the stage ran.
    #[serde(default)]
    pub overlap_ms: Option<f64>,
    /// Part of `busy_ms` in which a copy of the stage ran.
    #[serde(default)]
    pub copying_ms: Option<f64>,
    /// Part of `copying_ms` in which a kernel or whole-traced graph of the stage ran.
    #[serde(default)]
    pub copy_overlap_ms: Option<f64>,
    /// Time of the window in which only work ran that the stage did not launch.
    #[serde(default)]
    pub other_ms: Option<f64>,
    /// Time of the window in which nothing ran: `window_ms - busy_ms - other_ms`.
    pub idle_ms: Option<f64>,
    /// Idle time in which the host had launched no work, or was launching it.
    pub idle_host_ms: Option<f64>,
    /// Idle time in which the host copied, or launched a copy.
    pub idle_copy_ms: Option<f64>,
    /// Idle time in which the host waited in the driver.
    pub idle_sync_ms: Option<f64>,
    /// Idle time for a reason that the capture does not show.
    pub idle_unknown_ms: Option<f64>,
    /// Number of idle gaps.
    pub gaps: Option<u64>,
    pub longest_gap_ms: Option<f64>,
    /// `idle_host_ms` of `window_ms`, percent: the max saving of launching in time.
    pub launch_bound_pct: Option<f64>,
    /// Recorded kernels of the stage.
    pub launches: u64,
    /// Calls of the stage that launched a CUDA graph, traced by node or as a whole; `null` in the
    /// row of one of several GPUs.
    #[serde(default)]
    pub graph_launches: Option<u64>,
    /// Launches of CUDA graphs traced as a whole: their kernels are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    pub copies: Vec<StageCopies>,
    /// Fills of device memory; not part of the copies.
    #[serde(default)]
    pub fills: u64,
    #[serde(default)]
    pub filled_bytes: u64,
    #[serde(default)]
    pub fill_ms: f64,
    /// Divisor of sums over all windows for the mean of one instance on one GPU; below the number
    /// of windows if instances overlap on a GPU, whose window has that time once.
    #[serde(skip)]
    pub repeats: Option<f64>,
    /// Nanoseconds of idle time by reason, in the row of one of several GPUs; empty in a total.
    #[serde(skip)]
    pub idle_ns: BTreeMap<GapReason, i64>,
}

/// Copies of one kind launched by a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageCopies {
    /// `host_to_device`, `device_to_host`, `device_to_device`, `other`.
    #[cfg_attr(feature = "schema", schema(example = "device_to_device"))]
    pub kind: String,
    pub calls: u64,
    pub bytes: u64,
    pub total_ms: f64,
}

/// GPU figures of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageGpus {
    /// One row per stage; empty when the capture has neither device work nor launches.
    pub totals: Vec<StageGpu>,
    /// One row per stage and GPU; empty when one GPU did all work.
    pub devices: Vec<StageGpu>,
    /// Stages with work that starts before its launching call.
    pub early: Vec<EarlyStart>,
    /// Reasons to withhold figures, by stage with instances, in the order of stages.
    pub reasons: Vec<(String, ReasonSet)>,
}

impl StageGpus {
    /// Removes the rows of stages that are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        let is_kept = |stage: &str| !withheld.has(stage, TimelineFigure::row_of(stage));
        self.totals.retain(|it| is_kept(&it.stage));
        self.devices.retain(|it| is_kept(&it.stage));
    }

    /// GPUs with kernels of one instance of a stage, the mean over instances; 1 if they are
    /// unknown. A process, or a thread, may use several.
    pub fn gpus_of_instance(&self, stage: &str) -> f64 {
        let all = self.totals.iter().find(|it| it.stage == stage).map_or(0, |it| it.instances);
        let used = self.devices.iter().filter(|it| it.stage == stage);
        let used = used.filter(|it| it.launches + it.whole_graphs > 0);
        let windows = used.map(|it| it.instances).sum::<u64>();
        ratio(windows as f64, all as f64).unwrap_or(1.0).max(1.0)
    }

    /// Adds the idle time by reason to the rows of one GPU.
    fn add_idle(&mut self, splits: &WindowSplits) {
        for row in &mut self.devices {
            let split = splits.stages.iter().find(|it| it.stage == row.stage);
            let on_gpu = split.zip(row.device).and_then(|(it, gpu)| it.on_gpus.get(&gpu));
            row.idle_ns = on_gpu.map(|it| it.gaps.clone()).unwrap_or_default();
        }
    }

    /// Adds the rows of other stages.
    pub fn append(&mut self, other: Self) {
        let Self { totals, devices, early, reasons } = other;
        self.totals.extend(totals);
        self.devices.extend(devices);
        self.early.extend(early);
        self.reasons.extend(reasons);
    }
}

/// Measures GPU activity in each stage, divides the windows of stages, and what the host's threads
/// did in gaps, if that is recorded.
pub fn device_tables(
    capture: &Capture,
    cores: Option<&Cores>,
    wanted: &WantedSteps,
) -> (StageGpus, WindowSplits, GapTables) {
    let nests = operator_nests(capture.trace);
    let mut splits = SplitSums::new(capture, &nests, wanted);
    let mut host = HostGaps::of(capture, cores);
    let cells = GpuCells::of(capture, &mut |cells, event| {
        splits.add(cells, event);
        if let Some(host) = &mut host {
            host.add(cells, event);
        }
    });
    let mut splits = splits.finish(&capture.stages.labels, &cells);
    other_work::add(capture, &cells, &mut splits);
    let host = host.map(|it| it.finish(capture)).unwrap_or_default();
    let mut gpus = stage_gpu(capture, &cells);
    gpus.add_idle(&splits);
    (gpus, splits, host)
}

fn stage_gpu(capture: &Capture, cells: &GpuCells) -> StageGpus {
    let mut found = StageGpus { early: cells.early(capture), ..StageGpus::default() };
    if cells.devices.is_empty() && !cells.has_launches {
        return found;
    }
    for (label, stage) in capture.stages.labels.iter().enumerate() {
        let instances = cells.instances[label];
        if instances == 0 {
            continue;
        }
        let used: Vec<(u32, &GpuCell)> = cells.of_stage(label).collect();
        if !has_own_windows(capture, stage, &used) {
            found.reasons.push((stage.clone(), [WithheldReason::NoOwnWindows].into()));
            continue;
        }
        found.reasons.push((stage.clone(), reasons(&used)));
        let graph_launches = Some(cells.graph_calls[label]);
        let total = row(stage, instances, &used);
        let whole_graphs = total.whole_graphs + cells.unplaced[label];
        found.totals.push(StageGpu { graph_launches, whole_graphs, ..total });
        if cells.devices.len() > 1 {
            found.devices.extend(used.iter().map(|it| row(stage, it.1.instances, &[*it])));
        }
    }
    found
}

/// True if the windows of a stage are its time on the GPU. The windows of steps that are left out
/// are bounds. Work of a decode that runs in the time of such a step lies outside the decode's
/// windows.
fn has_own_windows(capture: &Capture, stage: &str, cells: &[(u32, &GpuCell)]) -> bool {
    let has_taken_out = !capture.stages.states.taken_out().is_empty();
    let is_crossed = has_taken_out && cells.iter().any(|(_, cell)| cell.is_crossed());
    stage != LEFT_OUT && !is_crossed
}

/// Reasons to withhold figures over some cells.
fn reasons(cells: &[(u32, &GpuCell)]) -> ReasonSet {
    if cells.is_empty() {
        return [WithheldReason::NoDeviceWork].into();
    }
    let of_cell = |(_, cell): &(u32, &GpuCell)| {
        [
            (cell.is_unequal, WithheldReason::ClocksDiffer),
            (cell.early > 0, WithheldReason::EarlyWork),
            (cell.unplaced, WithheldReason::UnplacedGraph),
            (cell.unattributed, WithheldReason::UnattributedWork),
        ]
    };
    cells.iter().flat_map(of_cell).filter(|it| it.0).map(|it| it.1).collect()
}

/// Sums the cells of one stage.
fn row(stage: &str, instances: u64, cells: &[(u32, &GpuCell)]) -> StageGpu {
    let sum = |of: fn(&GpuCell) -> i64| {
        cells.iter().fold(0i64, |sum, (_, cell)| sum.saturating_add(of(cell)))
    };
    let count = |of: fn(&GpuCell) -> u64| cells.iter().map(|(_, cell)| of(cell)).sum::<u64>();
    let reasons = reasons(cells);
    let is_known = |figure: TimelineFigure| !figure.is_withheld_by(&reasons, stage);
    let timed = is_known(TimelineFigure::Window);
    let placed = is_known(TimelineFigure::Idle);
    let attributed = is_known(TimelineFigure::Busy);
    let ms = |ns: i64| timed.then(|| Nanos(ns).as_ms());
    let (window, busy, idle) =
        (sum(|it| it.window_ns()), sum(|it| it.busy_ns), sum(|it| it.idle.ns()));
    StageGpu {
        stage: stage.into(),
        device: if let [(device, _)] = cells { Some(*device) } else { None },
        devices: cells.len() as u64,
        instances,
        window_ms: ms(window),
        busy_ms: ms(busy).filter(|_| attributed),
        overlap_ms: ms(sum(|it| it.overlap.kernels_ns)).filter(|_| attributed),
        copying_ms: ms(sum(|it| it.overlap.copies_ns)).filter(|_| attributed),
        copy_overlap_ms: ms(sum(|it| it.overlap.both_ns)).filter(|_| attributed),
        busy_is_upper_bound: count(|it| it.graphs) > 0,
        busy_pct: percent(busy as f64, window as f64).filter(|_| attributed),
        other_ms: ms(window - busy - idle).filter(|_| attributed),
        idle_ms: ms(idle).filter(|_| placed),
        idle_host_ms: ms(sum(|it| it.idle.host)).filter(|_| placed),
        idle_copy_ms: ms(sum(|it| it.idle.copy)).filter(|_| placed),
        idle_sync_ms: ms(sum(|it| it.idle.sync)).filter(|_| placed),
        idle_unknown_ms: ms(sum(|it| it.idle.unknown)).filter(|_| placed),
        gaps: placed.then(|| count(|it| it.gaps)),
        longest_gap_ms: ms(cells.iter().map(|(_, cell)| cell.longest).max().unwrap_or(0))
            .filter(|_| placed),
        launch_bound_pct: percent(sum(|it| it.idle.host) as f64, window as f64).filter(|_| placed),
        launches: count(|it| it.kernels),
        graph_launches: None,
        whole_graphs: count(|it| it.graphs),
        copies: copies(cells),
        fills: count(|it| it.fills.calls),
        filled_bytes: cells.iter().fold(0, |sum, (_, cell)| cell.fills.bytes.saturating_add(sum)),
        fill_ms: Nanos(sum(|it| it.fills.ns)).as_ms(),
        repeats: ratio(
            count(|it| it.instances) as f64 * window as f64,
            sum(|it| it.instances_ns) as f64,
        ),
        idle_ns: BTreeMap::new(),
    }
}

fn copies(cells: &[(u32, &GpuCell)]) -> Vec<StageCopies> {
    let mut kinds = BTreeMap::new();
    for (kind, moved) in cells.iter().flat_map(|(_, cell)| &cell.copies) {
        cells::TransferKind::add(kinds.entry(*kind).or_default(), moved);
    }
    let row = |(kind, moved): (llmprof_core::trace::timeline::CopyKind, cells::TransferKind)| {
        StageCopies {
            kind: kind.as_str().into(),
            calls: moved.calls,
            bytes: moved.bytes,
            total_ms: Nanos(moved.ns).as_ms(),
        }
    };
    kinds.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
