//! Sums of each stage on each GPU, from one walk over what ran.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        activity::{Activity, Busy, Work, activities, used_devices},
        coverage::{Kind, kind},
        interval::{Cover, Interval},
        invariants::CLOCK_TOLERANCE_NS,
        launches::{Cursor, Launches},
        scopes::{Instance, NONE},
    },
    waits::{Split, Waits},
};
use crate::trace::nsys::{CopyKind, MemoryOp, NsysTrace, process_of};

/// Copies or fills.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moved {
    pub calls: u64,
    pub bytes: u64,
    pub ns: i64,
}

impl Moved {
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// One stage on one GPU, nanoseconds.
#[derive(Debug, Default)]
pub struct Cell {
    pub instances: u64,
    pub window: Cover,
    pub busy_ns: i64,
    busy: Busy,
    pub idle: Split,
    pub gaps: u64,
    pub longest: i64,
    pub kernels: u64,
    pub graphs: u64,
    pub copies: BTreeMap<CopyKind, Moved>,
    pub fills: Moved,
    /// Things that started before the call that launched them, and by how much at most.
    pub early: u64,
    worst_ns: i64,
    /// Whether something ran in the window whose stage is not known.
    pub unattributed: bool,
}

impl Cell {
    pub fn window_ns(&self) -> i64 {
        self.window.intervals().iter().fold(0, |sum, (start, end)| sum.saturating_add(end - start))
    }

    fn fell_idle(&mut self, (from, to): Interval, why: &Split) {
        self.idle.add(why);
        self.gaps += 1;
        self.longest = self.longest.max(to - from);
    }
}

/// Work of a stage that starts before the call that launched it.
#[derive(Debug, Clone, PartialEq)]
pub struct EarlyStart {
    pub stage: String,
    pub count: u64,
    /// By how much at most.
    pub worst_ns: i64,
}

/// All stages on all GPUs.
pub struct Cells {
    /// GPUs on which anything ran, in order.
    pub devices: Vec<u32>,
    /// By stage: times that it was open, and its calls that launched a graph.
    pub instances: Vec<u64>,
    pub graph_calls: Vec<u64>,
    /// Whether a call of the capture launches anything.
    pub launched: bool,
    cells: Vec<Cell>,
}

impl Cells {
    pub fn of(trace: &NsysTrace, launches: &Launches) -> Self {
        let labels = launches.stages.labels.len();
        let used = used_devices(trace);
        let devices: Vec<u32> = used.iter().map(|(_, device)| *device).collect::<BTreeSet<_>>().into_iter().collect();
        let cells = (0..labels * devices.len()).map(|_| Cell::default()).collect();
        let (graph_calls, launched) = graph_calls(trace, launches);
        let mut all = Self { devices, instances: vec![0; labels], graph_calls, launched, cells };
        let last_end = all.count(trace, launches);
        all.moved(trace, launches);
        all.windows(&launches.stages.instances, &last_end, &used);
        all.walk(trace, launches);
        all
    }

    /// A stage on each GPU that its processes use.
    pub fn of_stage(&self, label: usize) -> impl Iterator<Item = (u32, &Cell)> {
        let cells = &self.cells[label * self.devices.len()..(label + 1) * self.devices.len()];
        self.devices.iter().copied().zip(cells).filter(|(_, cell)| cell.instances > 0)
    }

    /// Work that starts before the call that launched it, by stage.
    pub fn early(&self, launches: &Launches) -> Vec<EarlyStart> {
        let of = |(label, stage): (usize, &String)| {
            let cells = || self.of_stage(label).map(|(_, cell)| cell);
            let count = cells().map(|cell| cell.early).sum();
            let worst_ns = cells().map(|cell| cell.worst_ns).max().unwrap_or(0);
            (count > 0).then(|| EarlyStart { stage: stage.clone(), count, worst_ns })
        };
        launches.stages.labels.iter().enumerate().filter_map(of).collect()
    }

    fn place(&self, label: usize, device: u32) -> usize {
        label * self.devices.len() + self.devices.partition_point(|it| *it < device)
    }

    /// Counts what each stage launched; returns the end of the last thing that each instance launched.
    fn count(&mut self, trace: &NsysTrace, launches: &Launches) -> Vec<i64> {
        let instances = &launches.stages.instances;
        let mut last_end = vec![i64::MIN; instances.len()];
        for it in activities(trace, launches) {
            let Some(instance) = instances.get(it.instance as usize) else { continue };
            let last = &mut last_end[it.instance as usize];
            *last = it.end_ns.max(*last);
            let place = self.place(instance.label, it.device);
            let cell = &mut self.cells[place];
            match it.work {
                Work::Kernel => cell.kernels += 1,
                Work::Graph => cell.graphs += 1,
                Work::Copy | Work::Fill => {}
            }
            let ahead = trace.cuda_calls.get(it.call as usize).start_ns.saturating_sub(it.start_ns);
            if ahead > CLOCK_TOLERANCE_NS {
                cell.early += 1;
                cell.worst_ns = cell.worst_ns.max(ahead);
            }
        }
        last_end
    }

    fn moved(&mut self, trace: &NsysTrace, launches: &Launches) {
        for (copy, (_, instance)) in trace.copies.iter().zip(&launches.copies) {
            let Some(instance) = launches.stages.instances.get(*instance as usize) else { continue };
            let MemoryOp { start_ns, end_ns, bytes, kind, device, .. } = *copy;
            let moved = Moved { calls: 1, bytes, ns: end_ns - start_ns };
            let place = self.place(instance.label, device);
            let cell = &mut self.cells[place];
            if kind == CopyKind::Set { cell.fills.add(&moved) } else { cell.copies.entry(kind).or_default().add(&moved) }
        }
    }

    /// Gives every instance its window on each GPU that its process uses.
    fn windows(&mut self, instances: &[Instance], last_end: &[i64], used: &BTreeSet<(i64, u32)>) {
        let mut open: Vec<Vec<Interval>> = vec![vec![]; self.cells.len()];
        for (it, last) in instances.iter().zip(last_end) {
            let end = if it.end_ns == i64::MAX { *last } else { it.end_ns.max(*last) };
            if it.start_ns >= it.end_ns || it.start_ns >= end {
                continue;
            }
            self.instances[it.label] += 1;
            let process = process_of(it.place);
            for (_, device) in used.range((process, 0)..=(process, u32::MAX)) {
                let place = self.place(it.label, *device);
                self.cells[place].instances += 1;
                open[place].push((it.start_ns, end));
            }
        }
        for (cell, open) in self.cells.iter_mut().zip(open) {
            cell.window = Cover::new(open);
        }
    }

    /// Measures busy and idle time in the windows, for each GPU by itself.
    fn walk(&mut self, trace: &NsysTrace, launches: &Launches) {
        let waits = Waits::of(trace);
        let labels = self.instances.len();
        let mut lanes: Vec<Lane> = self.devices.iter().map(|device| Lane::of(self, *device, labels)).collect();
        for it in activities(trace, launches) {
            let lane = &mut lanes[self.devices.partition_point(|device| *device < it.device)];
            lane.until(Some(&it), trace, &waits, &mut self.cells);
            if let Some(instance) = launches.stages.instances.get(it.instance as usize) {
                let place = self.place(instance.label, it.device);
                let cell = &mut self.cells[place];
                let (from, to) = cell.busy.add(it.start_ns, it.end_ns);
                cell.busy_ns += cell.window.overlap_ns(from, to);
            } else if it.call == NONE {
                for label in 0..labels {
                    let place = self.place(label, it.device);
                    let cell = &mut self.cells[place];
                    cell.unattributed = cell.unattributed || cell.window.overlap_ns(it.start_ns, it.end_ns) > 0;
                }
            }
        }
        lanes.iter_mut().for_each(|lane| lane.until(None, trace, &waits, &mut self.cells));
    }
}

/// One GPU on the way through time.
struct Lane {
    /// Cell, start and end of every window, in order of start.
    windows: Vec<(usize, i64, i64)>,
    next: usize,
    open: Vec<(usize, i64, i64)>,
    busy_until: i64,
    /// Thread that launched last.
    thread: Option<i64>,
}

impl Lane {
    fn of(cells: &Cells, device: u32, labels: usize) -> Self {
        let of_label = |label: usize| {
            let place = cells.place(label, device);
            cells.cells[place].window.intervals().iter().map(move |(start, end)| (place, *start, *end))
        };
        let mut windows: Vec<(usize, i64, i64)> = (0..labels).flat_map(of_label).collect();
        windows.sort_by_key(|it| it.1);
        Self { windows, next: 0, open: vec![], busy_until: i64::MIN, thread: None }
    }

    /// Goes on to what runs next, or to the end, and explains the time in which nothing ran before it.
    fn until(&mut self, next: Option<&Activity>, trace: &NsysTrace, waits: &Waits, cells: &mut [Cell]) {
        let start = next.map_or(i64::MAX, |it| it.start_ns);
        let call = next.filter(|it| it.call != NONE).map(|it| trace.cuda_calls.get(it.call as usize));
        if self.busy_until < start {
            while let Some(window) = self.windows.get(self.next).filter(|window| window.1 < start) {
                self.open.push(*window);
                self.next += 1;
            }
            self.open.retain(|window| window.2 > self.busy_until);
            for (cell, from, to) in &self.open {
                let gap = (self.busy_until.max(*from), start.min(*to));
                if gap.0 < gap.1 {
                    let copy = next.is_some_and(|it| matches!(it.work, Work::Copy | Work::Fill));
                    let last = self.thread.filter(|_| next.is_none());
                    cells[*cell].fell_idle(gap, &waits.split(gap, call, copy, last));
                }
            }
        }
        self.thread = call.map(|call| call.global_tid).or(self.thread);
        self.busy_until = self.busy_until.max(next.map_or(i64::MAX, |it| it.end_ns));
    }
}

/// By stage, calls that launch a graph; and whether any call launches anything.
fn graph_calls(trace: &NsysTrace, launches: &Launches) -> (Vec<u64>, bool) {
    let name = |index: u32| trace.strings.get(index as usize).map_or("", String::as_str);
    let kinds: Vec<Kind> = trace.cuda_calls.sites().iter().map(|(index, _)| kind(name(*index))).collect();
    let mut calls = vec![0; launches.stages.labels.len()];
    let mut cursor = Cursor::default();
    for at in 0..trace.cuda_calls.len() {
        if matches!(kinds[trace.cuda_calls.site(at) as usize], Kind::Graph) {
            let call = trace.cuda_calls.get(at);
            let instance = cursor.at(call.global_tid, call.start_ns, |thread| launches.stages.on(thread));
            if let Some(instance) = launches.stages.instances.get(instance as usize) {
                calls[instance.label] += 1;
            }
        }
    }
    (calls, kinds.iter().any(|kind| matches!(kind, Kind::Graph | Kind::Kernel)))
}
