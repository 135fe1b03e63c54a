//! Work launched inside each named NVTX range, with its ncu counters.
//!
//! A range contains the launches of its thread while it was open, enclosed ranges' launches
//! included; a start/end range contains the launches of all threads of its process. A kernel
//! replayed by a CUDA graph belongs to the ranges of its replay and to the ranges open when its
//! node was captured. Ranges of one name and domain form a region, of both styles. A kernel in
//! several ranges of one region counts once; ranges that overlap without nesting, and other
//! domains, hide none. Kernels of the warm-up are excluded, as are those outside all stages when
//! only a part of the capture counts.

use std::{cmp::Reverse, collections::BTreeMap};

use foldhash::HashMap;
use llmprof_core::{
    domain::{
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::{
        range::{ByLabel, RangeLabel},
        timeline::Timeline,
    },
};
use serde::{Deserialize, Serialize};

use super::{
    capture::Capture,
    launches::{CallSet, Cursor},
    open_at::AtCapture,
    open_ranges::{NONE, OpenSets, TooDeep},
    range_groups::RangeGroups,
};
use crate::{
    kernels::{
        OUTSIDE,
        counters::{CounterRecord, ProfiledLaunches},
        is_unmeasured_range,
        kernel_classes::ClassCache,
    },
    limited::{Limited, Summed, sort_kept},
    stats::{percent, ratio},
};

/// Ranges of one name and domain, with all work launched inside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Region {
    #[cfg_attr(feature = "schema", schema(example = "decoder.self_attn"))]
    pub name: String,
    /// Empty for the default domain.
    #[cfg_attr(feature = "schema", schema(example = "LLM"))]
    pub domain: String,
    /// Ranges of this name, including a warm-up's.
    pub instances: u64,
    pub kernels: u64,
    pub kernel_ms: f64,
    /// Launches of CUDA graphs traced as a whole: their kernels are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    /// Sum over those launches, each from start to end on the device.
    #[serde(default)]
    pub graph_ms: f64,
    /// `kernel_ms` of the kernel time of the whole capture, in regions or not, percent.
    pub share_pct: Option<f64>,
    /// Longest first.
    pub classes: Vec<RegionClass>,
    pub counters: Option<RegionCounters>,
}

/// Kernels of one class in a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegionClass {
    #[cfg_attr(feature = "schema", schema(example = "gemm"))]
    pub class: String,
    pub kernels: u64,
    pub ms: f64,
    /// `ms` of the region's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// ncu counters of a region's kernels: means weighted by timeline time over the launches whose
/// stage, name, launch configuration and duration were profiled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegionCounters {
    /// Share of the region's kernel time with counters, percent. The means cover that part only.
    pub covered_pct: Option<f64>,
    pub sm_pct: Option<f64>,
    pub memory_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub l2_hit_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    pub tensor_pct: Option<f64>,
}

/// Count and time of kernels.
#[derive(Clone, Copy, Default)]
struct RegionTally {
    kernels: u64,
    ns: i64,
}

impl RegionTally {
    fn add(&mut self, other: Self) {
        *self = Self { kernels: self.kernels + other.kernels, ns: self.ns + other.ns };
    }
}

/// The finding that regions are unknown, because ranges nest too deep.
pub fn finding(depth: TooDeep) -> Finding {
    let message =
        format!("Work by range is unknown: {} ranges are open at one launch.", depth.open);
    Finding::new(catalogue::RANGES_TOO_DEEP, message).with("ranges open", depth.open)
}

/// Sums the kernels of a capture by region, longest first.
pub fn regions(capture: &Capture, counters: &[CounterRecord]) -> Result<Limited<Region>, TooDeep> {
    let trace = capture.trace;
    let mut groups = RangeGroups::new(&trace.rules);
    let mut instances: Vec<u64> = Vec::new();
    let mut is_region = ByLabel::new(|label: &RangeLabel| trace.rules.is_region(&label.name));
    let mut region = |it| is_region.get(it).then(|| groups.number(it));
    for number in trace.ranges.iter().filter_map(&mut region) {
        instances.resize(instances.len().max(number as usize + 1), 0);
        instances[number as usize] += 1;
    }
    if instances.is_empty() {
        return Ok(Limited::default());
    }
    let captures = AtCapture::new(trace);
    let open = OpenSets::of(trace, region, &launches(capture), &captures.places())?;
    let known = ProfiledLaunches::of(capture, counters);
    let (places, total) = tallies(capture, &open, captures, &known);
    let mut sums: HashMap<RegionPart, RegionTally> = HashMap::default();
    let mut both: Vec<u32> = Vec::new();
    for ((launched, made, kind, counters), tally) in places {
        both.clear();
        both.extend(open.groups(launched).iter().chain(open.groups(made)));
        both.sort_unstable();
        both.dedup();
        for region in &both {
            sums.entry((*region, kind, counters)).or_default().add(tally);
        }
    }
    let mut sums: Vec<(RegionPart, RegionTally)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|it| it.0);
    let graphs = graphs(capture, &open);
    let mut classes = ClassCache::default();
    let names = groups.names();
    let parts = |number: u32| {
        let from = sums.partition_point(|it| it.0.0 < number);
        &sums[from..from + sums[from..].partition_point(|it| it.0.0 == number)]
    };
    let graph = |number: u32| graphs.get(&number).copied().unwrap_or_default();
    let ns = |number: u32| parts(number).iter().map(|it| it.1.ns).sum::<i64>() + graph(number).ns;
    let mut order: Vec<(i64, u32)> =
        (0..instances.len() as u32).map(|number| (ns(number), number)).collect();
    let key = |(ns, number): &(i64, u32)| (Reverse(*ns), &names[*number as usize]);
    sort_kept(&mut order, |a, b| key(a).cmp(&key(b)));
    let row = |(_, number): (i64, u32)| {
        let region = self::region(trace, parts(number), &known, &mut classes);
        let (graphs, (domain, name)) = (graph(number), &names[number as usize]);
        Region {
            name: name.clone(),
            domain: (*domain).into(),
            instances: instances[number as usize],
            whole_graphs: graphs.kernels,
            graph_ms: Nanos(graphs.ns).as_ms(),
            share_pct: percent(region.kernel_ms, Nanos(total).as_ms()),
            ..region
        }
    };
    Ok(Limited::of(order.into_iter().map(row)))
}

impl Summed for Region {
    fn add(&mut self, other: Self) {
        self.instances += other.instances;
        self.kernels += other.kernels;
        self.kernel_ms += other.kernel_ms;
        self.whole_graphs += other.whole_graphs;
        self.graph_ms += other.graph_ms;
    }
}

/// Number of a region, kernel kind, index of the counters.
type RegionPart = (u32, u32, u32);

/// Calls that launched kernels or graphs.
fn launches(capture: &Capture) -> CallSet {
    let mut launches = CallSet::below(capture.trace.cuda_calls.len());
    let joins = capture.kernel_joins().chain(capture.graph_joins());
    joins.filter(|it| it.has_call()).for_each(|it| launches.insert(it.call));
    launches
}

/// Count and time of whole-traced graphs launched in each region.
fn graphs(capture: &Capture, open: &OpenSets) -> BTreeMap<u32, RegionTally> {
    let mut sums: BTreeMap<u32, RegionTally> = BTreeMap::new();
    let mut calls = capture.trace.cuda_calls.reader();
    for (it, join) in capture.graphs() {
        if !join.has_call() || !is_counted(capture, capture.stage_number(join.instance)) {
            continue;
        }
        let call = calls.get(join.call);
        let set = open.on(call.global_tid).map_or(NONE, |sets| sets.at(call.start_ns, &mut 0));
        for region in open.groups(set) {
            let tally = RegionTally { kernels: 1, ns: it.end_ns - it.start_ns };
            sums.entry(*region).or_default().add(tally);
        }
    }
    sums
}

/// Returns true when work of a stage counts in the table.
fn is_counted(capture: &Capture, stage: usize) -> bool {
    let left_out = capture.trace.rules.narrowed() && stage == 0;
    let label = capture.stage_label(stage);
    !left_out && label != OUTSIDE && !is_unmeasured_range(label)
}

/// Set of regions at the launch, and at the graph capture, kernel kind, index of the counters.
type RegionPlace = (u32, u32, u32, u32);

/// Sums kernels by place of launch; with the time of all counted kernels.
fn tallies(
    capture: &Capture,
    open: &OpenSets,
    mut captures: AtCapture<u32>,
    known: &ProfiledLaunches,
) -> (HashMap<RegionPlace, RegionTally>, i64) {
    let counted: Vec<bool> =
        (0..capture.stage_count()).map(|stage| is_counted(capture, stage)).collect();
    let mut calls = capture.trace.cuda_calls.reader();
    let (mut of, mut total): (HashMap<RegionPlace, RegionTally>, i64) = Default::default();
    let mut last: (Option<RegionPlace>, RegionTally) = Default::default();
    let mut cursor = Cursor::default();
    for ((kind, kernel), join) in capture.kernels_by_kind() {
        let stage = capture.stage_number(join.instance);
        if !counted[stage] {
            continue;
        }
        total += kernel.ns();
        let launched = if join.has_call() {
            let call = calls.get(join.call);
            cursor.at(call.global_tid, call.start_ns, |thread| open.on(thread))
        } else {
            NONE
        };
        let at_capture = kernel.graph_node.and_then(|id| {
            captures.get(id, |origin| {
                open.on(origin.global_tid).map_or(NONE, |sets| sets.at(origin.at_ns, &mut 0))
            })
        });
        let at_capture = at_capture.unwrap_or(NONE);
        if launched == NONE && at_capture == NONE {
            continue;
        }
        let place = (launched, at_capture, kind, known.index(kind, stage, kernel.ns()));
        if last.0 != Some(place) {
            if let Some(place) = last.0 {
                of.entry(place).or_default().add(last.1);
            }
            last = (Some(place), RegionTally::default());
        }
        last.1.add(RegionTally { kernels: 1, ns: kernel.ns() });
    }
    if let Some(place) = last.0 {
        of.entry(place).or_default().add(last.1);
    }
    (of, total)
}

fn region(
    trace: &Timeline,
    sums: &[(RegionPart, RegionTally)],
    known: &ProfiledLaunches,
    classes: &mut ClassCache,
) -> Region {
    let mut all = RegionTally::default();
    let mut by_class: BTreeMap<&'static str, RegionTally> = BTreeMap::new();
    let mut counted: Vec<(&CounterRecord, f64)> = Vec::new();
    for ((_, kind, counters), tally) in sums {
        let kind = &trace.kernels.kinds()[*kind as usize];
        all.add(*tally);
        by_class.entry(classes.of(kind.full_name, &trace.strings).class).or_default().add(*tally);
        let record = known.get(*counters);
        counted.extend(record.map(|record| (record, Nanos(tally.ns).as_ms())));
    }
    let kernel_ms = Nanos(all.ns).as_ms();
    let class = |(class, tally): (&str, RegionTally)| {
        let ms = Nanos(tally.ns).as_ms();
        RegionClass {
            class: class.into(),
            kernels: tally.kernels,
            ms,
            share_pct: percent(ms, kernel_ms),
        }
    };
    let mut classes: Vec<RegionClass> = by_class.into_iter().map(class).collect();
    classes.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Region {
        kernels: all.kernels,
        kernel_ms,
        classes,
        counters: means(&counted, kernel_ms),
        ..Region::default()
    }
}

/// Means weighted by time; records without a value are ignored.
fn means(counted: &[(&CounterRecord, f64)], kernel_ms: f64) -> Option<RegionCounters> {
    if counted.is_empty() {
        return None;
    }
    let mean = |field: fn(&CounterRecord) -> Option<f64>| {
        let known = counted.iter().filter_map(|(record, ms)| Some((field(record)? * ms, *ms)));
        let (sum, ms) = known.fold((0.0, 0.0), |(sum, all), (value, ms)| (sum + value, all + ms));
        ratio(sum, ms)
    };
    Some(RegionCounters {
        covered_pct: percent(counted.iter().map(|(_, ms)| ms).sum(), kernel_ms),
        sm_pct: mean(|it| it.values.sm_pct),
        memory_pct: mean(|it| it.values.memory_pct),
        dram_pct: mean(|it| it.values.dram_pct),
        l2_hit_pct: mean(|it| it.values.l2_hit_pct),
        achieved_occupancy_pct: mean(|it| it.values.achieved_occupancy_pct),
        tensor_pct: mean(|it| it.values.tensor_pct),
    })
}

#[cfg(test)]
mod tests;
