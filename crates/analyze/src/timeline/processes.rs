//! Work of each process on each device, which other tables sum.
//!
//! Device numbers are the host's, not the process's. A process without device work has no row.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use llmprof_core::{
    domain::units::Nanos,
    trace::timeline::{CopyKind, MemoryOp, ON_HOST, Timeline, pid_of, process_of},
};
use serde::{Deserialize, Serialize};

use super::{
    activity::{Activity, Busy, DeviceWork, activities},
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
    let of_copies = capture.trace.copies.iter().map(|it| (process_of(it.global_pid), it.device));
    let of_graphs = capture.trace.graphs.iter().filter(|it| it.device != ON_HOST);
    let of_graphs = of_graphs.map(|it| (process_of(it.global_pid), it.device));
    let of_kernels = kinds.iter().map(|it| (process_of(it.global_pid), it.device));
    let mut pairs: Vec<(i64, u32)> = of_kernels.chain(of_copies).chain(of_graphs).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let pair_of = |process: i64, device: u32| {
        pairs.partition_point(|pair| *pair < (process_of(process), device))
    };
    let of_kind: Vec<usize> = kinds.iter().map(|it| pair_of(it.global_pid, it.device)).collect();

    let mut cells = vec![ProcessCell::default(); pairs.len() * numbers];
    let mut tallies = vec![(0_u64, 0_i64); kinds.len() * numbers];
    let mut unplaced: BTreeSet<(i64, usize)> = BTreeSet::new();
    for it in activities(capture) {
        let number = capture.stage_number(it.join.instance);
        if it.device == ON_HOST {
            unplaced.insert((it.process, number));
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
    let mut processes = closed().map(|(it, _)| process_of(it.global_tid));
    let one = processes.next();
    if processes.all(|it| Some(it) == one) {
        return Limited::default();
    }
    let mut groups = RangeGroups::new(&trace.rules);
    let mut times: BTreeMap<(i64, u32), Vec<i64>> = BTreeMap::new();
    for (range, ns) in closed() {
        let group = (process_of(range.global_tid), groups.number(range));
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
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    /// A capture of two identical processes, the second on device 1 and 1,000 ns later.
    fn twice(sketch: &str) -> Timeline {
        let (mut both, other) = (capture(sketch), capture(sketch));
        let away = |id: i64| id + (2 << 24);
        for mut range in other.ranges {
            range.global_tid = away(range.global_tid);
            both.ranges.push(range);
        }
        for call in other.cuda_calls.iter() {
            both.cuda_calls.push(llmprof_core::trace::timeline::ApiCall {
                global_tid: away(call.global_tid),
                ..call
            });
        }
        for kernel in other.kernels.iter() {
            let (start_ns, end_ns) = (kernel.start_ns + 1_000, kernel.end_ns + 1_000);
            both.kernels.push(llmprof_core::trace::kernel::Kernel {
                global_pid: away(kernel.global_pid),
                device: 1,
                start_ns,
                end_ns,
                ..kernel.into()
            });
        }
        both
    }

    const SKETCH: &str =
        "range 1 prefill 0..100\ncall 1 1 10..11\ncall 1 2 20..21\ncall 1 3 200..201
                          kernel 1 k 300..310 7\nkernel 2 k 305..320 8\nkernel 3 l 320..330 7";

    fn lines(processes: &Processes) -> String {
        let line = |it: &ProcessStage| {
            let (ns, busy) = (it.kernel_ms.unwrap() * 1e6, it.busy_ms.unwrap() * 1e6);
            format!(
                "{} on {} {:?}: {} launches, {ns:.0} ns, busy {busy:.0}",
                it.process, it.device, it.stage, it.launches
            )
        };
        processes.stages.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn work_by_process_and_device_adds_up_to_the_stage_totals() {
        let trace = twice(SKETCH);
        let timeline = Capture::of(&trace);
        let by_process = processes(&timeline);
        insta::assert_snapshot!(lines(&by_process), @r#"
        7 on 0 "": 1 launches, 10 ns, busy 10
        7 on 0 "prefill": 2 launches, 25 ns, busy 20
        9 on 1 "": 1 launches, 10 ns, busy 10
        9 on 1 "prefill": 2 launches, 25 ns, busy 20
        "#);
        for total in crate::kernels::kernels(&timeline).stages {
            let of_stage = || by_process.stages.iter().filter(|it| it.stage == total.stage);
            let sum: f64 = of_stage().filter_map(|it| it.kernel_ms).sum();
            assert_eq!(of_stage().map(|it| it.launches).sum::<u64>(), total.launches);
            assert!((sum - total.kernel_ms.unwrap()).abs() < 1e-9);
        }
        let kernels: Vec<_> = by_process
            .kernels
            .iter()
            .map(|it| (it.process, it.kernel_name.as_str(), it.calls))
            .collect();
        assert_eq!(kernels, [(7, "k", 2), (9, "k", 2), (7, "l", 1), (9, "l", 1)]);
        let ranges: Vec<_> = by_process
            .ranges
            .iter()
            .map(|it| (it.process, it.name.as_str(), it.ns.total))
            .collect();
        assert_eq!(ranges, [(7, "prefill", 100), (9, "prefill", 100)]);
    }

    #[test]
    fn a_single_process_and_device_has_no_separate_kernels_and_ranges() {
        let mut trace = capture(SKETCH);
        trace.processes = [(7 << 24, "python3".to_owned())].into();
        let by_process = processes(&Capture::of(&trace));
        let rows = (by_process.stages.len(), by_process.kernels.len(), by_process.ranges.len());
        assert_eq!(rows, (2, 0, 0));
        assert_eq!(by_process.stages[0].process_name.as_deref(), Some("python3"));
    }

    #[test]
    fn a_process_that_only_copies_has_a_row() {
        let mut trace = capture(SKETCH);
        let copy = MemoryOp {
            start_ns: 0,
            end_ns: 1,
            bytes: 64,
            kind: llmprof_core::trace::timeline::CopyKind::HostToDevice,
            device: 3,
            stream: None,
            global_pid: 9 << 24,
            correlation_id: 0,
            graph_node: None,
            is_pageable: None,
        };
        trace.copies = vec![copy, copy];
        let by_process = processes(&Capture::of(&trace));
        let row = by_process.stages.iter().find(|it| it.device == 3).unwrap();
        assert_eq!((row.process, row.launches, row.copies, row.copied_bytes), (9, 0, 2, 128));
        assert_eq!(row.busy_ms, Some(1e-6), "the copies overlap");
    }
}
