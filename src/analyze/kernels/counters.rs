//! ncu counters of kernels, joined with their number and time of launches in the nsys pass.
//!
//! The join keys are stage, function name and launch configuration. ncu replays launches with cold
//! caches, so its durations are listed next to those of the timeline and never replace them.

use std::collections::BTreeMap;

use foldhash::HashMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    analyze::{
        kernels::{KernelRecord, LaunchConfig, is_measured, launched},
        stats::{percent, ratio},
        timeline::launches::LaunchIndex,
    },
    domain::units::Nanos,
    trace::{
        counter::{CounterValues, LaunchCounters},
        names::base_name,
        nsys::NsysTrace,
    },
};

/// Profiled launches of one kernel with one launch configuration in one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CounterRecord {
    #[schema(example = "decode_all")]
    pub stage: String,
    pub kernel_name: String,
    /// Blocks of the grid; `null` where the ncu page omits them.
    #[schema(value_type = Option<Vec<u32>>, example = json!([4, 24, 1]))]
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; `null` where the ncu page omits them.
    #[schema(value_type = Option<Vec<u32>>, example = json!([384, 1, 1]))]
    pub block: Option<[u32; 3]>,
    /// Launches with this configuration in the timeline; `null` without any.
    pub timeline_calls: Option<u64>,
    pub timeline_total_ms: Option<f64>,
    /// `timeline_total_ms / timeline_calls`.
    pub timeline_mean_ms: Option<f64>,
    /// Launches profiled by ncu.
    #[schema(example = 3)]
    pub profiled: u64,
    /// Means over the profiled launches; stalls are those of the launch of median duration.
    pub values: CounterValues,
    /// FLOPs per byte of device memory; `null` when tensor core operations were not counted.
    pub flops_per_byte: Option<f64>,
}

/// Counters of a kernel over its profiled launch configurations: means weighted by timeline time,
/// durations by number of calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelCounters {
    pub profiled: u64,
    pub launch_configs: u64,
    /// Share of the kernel's time in this stage taken by these configurations, percent.
    pub covered_pct: Option<f64>,
    /// Mean duration of a replayed launch.
    pub replay_ms: Option<f64>,
    pub sm_pct: Option<f64>,
    pub dram_pct: Option<f64>,
    pub achieved_occupancy_pct: Option<f64>,
    pub tensor_pct: Option<f64>,
    pub flops_per_byte: Option<f64>,
    /// The longest warp stall reason of the configuration with the most time.
    pub stalled_by: Option<String>,
}

/// Stage, kernel, grid and block of timeline launches.
type LaunchKey<'a> = (&'a str, &'a str, [u32; 3], [u32; 3]);
/// The same for profiled launches, as far as the ncu page has them.
type LaunchGroup<'a> = (&'a str, &'a str, Option<[u32; 3]>, Option<[u32; 3]>);
type KernelRuns<'a> = HashMap<LaunchKey<'a>, (u64, Nanos)>;

/// Groups the profiled launches, longest in the timeline first.
pub fn counters(
    launches: &[LaunchCounters],
    timeline: Option<(&NsysTrace, &LaunchIndex)>,
) -> Vec<CounterRecord> {
    let timeline = timeline.filter(|_| !launches.is_empty());
    let mut ran: KernelRuns = HashMap::default();
    let joined = timeline.into_iter().flat_map(|(trace, joined)| launched(trace, joined));
    for (kernel, stage) in joined {
        let name = timeline
            .and_then(|(trace, _)| trace.strings.get(kernel.name as usize))
            .map_or("", String::as_str);
        let sum = ran
            .entry((stage.unwrap_or(""), base_name(name), kernel.grid, kernel.block))
            .or_default();
        sum.0 += 1;
        sum.1 += Nanos(kernel.end_ns - kernel.start_ns);
    }
    let mut groups: BTreeMap<LaunchGroup, Vec<&LaunchCounters>> = BTreeMap::new();
    for launch in launches {
        // Imported pages lack the stage: use the stage with the most matching launches.
        let configuration = (launch.kernel.as_str(), launch.grid, launch.block);
        let same = |(key, _): &(&LaunchKey, &(u64, Nanos))| matches(key, configuration);
        let dominant = || {
            ran.iter()
                .filter(same)
                .max_by_key(|(key, (calls, _))| (is_measured(key.0) && !key.0.is_empty(), *calls))
        };
        let stage = if launch.stage.is_empty() {
            dominant().map_or("", |(key, _)| key.0)
        } else {
            launch.stage.as_str()
        };
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
    let time = |record: &CounterRecord| record.timeline_total_ms.unwrap_or(0.0);
    records.sort_by(|a, b| time(b).total_cmp(&time(a)));
    records
}

/// Returns true when a timeline launch matches a profiled one, as far as the page has its fields.
fn matches(
    key: &LaunchKey,
    (kernel, grid, block): (&str, Option<[u32; 3]>, Option<[u32; 3]>),
) -> bool {
    key.1 == kernel
        && grid.is_none_or(|grid| grid == key.2)
        && block.is_none_or(|block| block == key.3)
}

/// Calls and time of a group in the timeline. A group without a launch configuration matches only a
/// kernel with a single one.
fn in_timeline<'a>(
    ran: &KernelRuns<'a>,
    (stage, kernel, grid, block): LaunchGroup<'a>,
) -> Option<(u64, Nanos)> {
    if let (Some(grid), Some(block)) = (grid, block) {
        return ran.get(&(stage, kernel, grid, block)).copied();
    }
    let mut matching =
        ran.iter().filter(|(key, _)| key.0 == stage && matches(key, (kernel, grid, block)));
    let first = matching.next();
    first.filter(|_| matching.next().is_none()).map(|(_, sum)| *sum)
}

/// Attaches counters to kernel records. Records of one name are distinguished by their launch
/// configurations; counters that fit several records are dropped.
pub fn attach(kernels: &mut [KernelRecord], counters: &[CounterRecord]) {
    let fits = |kernel: &KernelRecord, it: &CounterRecord| {
        let same = |(grid, block): &LaunchConfig| {
            it.grid.is_none_or(|at| at == *grid) && it.block.is_none_or(|at| at == *block)
        };
        it.stage == kernel.stage
            && it.kernel_name == base_name(&kernel.kernel_name)
            && kernel.configs.iter().any(same)
    };
    let is_unique =
        |it: &&CounterRecord| kernels.iter().filter(|kernel| fits(kernel, it)).count() == 1;
    let counters: Vec<&CounterRecord> =
        counters.iter().filter(|it| it.timeline_total_ms.is_some()).filter(is_unique).collect();
    for kernel in kernels {
        let matching: Vec<&CounterRecord> =
            counters.iter().copied().filter(|it| fits(kernel, it)).collect();
        kernel.counters = summary(&matching, kernel.total_ms);
    }
}

/// Summarises `records` of one kernel, longest first.
fn summary(records: &[&CounterRecord], total_ms: f64) -> Option<KernelCounters> {
    let first = records.first()?;
    type Field = fn(&CounterRecord) -> Option<f64>;
    let mean = |field: Field, weight: Field| {
        let known = || records.iter().filter_map(|record| Some((field(record)?, weight(record)?)));
        ratio(
            known().map(|(value, weight)| value * weight).sum(),
            known().map(|(_, weight)| weight).sum(),
        )
    };
    let weighted = |field: Field| mean(field, |it| it.timeline_total_ms);
    Some(KernelCounters {
        profiled: records.iter().map(|it| it.profiled).sum(),
        launch_configs: records.len() as u64,
        covered_pct: percent(records.iter().filter_map(|it| it.timeline_total_ms).sum(), total_ms),
        replay_ms: mean(
            |it| it.values.duration_ns,
            |it| it.timeline_calls.map(|calls| calls as f64),
        )
        .map(|ns| ns / 1e6),
        sm_pct: weighted(|it| it.values.sm_pct),
        dram_pct: weighted(|it| it.values.dram_pct),
        achieved_occupancy_pct: weighted(|it| it.values.achieved_occupancy_pct),
        tensor_pct: weighted(|it| it.values.tensor_pct),
        flops_per_byte: weighted(|it| it.flops_per_byte),
        stalled_by: first.values.stalls.first().map(|stall| stall.reason.clone()),
    })
}

/// Means over launches of one configuration; launches without a value are ignored.
fn mean(launches: &[&LaunchCounters]) -> CounterValues {
    let all = || launches.iter().map(|launch| &launch.values);
    let mean = |field: fn(&CounterValues) -> Option<f64>| {
        let known: Vec<f64> = all().filter_map(field).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let mut by_duration: Vec<&CounterValues> = all().collect();
    by_duration
        .sort_by(|a, b| a.duration_ns.unwrap_or(0.0).total_cmp(&b.duration_ns.unwrap_or(0.0)));
    let Some(middle) = by_duration.get(by_duration.len() / 2) else {
        return CounterValues::default();
    };
    let operations = middle.flops.keys().filter_map(|format| {
        let known: Vec<f64> =
            all().map(|values| values.flops.get(format).copied()).collect::<Option<_>>()?;
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
    use super::*;
    use crate::analyze::kernels::{kernels, tests::capture};

    fn profiled(
        stage: &str,
        kernel: &str,
        grid: u32,
        duration_ns: f64,
        sm_pct: f64,
    ) -> LaunchCounters {
        let values = CounterValues {
            duration_ns: Some(duration_ns),
            sm_pct: Some(sm_pct),
            ..CounterValues::default()
        };
        LaunchCounters {
            stage: stage.into(),
            kernel: kernel.into(),
            grid: Some([grid, 1, 1]),
            block: Some([1; 3]),
            values,
            ..LaunchCounters::default()
        }
    }

    /// A kernel with two launch configurations in decode, 1 for 30 ns and 2 for 10 ns, and one
    /// launch in prefill.
    fn timeline() -> NsysTrace {
        let mut trace = capture(
            "range 1 prefill 0..10\nrange 1 decode_all 10..20
             call 1 1 1..2\ncall 1 2 11..12\ncall 1 3 13..14
             kernel 1 gemm 20..27 7\nkernel 2 gemm 30..60 7\nkernel 3 gemm 60..70 7",
        );
        trace.kernels =
            trace.kernels.map(|at, kernel| kernel.grid[0] = if at == 2 { 2 } else { 1 });
        trace
    }

    #[test]
    fn counters_are_joined_by_stage_name_and_launch_configuration() {
        let launches = [
            profiled("decode_all", "gemm", 1, 40.0, 50.0),
            profiled("decode_all", "gemm", 1, 60.0, 70.0),
        ];
        let trace = timeline();
        let records = counters(&launches, Some((&trace, &LaunchIndex::of(&trace))));
        assert_eq!(records.len(), 1);
        let record = &records[0];
        assert_eq!(
            (record.timeline_calls, record.timeline_mean_ms, record.profiled),
            (Some(1), Some(30e-6), 2)
        );
        assert_eq!((record.values.duration_ns, record.values.sm_pct), (Some(50.0), Some(60.0)));
    }

    #[test]
    fn counters_of_a_kernel_weight_its_launch_configurations_by_time() {
        let trace = timeline();
        let launches = [
            profiled("decode_all", "gemm", 1, 40.0, 80.0),
            profiled("decode_all", "gemm", 2, 20.0, 40.0),
        ];
        let joined = LaunchIndex::of(&trace);
        let mut records = kernels(&trace, &joined).records;
        attach(&mut records, &counters(&launches, Some((&trace, &joined))));
        let of =
            |stage: &str| records.iter().find(|it| it.stage == stage).unwrap().counters.clone();
        let decode = of("decode_all").unwrap();
        assert_eq!(
            (decode.sm_pct, decode.launch_configs, decode.covered_pct),
            (Some(70.0), 2, Some(100.0))
        );
        assert_eq!(decode.replay_ms, Some(30e-6), "durations are weighted by calls, not by time");
        assert_eq!(of("prefill"), None, "not profiled in prefill");
    }

    #[test]
    fn counters_without_timeline_launches_are_kept_but_not_attached() {
        let launches = [profiled("decode_all", "gemm", 9, 40.0, 80.0)];
        let trace = timeline();
        let joined = LaunchIndex::of(&trace);
        let mut records = kernels(&trace, &joined).records;
        let found = counters(&launches, Some((&trace, &joined)));
        attach(&mut records, &found);
        assert_eq!((found[0].timeline_calls, found[0].values.sm_pct), (None, Some(80.0)));
        assert!(records.iter().all(|it| it.counters.is_none()));
        assert_eq!(counters(&launches, None).len(), 1);
    }
}
