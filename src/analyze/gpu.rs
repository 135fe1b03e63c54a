//! What the GPU did while each stage was open: busy, copying, idle, and what it waited for when it was idle.
//!
//! A stage's window lasts from its range's start to the end of its range, or of the last thing that it launched where that is later;
//! windows that overlap count once. In it a GPU is *busy* while something that the stage launched runs, on any stream; *other* while
//! only work of other stages runs; *idle* while nothing runs. So busy, other and idle sum up to the window, for each GPU by itself:
//! each has the window of every stage of a process that uses it, and totals are sums over GPUs.
//! An idle stretch ends with the next thing that runs there, and is explained by the call that launched it: until the call began, the
//! launching thread was inside a call that waits (*sync*), inside a call that copies (*copy*), or elsewhere (*host*); from there on it
//! waited for the launch itself (*host*, or *copy* where a copy was launched). What was launched before the GPU fell idle waited for
//! something that a capture does not show (*unknown*).

mod cells;
mod waits;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::cells::EarlyStart;
use self::cells::{Cell, Cells};
pub(super) use self::waits::waits;
use super::{launches::Launches, stats::percent};
use crate::trace::{nsys::NsysTrace, units::Nanos};

/// A GPU in one stage of the traced pass, or all GPUs of the stage, all instances together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageGpu {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Index of the GPU; `null` in a total over several.
    #[serde(default)]
    #[schema(example = 0)]
    pub device: Option<u32>,
    /// GPUs whose times are summed here.
    #[serde(default)]
    #[schema(example = 1)]
    pub devices: u64,
    /// Times that the stage was open.
    pub instances: u64,
    /// From each start to the end of the last thing that the stage launched, each moment once; summed over GPUs. `null`, as are the
    /// times below, where nothing is recorded of a GPU, or where the clocks of host and GPU contradict each other.
    pub window_ms: Option<f64>,
    /// Time of the window in which a kernel, copy, fill or whole-traced graph of the stage ran, over all streams.
    pub busy_ms: Option<f64>,
    /// Whether `busy_ms` is an upper bound, and idle time a lower one: gaps inside graphs that were traced as a whole are not visible.
    #[serde(default)]
    pub busy_is_upper_bound: bool,
    /// `busy_ms` of `window_ms`, percent.
    pub busy_pct: Option<f64>,
    /// Time of the window in which only work of other stages ran.
    #[serde(default)]
    pub other_ms: Option<f64>,
    /// Time of the window in which nothing ran: `window_ms - busy_ms - other_ms`.
    pub idle_ms: Option<f64>,
    /// Idle while the host had launched nothing, or was launching.
    pub idle_host_ms: Option<f64>,
    /// Idle while the host copied, or launched a copy.
    pub idle_copy_ms: Option<f64>,
    /// Idle while the host waited inside the driver.
    pub idle_sync_ms: Option<f64>,
    /// Idle for a reason that the capture does not show.
    pub idle_unknown_ms: Option<f64>,
    /// Idle stretches.
    pub gaps: Option<u64>,
    pub longest_gap_ms: Option<f64>,
    /// `idle_host_ms` of `window_ms`, percent: what a host that launched in time would save at most.
    pub launch_bound_pct: Option<f64>,
    /// Kernels of the stage that are recorded.
    pub launches: u64,
    /// Calls of the stage that launched a CUDA graph, traced by node or as a whole; `null` for one of several GPUs.
    #[serde(default)]
    pub graph_launches: Option<u64>,
    /// Launches of CUDA graphs that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    pub copies: Vec<StageCopies>,
    /// Fills of device memory: they copy nothing.
    #[serde(default)]
    pub fills: u64,
    #[serde(default)]
    pub filled_bytes: u64,
    #[serde(default)]
    pub fill_ms: f64,
}

/// Copies of one kind that a stage launched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageCopies {
    /// `host_to_device`, `device_to_host`, `device_to_device`, `other`.
    #[schema(example = "device_to_device")]
    pub kind: String,
    pub calls: u64,
    pub bytes: u64,
    pub total_ms: f64,
}

/// The GPUs of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StageGpus {
    /// A row for each stage; none where the capture has neither work of a device nor a launch.
    pub totals: Vec<StageGpu>,
    /// A row for each stage and GPU; none where one GPU did everything.
    pub devices: Vec<StageGpu>,
    /// Stages with work that starts before the call that launched it.
    pub early: Vec<EarlyStart>,
    /// Stages whose busy time is left out, because a kernel, copy or graph without its launching call ran meanwhile.
    pub unattributed: Vec<String>,
}

/// Measures what the GPUs did in each stage that was open.
pub fn stage_gpu(trace: &NsysTrace, launches: &Launches) -> StageGpus {
    let cells = Cells::of(trace, launches);
    let mut found = StageGpus { early: cells.early(launches), ..StageGpus::default() };
    if cells.devices.is_empty() && !cells.launched {
        return found;
    }
    for (label, stage) in launches.stages.labels.iter().enumerate() {
        let instances = cells.instances[label];
        if instances == 0 {
            continue;
        }
        let used: Vec<(u32, &Cell)> = cells.of_stage(label).collect();
        if used.iter().any(|(_, cell)| cell.unattributed) {
            found.unattributed.push(stage.clone());
        }
        let graph_launches = Some(cells.graph_calls[label]);
        let total = row(stage, instances, &used);
        found.totals.push(StageGpu { graph_launches, ..total });
        if cells.devices.len() > 1 {
            found.devices.extend(used.iter().map(|it| row(stage, it.1.instances, &[*it])));
        }
    }
    found
}

/// Sums the cells of one stage.
fn row(stage: &str, instances: u64, cells: &[(u32, &Cell)]) -> StageGpu {
    let sum = |of: fn(&Cell) -> i64| cells.iter().fold(0i64, |sum, (_, cell)| sum.saturating_add(of(cell)));
    let count = |of: fn(&Cell) -> u64| cells.iter().map(|(_, cell)| of(cell)).sum::<u64>();
    // Times of host and device are compared only where they agree on what came first.
    let timed = !cells.is_empty() && cells.iter().all(|(_, cell)| cell.early == 0);
    let attributed = timed && cells.iter().all(|(_, cell)| !cell.unattributed);
    let ms = |ns: i64| timed.then(|| Nanos(ns).as_ms());
    let (window, busy, idle) = (sum(|it| it.window_ns()), sum(|it| it.busy_ns), sum(|it| it.idle.ns()));
    StageGpu {
        stage: stage.into(),
        device: if let [(device, _)] = cells { Some(*device) } else { None },
        devices: cells.len() as u64,
        instances,
        window_ms: ms(window),
        busy_ms: ms(busy).filter(|_| attributed),
        busy_is_upper_bound: count(|it| it.graphs) > 0,
        busy_pct: percent(busy as f64, window as f64).filter(|_| attributed),
        other_ms: ms(window - busy - idle).filter(|_| attributed),
        idle_ms: ms(idle),
        idle_host_ms: ms(sum(|it| it.idle.host)),
        idle_copy_ms: ms(sum(|it| it.idle.copy)),
        idle_sync_ms: ms(sum(|it| it.idle.sync)),
        idle_unknown_ms: ms(sum(|it| it.idle.unknown)),
        gaps: timed.then(|| count(|it| it.gaps)),
        longest_gap_ms: ms(cells.iter().map(|(_, cell)| cell.longest).max().unwrap_or(0)),
        launch_bound_pct: percent(sum(|it| it.idle.host) as f64, window as f64).filter(|_| timed),
        launches: count(|it| it.kernels),
        graph_launches: None,
        whole_graphs: count(|it| it.graphs),
        copies: copies(cells),
        fills: count(|it| it.fills.calls),
        filled_bytes: cells.iter().fold(0, |sum, (_, cell)| cell.fills.bytes.saturating_add(sum)),
        fill_ms: Nanos(sum(|it| it.fills.ns)).as_ms(),
    }
}

fn copies(cells: &[(u32, &Cell)]) -> Vec<StageCopies> {
    let mut kinds = std::collections::BTreeMap::new();
    for (kind, moved) in cells.iter().flat_map(|(_, cell)| &cell.copies) {
        cells::Moved::add(kinds.entry(*kind).or_default(), moved);
    }
    let row = |(kind, moved): (crate::trace::nsys::CopyKind, cells::Moved)| StageCopies {
        kind: kind.as_str().into(),
        calls: moved.calls,
        bytes: moved.bytes,
        total_ms: Nanos(moved.ns).as_ms(),
    };
    kinds.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
