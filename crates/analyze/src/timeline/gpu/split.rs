//! Device time of each stage, divided among its kernels, copies and idle gaps.
//!
//! The parts add up exactly: while n pieces of work of the stage run on one GPU, each gets a part
//! in n of the time, and the first ones the nanoseconds that remain of the division. Gaps are the
//! same as in [`super`], by the same reasons.

mod shared_time;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use foldhash::HashMap;
use llmprof_core::trace::timeline::{CopyKind, Timeline};

use self::shared_time::{SharedTime, WorkTimes};
use super::{
    super::{
        activity::{Activity, DeviceWork},
        capture::Capture,
        framework_nests::FrameworkIndex,
        interval::{Interval, IntervalSet},
        open_at::OpenAt,
    },
    cells::{GpuCell, GpuCells},
    idle_gap::{IdleGap, LaneEvent},
    launch_lengths::LaunchLengths,
    named_gaps::{DividedGap, GapNames},
    step_idle::{StepIdle, StepIdleSums, WantedSteps},
};
pub use super::{
    gap_sums::{GapReason, GapSum},
    launch_lengths::LongLaunches,
    other_work::OtherWork,
};
use crate::{
    kernels::is_measured, operators::rolled_paths::RolledPaths, timeline::open_ranges::RangeNest,
};

/// Work of one kind, launched by one operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkOf {
    /// Index into [`WindowSplits::operators`]; `None` outside all operators.
    pub operator: Option<u32>,
    pub kind: WorkKind,
}

/// A kernel by its index in [`llmprof_core::trace::kernel::KernelTrace::kinds`], or other work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    Kernel(u32),
    Graph,
    Copy(CopyKind),
}

/// Time of work inside the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkTime {
    pub calls: u64,
    pub ns: i64,
    /// Part of `ns` in which nothing else of the stage ran.
    pub alone_ns: i64,
    /// Large copies of pageable memory, and the time that pinned memory saves of them at most.
    pub staged_calls: u64,
    pub staged_ns: i64,
}

/// Idle time of one reason, by the work that ended before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GapAfter {
    pub reason: GapReason,
    /// `None` before the first work, and of long calls.
    pub after: Option<WorkOf>,
    /// Index into [`WindowSplits::host_calls`], of a long call.
    pub call: Option<u32>,
}

/// Device time of one stage, summed over its windows on all GPUs: `window_ns` is the sum of all
/// work, all gaps and `other_ns`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowSplit {
    pub stage: String,
    /// Instances of the stage.
    pub instances: u64,
    /// Windows: instances of the stage on each GPU.
    pub windows: u64,
    /// Sum of the windows of all instances: overlaps count as often as they occur.
    pub instances_ns: i64,
    pub window_ns: i64,
    /// Time in which only work ran that the stage did not launch.
    pub other_ns: i64,
    pub work: BTreeMap<WorkOf, WorkTime>,
    pub gaps: BTreeMap<GapAfter, GapSum>,
    /// The work of the other time.
    pub other: Vec<OtherWork>,
    /// By number of the GPU.
    pub on_gpus: BTreeMap<u32, WindowsOnGpu>,
    /// Launches of a kernel that take far longer than its others.
    pub long_launches: BTreeMap<WorkOf, LongLaunches>,
}

/// Windows of one stage on one GPU, and their idle time by reason.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowsOnGpu {
    pub windows: u64,
    pub gaps: BTreeMap<GapReason, i64>,
}

/// The stages of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowSplits {
    pub stages: Vec<WindowSplit>,
    /// Paths of operators, layers rolled up.
    pub operators: Vec<String>,
    /// Names of long calls of the host.
    pub host_calls: Vec<String>,
    /// Their parts of gaps, in order of time on each GPU.
    pub long_gaps: Vec<LongGap>,
    /// Idle time of each wanted outlier, in the order of the outliers.
    pub step_idle: Vec<StepIdle>,
}

impl WindowSplits {
    /// Adds other stages of the same capture.
    pub fn append(&mut self, other: Self) {
        let first_operator = self.operators.len() as u32;
        let first_call = self.host_calls.len() as u32;
        self.operators.extend(other.operators);
        self.host_calls.extend(other.host_calls);
        let renamed =
            |it: WorkOf| WorkOf { operator: it.operator.map(|at| at + first_operator), ..it };
        let moved = |it: WindowSplit| {
            let gap = |it: GapAfter| GapAfter {
                after: it.after.map(renamed),
                call: it.call.map(|at| at + first_call),
                ..it
            };
            let work = it.work.into_iter().map(|(of, time)| (renamed(of), time)).collect();
            let gaps = it.gaps.into_iter().map(|(of, sum)| (gap(of), sum)).collect();
            let long = it.long_launches.into_iter().map(|(of, long)| (renamed(of), long));
            let long_launches = long.collect();
            WindowSplit { work, gaps, long_launches, ..it }
        };
        self.stages.extend(other.stages.into_iter().map(moved));
        let calls = other.long_gaps.into_iter();
        self.long_gaps.extend(calls.map(|it| LongGap { call: it.call + first_call, ..it }));
    }
}

/// Idle time of a GPU in which the host was inside a long call.
#[derive(Debug, Clone, PartialEq)]
pub struct LongGap {
    pub stage: String,
    pub from: i64,
    pub to: i64,
    /// Index into [`WindowSplits::host_calls`].
    pub call: u32,
}

/// Work and gaps of one stage.
#[derive(Default)]
struct StageSums {
    work: WorkTimes,
    gaps: HashMap<GapAfter, GapSum>,
}

/// Divides the windows of all stages, from the events of [`GpuCells::of`].
pub(super) struct SplitSums<'a> {
    names: WorkNames<'a>,
    /// By stage.
    stages: Vec<StageSums>,
    /// By cell.
    shared: Vec<SharedTime>,
    idle: Vec<BTreeMap<GapReason, i64>>,
    /// The last work: most gaps follow it.
    last: Option<(DeviceWork, usize, WorkOf)>,
    gaps: GapNames<'a>,
    /// The last gap.
    divided: DividedGap,
    steps: StepIdleSums<'a>,
    /// By stage and work: lengths of its launches.
    lengths: HashMap<(usize, WorkOf), LaunchLengths>,
    /// By stage.
    long_gaps: Vec<(usize, Interval, u32)>,
}

impl<'a> SplitSums<'a> {
    pub fn new(
        capture: &'a Capture<'a>,
        nests: &'a [(i64, RangeNest)],
        wanted: &'a WantedSteps<'a>,
    ) -> Self {
        let names = WorkNames {
            trace: capture.trace,
            framework: capture.framework.as_deref(),
            nests,
            entries: OpenAt::new(capture, nests),
            of_entry: HashMap::default(),
            operators: RolledPaths::default(),
        };
        let stages = capture.stages.labels.iter().map(|_| StageSums::default()).collect();
        let gaps = GapNames::of(capture);
        let steps = StepIdleSums::new(&capture.stages.labels, wanted);
        let (shared, idle, last, divided, lengths, long_gaps) = Default::default();
        Self { names, stages, shared, idle, last, gaps, divided, steps, lengths, long_gaps }
    }

    /// Adds an event; the windows of `cells` are set.
    pub fn add(&mut self, cells: &[GpuCell], event: &LaneEvent) {
        if self.shared.is_empty() {
            self.shared.resize_with(cells.len(), SharedTime::default);
            self.idle.resize_with(cells.len(), BTreeMap::new);
        }
        match event {
            LaneEvent::Work { cell, work, .. } => {
                let of = self.names.of(work);
                self.last = Some((work.work, work.row, of));
                let stage = &mut self.stages[cells[*cell].label];
                let time = stage.work.entry(of).or_default();
                time.calls += 1;
                if let Some(ns) = self.names.staged_ns(work) {
                    time.staged_calls += 1;
                    time.staged_ns = time.staged_ns.saturating_add(ns);
                }
                if matches!(of.kind, WorkKind::Kernel(_)) {
                    let lengths = self.lengths.entry((cells[*cell].label, of)).or_default();
                    lengths.add(work.end_ns - work.start_ns);
                }
                self.shared[*cell].add(work, of, &cells[*cell].window, &mut stage.work);
            }
            LaneEvent::Gap(gap) => self.add_gap(cells, gap),
            LaneEvent::Unattributed(_) => {}
        }
    }

    fn add_gap(&mut self, cells: &[GpuCell], gap: &IdleGap) {
        let after = gap.before.as_ref().map(|work| match self.last {
            Some((kind, row, of)) if (kind, row) == (work.work, work.row) => of,
            _ => self.names.of(work),
        });
        let label = cells[gap.cell].label;
        self.gaps.divide(gap, &mut self.divided);
        let (sums, idle) = (&mut self.stages[label].gaps, &mut self.idle[gap.cell]);
        for it in &self.divided.parts {
            let after = after.filter(|_| it.call.is_none());
            let of = GapAfter { reason: it.reason, after, call: it.call };
            *idle.entry(it.reason).or_default() += it.ns;
            sums.entry(of).or_default().add(it.ns, it.is_counted);
        }
        let gpus = (cells.len() / self.stages.len()).max(1);
        self.steps.add((label, gap.cell % gpus), gap, &self.divided);
        let long = self.divided.long_calls.iter().map(|(call, part)| (label, *part, *call));
        self.long_gaps.extend(long);
    }

    /// The measured stages, of these names, without those in which a graph of an unknown GPU ran.
    pub fn finish(mut self, labels: &[String], cells: &GpuCells) -> WindowSplits {
        self.shared.resize_with(cells.cells().len(), SharedTime::default);
        self.idle.resize_with(cells.cells().len(), BTreeMap::new);
        let gpus = cells.devices.len().max(1);
        let mut windows = vec![(0, 0i64, 0i64, BTreeMap::new()); self.stages.len()];
        let mut unplaced = BTreeSet::new();
        for (at, (cell, shared)) in cells.cells().iter().zip(&mut self.shared).enumerate() {
            shared.advance(i64::MAX, &cell.window, &mut self.stages[at / gpus].work);
            let (count, instances_ns, ns, on_gpus) = &mut windows[at / gpus];
            if cell.unplaced {
                unplaced.insert(labels[at / gpus].as_str());
            }
            *count += cell.instances;
            *instances_ns = instances_ns.saturating_add(cell.instances_ns);
            *ns = ns.saturating_add(cell.window_ns());
            let gaps = std::mem::take(&mut self.idle[at]);
            let it = WindowsOnGpu { windows: cell.instances, gaps };
            on_gpus.insert(cells.devices[at % gpus], it);
        }
        type Windows = (u64, i64, i64, BTreeMap<u32, WindowsOnGpu>);
        type NamedSums<'a> = (((StageSums, &'a String), u64), Windows);
        let split = |(((sums, name), instances), times): NamedSums| {
            let (windows, instances_ns, window_ns, on_gpus) = times;
            let (work, gaps): (BTreeMap<_, _>, BTreeMap<_, _>) =
                (sums.work.into_iter().collect(), sums.gaps.into_iter().collect());
            let inside: i64 = work.values().map(|it: &WorkTime| it.ns).sum();
            let idle: i64 = gaps.values().map(|it: &GapSum| it.ns).sum();
            let other_ns = window_ns - inside - idle;
            WindowSplit {
                stage: name.clone(),
                instances,
                windows,
                instances_ns,
                window_ns,
                other_ns,
                work,
                gaps,
                other: Vec::new(),
                on_gpus,
                long_launches: BTreeMap::new(),
            }
        };
        let named = self.stages.into_iter().zip(labels).zip(cells.instances.iter().copied());
        let mut stages: Vec<WindowSplit> = named.zip(windows).map(split).collect();
        for ((label, of), lengths) in self.lengths {
            if let Some(long) = lengths.long() {
                stages[label].long_launches.insert(of, long);
            }
        }
        stages.retain(|it| it.windows > 0 && it.window_ns > 0 && is_measured(&it.stage));
        stages.retain(|it| !unplaced.contains(it.stage.as_str()));
        let host_calls = self.gaps.into_names();
        let step_idle = self.steps.finish(&host_calls);
        let long_gap = |(label, (from, to), call): (usize, Interval, u32)| LongGap {
            stage: labels[label].clone(),
            from,
            to,
            call,
        };
        let long_gaps = self.long_gaps.into_iter().map(long_gap).collect();
        let operators = self.names.operators.into_paths();
        let operators = operators.into_iter().map(Cow::into_owned).collect();
        WindowSplits { stages, operators, host_calls, long_gaps, step_idle }
    }
}

/// Names the operators of work.
struct WorkNames<'a> {
    trace: &'a Timeline,
    framework: Option<&'a FrameworkIndex>,
    nests: &'a [(i64, RangeNest)],
    entries: OpenAt<'a>,
    /// By thread's nest and entry.
    of_entry: HashMap<(usize, u32), u32>,
    operators: RolledPaths<'a>,
}

impl<'a> WorkNames<'a> {
    /// Time that pinned memory saves of a copy at most.
    fn staged_ns(&self, work: &Activity) -> Option<i64> {
        let is_copy = matches!(work.work, DeviceWork::Copy(_));
        self.trace.copies.get(work.row).filter(|_| is_copy)?.staged_ns()
    }

    fn of(&mut self, work: &Activity) -> WorkOf {
        let kind = match work.work {
            DeviceWork::Kernel(kind) => WorkKind::Kernel(kind),
            DeviceWork::Graph => WorkKind::Graph,
            DeviceWork::Copy(kind) => WorkKind::Copy(kind),
            DeviceWork::Fill => WorkKind::Copy(CopyKind::Set),
        };
        let is_kernel = matches!(work.work, DeviceWork::Kernel(_));
        let operator = match self.framework.filter(|_| is_kernel) {
            Some(index) => {
                let name = index.name_of(self.trace, work.row);
                name.map(|name| self.operators.number(name))
            }
            None => self.entries.of(work.graph_node, work.join).map(|entry| self.number(entry)),
        };
        WorkOf { operator, kind }
    }

    fn number(&mut self, entry: (usize, u32)) -> u32 {
        if let Some(number) = self.of_entry.get(&entry) {
            return *number;
        }
        let range = self.nests[entry.0].1.entries[entry.1 as usize].0;
        let trace: &'a Timeline = self.trace;
        let number = self.operators.number(&trace.ranges[range as usize].name);
        self.of_entry.insert(entry, number);
        number
    }
}

#[cfg(test)]
mod tests;
