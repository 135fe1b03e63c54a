//! ncu counters of kernels, joined with their number and time of launches in the nsys pass.
//!
//! The join keys are stage, full name and launch configuration: instantiations of one template
//! often run with the same configuration. ncu replays launches with cold caches, so its durations
//! are listed next to those of the timeline and never replace them.

mod profiled_launches;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::profiled_launches::ProfiledLaunches;
use crate::{
    analyze::{
        kernels::{
            KernelRecord, LaunchConfig, function_names::FunctionNames, is_measured, launched,
        },
        stats::{percent, ratio},
        timeline::launches::LaunchIndex,
    },
    domain::units::Nanos,
    trace::{
        counter::{CounterValues, LaunchCounters, UncountedOperations},
        names::{base_name, signature},
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
    /// Name with template arguments and parameters, as ncu prints it.
    #[serde(default)]
    pub full_name: String,
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
    /// FLOPs per byte of device memory; `null` when operations were not counted.
    pub flops_per_byte: Option<f64>,
    /// Of the timeline's kernel, from [`crate::trace::names::signature`].
    #[serde(skip)]
    pub signature: String,
}

/// Counters of a kernel over its profiled launch configurations: means weighted by timeline time,
/// durations by number of calls. FLOPs per byte are a ratio of sums over the calls.
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

/// Stage, kernel, its signature, grid and block of timeline launches.
type LaunchKey<'a> = (&'a str, &'a str, &'a str, [u32; 3], [u32; 3]);
/// The same for profiled launches, as far as the ncu page has them.
type LaunchGroup<'a> = (&'a str, &'a str, &'a str, Option<[u32; 3]>, Option<[u32; 3]>);
type KernelRuns<'a> = HashMap<LaunchKey<'a>, (u64, Nanos)>;

/// Groups the profiled launches, longest in the timeline first.
pub fn counters(
    launches: &[LaunchCounters],
    timeline: Option<(&NsysTrace, &LaunchIndex)>,
) -> Vec<CounterRecord> {
    let timeline = timeline.filter(|_| !launches.is_empty());
    let names = timeline.map(|(trace, _)| FunctionNames::of(trace)).unwrap_or_default();
    let mut ran: KernelRuns = HashMap::default();
    let joined = timeline.into_iter().flat_map(|(trace, joined)| launched(trace, joined));
    for (kernel, stage) in joined {
        let (name, signature) = names.get(&kernel);
        let key = (stage.unwrap_or(""), name, signature, kernel.grid, kernel.block);
        let sum = ran.entry(key).or_default();
        sum.0 += 1;
        sum.1 += Nanos(kernel.end_ns - kernel.start_ns);
    }
    let standard = StageRules::default();
    let rules = timeline.map_or(&standard, |(trace, _)| &trace.rules);
    let mut groups: BTreeMap<LaunchGroup, Vec<&LaunchCounters>> = BTreeMap::new();
    for launch in launches {
        let stage = stage_of(launch, rules, &ran);
        let signature = signature_of(launch, &ran);
        let key = (stage, launch.kernel.as_str(), signature, launch.grid, launch.block);
        groups.entry(key).or_default().push(launch);
    }
    let record = |key: LaunchGroup, launches: &[&LaunchCounters]| {
        let timeline = in_timeline(&ran, key);
        let values = mean(launches);
        CounterRecord {
            stage: key.0.to_owned(),
            kernel_name: key.1.to_owned(),
            full_name: launches[0].full_name.clone(),
            signature: key.2.to_owned(),
            grid: key.3,
            block: key.4,
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
            let other = (stage, key.1, key.2, key.3, key.4);
            let is_run = key.3.is_some() && key.4.is_some() && in_timeline(&ran, other).is_some();
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
    let same = |(key, _): &(&LaunchKey, &(u64, Nanos))| matches(key, launch);
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
fn matches(key: &LaunchKey, launch: &LaunchCounters) -> bool {
    let LaunchCounters { kernel, signature, grid, block, .. } = launch;
    key.1 == kernel
        && (signature.is_empty() || key.2 == signature)
        && grid.is_none_or(|grid| grid == key.3)
        && block.is_none_or(|block| block == key.4)
}

/// Signature of the timeline's kernel that a launch is of. A page with function names alone matches
/// only a kernel with a single instantiation.
fn signature_of<'a>(launch: &'a LaunchCounters, ran: &KernelRuns<'a>) -> &'a str {
    if !launch.signature.is_empty() {
        return &launch.signature;
    }
    let mut matching = ran.keys().filter(|key| matches(key, launch)).map(|key| key.2);
    let first = matching.next().unwrap_or_default();
    if matching.all(|other| other == first) { first } else { "" }
}

/// Calls and time of a group in the timeline. A group without a launch configuration matches only a
/// kernel with a single one.
fn in_timeline<'a>(ran: &KernelRuns<'a>, group: LaunchGroup<'a>) -> Option<(u64, Nanos)> {
    let (stage, kernel, signature, grid, block) = group;
    if let (Some(grid), Some(block)) = (grid, block) {
        return ran.get(&(stage, kernel, signature, grid, block)).copied();
    }
    let is_of = |key: &LaunchKey| {
        (key.0, key.1, key.2) == (stage, kernel, signature)
            && grid.is_none_or(|grid| grid == key.3)
            && block.is_none_or(|block| block == key.4)
    };
    let mut matching = ran.iter().filter(|(key, _)| is_of(key));
    let first = matching.next();
    first.filter(|_| matching.next().is_none()).map(|(_, sum)| *sum)
}

/// Attaches counters to kernel records. Records of one name are distinguished by their full names
/// and launch configurations; counters that fit several records are dropped.
pub fn attach(kernels: &mut [KernelRecord], counters: &[CounterRecord]) {
    let counters: Vec<&CounterRecord> =
        counters.iter().filter(|it| it.timeline_total_ms.is_some()).collect();
    if counters.is_empty() {
        return;
    }
    let signatures: Vec<BTreeSet<String>> = kernels
        .iter()
        .map(|kernel| kernel.full_names.iter().map(|it| signature(it)).collect())
        .collect();
    let fits = |(kernel, signatures): (&KernelRecord, &BTreeSet<String>), it: &CounterRecord| {
        let same = |(grid, block): &LaunchConfig| {
            it.grid.is_none_or(|at| at == *grid) && it.block.is_none_or(|at| at == *block)
        };
        it.stage == kernel.stage
            && it.kernel_name == base_name(&kernel.kernel_name)
            && signatures.contains(&it.signature)
            && kernel.configs.iter().any(same)
    };
    let of_kernel: Vec<Vec<usize>> = kernels
        .iter()
        .zip(&signatures)
        .map(|kernel| (0..counters.len()).filter(|at| fits(kernel, counters[*at])).collect())
        .collect();
    let mut rows = vec![0; counters.len()];
    of_kernel.iter().flatten().for_each(|at| rows[*at] += 1);
    for (kernel, fitting) in kernels.iter_mut().zip(of_kernel) {
        let unique = fitting.into_iter().filter(|at| rows[*at] == 1);
        let matching: Vec<&CounterRecord> = unique.map(|at| counters[at]).collect();
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
        flops_per_byte: intensity(records),
        stalled_by: first.values.stalls.first().map(|stall| stall.reason.clone()),
    })
}

/// FLOPs per byte of all calls; `None` unless both are known of each configuration.
fn intensity(records: &[&CounterRecord]) -> Option<f64> {
    let sum = |field: fn(&CounterValues) -> Option<f64>| -> Option<f64> {
        records.iter().map(|it| Some(field(&it.values)? * it.timeline_calls? as f64)).sum()
    };
    ratio(sum(CounterValues::total_flops)?, sum(|it| it.dram_bytes)?)
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
    let mut values = CounterValues {
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
        possible_constants: mean(|it| Some(it.possible_constants)).unwrap_or(0.0),
        stalls: middle.stalls.clone(),
        ..CounterValues::default()
    };
    add_completeness(&mut values, launches);
    values
}

/// Adds whether the mean has all operations: those of each launch, and few possible constants.
fn add_completeness(mean: &mut CounterValues, launches: &[&LaunchCounters]) {
    let half = Some(UncountedOperations::HalfPrecision);
    let all = || launches.iter().map(|launch| &launch.values);
    let is_counted = all().all(|it| it.flops_complete || it.uncounted == half);
    let tensor_cores = all().map(|it| it.uncounted).find(|it| it.is_some() && *it != half);
    let has_many = is_counted && !mean.has_few_constants();
    mean.uncounted = tensor_cores.flatten().or(half.filter(|_| has_many));
    mean.flops_complete = is_counted && !has_many;
}

#[cfg(test)]
mod tests;
