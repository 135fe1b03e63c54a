//! Sums for each stage on each GPU, from a single pass over the activities.

mod graph_launches;
mod thread_devices;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    clocks::CLOCK_TOLERANCE_NS,
    timeline::{CallReader, CopyKind, MemoryOp, ON_HOST, process_of},
};

use self::{graph_launches::graph_calls, thread_devices::ThreadDevices};
use super::{
    super::{
        activity::{Activity, Busy, DeviceWork, activities, used_devices},
        capture::{Capture, Join},
        first_work::FirstWork,
        interval::{Interval, IntervalSet},
        stage_spans::stage_spans,
    },
    idle_gap::{IdleGap, LaneEvent},
    overlap::Overlap,
    waits::{HostWaits, IdleSplit},
};

/// Count, bytes and time of copies or fills.
#[derive(Debug, Clone, Copy, Default)]
pub struct TransferKind {
    pub calls: u64,
    pub bytes: u64,
    pub ns: i64,
}

impl TransferKind {
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// One stage on one GPU, nanoseconds.
#[derive(Debug, Default)]
pub struct GpuCell {
    /// Index of the stage among the labels of the capture.
    pub label: usize,
    pub instances: u64,
    /// Sum of the windows of all instances: overlaps count as often as they occur.
    pub instances_ns: i64,
    pub window: IntervalSet,
    pub busy_ns: i64,
    /// Work outside the window.
    outside_ns: i64,
    busy: Busy,
    /// Position of the last lookup in the window.
    near: usize,
    pub overlap: Overlap,
    pub idle: IdleSplit,
    pub gaps: u64,
    pub longest: i64,
    pub kernels: u64,
    pub graphs: u64,
    pub copies: BTreeMap<CopyKind, TransferKind>,
    pub fills: TransferKind,
    /// Activities that started before their launching call.
    pub early: u64,
    /// Max time between such a start and the call.
    worst_ns: i64,
    /// True when times of the GPU cannot be compared with the host's.
    pub is_unequal: bool,
    /// True when work of an unknown stage ran in the window.
    pub unattributed: bool,
    /// True when a graph that started on the host ran in the window, on this GPU or another.
    pub unplaced: bool,
}

impl GpuCell {
    /// Total length of the window.
    pub fn window_ns(&self) -> i64 {
        self.window.intervals().iter().fold(0, |sum, (start, end)| sum.saturating_add(end - start))
    }

    /// True if more work is outside the window than the tolerance between the clocks explains.
    pub fn is_crossed(&self) -> bool {
        let tolerance = CLOCK_TOLERANCE_NS.saturating_mul(self.instances as i64);
        self.outside_ns > tolerance
    }

    /// Counts work of the stage.
    fn count(&mut self, work: &Activity, launched_ns: i64) {
        match work.work {
            DeviceWork::Kernel(_) => self.kernels += 1,
            DeviceWork::Graph => self.graphs += 1,
            DeviceWork::Copy(_) | DeviceWork::Fill => {}
        }
        let ahead = launched_ns.saturating_sub(work.start_ns);
        if ahead > CLOCK_TOLERANCE_NS {
            self.early += 1;
            self.worst_ns = self.worst_ns.max(ahead);
        }
    }

    fn add_gap(&mut self, (from, to): Interval, reasons: &IdleSplit) {
        self.idle.add(reasons);
        self.gaps += 1;
        self.longest = self.longest.max(to - from);
    }
}

/// Work of a stage that starts before its launching call.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStart {
    pub stage: String,
    pub count: u64,
    /// Max time between its start and the call.
    pub worst_ns: i64,
}

/// All stages on all GPUs.
pub struct GpuCells {
    /// GPUs with work, in order.
    pub devices: Vec<u32>,
    /// By stage: number of instances.
    pub instances: Vec<u64>,
    /// By stage: number of calls that launched a graph.
    pub graph_calls: Vec<u64>,
    /// True when any call of the capture launches work.
    pub has_launches: bool,
    waits: HostWaits,
    cells: Vec<GpuCell>,
    /// Pairs of process and GPU with work.
    used: BTreeSet<(i64, u32)>,
    /// By stage: launches of graphs whose GPU is unknown.
    pub unplaced: Vec<u64>,
}

impl GpuCells {
    /// Sums all activities. `observe` gets all work of the stages and all idle gaps in their
    /// windows, in order of time on each GPU, with the cells, whose windows are set.
    pub fn of(capture: &Capture, observe: &mut dyn FnMut(&[GpuCell], &LaneEvent)) -> Self {
        let labels = capture.stages.labels.len();
        let used = used_devices(capture.trace);
        let devices: Vec<u32> =
            used.iter().map(|(_, device)| *device).collect::<BTreeSet<_>>().into_iter().collect();
        let cell = |at: usize| GpuCell { label: at / devices.len(), ..GpuCell::default() };
        let cells = (0..labels * devices.len()).map(cell).collect();
        let (graph_calls, has_launches) = graph_calls(capture);
        let waits = HostWaits::of(capture.trace);
        let mut all = Self {
            devices,
            instances: vec![0; labels],
            graph_calls,
            has_launches,
            waits,
            cells,
            used,
            unplaced: vec![0; labels],
        };
        all.add_copies(capture);
        all.set_windows(capture);
        all.add_unplaced(capture);
        all.measure(capture, observe);
        all
    }

    /// The GPUs used by the processes of a stage.
    pub fn of_stage(&self, label: usize) -> impl Iterator<Item = (u32, &GpuCell)> {
        let cells = &self.cells[label * self.devices.len()..(label + 1) * self.devices.len()];
        self.devices.iter().copied().zip(cells).filter(|(_, cell)| cell.instances > 0)
    }

    /// Work that starts before its launching call, by stage, on devices with a common clock.
    pub fn early(&self, capture: &Capture) -> Vec<EarlyStart> {
        let of = |(label, stage): (usize, &String)| {
            let cells = || self.of_stage(label).map(|it| it.1).filter(|it| !it.is_unequal);
            let count = cells().map(|cell| cell.early).sum();
            let worst_ns = cells().map(|cell| cell.worst_ns).max().unwrap_or(0);
            (count > 0).then(|| EarlyStart { stage: stage.clone(), count, worst_ns })
        };
        capture.stages.labels.iter().enumerate().filter_map(of).collect()
    }

    fn place(&self, label: usize, device: u32) -> usize {
        label * self.devices.len() + self.devices.partition_point(|it| *it < device)
    }

    fn add_copies(&mut self, capture: &Capture) {
        for (copy, Join { instance, .. }) in capture.copies() {
            let Some(instance) = capture.stages.instances.get(instance as usize) else {
                continue;
            };
            let MemoryOp { start_ns, end_ns, bytes, kind, device, .. } = *copy;
            let moved = TransferKind { calls: 1, bytes, ns: end_ns - start_ns };
            let place = self.place(instance.label, device);
            let cell = &mut self.cells[place];
            if kind == CopyKind::Set {
                cell.fills.add(&moved)
            } else {
                cell.copies.entry(kind).or_default().add(&moved)
            }
        }
    }

    /// Sets the window of every instance on each GPU that its thread or process uses, without the
    /// parts that do not count.
    fn set_windows(&mut self, capture: &Capture) {
        let (instances, spans) = (&capture.stages.instances, stage_spans(capture));
        let mut open: Vec<Vec<Interval>> = vec![vec![]; self.cells.len()];
        let devices = ThreadDevices::of(capture, &self.used);
        for (it, span) in instances.iter().zip(&spans) {
            if it.start_ns >= it.end_ns || span.0 >= span.1 || span.1 == i64::MAX {
                continue;
            }
            self.instances[it.label] += 1;
            let process = process_of(it.place);
            let uncounted = capture.stages.uncounted_in(it.place, (it.start_ns, it.end_ns));
            let parts: Vec<Interval> = uncounted.outside(*span).collect();
            let ns = parts.iter().fold(0i64, |sum, it| sum.saturating_add(it.1 - it.0));
            for device in devices.of_place(it.place) {
                let place = self.place(it.label, device);
                let cell = &mut self.cells[place];
                cell.instances += 1;
                cell.is_unequal |= !capture.trace.has_common_clock(process, device);
                cell.instances_ns = cell.instances_ns.saturating_add(ns);
                open[place].extend_from_slice(&parts);
            }
        }
        for (cell, open) in self.cells.iter_mut().zip(open) {
            cell.window = IntervalSet::new(open);
        }
    }

    /// Counts the work launched by each stage, and measures busy and idle time in the windows, for
    /// each GPU separately.
    fn measure(&mut self, capture: &Capture, observe: &mut dyn FnMut(&[GpuCell], &LaneEvent)) {
        let mut cells = std::mem::take(&mut self.cells);
        let lanes = self.lanes(&cells);
        self.visit(lanes, capture, &mut |event| {
            match &event {
                LaneEvent::Gap(gap) => {
                    cells[gap.cell].add_gap((gap.from, gap.to), &gap.reasons.all)
                }
                LaneEvent::Work { cell, work, launched_ns } => {
                    let cell = &mut cells[*cell];
                    cell.count(work, *launched_ns);
                    let (from, to) = cell.busy.add(work.start_ns, work.end_ns);
                    let inside = cell.window.overlap_near(from, to, &mut cell.near);
                    cell.busy_ns += inside;
                    cell.outside_ns = cell.outside_ns.saturating_add((to - from - inside).max(0));
                    cell.overlap.add(work, &cell.window);
                }
                LaneEvent::Unattributed(work) => {
                    for label in 0..self.instances.len() {
                        let cell = &mut cells[self.place(label, work.device)];
                        let (from, to) = (work.start_ns, work.end_ns);
                        cell.unattributed =
                            cell.unattributed || cell.window.overlap_ns(from, to) > 0;
                    }
                }
            }
            observe(&cells, &event);
        });
        self.cells = cells;
    }

    fn lanes(&self, cells: &[GpuCell]) -> Vec<GpuLane> {
        let lane = |(at, _): (usize, &u32)| {
            let of_label = |label: usize| {
                let place = label * self.devices.len() + at;
                let window = cells[place].window.intervals().iter();
                window.map(move |(start, end)| (place, *start, *end))
            };
            GpuLane::of((0..self.instances.len()).flat_map(of_label).collect())
        };
        self.devices.iter().enumerate().map(lane).collect()
    }

    fn visit(&self, mut lanes: Vec<GpuLane>, capture: &Capture, take: &mut dyn FnMut(LaneEvent)) {
        let mut calls = capture.trace.cuda_calls.reader();
        let mut first = FirstWork::of(capture);
        for it in activities(capture).filter(|it| it.device != ON_HOST) {
            let lane = &mut lanes[self.devices.partition_point(|device| *device < it.device)];
            lane.waited_from = first.waited_from(&it, &mut calls);
            lane.advance(Some(&it), &mut calls, &self.waits, take);
            if let Some(instance) = capture.stages.instances.get(it.join.instance as usize) {
                let launched_ns = match it.join.has_call() {
                    true => calls.get(it.join.call).start_ns,
                    false => it.start_ns,
                };
                let cell = self.place(instance.label, it.device);
                take(LaneEvent::Work { cell, work: &it, launched_ns });
            } else if !it.join.has_call() {
                take(LaneEvent::Unattributed(&it));
            }
        }
        for lane in &mut lanes {
            lane.waited_from = None;
            lane.advance(None, &mut calls, &self.waits, take);
        }
    }

    /// All cells; the cells of a stage follow each other, in order of the GPUs.
    pub fn cells(&self) -> &[GpuCell] {
        &self.cells
    }
}

/// Position of one GPU while its activities are processed in order of time.
struct GpuLane {
    /// Cell, start and end of every window, in order of start.
    windows: Vec<(usize, i64, i64)>,
    next: usize,
    open: Vec<(usize, i64, i64)>,
    busy: Busy,
    /// Positions of the last lookup of waits.
    near: [usize; 2],
    /// Thread of the last launch.
    thread: Option<i64>,
    /// The work that ends last.
    last: Option<Activity>,
    /// Start of the next activity's unrecorded wait.
    waited_from: Option<i64>,
}

impl GpuLane {
    fn of(mut windows: Vec<(usize, i64, i64)>) -> Self {
        windows.sort_by_key(|it| it.1);
        Self {
            windows,
            next: 0,
            open: vec![],
            busy: Busy::default(),
            near: [0; 2],
            thread: None,
            last: None,
            waited_from: None,
        }
    }

    /// Advances to the next activity, or to the end, and explains the idle time before it.
    fn advance(
        &mut self,
        next: Option<&Activity>,
        calls: &mut CallReader,
        waits: &HostWaits,
        take: &mut dyn FnMut(LaneEvent),
    ) {
        let start = next.map_or(i64::MAX, |it| it.start_ns);
        let call = next.filter(|it| it.join.has_call()).map(|it| calls.get(it.join.call));
        if let Some(idle) = self.busy.idle_in((i64::MIN, start)) {
            while let Some(window) = self.windows.get(self.next).filter(|window| window.1 < start) {
                self.open.push(*window);
                self.next += 1;
            }
            self.open.retain(|window| window.2 > idle.0);
            for (cell, from, to) in &self.open {
                let gap = (idle.0.max(*from), idle.1.min(*to));
                if gap.0 < gap.1 {
                    let copy = next.is_some_and(Activity::is_transfer);
                    let last = self.thread.filter(|_| next.is_none());
                    let from = self.waited_from.map_or(gap.1, |it| it.clamp(gap.0, gap.1));
                    // Before all recorded work, what blocked a stream for most of the gap blocked
                    // it before the launch, too.
                    let is_blocked = self.last.is_none() && gap.1 - from >= from - gap.0;
                    let known = if is_blocked { gap.0 } else { from };
                    let mut reasons = waits.split((gap.0, known), call, copy, last, &mut self.near);
                    let unrecorded_ns = gap.1 - known;
                    reasons.add_unknown(unrecorded_ns);
                    take(LaneEvent::Gap(&IdleGap {
                        cell: *cell,
                        from: gap.0,
                        to: gap.1,
                        reasons,
                        unrecorded_ns,
                        call,
                        last_thread: last,
                        waits,
                        before: self.last,
                        after: next,
                    }));
                }
            }
        }
        self.thread = call.map(|call| call.global_tid).or(self.thread);
        let Some(it) = next else { return };
        if self.last.is_none_or(|last| it.end_ns >= last.end_ns) {
            self.last = Some(*it);
        }
        self.busy.add(it.start_ns, it.end_ns);
    }
}
