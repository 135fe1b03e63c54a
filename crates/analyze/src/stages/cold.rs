//! Cold first instances of stages, in captures where no runner marks its warm-up.
//!
//! The first run of a stage pays once for loading modules (CUDA loads them lazily, at the first
//! launch of a kernel: CUDA C++ Programming Guide, "Lazy Loading"), for compilation, tuning and
//! allocation. Start-up has a distribution of its own and is not averaged with the steady state
//! (Georges, Buytaert, Eeckhout: "Statistically Rigorous Java Performance Evaluation", OOPSLA
//! 2007).
//!
//! The first of at least two instances of a stage in a process, and the first in each later
//! recording window of the process, are cold when all of these hold:
//! 1. without the profiler's own work, it takes at least 1.5 times the median of the later ones,
//!    from its start, or from the end of the work that it queued behind, to the end of its work
//!    ([`stage_spans`]);
//! 2. device time explains at most half of the difference, so it is not a larger request;
//! 3. it is the first to launch some kernel, or loads, compiles or allocates more than the others.
//!
//! A process is one in all of its recording windows: a kernel is launched for the first time in one
//! of them, and the start of a window makes no instance cold. If the recording cuts the first
//! instance of a window, the stage has no cold one there.
//!
//! An instance with more tokens is larger: the median counts times the ratio of the tokens, and
//! times its square if the instance reads prompts, since attention is quadratic (Vaswani et al.,
//! "Attention Is All You Need", NeurIPS 2017, table 1).
//!
//! Without traced CUDA calls, 2 and 3 are unknown: only the first instance of the process can be
//! cold, and it must take at least 10 times the median.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::{
    domain::{
        digits::figure,
        finding::{Finding, catalogue},
        units::Nanos,
    },
    trace::{
        engine_steps::{StepClass, StepCounts},
        runtime_call::CallKind,
        timeline::process_of,
    },
};

use crate::{
    stages::{in_sentence, profiler_overhead::overheads_in},
    stats::lower_median_of,
    step_batches::{process_and_rank, process_name},
    timeline::{
        capture::{Capture, Join},
        interval::Interval,
        open_ranges::{Extent, NONE, StageInstance},
        stage_spans::stage_spans,
        step_states::StepState,
        steps::Step,
    },
};

/// Name of a cold first instance in the notes of a stage.
pub const COLD_PART: &str = "cold first instance";
/// Min ratio to the median of the later instances for a cold one.
const COLD_RATIO: f64 = 1.5;
/// The same when only ranges were traced.
const COLD_RATIO_RANGES_ONLY: f64 = 10.0;

/// A first instance that was cold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColdInstance {
    pub stage: String,
    /// The name of its process, if several have instances of the stage.
    pub process: Option<String>,
    /// Its start, if an earlier recording window of its process has instances of the stage, too.
    pub later_window_ns: Option<i64>,
    pub ms: f64,
    /// Lower median of the other instances of the stage in its process, without the first ones of
    /// windows if it has others.
    pub median_ms: f64,
    /// Number of those instances.
    pub other_instances: usize,
    /// Kernels first launched by this instance.
    pub first_kernels: usize,
    /// Its calls that load, compile or allocate.
    pub warmup_calls: u64,
}

/// Activity of one stage instance.
#[derive(Debug, Clone, Copy, Default)]
struct InstanceActivity {
    wall_ns: i64,
    /// The profiler's own work in it.
    overhead_ns: i64,
    device_ns: i64,
    warmup_calls: u64,
    first_kernels: usize,
    size: InstanceSize,
}

/// Tokens of the steps of an instance.
#[derive(Debug, Clone, Copy)]
struct InstanceSize {
    /// `None` if the tokens of a step are unknown.
    tokens: Option<u64>,
    reads_prompts: bool,
}

impl Default for InstanceSize {
    fn default() -> Self {
        Self { tokens: Some(0), reads_prompts: false }
    }
}

impl InstanceSize {
    fn add(&mut self, step: &Step) {
        let StepCounts { requests, prefill, decode, .. } = step.counts;
        let reads_prompts = matches!(step.class, Some(StepClass::Prefill | StepClass::Mixed));
        let decoded = decode.tokens.or(decode.requests).or(requests);
        let tokens = match reads_prompts {
            true => prefill.tokens.map(|it| it.saturating_add(decode.requests.unwrap_or(0))),
            false => decoded,
        };
        self.tokens = self.tokens.zip(tokens).map(|(sum, more)| sum.saturating_add(more));
        self.reads_prompts |= reads_prompts;
    }

    /// The least growth of the time that its tokens may explain; 1 if they are unknown.
    fn growth_over(self, later: &[InstanceActivity]) -> f64 {
        let tokens: Option<Vec<i64>> =
            later.iter().map(|it| it.size.tokens.map(|it| it as i64)).collect();
        let median = tokens.and_then(lower_median_of).unwrap_or_default();
        let ratio = self.tokens.map_or(1.0, |it| it as f64 / median as f64);
        match ratio.is_finite() && ratio > 1.0 {
            true if self.reads_prompts => ratio * ratio,
            true => ratio,
            false => 1.0,
        }
    }
}

/// Finds cold first instances and relabels them as warm-up.
pub fn mark(capture: &mut Capture) -> Vec<ColdInstance> {
    let mut groups: BTreeMap<(usize, i64), Vec<usize>> = BTreeMap::new();
    let ranks = &capture.trace.collectives;
    for (at, it) in capture.stages.instances.iter().enumerate() {
        if it.label > 0 && it.start_ns < it.end_ns && it.extent == Extent::Whole {
            groups.entry((it.label, ranks.owner(it.place))).or_default().push(at);
        }
    }
    groups.retain(|_, instances| instances.len() > 1);
    if groups.is_empty() {
        return Vec::new();
    }
    let names = process_names(groups.keys().copied(), capture);
    let activity = instance_activity(capture);
    let ranges_only = capture.trace.cuda_calls.is_empty();
    let mut found = Vec::new();
    for (key, instances) in &groups {
        let firsts = window_firsts(instances, capture);
        for (window, first) in firsts.iter().enumerate() {
            // Later instances of a window are warm if the recording lacks a part of its first.
            let is_cut = state(capture, *first) == StepState::Cut;
            if is_cut || window > 0 && ranges_only {
                continue;
            }
            let others = others(capture, instances, &firsts, window);
            let others: Vec<InstanceActivity> = others.into_iter().map(|at| activity[at]).collect();
            let of_first = activity[*first];
            if is_cold(of_first, &others, ranges_only) {
                found.push(ColdInstance {
                    stage: capture.stages.labels[key.0].clone(),
                    process: names.get(key).cloned(),
                    later_window_ns: (window > 0)
                        .then(|| capture.stages.instances[*first].start_ns),
                    ms: Nanos(of_first.wall_ns).as_ms(),
                    median_ms: Nanos(median(&others, |it| it.wall_ns)).as_ms(),
                    other_instances: others.len(),
                    first_kernels: of_first.first_kernels,
                    warmup_calls: of_first.warmup_calls,
                });
                capture.stages.instances[*first].label = 0;
            }
        }
    }
    found
}

fn state(capture: &Capture, instance: usize) -> StepState {
    let (place, range) = capture.stages.instances[instance].key();
    capture.stages.states.of(place, range)
}

/// The first of these instances in each recording window, in the order of their starts. Each window
/// of a process has a number of its own in a timeline.
fn window_firsts(instances: &[usize], capture: &Capture) -> Vec<usize> {
    let mut windows = BTreeSet::new();
    let is_first = |at: &&usize| windows.insert(process_of(capture.stages.instances[**at].place));
    instances.iter().filter(is_first).copied().collect()
}

/// The instances that the first one of a window is compared with: the ones that start no window and
/// count, else all that start no window, else the ones that start a later window, if any.
fn others(capture: &Capture, instances: &[usize], firsts: &[usize], window: usize) -> Vec<usize> {
    let warm: Vec<usize> = instances.iter().filter(|at| !firsts.contains(at)).copied().collect();
    let counting: Vec<usize> =
        warm.iter().filter(|at| state(capture, **at).counts()).copied().collect();
    match (counting.is_empty(), warm.is_empty()) {
        (false, _) => counting,
        (true, false) => warm,
        (true, true) => firsts[window + 1..].to_vec(),
    }
}

/// Names of the processes of stages that several have, by label and process.
fn process_names(
    of: impl Iterator<Item = (usize, i64)>,
    capture: &Capture,
) -> BTreeMap<(usize, i64), String> {
    let ranks = &capture.trace.collectives;
    let named = |(label, process): (usize, i64)| {
        let (number, rank) = process_and_rank(process, ranks);
        ((label, process), process_name(number, rank))
    };
    let mut names: BTreeMap<(usize, i64), String> = of.map(named).collect();
    let mut of_label: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    for (label, process) in names.keys() {
        of_label.entry(*label).or_default().insert(*process);
    }
    names.retain(|(label, _), _| of_label[label].len() > 1);
    names
}

fn is_cold(first: InstanceActivity, others: &[InstanceActivity], ranges_only: bool) -> bool {
    let own_ns = |it: &InstanceActivity| it.wall_ns - it.overhead_ns;
    let (first_ns, wall) = (own_ns(&first), median(others, own_ns));
    let ratio = if ranges_only { COLD_RATIO_RANGES_ONLY } else { COLD_RATIO };
    // A time without a length has no ratio.
    if first_ns <= 0 || wall <= 0 {
        return false;
    }
    if (first_ns as f64) < ratio * first.size.growth_over(others) * wall as f64 {
        return false;
    }
    let longer_on_device = first.device_ns - median(others, |it| it.device_ns);
    let unexplained = 2 * longer_on_device.max(0) <= first_ns - wall;
    let warms_up = first.first_kernels > 0
        || first.warmup_calls as i64 > median(others, |it| it.warmup_calls as i64);
    ranges_only || (unexplained && warms_up)
}

/// The lower median: of two later instances, one that was slow for a reason of its own hides no
/// cold first one.
fn median(instances: &[InstanceActivity], field: fn(&InstanceActivity) -> i64) -> i64 {
    lower_median_of(instances.iter().map(field)).unwrap_or_default()
}

/// The activity of each instance, by index.
fn instance_activity(capture: &Capture) -> Vec<InstanceActivity> {
    let wall = |(it, span): (&StageInstance, Interval)| {
        let excluded = capture.stages.excluded_ns(it.place, (it.start_ns, it.end_ns), span);
        InstanceActivity { wall_ns: span.1 - span.0 - excluded, ..InstanceActivity::default() }
    };
    let spans = capture.stages.instances.iter().zip(stage_spans(capture));
    let mut activity: Vec<InstanceActivity> = spans.map(wall).collect();
    activity.iter_mut().zip(overheads_in(capture)).for_each(|it| it.0.overhead_ns = it.1);
    for step in &capture.stages.steps {
        let instance = capture.stages.at(step.place, step.start_ns);
        if let Some(it) = instance.and_then(|it| activity.get_mut(it as usize)) {
            it.size.add(step);
        }
    }
    let (first, warmup) =
        rayon::join(|| add_kernels(capture, &mut activity), || warmup_calls(capture));
    for (_, instance) in by_owner(first, capture).values() {
        if let Some(active) = activity.get_mut(*instance as usize) {
            active.first_kernels += 1;
        }
    }
    for (active, calls) in activity.iter_mut().zip(warmup) {
        active.warmup_calls = calls;
    }
    activity
}

/// By process and name: the time of the first launch, and its instance. The first to run wins a
/// tie.
type FirstLaunches = HashMap<(i64, u32), (i64, u32)>;

/// The first launches of each process in all of its recording windows.
fn by_owner(of_windows: FirstLaunches, capture: &Capture) -> FirstLaunches {
    let mut first = FirstLaunches::default();
    for ((process, name), launch) in of_windows {
        let owner = capture.trace.collectives.owner(process);
        let known = first.entry((owner, name)).or_insert(launch);
        *known = launch.min(*known);
    }
    first
}

/// Adds the device time of each instance; returns the first launches, by window.
fn add_kernels(capture: &Capture, activity: &mut [InstanceActivity]) -> FirstLaunches {
    let mut first = FirstLaunches::default();
    let mut reader = capture.trace.cuda_calls.reader();
    for (kernel, Join { call, instance }) in capture.kernels() {
        if let Some(active) = activity.get_mut(instance as usize) {
            active.device_ns += kernel.ns();
        }
        if call != NONE {
            let launch = (reader.get(call).start_ns, instance);
            let known = first.entry((process_of(kernel.global_pid), kernel.full_name));
            let known = known.or_insert(launch);
            if launch.0 < known.0 {
                *known = launch;
            }
        }
    }
    first
}

/// Calls of each instance that load, compile or allocate.
fn warmup_calls(capture: &Capture) -> Vec<u64> {
    let mut counts = vec![0; capture.stages.instances.len()];
    let kinds = capture.trace.call_kinds();
    let is_warmup: Vec<bool> = kinds.iter().map(|kind| *kind == CallKind::Prepare).collect();
    let mut open = capture.stages.cursor();
    for (_, _, call) in capture.trace.cuda_calls.at_sites(&is_warmup) {
        if let Some(count) = counts.get_mut(open.at_call(&call) as usize) {
            *count += 1;
        }
    }
    counts
}

/// Returns a finding for each cold first instance.
pub fn findings(cold: &[ColdInstance]) -> Vec<Finding> {
    let finding = |it: &ColdInstance| {
        let times = it.ms / it.median_ms;
        let of_process = it.process.as_ref().map(|name| format!(" in {name}"));
        let (of_window, kind) = match it.later_window_ns {
            Some(_) => (" in a later recording window", "other"),
            None => ("", "later"),
        };
        let others = match it.other_instances {
            1 => format!("{kind} one"),
            _ => format!("median of {kind} ones"),
        };
        let message = format!(
            "The first instance of {}{}{of_window} was cold: it took {} ms, {} times the {others}, \
             and counts as warm-up.",
            in_sentence(&it.stage),
            of_process.unwrap_or_default(),
            figure(it.ms),
            figure(times),
        );
        let found = Finding::new(catalogue::COLD_FIRST_INSTANCE, message).with("stage", &it.stage);
        let found = match it.later_window_ns {
            Some(start_ns) => found.with("start of the instance, ns", start_ns),
            None => found,
        };
        found
            .with("cold ms", format!("{:.3}", it.ms))
            .with(&format!("median of {kind} instances, ms"), format!("{:.3}", it.median_ms))
            .with(&format!("{kind} instances"), it.other_instances)
            .with("kernels launched for the first time", it.first_kernels)
            .with("calls that load, compile or allocate", it.warmup_calls)
            .advise("The stage's figures exclude it. Warm up before the capture starts.")
    };
    cold.iter().map(finding).collect()
}

#[cfg(test)]
mod tests;
