//! ncu counters of kernels, joined with their number and time of launches in the nsys pass.
//!
//! The join keys are stage, full name, launch configuration and duration: instantiations of one
//! template often run with the same configuration, and persistent kernels do different work with
//! one. ncu replays launches with cold caches, so its durations are listed next to the timeline's
//! and never replace them.

mod profiled_launches;
mod timeline_runs;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;

use serde::{Deserialize, Serialize};

use self::timeline_runs::{LaunchGroup, TimelineRuns};
pub use self::{profiled_launches::ProfiledLaunches, timeline_runs::Like};
use llmprof_core::{
    domain::units::Nanos,
    trace::{
        counter::{CounterValues, LaunchCounters, UncountedOperations},
        names::{base_name, signature},
        stage::StageRules,
    },
};

use crate::{
    kernels::{
        KernelRecord, LaunchConfig,
        durations::{Length, Tally},
        function_names::FunctionNames,
    },
    stats::{percent, ratio},
    timeline::capture::Capture,
};

/// Profiled launches of one kernel with one launch configuration and of similar durations in one
/// stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CounterRecord {
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    pub kernel_name: String,
    /// Name with template arguments and parameters, as ncu prints it.
    #[serde(default)]
    pub full_name: String,
    /// Blocks of the grid; `null` if the ncu page omits them.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Option<Vec<u32>>, example = json!([4, 24, 1]))
    )]
    pub grid: Option<[u32; 3]>,
    /// Threads of a block; `null` if the ncu page omits them.
    #[cfg_attr(
        feature = "schema",
        schema(value_type = Option<Vec<u32>>, example = json!([384, 1, 1]))
    )]
    pub block: Option<[u32; 3]>,
    /// Launches with this configuration in the timeline that take about as long as the profiled
    /// ones; `null` without any. If launches are shorter than 3/4 or longer than 4/3 of their mean,
    /// with at least 5 % of the time each, they are apart.
    pub timeline_calls: Option<u64>,
    pub timeline_total_ms: Option<f64>,
    /// `timeline_total_ms / timeline_calls`.
    pub timeline_mean_ms: Option<f64>,
    /// Time of further launches with this configuration, of other durations, for which no counters
    /// stand.
    #[serde(default)]
    pub unlike_ms: Option<f64>,
    /// Launches profiled by ncu.
    #[cfg_attr(feature = "schema", schema(example = 3))]
    pub profiled: u64,
    /// Stage in which they were profiled, if the kernel runs with this grid and block in another
    /// stage, too; `null` if they were profiled in `stage`. For a program without ranges, the stage
    /// with most of these launches.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(example = "prefill"))]
    pub profiled_in: Option<String>,
    /// Means over the profiled launches; stalls are taken from the launch of median duration.
    pub values: CounterValues,
    /// FLOPs per byte of device memory; `null` when operations were not counted.
    pub flops_per_byte: Option<f64>,
    /// Signature of the timeline's kernel ([`llmprof_core::trace::names::signature`]).
    #[serde(skip)]
    pub signature: String,
    /// The launches of the timeline.
    #[serde(skip)]
    pub like: Option<Like>,
}

/// Counters of a kernel over its profiled launch configurations: means weighted by timeline time,
/// durations by number of calls. FLOPs per byte are a ratio of sums over the calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct KernelCounters {
    pub profiled: u64,
    pub launch_configs: u64,
    /// Share of the kernel's time in this stage taken by launches with these configurations and
    /// of similar durations, percent.
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

/// Groups the profiled launches by kernel, launch configuration and duration, longest in the
/// timeline first.
pub fn counters(launches: &[LaunchCounters], capture: Option<&Capture>) -> Vec<CounterRecord> {
    let capture = capture.filter(|_| !launches.is_empty());
    let names = capture.map(|it| FunctionNames::of(it.trace)).unwrap_or_default();
    let runs = capture.map(|it| TimelineRuns::of(it, &names, launches.len())).unwrap_or_default();
    let standard = StageRules::default();
    let rules = capture.map_or(&standard, |it| &it.trace.rules);
    let mut configs: BTreeMap<LaunchGroup, Vec<&LaunchCounters>> = BTreeMap::new();
    for launch in launches {
        let (stage, signature) = (runs.stage_of(launch, rules), runs.signature_of(launch));
        let group = (stage, launch.kernel.as_str(), signature, launch.grid, launch.block);
        configs.entry(group).or_default().push(launch);
    }
    let mut groups: BTreeMap<(LaunchGroup, Option<Length>), Vec<&LaunchCounters>> = BTreeMap::new();
    for (group, launches) in configs {
        let lengths = runs.get(group).map(|of| of.lengths(&launches, group.0, rules));
        let lengths = lengths.unwrap_or_else(|| vec![None; launches.len()]);
        for (launch, length) in launches.into_iter().zip(lengths) {
            groups.entry((group, length)).or_default().push(launch);
        }
    }
    let mut records = Vec::new();
    let mut shared = BTreeSet::new();
    for ((group, length), launches) in &groups {
        let of = runs.get(*group).map(|it| it.durations);
        let like = of.zip(*length).map(|(of, length)| Like { of, length });
        records.push(record(*group, like, launches));
        // The group also stands for launches of similar duration in other stages.
        let Some(like) = like.filter(|_| launches.iter().all(|it| it.all_stages)) else { continue };
        for stage in rules.names().into_iter().filter(|it| *it != group.0) {
            let (_, kernel, signature, grid, block) = *group;
            let other = (stage, kernel, signature, grid, block);
            let of = runs.get(other).filter(|_| grid.is_some() && block.is_some());
            let Some(of) = of.map(|it| it.durations) else { continue };
            let Some(length) = of.similar(like.tally().mean_ns()) else { continue };
            let is_profiled = groups.contains_key(&(other, Some(length)));
            if !is_profiled && shared.insert((other, length)) {
                let of_other = record(other, Some(Like { of, length }), launches);
                records.push(CounterRecord { profiled_in: Some(group.0.to_owned()), ..of_other });
            }
        }
    }
    add_unlike(&mut records);
    let time = |record: &CounterRecord| record.timeline_total_ms.unwrap_or(0.0);
    records.sort_by(|a, b| time(b).total_cmp(&time(a)));
    records
}

fn record(group: LaunchGroup, like: Option<Like>, launches: &[&LaunchCounters]) -> CounterRecord {
    let (stage, kernel, signature, grid, block) = group;
    let (values, tally) = (mean(launches), like.map(|it| it.tally()));
    CounterRecord {
        stage: stage.to_owned(),
        kernel_name: kernel.to_owned(),
        full_name: launches[0].full_name.clone(),
        signature: signature.to_owned(),
        grid,
        block,
        timeline_calls: tally.map(|it| it.calls),
        timeline_total_ms: tally.map(Tally::ms),
        timeline_mean_ms: tally.map(|it| it.ms() / it.calls as f64),
        unlike_ms: None,
        profiled: launches.len() as u64,
        profiled_in: None,
        flops_per_byte: values.arithmetic_intensity(),
        values,
        like,
    }
}

/// Adds the time of launches without a profiled launch of similar duration.
fn add_unlike(records: &mut [CounterRecord]) {
    let mut like_ns: HashMap<LaunchGroup, i64> = HashMap::default();
    for (it, like) in records.iter().filter_map(|it| Some((it, it.like?))) {
        *like_ns.entry(it.config()).or_default() += like.tally().ns;
    }
    let unlike = |it: &CounterRecord| {
        let all = it.like?.of.all().ns;
        Some(Nanos(all - like_ns.get(&it.config())?).as_ms())
    };
    let unlike: Vec<Option<f64>> = records.iter().map(unlike).collect();
    records.iter_mut().zip(unlike).for_each(|(it, ms)| it.unlike_ms = ms);
}

impl CounterRecord {
    /// The launch configuration with its stage and kernel.
    pub fn config(&self) -> LaunchGroup<'_> {
        (&self.stage, &self.kernel_name, &self.signature, self.grid, self.block)
    }
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
        launch_configs: launch_configs(records),
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

/// Number of distinct launch configurations.
pub fn launch_configs(records: &[&CounterRecord]) -> u64 {
    records.iter().map(|it| (it.grid, it.block)).collect::<BTreeSet<_>>().len() as u64
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

/// Adds whether the mean has all operations: each launch's were counted, and few may be constants.
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
