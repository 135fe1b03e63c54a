//! Rows of the kernel tables: grouping of launches, and their sums.
//!
//! A row is a short name in a stage, or a full name if a variant of the short name is significant.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use foldhash::HashMap;
use llmprof_core::{
    domain::units::Nanos,
    trace::kernel::{LaunchKind, TracedKernel},
};

use super::{
    ClassRecord, FullKernelRecord, KernelRecord, LaunchConfig, StageKernels, durations::Tally,
};
use crate::{
    kernels::kernel_classes::{ClassCache, KernelClass, OTHER},
    stats::percent,
    timeline::{
        capture::{Capture, Join},
        duration_stats::DurationStats,
        open_ranges::NONE,
    },
};

/// Min share of a short name's time, percent, of a full name with a row of its own.
const VARIANT_PCT: f64 = 10.0;

/// Kernels of one capture, tallied by kind and stage.
pub struct KernelTallies<'a> {
    pub capture: &'a Capture<'a>,
    /// By kind, then by stage number.
    pub cells: Vec<Tally>,
}

/// Cells by stage number, short name, and full name if it has its own row.
type CellGroups = BTreeMap<(usize, u32, Option<u32>), Vec<usize>>;

/// Groups with the statistics of each.
type TimedGroups = (CellGroups, Vec<DurationStats>);

/// Groups of both tables.
pub struct KernelGroups {
    pub short: TimedGroups,
    pub full: TimedGroups,
}

impl KernelTallies<'_> {
    fn kind(&self, cell: usize) -> &LaunchKind {
        &self.capture.trace.kernels.kinds()[cell / self.capture.stage_count()]
    }

    /// The cell of a kernel of this kind in this instance of a stage.
    pub fn cell_of(&self, kind: u32, instance: u32) -> usize {
        kind as usize * self.capture.stage_count() + self.capture.stage_number(instance)
    }

    /// Cells with kernels, each after its stage number.
    fn filled(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let cells = self.cells.iter().enumerate().filter(|(_, tally)| tally.calls > 0);
        cells.map(|(cell, _)| (cell % self.capture.stage_count(), cell))
    }

    fn name(&self, index: u32) -> String {
        self.capture.trace.text(index).to_owned()
    }

    fn by_full_name(&self) -> CellGroups {
        let mut groups = CellGroups::new();
        for (number, cell) in self.filled() {
            let kind = self.kind(cell);
            groups.entry((number, kind.name, Some(kind.full_name))).or_default().push(cell);
        }
        groups
    }

    /// Groups by short name; by full name if any of its full names is significant.
    fn by_name(&self, by_full_name: &CellGroups) -> CellGroups {
        // Sum and longest of the full names of each short name in each stage.
        let mut times: HashMap<(usize, u32), (i64, i64)> = HashMap::default();
        for ((number, short, _), cells) in by_full_name {
            let ns = cells.iter().fold(0i64, |sum, cell| sum.saturating_add(self.cells[*cell].ns));
            let (all, longest) = times.entry((*number, *short)).or_default();
            (*all, *longest) = (all.saturating_add(ns), ns.max(*longest));
        }
        let has_variant = |(all, longest): (i64, i64)| {
            percent(longest as f64, all as f64).is_none_or(|pct| pct >= VARIANT_PCT)
        };
        let mut groups = CellGroups::new();
        for ((number, short, full), cells) in by_full_name {
            let full = full.filter(|_| has_variant(times[&(*number, *short)]));
            groups.entry((*number, *short, full)).or_default().extend(cells);
        }
        groups
    }

    /// The kernels by short name and by full name, with the statistics of single launches.
    pub fn groups(&self) -> KernelGroups {
        let full = self.by_full_name();
        let groups = [self.by_name(&full), full];
        let group_of = |groups: &CellGroups| {
            let mut group_of = vec![NONE; self.cells.len()];
            for (group, cells) in groups.values().enumerate() {
                cells.iter().for_each(|cell| group_of[*cell] = group as u32);
            }
            group_of
        };
        let [short, full] = groups.each_ref().map(group_of);
        let times = self.capture.kernels_by_kind();
        let group = |((kind, it), join): ((u32, TracedKernel), Join)| {
            let cell = self.cell_of(kind, join.instance);
            ([short[cell], full[cell]], it.ns())
        };
        let counts = groups.each_ref().map(CellGroups::len);
        let [of_short, of_full] = DurationStats::grouped_by(counts, times.map(group));
        let [short, full] = groups;
        KernelGroups { short: (short, of_short), full: (full, of_full) }
    }

    /// One record per group, longest total first.
    pub fn records(
        &self,
        (groups, durations): &TimedGroups,
        stages: &[StageKernels],
        classes: &mut ClassCache,
    ) -> Vec<KernelRecord> {
        let rows = groups.iter().zip(durations);
        let mut records: Vec<KernelRecord> = rows
            .map(|((key, cells), durations)| self.record(*key, cells, *durations, stages, classes))
            .collect();
        records.sort_by(|a, b| {
            let key = |it: &KernelRecord| {
                (it.kernel_name.clone(), it.stage.clone(), it.full_name.clone())
            };
            let names = || key(a).cmp(&key(b));
            b.total_ms.total_cmp(&a.total_ms).then_with(names)
        });
        records
    }

    fn record(
        &self,
        (number, short, _): (usize, u32, Option<u32>),
        cells: &[usize],
        launch_ns: DurationStats,
        stages: &[StageKernels],
        classes: &mut ClassCache,
    ) -> KernelRecord {
        let mut of_class: BTreeMap<&str, (i64, KernelClass)> = BTreeMap::new();
        let mut of_name: BTreeMap<u32, i64> = BTreeMap::new();
        let mut configs: BTreeSet<LaunchConfig> = BTreeSet::new();
        for cell in cells {
            let (kind, ns) = (self.kind(*cell), self.cells[*cell].ns);
            let class = classes.of(kind.full_name, &self.capture.trace.strings);
            of_class.entry(class.class).or_insert((0, class)).0 += ns;
            *of_name.entry(kind.full_name).or_default() += ns;
            configs.insert((kind.grid, kind.block));
        }
        let first = self.kind(cells[0]);
        let dominant = self.dominant(cells).unwrap_or(*first);
        let class = of_class.values().max_by_key(|(ns, _)| *ns).map(|(_, class)| *class);
        let by_time = |(full, ns): &(&u32, &i64)| (**ns, Reverse(self.name(**full)));
        let longest = of_name.iter().max_by_key(by_time).map_or(short, |(full, _)| *full);
        let stage = self.capture.stage_label(number);
        let (calls, total_ms) = (launch_ns.count, Nanos(launch_ns.total).as_ms());
        KernelRecord {
            kernel_name: self.name(short),
            full_name: self.name(longest),
            name_variants: of_name.len() as u64,
            class: class.map_or(OTHER, |it| it.class).to_owned(),
            engine: class.and_then(|it| it.engine).map(str::to_owned),
            device: cells
                .iter()
                .all(|cell| self.kind(*cell).device == first.device)
                .then_some(first.device),
            stage: stage.into(),
            total_ms,
            calls,
            mean_ms: total_ms / calls as f64,
            launch_ns,
            grid: dominant.grid,
            block: dominant.block,
            registers: dominant.registers,
            launch_configs: configs.len() as u64,
            share_pct: share(stages, stage, total_ms),
            counters: None,
            configs,
            full_names: of_name.keys().map(|full| self.name(*full)).collect(),
        }
    }

    /// The kind with the most launches, of any shared memory; of several the largest.
    fn dominant(&self, cells: &[usize]) -> Option<LaunchKind> {
        let mut calls: Vec<(LaunchKind, u64)> = Vec::new();
        let mut index: HashMap<LaunchKind, usize> = HashMap::default();
        for cell in cells {
            let kind = LaunchKind { shared_memory: 0, ..*self.kind(*cell) };
            let at = *index.entry(kind).or_insert_with(|| {
                calls.push((kind, 0));
                calls.len() - 1
            });
            calls[at].1 += self.cells[*cell].calls;
        }
        let by_calls =
            |(kind, calls): &(LaunchKind, u64)| (*calls, kind.grid, kind.block, kind.registers);
        calls.into_iter().max_by_key(by_calls).map(|(kind, _)| kind)
    }

    /// One record per full name, longest total first.
    pub fn full(
        &self,
        (groups, durations): &TimedGroups,
        stages: &[StageKernels],
        classes: &mut ClassCache,
    ) -> Vec<FullKernelRecord> {
        let record =
            |((number, short, full), launch_ns): (&(usize, u32, Option<u32>), &DurationStats)| {
                let full = full.unwrap_or(*short);
                let class = classes.of(full, &self.capture.trace.strings);
                let (stage, total_ms) =
                    (self.capture.stage_label(*number), Nanos(launch_ns.total).as_ms());
                FullKernelRecord {
                    full_name: self.name(full),
                    kernel_name: self.name(*short),
                    class: class.class.into(),
                    engine: class.engine.map(str::to_owned),
                    stage: stage.into(),
                    total_ms,
                    calls: launch_ns.count,
                    mean_ms: total_ms / launch_ns.count as f64,
                    launch_ns: *launch_ns,
                    share_pct: share(stages, stage, total_ms),
                }
            };
        let mut records: Vec<FullKernelRecord> = groups.keys().zip(durations).map(record).collect();
        records.sort_by(|a, b| {
            let names = || (&a.full_name, &a.stage).cmp(&(&b.full_name, &b.stage));
            b.total_ms.total_cmp(&a.total_ms).then_with(names)
        });
        records
    }

    /// Time by class, and the share with a known class, percent.
    pub fn classes(
        &self,
        stages: &[StageKernels],
        classes: &mut ClassCache,
    ) -> (Vec<ClassRecord>, Option<f64>) {
        let mut by_class: BTreeMap<(usize, &'static str), Tally> = BTreeMap::new();
        for (number, cell) in self.filled() {
            let class = classes.of(self.kind(cell).full_name, &self.capture.trace.strings).class;
            let (sum, tally) = (by_class.entry((number, class)).or_default(), self.cells[cell]);
            *sum = sum.with(tally);
        }
        let all: i64 = by_class.values().map(|tally| tally.ns).sum();
        let known: i64 = by_class
            .iter()
            .filter(|((_, class), _)| *class != OTHER)
            .map(|(_, tally)| tally.ns)
            .sum();
        let class = |((number, class), tally): (&(usize, &str), &Tally)| {
            let (stage, total_ms) = (self.capture.stage_label(*number), Nanos(tally.ns).as_ms());
            let share_pct = share(stages, stage, total_ms);
            ClassRecord {
                stage: stage.into(),
                class: (*class).into(),
                calls: tally.calls,
                total_ms,
                share_pct,
            }
        };
        let mut records: Vec<ClassRecord> = by_class.iter().map(class).collect();
        records.sort_by(|a, b| a.stage.cmp(&b.stage).then(b.total_ms.total_cmp(&a.total_ms)));
        (records, percent(known as f64, all as f64))
    }
}

/// Share of the kernel time of a stage, percent.
fn share(stages: &[StageKernels], stage: &str, ms: f64) -> Option<f64> {
    percent(ms, stages.iter().find(|it| it.stage == stage)?.kernel_ms?)
}
