//! Counters beside the timeline: what ncu read of a kernel, and how often and how long it ran in the nsys pass.
//!
//! Joined by stage, function name and geometry. A launch under ncu is replayed with cold caches, so its duration stands beside the
//! timeline's and never replaces it.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    kernels::{Geometry, KernelRecord, is_measured, launched},
    launches::Launches,
    stats::{percent, ratio},
};
use crate::trace::{
    counter::{CounterValues, LaunchCounters},
    names::base_name,
    nsys::NsysTrace,
    units::Nanos,
};

/// The launches of one kernel with one geometry that were profiled in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CounterRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    pub kernel_name: String,
    /// Blocks of the grid; `null` where ncu's page does not print them.
    #[schema(value_type = Option<Vec<u32>>, example = json!([4, 24, 1]))]
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; `null` where ncu's page does not print them.
    #[schema(value_type = Option<Vec<u32>>, example = json!([384, 1, 1]))]
    pub block: Option<[u32; 3]>,
    /// Launches with this geometry in the timeline; `null` when it holds none.
    pub timeline_calls: Option<u64>,
    pub timeline_total_ms: Option<f64>,
    /// `timeline_total_ms / timeline_calls`.
    pub timeline_mean_ms: Option<f64>,
    /// Launches that ncu profiled.
    #[schema(example = 3)]
    pub profiled: u64,
    /// Means over the profiled launches; stalls are those of the one in the middle of their durations.
    pub values: CounterValues,
    /// Operations per byte of device memory; `null` when operations of the tensor cores were not counted.
    pub flops_per_byte: Option<f64>,
}

/// Counters of a kernel over the geometries that were profiled: means weighted by their time in the timeline, durations by their calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelCounters {
    pub profiled: u64,
    pub geometries: u64,
    /// Share of the kernel's time in this stage that these geometries took, percent.
    pub covered_pct: Option<f64>,
    /// Mean duration of a replayed launch.
    pub replay_ms: Option<f64>,
    pub sm_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    pub tensor_pct: Option<f64>,
    pub flops_per_byte: Option<f64>,
    /// Why warps waited longest, in the geometry that took most of the time.
    pub stalled_by: Option<String>,
}

/// Stage, kernel, grid and block: of the timeline always known, of ncu's page perhaps not.
type Key<'a> = (&'a str, &'a str, [u32; 3], [u32; 3]);
type Group<'a> = (&'a str, &'a str, Option<[u32; 3]>, Option<[u32; 3]>);
type Ran<'a> = HashMap<Key<'a>, (u64, Nanos)>;

/// Gathers what was profiled, longest in the timeline first.
pub fn counters(launches: &[LaunchCounters], timeline: Option<(&NsysTrace, &Launches)>) -> Vec<CounterRecord> {
    let timeline = timeline.filter(|_| !launches.is_empty());
    let mut ran: Ran = HashMap::new();
    for (kernel, stage) in timeline.into_iter().flat_map(|(trace, joined)| launched(trace, joined)) {
        let name = timeline.and_then(|(trace, _)| trace.strings.get(kernel.name as usize)).map_or("", String::as_str);
        let sum = ran.entry((stage.unwrap_or(""), base_name(name), kernel.grid, kernel.block)).or_default();
        sum.0 += 1;
        sum.1 += Nanos(kernel.end_ns - kernel.start_ns);
    }
    let mut groups: BTreeMap<Group, Vec<&LaunchCounters>> = BTreeMap::new();
    for launch in launches {
        // Pages from elsewhere do not tell the stage: it is the one that has most launches like it.
        let like = (launch.kernel.as_str(), launch.grid, launch.block);
        let same = |(key, _): &(&Key, &(u64, Nanos))| is_like(key, like);
        let most = || ran.iter().filter(same).max_by_key(|(key, (calls, _))| (is_measured(key.0) && !key.0.is_empty(), *calls));
        let stage = if launch.stage.is_empty() { most().map_or("", |(key, _)| key.0) } else { launch.stage.as_str() };
        groups.entry((stage, &launch.kernel, launch.grid, launch.block)).or_default().push(launch);
    }
    let mut records: Vec<CounterRecord> = groups
        .into_iter()
        .map(|(key, launches)| {
            let timeline = in_timeline(&ran, key);
            let values = mean(&launches);
            CounterRecord {
                stage: key.0.to_owned(),
                kernel_name: key.1.to_owned(),
                grid: key.2,
                block: key.3,
                timeline_calls: timeline.map(|it| it.0),
                timeline_total_ms: timeline.map(|it| it.1.as_ms()),
                timeline_mean_ms: timeline.map(|(calls, total)| total.as_ms() / calls as f64),
                profiled: launches.len() as u64,
                flops_per_byte: values.arithmetic_intensity(),
                values,
            }
        })
        .collect();
    let long = |record: &CounterRecord| record.timeline_total_ms.unwrap_or(0.0);
    records.sort_by(|a, b| long(b).total_cmp(&long(a)));
    records
}

/// Says whether a launch of the timeline is what a page calls so, as far as the page tells.
fn is_like(key: &Key, (kernel, grid, block): (&str, Option<[u32; 3]>, Option<[u32; 3]>)) -> bool {
    key.1 == kernel && grid.is_none_or(|grid| grid == key.2) && block.is_none_or(|block| block == key.3)
}

/// Calls and time of a group in the timeline. Where its geometry is not known, only a kernel with a single one is the same.
fn in_timeline<'a>(ran: &Ran<'a>, (stage, kernel, grid, block): Group<'a>) -> Option<(u64, Nanos)> {
    if let (Some(grid), Some(block)) = (grid, block) {
        return ran.get(&(stage, kernel, grid, block)).copied();
    }
    let mut like = ran.iter().filter(|(key, _)| key.0 == stage && is_like(key, (kernel, grid, block)));
    let first = like.next();
    first.filter(|_| like.next().is_none()).map(|(_, sum)| *sum)
}

/// Sets the counters beside the kernels that they are of.
/// Rows of one name are told apart by their geometries; counters that fit several rows are of none of them.
pub fn attach(kernels: &mut [KernelRecord], counters: &[CounterRecord]) {
    let fits = |kernel: &KernelRecord, it: &CounterRecord| {
        let same = |(grid, block): &Geometry| it.grid.is_none_or(|at| at == *grid) && it.block.is_none_or(|at| at == *block);
        it.stage == kernel.stage && it.kernel_name == base_name(&kernel.kernel_name) && kernel.configs.iter().any(same)
    };
    let alone = |it: &&CounterRecord| kernels.iter().filter(|kernel| fits(kernel, it)).count() == 1;
    let counters: Vec<&CounterRecord> = counters.iter().filter(|it| it.timeline_total_ms.is_some()).filter(alone).collect();
    for kernel in kernels {
        let of: Vec<&CounterRecord> = counters.iter().copied().filter(|it| fits(kernel, it)).collect();
        kernel.counters = summary(&of, kernel.total_ms);
    }
}

/// `records` of one kernel, longest first.
fn summary(records: &[&CounterRecord], total_ms: f64) -> Option<KernelCounters> {
    let first = records.first()?;
    type Field = fn(&CounterRecord) -> Option<f64>;
    let mean = |field: Field, weight: Field| {
        let known = || records.iter().filter_map(|record| Some((field(record)?, weight(record)?)));
        ratio(known().map(|(value, weight)| value * weight).sum(), known().map(|(_, weight)| weight).sum())
    };
    let weighted = |field: Field| mean(field, |it| it.timeline_total_ms);
    Some(KernelCounters {
        profiled: records.iter().map(|it| it.profiled).sum(),
        geometries: records.len() as u64,
        covered_pct: percent(records.iter().filter_map(|it| it.timeline_total_ms).sum(), total_ms),
        replay_ms: mean(|it| it.values.duration_ns, |it| it.timeline_calls.map(|calls| calls as f64)).map(|ns| ns / 1e6),
        sm_pct: weighted(|it| it.values.sm_pct),
        dram_pct: weighted(|it| it.values.dram_pct),
        achieved_occupancy_pct: weighted(|it| it.values.achieved_occupancy_pct),
        tensor_pct: weighted(|it| it.values.tensor_pct),
        flops_per_byte: weighted(|it| it.flops_per_byte),
        stalled_by: first.values.stalls.first().map(|stall| stall.reason.clone()),
    })
}

/// Means over launches of one geometry; what some lack is the mean of the others.
fn mean(launches: &[&LaunchCounters]) -> CounterValues {
    let all = || launches.iter().map(|launch| &launch.values);
    let mean = |field: fn(&CounterValues) -> Option<f64>| {
        let known: Vec<f64> = all().filter_map(field).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let mut by_duration: Vec<&CounterValues> = all().collect();
    by_duration.sort_by(|a, b| a.duration_ns.unwrap_or(0.0).total_cmp(&b.duration_ns.unwrap_or(0.0)));
    let Some(middle) = by_duration.get(by_duration.len() / 2) else { return CounterValues::default() };
    let operations = middle.flops.keys().filter_map(|format| {
        let known: Vec<f64> = all().map(|values| values.flops.get(format).copied()).collect::<Option<_>>()?;
        Some((format.clone(), known.iter().sum::<f64>() / known.len() as f64))
    });
    CounterValues {
        registers: middle.registers,
        duration_ns: mean(|it| it.duration_ns),
        sm_pct: mean(|it| it.sm_pct),
        memory_pct: mean(|it| it.memory_pct),
        dram_pct: mean(|it| it.dram_pct),
        l1_hit_pct: mean(|it| it.l1_hit_pct),
        l2_hit_pct: mean(|it| it.l2_hit_pct),
        achieved_occupancy_pct: mean(|it| it.achieved_occupancy_pct),
        theoretical_occupancy_pct: mean(|it| it.theoretical_occupancy_pct),
        tensor_pct: mean(|it| it.tensor_pct),
        dram_bytes: mean(|it| it.dram_bytes),
        flops: operations.collect(),
        flops_complete: all().all(|it| it.flops_complete),
        stalls: middle.stalls.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::kernels::{kernels, tests::capture},
        *,
    };

    fn profiled(stage: &str, kernel: &str, grid: u32, duration_ns: f64, sm_pct: f64) -> LaunchCounters {
        let values = CounterValues { duration_ns: Some(duration_ns), sm_pct: Some(sm_pct), ..CounterValues::default() };
        LaunchCounters {
            stage: stage.into(),
            kernel: kernel.into(),
            grid: Some([grid, 1, 1]),
            block: Some([1; 3]),
            values,
            ..LaunchCounters::default()
        }
    }

    /// Two geometries of a kernel in decode: 1 for 30 ns, 2 for 10 ns, and one launch of it in prefill.
    fn timeline() -> NsysTrace {
        let mut trace = capture(
            "range 1 prefill 0..10\nrange 1 decode_all 10..20\ncall 1 1 1..2\ncall 1 2 11..12\ncall 1 3 13..14\n\
             kernel 1 gemm 20..27 7\nkernel 2 gemm 30..60 7\nkernel 3 gemm 60..70 7",
        );
        trace.kernels = trace.kernels.map(|at, kernel| kernel.grid[0] = if at == 2 { 2 } else { 1 });
        trace
    }

    #[test]
    fn counters_are_joined_by_stage_name_and_geometry() {
        let launches = [profiled("decode_all", "gemm", 1, 40.0, 50.0), profiled("decode_all", "gemm", 1, 60.0, 70.0)];
        let trace = timeline();
        let records = counters(&launches, Some((&trace, &Launches::of(&trace))));
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!((record.timeline_calls, record.timeline_mean_ms, record.profiled), (Some(1), Some(30e-6), 2));
        assert_eq!((record.values.duration_ns, record.values.sm_pct), (Some(50.0), Some(60.0)));
    }

    #[test]
    fn a_kernels_counters_weigh_its_geometries_by_their_time() {
        let trace = timeline();
        let launches = [profiled("decode_all", "gemm", 1, 40.0, 80.0), profiled("decode_all", "gemm", 2, 20.0, 40.0)];
        let joined = Launches::of(&trace);
        let mut records = kernels(&trace, &joined).records;
        attach(&mut records, &counters(&launches, Some((&trace, &joined))));
        let of = |stage: &str| records.iter().find(|it| it.stage == stage).unwrap().counters.clone();
        let decode = of("decode_all").unwrap();
        assert_eq!((decode.sm_pct, decode.geometries, decode.covered_pct), (Some(70.0), 2, Some(100.0)));
        assert_eq!(decode.replay_ms, Some(30e-6), "a mean duration is that of a launch, however long the others are");
        assert_eq!(of("prefill"), None, "nothing of it was profiled there");
    }

    #[test]
    fn what_the_timeline_lacks_is_kept_but_not_set_beside_it() {
        let launches = [profiled("decode_all", "gemm", 9, 40.0, 80.0)];
        let trace = timeline();
        let joined = Launches::of(&trace);
        let mut records = kernels(&trace, &joined).records;
        let found = counters(&launches, Some((&trace, &joined)));
        attach(&mut records, &found);
        assert_eq!((found[0].timeline_calls, found[0].values.sm_pct), (None, Some(80.0)));
        assert!(records.iter().all(|it| it.counters.is_none()));
        assert_eq!(counters(&launches, None).len(), 1);
    }
}
