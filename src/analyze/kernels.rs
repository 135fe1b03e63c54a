//! Which kernels the device's time went to, and in which stage each was launched.
//!
//! A range closes when the host returns, and its kernels run later: a kernel belongs to the stage that was open, on the launching
//! thread, when the call that launched it began (joined by correlation id and process).

mod stages;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    classes::{Class, Classes, OTHER},
    counters::KernelCounters,
    launches::Launches,
    scopes::NONE,
    spans::Spans,
    stats::percent,
};
use crate::trace::{
    kernel::{Kernel, LaunchKind},
    nsys::NsysTrace,
    units::Nanos,
};

pub use crate::trace::stage::WARMUP;

/// Stage of kernels that a runner of ours launched outside every stage: weights, ceilings.
pub const SETUP: &str = "setup";
/// Stage of what lies outside the ranges that were asked for: summed, never in a top list.
pub const OUTSIDE: &str = "outside the included ranges";
/// From this share of a short name's time on, percent, a full name has a row of its own.
const VARIANT_PCT: f64 = 10.0;

/// Launches of one kernel in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelRecord {
    /// The function's name, without template arguments and parameters.
    #[schema(example = "nvjet_tst_128x64_64x8_2x1_v_bz_TNT")]
    pub kernel_name: String,
    /// The whole name of those that took most of the time.
    pub full_name: String,
    /// Full names in this row. Where one of them has 10 % of the time that the short name takes in
    /// the stage, each has a row of its own.
    #[schema(example = 1)]
    #[serde(default, alias = "full_names")]
    pub name_variants: u64,
    /// What most of its time does: `gemm`, `attention`, `norm`, `softmax`, `elementwise`, `copy`, `reduce`, `moe`, `sort`, `conv`, or
    /// `other` where the name tells nothing.
    #[schema(example = "gemm")]
    pub class: String,
    /// Whose kernel it is; `null` where the name does not tell.
    #[schema(example = "cublas")]
    pub engine: Option<String>,
    /// Index of the device; `null` when several ran it.
    #[schema(example = 0)]
    pub device: Option<u32>,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = 12.0)]
    pub total_ms: f64,
    #[schema(example = 48)]
    pub calls: u64,
    /// `total_ms / calls`.
    #[schema(example = 0.25)]
    pub mean_ms: f64,
    /// Single launches, nanoseconds.
    pub launch_ns: Spans,
    /// Blocks of the grid of most launches.
    #[schema(value_type = Vec<u32>, example = json!([4, 24, 1]))]
    pub grid: [u32; 3],
    /// Threads of a block of most launches.
    #[schema(value_type = Vec<u32>, example = json!([384, 1, 1]))]
    pub block: [u32; 3],
    /// Registers per thread of most launches.
    #[schema(example = 168)]
    pub registers: u32,
    /// Distinct grids and blocks.
    #[schema(example = 1)]
    pub geometries: u64,
    /// Share of the stage's kernel time, percent; `null` where the capture lacks kernels of the stage.
    pub share_pct: Option<f64>,
    /// What ncu read of it; `null` when it was not profiled, or where another row has its name and geometry.
    pub counters: Option<KernelCounters>,
    /// Grids and blocks of the row, to tell counters of its variants apart.
    #[serde(skip)]
    pub configs: BTreeSet<Geometry>,
}

/// Grid and block.
pub type Geometry = ([u32; 3], [u32; 3]);

/// Launches of one full name in one stage, in the traced pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FullKernelRecord {
    /// With template arguments and parameters.
    pub full_name: String,
    #[schema(example = "vectorized_elementwise_kernel")]
    pub kernel_name: String,
    #[schema(example = "elementwise")]
    pub class: String,
    #[schema(example = "torch")]
    pub engine: Option<String>,
    /// Empty outside every stage.
    #[schema(example = "decode_all")]
    pub stage: String,
    pub total_ms: f64,
    pub calls: u64,
    /// `total_ms / calls`.
    pub mean_ms: f64,
    /// Single launches, nanoseconds.
    pub launch_ns: Spans,
    /// Share of the stage's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Device time of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageKernels {
    #[schema(example = "decode_all")]
    pub stage: String,
    /// Kernels that are recorded.
    pub launches: u64,
    /// Sum over recorded kernels; `null` where the capture lacks some of the stage, as is `busy_ms`.
    pub kernel_ms: Option<f64>,
    /// Time in which at least one kernel, copy, fill or whole-traced graph of the stage ran: per device over all streams, summed
    /// over devices. An upper bound where `graph_launches` is above zero.
    pub busy_ms: Option<f64>,
    /// Launches of CUDA graphs that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub graph_launches: u64,
    /// Sum over those launches, each from its start to its end on the device.
    #[serde(default)]
    pub graph_ms: f64,
}

/// Time of one class of kernels in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    #[schema(example = "gemm")]
    pub class: String,
    pub calls: u64,
    pub total_ms: f64,
    /// Share of the stage's recorded kernel time, percent.
    pub share_pct: Option<f64>,
}

/// Kernels of the traced pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kernels {
    /// One record per stage and name, longest total first; warm-up and set-up included.
    pub records: Vec<KernelRecord>,
    /// One record per stage and full name, longest total first; warm-up and set-up included.
    pub full: Vec<FullKernelRecord>,
    pub stages: Vec<StageKernels>,
    /// By stage, longest first.
    pub classes: Vec<ClassRecord>,
    /// Share of all kernel time whose class is known, percent.
    pub classified_pct: Option<f64>,
    /// Kernels whose launching call is not in the trace, so that no stage can be told.
    pub orphans: u64,
}

/// Whether kernels of a stage were measured: those of warm-up and set-up were not.
pub fn is_measured(stage: &str) -> bool {
    ![WARMUP, SETUP, OUTSIDE].contains(&stage)
}

impl Kernels {
    /// Records of measured work, longest total first.
    pub fn measured(&self) -> impl Iterator<Item = &KernelRecord> {
        self.records.iter().filter(|record| is_measured(&record.stage))
    }

    /// Records of measured work by full name, longest total first.
    pub fn measured_full(&self) -> impl Iterator<Item = &FullKernelRecord> {
        self.full.iter().filter(|record| is_measured(&record.stage))
    }

    /// Removes what is computed from all kernels of the stages that `is_partial` names.
    pub fn withhold(&mut self, is_partial: impl Fn(&str) -> bool) {
        self.classified_pct = None;
        for it in self.stages.iter_mut().filter(|it| is_partial(&it.stage)) {
            (it.kernel_ms, it.busy_ms) = (None, None);
        }
        self.records.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
        self.full.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
        self.classes.iter_mut().filter(|it| is_partial(&it.stage)).for_each(|it| it.share_pct = None);
    }

    /// Kernel time of a stage; `None` where it launched nothing or kernels are missing.
    pub fn stage_ms(&self, stage: &str) -> Option<f64> {
        self.stages.iter().find(|it| it.stage == stage)?.kernel_ms
    }
}

/// A kernel and the stage that launched it, empty outside all of them; `None` when the launching call is not in the trace.
pub(super) type Launched<'a> = (Kernel, Option<&'a str>);

/// Every kernel of a capture with its stage, in the order of the trace.
pub(super) fn launched<'a>(trace: &'a NsysTrace, launches: &'a Launches) -> impl Iterator<Item = Launched<'a>> {
    let stage = |&(call, instance): &(u32, u32)| (call != NONE).then(|| launches.stage(instance));
    trace.kernels.iter().zip(launches.kernels.iter().map(stage))
}

/// Launches of one kind in one stage.
#[derive(Clone, Copy, Default)]
struct Tally {
    calls: u64,
    ns: i64,
}

/// Kernels of one capture, tallied by kind and stage.
struct Tallies<'a> {
    trace: &'a NsysTrace,
    launches: &'a Launches,
    /// By kind, then by the number of the stage.
    cells: Vec<Tally>,
}

/// Sums the kernels of one capture by stage and name.
pub fn kernels(trace: &NsysTrace, launches: &Launches) -> Kernels {
    let mut tallies =
        Tallies { trace, launches, cells: vec![Tally::default(); trace.kernels.kinds().len() * launches.numbers()] };
    let mut orphans = 0;
    for (at, kernel) in trace.kernels.iter().enumerate() {
        orphans += u64::from(launches.kernels[at].0 == NONE);
        let cell = tallies.cell_of(at);
        let tally = &mut tallies.cells[cell];
        tally.calls += 1;
        tally.ns = tally.ns.saturating_add(kernel.ns());
    }
    let stages = stages::stage_kernels(trace, launches, &tallies.cells);
    let mut classes = Classes::default();
    let records = tallies.records(&stages, &mut classes);
    let full = tallies.full(&stages, &mut classes);
    let (classes, classified_pct) = tallies.classes(&stages, &mut classes);
    Kernels { records, full, stages, classes, classified_pct, orphans }
}

/// Cells of a group by the number of the stage, the short name, and the full one where it stands alone.
type Groups = BTreeMap<(usize, u32, Option<u32>), Vec<usize>>;

impl Tallies<'_> {
    fn kind(&self, cell: usize) -> &LaunchKind {
        &self.trace.kernels.kinds()[cell / self.launches.numbers()]
    }

    fn cell_of(&self, kernel: usize) -> usize {
        let number = self.launches.stage_number(self.launches.kernels[kernel].1);
        self.trace.kernels.kind(kernel) as usize * self.launches.numbers() + number
    }

    /// Cells that hold kernels: the number of their stage, and the cell.
    fn filled(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let cells = self.cells.iter().enumerate().filter(|(_, tally)| tally.calls > 0);
        cells.map(|(cell, _)| (cell % self.launches.numbers(), cell))
    }

    fn name(&self, index: u32) -> String {
        self.trace.strings.get(index as usize).cloned().unwrap_or_default()
    }

    fn by_full_name(&self) -> Groups {
        let mut groups = Groups::new();
        for (number, cell) in self.filled() {
            let kind = self.kind(cell);
            groups.entry((number, kind.name, Some(kind.full_name))).or_default().push(cell);
        }
        groups
    }

    /// Groups by short name; by full name where one of several has its share of the time.
    fn by_name(&self) -> Groups {
        let mut times: BTreeMap<(usize, u32), BTreeMap<u32, i64>> = BTreeMap::new();
        for (number, cell) in self.filled() {
            let kind = self.kind(cell);
            *times.entry((number, kind.name)).or_default().entry(kind.full_name).or_default() += self.cells[cell].ns;
        }
        let apart = |times: &BTreeMap<u32, i64>| {
            let all: i64 = times.values().sum();
            let share = |ns: &i64| percent(*ns as f64, all as f64).is_none_or(|pct| pct >= VARIANT_PCT);
            times.values().any(share)
        };
        let mut groups = Groups::new();
        for ((number, short, full), cells) in self.by_full_name() {
            let full = full.filter(|_| apart(&times[&(number, short)]));
            groups.entry((number, short, full)).or_default().extend(cells);
        }
        groups
    }

    /// Times of single launches, by group.
    fn spans(&self, groups: &Groups) -> Vec<Spans> {
        let mut group_of = vec![NONE; self.cells.len()];
        for (group, cells) in groups.values().enumerate() {
            cells.iter().for_each(|cell| group_of[*cell] = group as u32);
        }
        let times = self.trace.kernels.iter().enumerate();
        Spans::grouped(groups.len(), times.map(|(at, it)| (group_of[self.cell_of(at)], it.ns())))
    }

    fn records(&self, stages: &[StageKernels], classes: &mut Classes) -> Vec<KernelRecord> {
        let groups = self.by_name();
        let spans = self.spans(&groups);
        let rows = groups.iter().zip(spans);
        let mut records: Vec<KernelRecord> =
            rows.map(|((key, cells), spans)| self.record(*key, cells, spans, stages, classes)).collect();
        records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        records
    }

    fn record(
        &self,
        (number, short, _): (usize, u32, Option<u32>),
        cells: &[usize],
        launch_ns: Spans,
        stages: &[StageKernels],
        classes: &mut Classes,
    ) -> KernelRecord {
        let mut of_class: BTreeMap<&str, (i64, Class)> = BTreeMap::new();
        let mut of_name: BTreeMap<u32, i64> = BTreeMap::new();
        let mut configs: BTreeSet<Geometry> = BTreeSet::new();
        for cell in cells {
            let (kind, ns) = (self.kind(*cell), self.cells[*cell].ns);
            let class = classes.of(kind.full_name, &self.trace.strings);
            of_class.entry(class.class).or_insert((0, class)).0 += ns;
            *of_name.entry(kind.full_name).or_default() += ns;
            configs.insert((kind.grid, kind.block));
        }
        let first = self.kind(cells[0]);
        let most = cells.iter().max_by_key(|cell| self.cells[**cell].calls).map_or(first, |cell| self.kind(*cell));
        let class = of_class.values().max_by_key(|(ns, _)| *ns).map(|(_, class)| *class);
        let longest = of_name.iter().max_by_key(|(_, ns)| **ns).map_or(short, |(full, _)| *full);
        let stage = self.launches.numbered(number);
        let (calls, total_ms) = (launch_ns.count, Nanos(launch_ns.total).as_ms());
        KernelRecord {
            kernel_name: self.name(short),
            full_name: self.name(longest),
            name_variants: of_name.len() as u64,
            class: class.map_or(OTHER, |it| it.class).to_owned(),
            engine: class.and_then(|it| it.engine).map(str::to_owned),
            device: cells.iter().all(|cell| self.kind(*cell).device == first.device).then_some(first.device),
            stage: stage.into(),
            total_ms,
            calls,
            mean_ms: total_ms / calls as f64,
            launch_ns,
            grid: most.grid,
            block: most.block,
            registers: most.registers,
            geometries: configs.len() as u64,
            share_pct: share(stages, stage, total_ms),
            counters: None,
            configs,
        }
    }

    fn full(&self, stages: &[StageKernels], classes: &mut Classes) -> Vec<FullKernelRecord> {
        let groups = self.by_full_name();
        let spans = self.spans(&groups);
        let record = |((number, short, full), launch_ns): (&(usize, u32, Option<u32>), Spans)| {
            let full = full.unwrap_or(*short);
            let class = classes.of(full, &self.trace.strings);
            let (stage, total_ms) = (self.launches.numbered(*number), Nanos(launch_ns.total).as_ms());
            FullKernelRecord {
                full_name: self.name(full),
                kernel_name: self.name(*short),
                class: class.class.into(),
                engine: class.engine.map(str::to_owned),
                stage: stage.into(),
                total_ms,
                calls: launch_ns.count,
                mean_ms: total_ms / launch_ns.count as f64,
                launch_ns,
                share_pct: share(stages, stage, total_ms),
            }
        };
        let mut records: Vec<FullKernelRecord> = groups.keys().zip(spans).map(record).collect();
        records.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        records
    }

    /// Time by class, and the share of it whose class is known, percent.
    fn classes(&self, stages: &[StageKernels], classes: &mut Classes) -> (Vec<ClassRecord>, Option<f64>) {
        let mut by_class: BTreeMap<(usize, &'static str), Tally> = BTreeMap::new();
        for (number, cell) in self.filled() {
            let class = classes.of(self.kind(cell).full_name, &self.trace.strings).class;
            let (sum, tally) = (by_class.entry((number, class)).or_default(), self.cells[cell]);
            *sum = Tally { calls: sum.calls + tally.calls, ns: sum.ns + tally.ns };
        }
        let all: i64 = by_class.values().map(|tally| tally.ns).sum();
        let known: i64 = by_class.iter().filter(|((_, class), _)| *class != OTHER).map(|(_, tally)| tally.ns).sum();
        let class = |((number, class), tally): (&(usize, &str), &Tally)| {
            let (stage, total_ms) = (self.launches.numbered(*number), Nanos(tally.ns).as_ms());
            let share_pct = share(stages, stage, total_ms);
            ClassRecord { stage: stage.into(), class: (*class).into(), calls: tally.calls, total_ms, share_pct }
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

#[cfg(test)]
pub(super) mod tests;
