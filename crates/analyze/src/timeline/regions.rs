//! Work launched inside each named NVTX range, with its ncu counters.
//!
//! A range contains the launches of its thread while it was open, those of enclosed ranges
//! included; a start/end range contains those of all threads of its process. A kernel replayed by a
//! CUDA graph belongs to the ranges of its replay and to those open when its node was captured.
//! Ranges of one name and domain form a region, of both styles. A kernel in several ranges of one
//! region counts once; ranges that overlap without nesting, and other domains, hide none. Kernels
//! of the warm-up are excluded, as are those outside all stages when only a part of the capture
//! counts.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::{
    domain::units::Nanos,
    trace::{range::Range, timeline::Timeline},
};
use serde::{Deserialize, Serialize};

use super::{capture::Capture, device_time::captured_nodes, launches::Cursor};
use crate::{
    kernels::{
        OUTSIDE, WARMUP,
        counters::{CounterRecord, ProfiledLaunches},
        kernel_classes::ClassCache,
    },
    stats::{percent, ratio},
    timeline::open_ranges::{NONE, Segments, open_groups},
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
    /// Ranges of this name, including those of a warm-up.
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

/// Numbered sets of regions that are open at the same time.
#[derive(Default)]
struct RegionPaths {
    regions: Vec<BTreeSet<u32>>,
    known: HashMap<BTreeSet<u32>, u32>,
    /// By number of the path before, region, and true where the region opens.
    next: HashMap<(u32, u32, bool), u32>,
}

impl RegionPaths {
    fn number(&mut self, regions: BTreeSet<u32>) -> u32 {
        *self.known.entry(regions).or_insert_with_key(|regions| {
            self.regions.push(regions.clone());
            self.regions.len() as u32 - 1
        })
    }

    /// The path after `region` opens or closes on the path `before`.
    fn after(&mut self, before: u32, region: u32, opens: bool) -> u32 {
        let key = (before, region, opens);
        if let Some(path) = self.next.get(&key) {
            return *path;
        }
        let mut open = self.regions.get(before as usize).cloned().unwrap_or_default();
        if opens {
            open.insert(region)
        } else {
            open.remove(&region)
        };
        let path = if open.is_empty() { NONE } else { self.number(open) };
        self.next.insert(key, path);
        path
    }
}

/// Paths of the regions of one domain over time, by thread.
struct RegionLayer {
    threads: BTreeMap<i64, Segments>,
}

impl RegionLayer {
    /// The path open on a thread at `t`.
    fn at<'a>(&'a self, cursor: &mut Cursor<'a>, thread: i64, t: i64) -> u32 {
        cursor.at(thread, t, |thread| self.threads.get(&thread))
    }
}

/// Sums the kernels of a capture by region, longest first.
pub fn regions(capture: &Capture, counters: &[CounterRecord]) -> Vec<Region> {
    let mut names: BTreeMap<(&str, &str), (u32, u64)> = BTreeMap::new();
    for range in capture.trace.ranges.iter().filter(|it| capture.trace.rules.is_region(&it.name)) {
        let next = names.len() as u32;
        names.entry((&range.domain, &range.name)).or_insert((next, 0)).1 += 1;
    }
    let mut paths = RegionPaths::default();
    let layers = layers(capture.trace, &names, &mut paths);
    let known = ProfiledLaunches::of(capture, counters);
    let mut sums: Vec<BTreeMap<(u32, u32), RegionTally>> = vec![BTreeMap::new(); names.len()];
    let mut total = 0;
    let tallies = tallies(capture, &layers, &known, &mut total);
    for ((launched, made, kind, counters), tally) in tallies {
        let of = |path: u32| paths.regions.get(path as usize).into_iter().flatten().copied();
        let both: BTreeSet<u32> = of(launched).chain(of(made)).collect();
        for region in both {
            sums[region as usize].entry((kind, counters)).or_default().add(tally);
        }
    }
    let graphs = graphs(capture, &layers, &paths);
    let mut classes = ClassCache::default();
    let mut regions: Vec<Region> = names
        .iter()
        .map(|((domain, name), (number, instances))| {
            let sums = &sums[*number as usize];
            let mut region = region(capture.trace, sums, &known, &mut classes);
            region.share_pct = percent(region.kernel_ms, Nanos(total).as_ms());
            let graphs = graphs.get(number).copied().unwrap_or_default();
            let (whole_graphs, graph_ms) = (graphs.kernels, Nanos(graphs.ns).as_ms());
            let (name, domain) = ((*name).into(), (*domain).into());
            Region { name, domain, instances: *instances, whole_graphs, graph_ms, ..region }
        })
        .collect();
    regions.sort_by(|a, b| (b.kernel_ms + b.graph_ms).total_cmp(&(a.kernel_ms + a.graph_ms)));
    regions
}

/// Paths of each domain over time: regions are of one domain, so that layers share none.
fn layers(
    trace: &Timeline,
    names: &BTreeMap<(&str, &str), (u32, u64)>,
    paths: &mut RegionPaths,
) -> Vec<RegionLayer> {
    let domains: BTreeSet<&str> = names.keys().map(|(domain, _)| *domain).collect();
    let layer = |domain: &str| {
        let region = |it: &Range| {
            let known =
                if it.domain == domain { names.get(&(domain, it.name.as_str())) } else { None };
            known.map(|(region, _)| *region)
        };
        let next = |before, region, opens| paths.after(before, region, opens);
        RegionLayer { threads: open_groups(trace, region, next) }
    };
    domains.into_iter().map(layer).collect()
}

/// Count and time of whole-traced graphs launched in each region.
fn graphs(
    capture: &Capture,
    layers: &[RegionLayer],
    paths: &RegionPaths,
) -> BTreeMap<u32, RegionTally> {
    let mut sums: BTreeMap<u32, RegionTally> = BTreeMap::new();
    let mut calls = capture.trace.cuda_calls.reader();
    for (it, join) in capture.graphs() {
        if !join.has_call() || !is_counted(capture, capture.stage_number(join.instance)) {
            continue;
        }
        let call = calls.get(join.call);
        let open = layers
            .iter()
            .map(|layer| layer.at(&mut Cursor::default(), call.global_tid, call.start_ns));
        let regions: BTreeSet<u32> =
            open.filter_map(|path| paths.regions.get(path as usize)).flatten().copied().collect();
        for region in regions {
            sums.entry(region)
                .or_default()
                .add(RegionTally { kernels: 1, ns: it.end_ns - it.start_ns });
        }
    }
    sums
}

/// Returns true when work of a stage counts in the table.
fn is_counted(capture: &Capture, stage: usize) -> bool {
    let left_out = capture.trace.rules.narrowed() && stage == 0;
    !left_out && ![WARMUP, OUTSIDE].contains(&capture.stage_label(stage))
}

/// Path at the launch, path at the graph capture, kernel kind, index of the counters.
type RegionPlace = (u32, u32, u32, u32);

/// Sums kernels by place of launch, once per layer; sets `total` to the time of all counted
/// kernels.
fn tallies(
    capture: &Capture,
    layers: &[RegionLayer],
    known: &ProfiledLaunches,
    total: &mut i64,
) -> Vec<(RegionPlace, RegionTally)> {
    let counted: Vec<bool> =
        (0..capture.stage_count()).map(|stage| is_counted(capture, stage)).collect();
    let is_counted = |stage: usize| counted[stage];
    let captured = captured_nodes(&capture.trace.graph_nodes);
    let all = || capture.kernels_by_kind();
    *total = all()
        .filter(|(_, join)| is_counted(capture.stage_number(join.instance)))
        .map(|((_, it), _)| it.ns())
        .sum();
    let mut calls = capture.trace.cuda_calls.reader();
    let mut sums = Vec::new();
    for layer in layers {
        let mut of: HashMap<RegionPlace, RegionTally> = HashMap::default();
        let mut last: (Option<RegionPlace>, RegionTally) = Default::default();
        let mut cursor = Cursor::default();
        let mut nodes: HashMap<u64, u32> = HashMap::default();
        for ((kind, kernel), join) in all() {
            let stage = capture.stage_number(join.instance);
            if !is_counted(stage) {
                continue;
            }
            let launched = if join.has_call() {
                let call = calls.get(join.call);
                layer.at(&mut cursor, call.global_tid, call.start_ns)
            } else {
                NONE
            };
            let at_capture = kernel.graph_node.map_or(NONE, |id| {
                *nodes.entry(id).or_insert_with(|| {
                    captured.get(&id).map_or(NONE, |origin| {
                        layer.at(&mut Cursor::default(), origin.global_tid, origin.at_ns)
                    })
                })
            });
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
        sums.extend(of);
    }
    sums
}

fn region(
    trace: &Timeline,
    sums: &BTreeMap<(u32, u32), RegionTally>,
    known: &ProfiledLaunches,
    classes: &mut ClassCache,
) -> Region {
    let mut all = RegionTally::default();
    let mut by_class: BTreeMap<&'static str, RegionTally> = BTreeMap::new();
    let mut counted: Vec<(&CounterRecord, f64)> = Vec::new();
    for ((kind, counters), tally) in sums {
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
