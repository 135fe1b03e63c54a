//! What was launched inside each named range, and what the counters say of it: NVTX beside ncu.
//!
//! A range holds what its thread launched while it was open, with everything that it encloses; a start/end range holds what any thread of
//! its process did. A kernel that a CUDA graph replayed is in the ranges of its replay and in those that were open when its node was
//! captured. Ranges of one name in one domain are a region, one inside itself counts once, and domains do not hide each other's. Kernels
//! of the warm-up are left out, and those outside all stages where only a part of the capture was chosen.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    classes::Classes,
    counters::CounterRecord,
    device_time::captured,
    kernels::{OUTSIDE, WARMUP},
    launches::{Cursor, Launches},
    scopes::{NONE, Nest, nests},
    stats::{percent, ratio},
};
use crate::trace::{names::base_name, nsys::NsysTrace, units::Nanos};

/// Ranges of one name in one domain, with everything launched inside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Region {
    #[schema(example = "decoder.self_attn")]
    pub name: String,
    /// Empty for the default domain.
    #[schema(example = "LLM")]
    pub domain: String,
    /// Ranges of this name, those of a warm-up included.
    pub instances: u64,
    pub kernels: u64,
    pub kernel_ms: f64,
    /// Launches of CUDA graphs that were traced as a whole: the kernels inside are not recorded.
    #[serde(default)]
    pub whole_graphs: u64,
    /// Sum over those launches, each from its start to its end on the device.
    #[serde(default)]
    pub graph_ms: f64,
    /// Of the recorded kernel time of all regions' kernels and of those in none, percent.
    pub share_pct: Option<f64>,
    /// Longest first.
    pub classes: Vec<RegionClass>,
    pub counters: Option<RegionCounters>,
}

/// Kernels of one class in a region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionClass {
    #[schema(example = "gemm")]
    pub class: String,
    pub kernels: u64,
    pub ms: f64,
    /// Of the region's kernel time, percent.
    pub share_pct: Option<f64>,
}

/// What ncu read of a region's kernels: means by their time in the timeline, where their stage, name and geometry were profiled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RegionCounters {
    /// Share of the region's kernel time that has counters, percent. The means below are of that part alone.
    pub covered_pct: Option<f64>,
    pub sm_pct: Option<f64>,
    pub memory_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub l2_hit_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    pub tensor_pct: Option<f64>,
}

/// Kernels of one kind in one place.
#[derive(Clone, Copy, Default)]
struct Tally {
    kernels: u64,
    ns: i64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        *self = Self { kernels: self.kernels + other.kernels, ns: self.ns + other.ns };
    }
}

/// Sets of regions that are open at once, each told by a number.
#[derive(Default)]
struct Paths {
    regions: Vec<BTreeSet<u32>>,
    known: HashMap<BTreeSet<u32>, u32>,
    /// By the path above and the region in it.
    below: HashMap<(u32, u32), u32>,
}

impl Paths {
    fn number(&mut self, regions: BTreeSet<u32>) -> u32 {
        *self.known.entry(regions).or_insert_with_key(|regions| {
            self.regions.push(regions.clone());
            self.regions.len() as u32 - 1
        })
    }

    /// The path of `region` inside the path `above`.
    fn inside(&mut self, above: u32, region: u32) -> u32 {
        if let Some(path) = self.below.get(&(above, region)) {
            return *path;
        }
        let mut open = self.regions.get(above as usize).cloned().unwrap_or_default();
        open.insert(region);
        let path = self.number(open);
        self.below.insert((above, region), path);
        path
    }
}

/// One domain and style of ranges, nested on each thread, with the path of each entry.
struct Layer {
    nests: BTreeMap<i64, (Nest, Vec<u32>)>,
}

impl Layer {
    /// The path that is open on a thread at a time.
    fn at<'a>(&'a self, cursor: &mut Cursor<'a>, thread: i64, t: i64) -> u32 {
        let entry = cursor.at(thread, t, |thread| Some(&self.nests.get(&thread)?.0.segments));
        self.nests.get(&thread).and_then(|(_, paths)| paths.get(entry as usize)).copied().unwrap_or(NONE)
    }
}

/// Sums the kernels of a capture by region, longest first.
pub fn regions(trace: &NsysTrace, launches: &Launches, counters: &[CounterRecord]) -> Vec<Region> {
    let mut names: BTreeMap<(&str, &str), (u32, u64)> = BTreeMap::new();
    for range in trace.ranges.iter().filter(|it| trace.rules.is_region(&it.name)) {
        let next = names.len() as u32;
        names.entry((&range.domain, &range.name)).or_insert((next, 0)).1 += 1;
    }
    let mut paths = Paths::default();
    let layers = layers(trace, &names, &mut paths);
    let mut sums: Vec<BTreeMap<(u32, usize), Tally>> = vec![BTreeMap::new(); names.len()];
    let mut total = 0;
    for ((launched, made, kind, stage), tally) in tallies(trace, launches, &layers, &mut total) {
        let of = |path: u32| paths.regions.get(path as usize).into_iter().flatten().copied();
        let both: BTreeSet<u32> = of(launched).chain(of(made)).collect();
        for region in both {
            sums[region as usize].entry((kind, stage)).or_default().add(tally);
        }
    }
    let graphs = graphs(trace, launches, &layers, &paths);
    let known = profiled(counters);
    let mut classes = Classes::default();
    let mut regions: Vec<Region> = names
        .iter()
        .map(|((domain, name), (number, instances))| {
            let sums = &sums[*number as usize];
            let mut region = region(trace, launches, sums, &known, &mut classes);
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

/// Nests each domain and style for itself.
fn layers(trace: &NsysTrace, names: &BTreeMap<(&str, &str), (u32, u64)>, paths: &mut Paths) -> Vec<Layer> {
    let told = trace.ranges.iter().filter(|it| trace.rules.is_region(&it.name));
    let kinds: BTreeSet<(&str, bool)> = told.map(|it| (it.domain.as_str(), it.push_pop)).collect();
    let layer = |(domain, push_pop): (&str, bool)| {
        let wanted = |it: &crate::trace::range::Range| it.domain == domain && it.push_pop == push_pop;
        let nested = nests(trace, |it| wanted(it) && trace.rules.is_region(&it.name)).into_iter().map(|(thread, nest)| {
            let mut of: Vec<u32> = Vec::with_capacity(nest.entries.len());
            for (range, parent) in &nest.entries {
                let range = &trace.ranges[*range as usize];
                let region = names[&(range.domain.as_str(), range.name.as_str())].0;
                let above = of.get(*parent as usize).copied().unwrap_or(NONE);
                of.push(paths.inside(above, region));
            }
            (thread, (nest, of))
        });
        Layer { nests: nested.collect() }
    };
    kinds.into_iter().map(layer).collect()
}

/// Whole-traced graphs that were launched in each region.
fn graphs(trace: &NsysTrace, launches: &Launches, layers: &[Layer], paths: &Paths) -> BTreeMap<u32, Tally> {
    let mut sums: BTreeMap<u32, Tally> = BTreeMap::new();
    for (it, (call, instance)) in trace.graphs.iter().zip(&launches.graphs) {
        if *call == NONE || !counts(trace, launches, launches.stage_number(*instance)) {
            continue;
        }
        let call = trace.cuda_calls.get(*call as usize);
        let open = layers.iter().map(|layer| layer.at(&mut Cursor::default(), call.global_tid, call.start_ns));
        let regions: BTreeSet<u32> = open.filter_map(|path| paths.regions.get(path as usize)).flatten().copied().collect();
        for region in regions {
            sums.entry(region).or_default().add(Tally { kernels: 1, ns: it.end_ns - it.start_ns });
        }
    }
    sums
}

/// Whether what a stage launched is in the table.
fn counts(trace: &NsysTrace, launches: &Launches, stage: usize) -> bool {
    let left_out = trace.rules.narrowed() && stage == 0;
    !left_out && ![WARMUP, OUTSIDE].contains(&launches.numbered(stage))
}

/// Launching path, capturing path, kind of kernel, stage.
type Place = (u32, u32, u32, usize);

/// Sums kernels by where they were launched, once for each layer; `total` becomes the time of all that count.
fn tallies(trace: &NsysTrace, launches: &Launches, layers: &[Layer], total: &mut i64) -> Vec<(Place, Tally)> {
    let counts = |stage: usize| counts(trace, launches, stage);
    let made = captured(&trace.graph_nodes);
    let all = || trace.kernels.iter().zip(&launches.kernels).enumerate();
    *total = all().filter(|(_, (_, (_, at)))| counts(launches.stage_number(*at))).map(|(_, (it, _))| it.ns()).sum();
    let mut sums = Vec::new();
    for layer in layers {
        let mut of: HashMap<Place, Tally> = HashMap::new();
        let mut last: (Option<Place>, Tally) = Default::default();
        let mut cursor = Cursor::default();
        let mut nodes: HashMap<u64, u32> = HashMap::new();
        for (at, (kernel, (call, instance))) in all() {
            let stage = launches.stage_number(*instance);
            if !counts(stage) {
                continue;
            }
            let launched = if *call == NONE {
                NONE
            } else {
                let call = trace.cuda_calls.get(*call as usize);
                layer.at(&mut cursor, call.global_tid, call.start_ns)
            };
            let node = kernel.graph_node.and_then(|id| Some((id, made.get(&id)?)));
            let capture = node.map_or(NONE, |(id, made)| {
                *nodes.entry(id).or_insert_with(|| layer.at(&mut Cursor::default(), made.global_tid, made.at_ns))
            });
            if launched == NONE && capture == NONE {
                continue;
            }
            let place = (launched, capture, trace.kernels.kind(at), stage);
            if last.0 != Some(place) {
                if let Some(place) = last.0 {
                    of.entry(place).or_default().add(last.1);
                }
                last = (Some(place), Tally::default());
            }
            last.1.add(Tally { kernels: 1, ns: kernel.ns() });
        }
        if let Some(place) = last.0 {
            of.entry(place).or_default().add(last.1);
        }
        sums.extend(of);
    }
    sums
}

type Profiled<'a> = HashMap<(&'a str, &'a str, [u32; 3], [u32; 3]), &'a CounterRecord>;

fn profiled<'a>(counters: &'a [CounterRecord]) -> Profiled<'a> {
    let of = |it: &'a CounterRecord| Some(((it.stage.as_str(), it.kernel_name.as_str(), it.grid?, it.block?), it));
    counters.iter().filter_map(of).collect()
}

fn region(
    trace: &NsysTrace,
    launches: &Launches,
    sums: &BTreeMap<(u32, usize), Tally>,
    known: &Profiled,
    classes: &mut Classes,
) -> Region {
    let mut all = Tally::default();
    let mut by_class: BTreeMap<&'static str, Tally> = BTreeMap::new();
    let mut counted: Vec<(&CounterRecord, f64)> = Vec::new();
    for ((kind, stage), tally) in sums {
        let kind = &trace.kernels.kinds()[*kind as usize];
        all.add(*tally);
        by_class.entry(classes.of(kind.full_name, &trace.strings).class).or_default().add(*tally);
        let name = trace.strings.get(kind.name as usize).map_or("", String::as_str);
        let key = (launches.numbered(*stage), base_name(name), kind.grid, kind.block);
        counted.extend(known.get(&key).map(|record| (*record, Nanos(tally.ns).as_ms())));
    }
    let kernel_ms = Nanos(all.ns).as_ms();
    let class = |(class, tally): (&str, Tally)| {
        let ms = Nanos(tally.ns).as_ms();
        RegionClass { class: class.into(), kernels: tally.kernels, ms, share_pct: percent(ms, kernel_ms) }
    };
    let mut classes: Vec<RegionClass> = by_class.into_iter().map(class).collect();
    classes.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Region { kernels: all.kernels, kernel_ms, classes, counters: means(&counted, kernel_ms), ..Region::default() }
}

/// Means by time; what a record lacks is the mean of the others.
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
