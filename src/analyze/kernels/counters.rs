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
        stage::StageRules,
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
    /// Stage in which they were profiled, where the kernel runs with this grid and block in
    /// another stage, too; `null` where they were profiled in `stage`. For a program without
    /// ranges, the stage with most of these launches.
    #[serde(default)]
    #[schema(example = "prefill")]
    pub profiled_in: Option<String>,
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
    let standard = StageRules::default();
    let rules = timeline.map_or(&standard, |(trace, _)| &trace.rules);
    let mut groups: BTreeMap<LaunchGroup, Vec<&LaunchCounters>> = BTreeMap::new();
    for launch in launches {
        let stage = stage_of(launch, rules, &ran);
        groups.entry((stage, &launch.kernel, launch.grid, launch.block)).or_default().push(launch);
    }
    let record = |key: LaunchGroup, launches: &[&LaunchCounters]| {
        let timeline = in_timeline(&ran, key);
        let values = mean(launches);
        CounterRecord {
            stage: key.0.to_owned(),
            kernel_name: key.1.to_owned(),
            grid: key.2,
            block: key.3,
            timeline_calls: timeline.map(|it| it.0),
            timeline_total_ms: timeline.map(|it| it.1.as_ms()),
            timeline_mean_ms: timeline.map(|(calls, total)| total.as_ms() / calls as f64),
            profiled: launches.len() as u64,
            profiled_in: None,
            flops_per_byte: values.arithmetic_intensity(),
            values,
        }
    };
    let mut records = Vec::new();
    for (key, launches) in &groups {
        records.push(record(*key, launches));
        let is_shared = launches.iter().all(|it| it.all_stages);
        for stage in rules.names().into_iter().filter(|it| is_shared && *it != key.0) {
            let other = (stage, key.1, key.2, key.3);
            let is_run = key.2.is_some() && key.3.is_some() && in_timeline(&ran, other).is_some();
            if is_run && !groups.contains_key(&other) {
                let profiled_in = Some(key.0.to_owned());
                records.push(CounterRecord { profiled_in, ..record(other, launches) });
            }
        }
    }
    let time = |record: &CounterRecord| record.timeline_total_ms.unwrap_or(0.0);
    records.sort_by(|a, b| time(b).total_cmp(&time(a)));
    records
}

/// The stage of a profiled launch. Pages of several stages have its ranges; where these do not name
/// a stage in which it ran, it is the stage with the most matching launches, of equal ones with
/// most time.
fn stage_of<'a>(
    launch: &'a LaunchCounters,
    rules: &'a StageRules,
    ran: &KernelRuns<'a>,
) -> &'a str {
    let configuration = (launch.kernel.as_str(), launch.grid, launch.block);
    let same = |(key, _): &(&LaunchKey, &(u64, Nanos))| matches(key, configuration);
    let named = launch.stage_by(rules).filter(|stage| {
        !launch.stage.is_empty()
            || ran.is_empty()
            || ran.iter().filter(same).any(|it| it.0.0 == *stage)
    });
    let dominant = || {
        ran.iter().filter(same).max_by_key(|(key, (calls, time))| {
            (is_measured(key.0) && !key.0.is_empty(), *calls, *time, **key)
        })
    };
    named.unwrap_or_else(|| dominant().map_or("", |(key, _)| key.0))
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
        l2_pct: mean(|it| it.l2_pct),
        waves: mean(|it| it.waves),
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
mod tests;
