//! Work of each process on each device, which other tables sum.
//!
//! Device numbers are the host's, not the process's. A process without device work has no row, and
//! a process with several recording windows is one process.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use llmprof_core::{
    domain::units::Nanos,
    trace::timeline::{CopyKind, MemoryOp, ON_HOST, Timeline, pid_of},
};
use serde::{Deserialize, Serialize};

use super::{
    activity::{Activity, Busy, DeviceWork, activities, used_devices},
    capture::{Capture, Join},
    duration_stats::DurationStats,
    range_groups::RangeGroups,
    withheld::{TimelineFigure, Withheld},
};
use crate::limited::{Limited, Summed};

/// Work of one process on one device in one stage of the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessStage {
    /// Process id on the host.
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    /// `null` if the capture lacks the name.
    #[cfg_attr(feature = "schema", schema(example = "python3"))]
    pub process_name: Option<String>,
    /// Index of the GPU on the host.
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub device: u32,
    /// Empty outside every stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// Recorded kernels.
    pub launches: u64,
    /// Sum over recorded kernels; `null`, as is `busy_ms`, if the capture lacks kernels of the
    /// stage. `busy_ms` is also absent if the process launched a graph whose GPU is unknown.
    pub kernel_ms: Option<f64>,
    /// Launches of CUDA graphs traced as a whole.
    #[serde(default)]
    pub graph_launches: u64,
    /// Time in which at least one of its kernels, copies, fills or whole-traced graphs ran on the
    /// device, on any stream.
    pub busy_ms: Option<f64>,
    /// Copies, without fills.
    pub copies: u64,
    pub copied_bytes: u64,
    #[serde(default)]
    pub fills: u64,
    #[serde(default)]
    pub filled_bytes: u64,
}

/// Launches of one kernel by one process on one device in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessKernel {
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    #[cfg_attr(feature = "schema", schema(example = 0))]
    pub device: u32,
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    #[cfg_attr(feature = "schema", schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT"))]
    pub kernel_name: String,
    #[cfg_attr(feature = "schema", schema(example = 12.0))]
    pub total_ms: f64,
    #[cfg_attr(feature = "schema", schema(example = 48))]
    pub calls: u64,
    /// `total_ms / calls`.
    #[cfg_attr(feature = "schema", schema(example = 0.25))]
    pub mean_ms: f64,
}

/// Host time of the whole ranges of one name and domain in one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessRange {
    #[cfg_attr(feature = "schema", schema(example = 4711))]
    pub process: u32,
    /// Empty for the default domain.
    #[cfg_attr(feature = "schema", schema(example = "LLM"))]
    pub domain: String,
    #[cfg_attr(feature = "schema", schema(example = "decode_step"))]
    pub name: String,
    pub ns: DurationStats,
}

/// Work by process and device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Processes {
    /// In order of process, device and stage.
    pub stages: Vec<ProcessStage>,
    /// Longest first; empty with one process and device, whose kernels are in other tables.
    pub kernels: Vec<ProcessKernel>,
    /// Longest first; empty when only one process has ranges.
    pub ranges: Limited<ProcessRange>,
}

impl Processes {
    /// Number of devices with work, one counted for each of its processes: processes that see
    /// different devices may number them alike.
    pub fn devices(&self) -> usize {
        self.stages.iter().map(|it| (it.process, it.device)).collect::<BTreeSet<_>>().len()
    }

    /// Removes the sums over kernels that are withheld.
    pub fn withhold(&mut self, withheld: &Withheld) {
        let lacks = |it: &&mut ProcessStage| withheld.has(&it.stage, TimelineFigure::KernelTime);
        for it in self.stages.iter_mut().filter(lacks) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct ProcessCell {
    launches: u64,
    ns: i64,
    graphs: u64,
    busy: Busy,
    copies: u64,
    bytes: u64,
    fills: u64,
    filled_bytes: u64,
}

impl ProcessCell {
    /// Adds work; the bytes of copies and fills are added apart.
    fn add(&mut self, it: &Activity) {
        self.busy.add(it.start_ns, it.end_ns);
        match it.work {
            DeviceWork::Kernel(_) => {
                self.launches += 1;
                self.ns = self.ns.saturating_add(it.end_ns - it.start_ns);
            }
            DeviceWork::Graph => self.graphs += 1,
            DeviceWork::Copy(_) | DeviceWork::Fill => {}
        }
    }

    /// Counts a copy or fill and its bytes.
    fn add_copy(&mut self, copy: &MemoryOp) {
        let (count, bytes) = match copy.kind {
            CopyKind::Set => (&mut self.fills, &mut self.filled_bytes),
            _ => (&mut self.copies, &mut self.bytes),
        };
        *count += 1;
        *bytes = bytes.saturating_add(copy.bytes);
    }
}

/// Sums the work of a capture by process and device.
pub fn processes(capture: &Capture) -> Processes {
    let (numbers, kinds) = (capture.stage_count(), capture.trace.kernels.kinds());
    let owner = |global_id: i64| capture.trace.collectives.owner(global_id);
    let used = used_devices(capture.trace).into_iter();
    let pairs: BTreeSet<(i64, u32)> = used.map(|(process, it)| (owner(process), it)).collect();
    let pairs: Vec<(i64, u32)> = pairs.into_iter().collect();
    let pair_of = |process: i64, device: u32| {
        let pair = (owner(process), device);
        pairs.partition_point(|it| *it < pair)
    };
    let of_kind: Vec<usize> = kinds.iter().map(|it| pair_of(it.global_pid, it.device)).collect();

    let mut cells = vec![ProcessCell::default(); pairs.len() * numbers];
    let mut tallies = vec![(0_u64, 0_i64); kinds.len() * numbers];
    let mut unplaced: BTreeSet<(i64, usize)> = BTreeSet::new();
    for it in activities(capture) {
        let number = capture.stage_number(it.join.instance);
        if it.device == ON_HOST {
            unplaced.insert((owner(it.process), number));
            continue;
        }
        let pair = match it.work {
            DeviceWork::Kernel(kind) => of_kind[kind as usize],
            _ => pair_of(it.process, it.device),
        };
        cells[pair * numbers + number].add(&it);
        if let DeviceWork::Kernel(kind) = it.work {
            let tally = &mut tallies[kind as usize * numbers + number];
            *tally = (tally.0 + 1, tally.1 + (it.end_ns - it.start_ns));
        }
    }
    for (copy, Join { instance, .. }) in capture.copies() {
        let pair = pair_of(copy.global_pid, copy.device);
        cells[pair * numbers + capture.stage_number(instance)].add_copy(copy);
    }

    let mut stages: Vec<ProcessStage> = Vec::new();
    for (at, cell) in cells
        .iter()
        .enumerate()
        .filter(|(_, cell)| cell.launches + cell.graphs + cell.copies + cell.fills > 0)
    {
        let (process, device) = pairs[at / numbers];
        stages.push(ProcessStage {
            process: pid_of(process),
            process_name: capture.trace.processes.get(&process).cloned(),
            device,
            stage: capture.stage_label(at % numbers).into(),
            launches: cell.launches,
            kernel_ms: Some(Nanos(cell.ns).as_ms()),
            graph_launches: cell.graphs,
            busy_ms: Some(Nanos(cell.busy.ns).as_ms())
                .filter(|_| !unplaced.contains(&(process, at % numbers))),
            copies: cell.copies,
            copied_bytes: cell.bytes,
            fills: cell.fills,
            filled_bytes: cell.filled_bytes,
        });
    }
    stages.sort_by(|a, b| (a.process, a.device, &a.stage).cmp(&(b.process, b.device, &b.stage)));
    let kernels =
        if pairs.len() > 1 { kernels(capture, &of_kind, &pairs, &tallies) } else { Vec::new() };
    Processes { stages, kernels, ranges: ranges(capture.trace) }
}

fn kernels(
    capture: &Capture,
    of_kind: &[usize],
    pairs: &[(i64, u32)],
    tallies: &[(u64, i64)],
) -> Vec<ProcessKernel> {
    let numbers = capture.stage_count();
    let mut groups: BTreeMap<(usize, usize, u32), (u64, i64)> = BTreeMap::new();
    for (at, (calls, ns)) in tallies.iter().enumerate().filter(|(_, (calls, _))| *calls > 0) {
        let kind = at / numbers;
        let sum = groups
            .entry((of_kind[kind], at % numbers, capture.trace.kernels.kinds()[kind].name))
            .or_default();
        *sum = (sum.0 + calls, sum.1 + ns);
    }
    let record =
        |((pair, number, name), (calls, ns)): ((usize, usize, u32), (u64, i64))| ProcessKernel {
            process: pid_of(pairs[pair].0),
            device: pairs[pair].1,
            stage: capture.stage_label(number).into(),
            kernel_name: capture.trace.text(name).to_owned(),
            total_ms: Nanos(ns).as_ms(),
            calls,
            mean_ms: Nanos(ns).as_ms() / calls as f64,
        };
    let mut records: Vec<ProcessKernel> = groups.into_iter().map(record).collect();
    records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    records
}

fn ranges(trace: &Timeline) -> Limited<ProcessRange> {
    let closed = || trace.ranges.iter().filter_map(|it| Some((it, it.end_ns? - it.start_ns)));
    let owner = |global_id: i64| trace.collectives.owner(global_id);
    let mut processes = closed().map(|(it, _)| owner(it.global_tid));
    let one = processes.next();
    if processes.all(|it| Some(it) == one) {
        return Limited::default();
    }
    let mut groups = RangeGroups::new(&trace.rules);
    let mut times: BTreeMap<(i64, u32), Vec<i64>> = BTreeMap::new();
    for (range, ns) in closed() {
        let group = (owner(range.global_tid), groups.number(range));
        times.entry(group).or_default().push(ns);
    }
    let names = groups.names();
    let mut times: Vec<_> = times.into_iter().collect();
    let total = |times: &[i64]| times.iter().fold(0i64, |sum, ns| sum.saturating_add(*ns));
    times.sort_by_cached_key(|((process, group), times)| {
        (Reverse(total(times)), *process, &names[*group as usize])
    });
    let sum = |((process, group), times): ((i64, u32), Vec<i64>)| {
        let (domain, name) = &names[group as usize];
        let ns = DurationStats::of(&times);
        ProcessRange { process: pid_of(process), domain: (*domain).into(), name: name.clone(), ns }
    };
    Limited::of(times.into_iter().map(sum))
}

impl Summed for ProcessRange {
    fn add(&mut self, other: Self) {
        self.ns.add(other.ns);
    }
}

#[cfg(test)]
mod tests;
