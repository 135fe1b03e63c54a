//! Cold first instances of stages, in captures where no runner marks its warm-up.
//!
//! The first run of a stage pays once for loading modules (CUDA loads them lazily, at the first
//! launch of a kernel: CUDA C++ Programming Guide, "Lazy Loading"), for compilation, tuning and
//! allocation. Start-up has a distribution of its own and is not averaged with the steady state
//! (Georges, Buytaert, Eeckhout: "Statistically Rigorous Java Performance Evaluation", OOPSLA
//! 2007).
//!
//! The first of at least two instances of a stage in a process is cold when all of these hold:
//! 1. without the profiler's own work, it takes at least 1.5 times the median of the later ones,
//!    from its start, or from the end of the work that it queued behind, to the end of its work
//!    ([`stage_spans`]);
//! 2. device time explains at most half of the difference, so it is not a larger request;
//! 3. it is the first to launch some kernel, or loads, compiles or allocates more than the others.
//!
//! An instance with more tokens is larger: the median counts times the ratio of the tokens, and
//! times its square if the instance reads prompts, since attention is quadratic (Vaswani et al.,
//! "Attention Is All You Need", NeurIPS 2017, table 1).
//!
//! Without traced CUDA calls, 2 and 3 are unknown, and it must take at least 10 times the median.

use std::collections::BTreeMap;

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
    timeline::{
        capture::{Capture, Join},
        interval::Interval,
        launches::Cursor,
        open_ranges::{Extent, NONE},
        stage_spans::stage_spans,
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
    pub ms: f64,
    /// Median of the later instances of the stage in its process.
    pub median_ms: f64,
    /// Number of those instances.
    pub later_instances: usize,
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
        let median = tokens.map_or(0, median_of);
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
    for (at, it) in capture.stages.instances.iter().enumerate() {
        if it.label > 0 && it.start_ns < it.end_ns && it.extent == Extent::Whole {
            groups.entry((it.label, process_of(it.place))).or_default().push(at);
        }
    }
    groups.retain(|_, instances| instances.len() > 1);
    if groups.is_empty() {
        return Vec::new();
    }
    let activity = instance_activity(capture);
    let mut found = Vec::new();
    for ((label, _), instances) in &groups {
        let later: Vec<InstanceActivity> = instances[1..].iter().map(|at| activity[*at]).collect();
        let first = activity[instances[0]];
        if is_cold(first, &later, capture.trace.cuda_calls.is_empty()) {
            found.push(ColdInstance {
                stage: capture.stages.labels[*label].clone(),
                ms: Nanos(first.wall_ns).as_ms(),
                median_ms: Nanos(median(&later, |it| it.wall_ns)).as_ms(),
                later_instances: later.len(),
                first_kernels: first.first_kernels,
                warmup_calls: first.warmup_calls,
            });
            capture.stages.instances[instances[0]].label = 0;
        }
    }
    found
}

fn is_cold(first: InstanceActivity, later: &[InstanceActivity], ranges_only: bool) -> bool {
    let own_ns = |it: &InstanceActivity| it.wall_ns - it.overhead_ns;
    let (first_ns, wall) = (own_ns(&first), median(later, own_ns));
    let ratio = if ranges_only { COLD_RATIO_RANGES_ONLY } else { COLD_RATIO };
    if (first_ns as f64) < ratio * first.size.growth_over(later) * wall as f64 {
        return false;
    }
    let longer_on_device = first.device_ns - median(later, |it| it.device_ns);
    let unexplained = 2 * longer_on_device.max(0) <= first_ns - wall;
    let warms_up = first.first_kernels > 0
        || first.warmup_calls as i64 > median(later, |it| it.warmup_calls as i64);
    ranges_only || (unexplained && warms_up)
}

fn median(instances: &[InstanceActivity], field: fn(&InstanceActivity) -> i64) -> i64 {
    median_of(instances.iter().map(field).collect())
}

fn median_of(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values[(values.len() - 1) / 2]
}

/// The activity of each instance, by index.
fn instance_activity(capture: &Capture) -> Vec<InstanceActivity> {
    let wall =
        |it: &Interval| InstanceActivity { wall_ns: it.1 - it.0, ..InstanceActivity::default() };
    let mut activity: Vec<InstanceActivity> = stage_spans(capture).iter().map(wall).collect();
    activity.iter_mut().zip(overheads_in(capture)).for_each(|it| it.0.overhead_ns = it.1);
    for step in &capture.stages.steps {
        let instance = capture.stages.at(step.place, step.start_ns);
        if let Some(it) = instance.and_then(|it| activity.get_mut(it as usize)) {
            it.size.add(step);
        }
    }
    let (first, warmup) =
        rayon::join(|| add_kernels(capture, &mut activity), || warmup_calls(capture));
    for (_, instance) in first.values() {
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

/// Adds the device time of each instance; returns the first launches.
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
    let mut cursor = Cursor::default();
    for (_, _, call) in capture.trace.cuda_calls.at_sites(&is_warmup) {
        let on = |thread| capture.stages.on(thread);
        let instance = cursor.at(call.global_tid, call.start_ns, on);
        if let Some(count) = counts.get_mut(instance as usize) {
            *count += 1;
        }
    }
    counts
}

/// Returns a finding for each cold first instance.
pub fn findings(cold: &[ColdInstance]) -> Vec<Finding> {
    let finding = |it: &ColdInstance| {
        let times = it.ms / it.median_ms;
        let message = format!(
            "The first instance of {} was cold: it took {} ms, {} times the {}, and counts as \
             warm-up.",
            in_sentence(&it.stage),
            figure(it.ms),
            figure(times),
            if it.later_instances == 1 { "later one" } else { "median of later ones" }
        );
        Finding::new(catalogue::COLD_FIRST_INSTANCE, message)
            .with("stage", &it.stage)
            .with("cold ms", format!("{:.3}", it.ms))
            .with("median of later instances, ms", format!("{:.3}", it.median_ms))
            .with("later instances", it.later_instances)
            .with("kernels launched for the first time", it.first_kernels)
            .with("calls that load, compile or allocate", it.warmup_calls)
            .advise("The stage's figures exclude it. Warm up before the capture starts.")
    };
    cold.iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::{Trace, timeline::ApiCall};

    use super::*;
    use crate::{analyze, kernels::tests::capture};

    /// Two prefills, of `cold` and 100 ns, each launching a kernel of a given name and duration.
    fn two(cold: i64, first: (&str, i64), second: (&str, i64)) -> Trace {
        let later = cold + 1000;
        let sketch = format!(
            "range 1 prefill 0..{cold}\nrange 1 prefill {later}..{}\ncall 1 1 1..2\ncall 1 2 {}..{}
             kernel 1 {} 2..{} 7\nkernel 2 {} {}..{} 7",
            later + 100,
            later + 1,
            later + 2,
            first.0,
            2 + first.1,
            second.0,
            later + 2,
            later + 2 + second.1,
        );
        Trace { nsys: Some(capture(&sketch)), ..Trace::default() }
    }

    fn cold(trace: &Trace) -> usize {
        analyze(trace, None, None)
            .findings
            .iter()
            .filter(|it| it.id == "cold_first_instance")
            .count()
    }

    #[test]
    fn a_cold_first_instance_is_a_separate_note_even_with_two_instances() {
        let analysis = analyze(&two(2000, ("a", 50), ("a", 50)), None, None);
        let row = analysis.stages.row("prefill").unwrap();
        assert_eq!((row.ms.n, (row.ms.mean * 1e6).round()), (1, 100.0));
        let note = analysis.stages.note(COLD_PART).unwrap();
        assert_eq!((note.inside.as_str(), (note.ms.mean * 1e6).round()), ("prefill", 2000.0));
        assert_eq!(
            analysis.kernels.measured().map(|it| it.calls).sum::<u64>(),
            1,
            "its kernels count as warm-up"
        );
        assert_eq!(
            analysis
                .stage_gpu
                .totals
                .iter()
                .find(|it| it.stage == "prefill")
                .map(|it| it.instances),
            Some(1)
        );
    }

    #[test]
    fn a_larger_first_request_and_one_that_is_hardly_slower_are_not_cold() {
        assert_eq!(cold(&two(2000, ("a", 1900), ("a", 50))), 0, "the device explains it");
        assert_eq!(cold(&two(140, ("a", 50), ("a", 50))), 0);
        let mut warm = two(2000, ("a", 50), ("a", 50));
        let nsys = warm.nsys.as_mut().unwrap();
        let before = capture("call 1 90 -20..-19\nkernel 90 a -10..-5 7");
        nsys.cuda_calls = before.cuda_calls.iter().chain(nsys.cuda_calls.iter()).collect();
        nsys.kernels = before.kernels.iter().chain(nsys.kernels.iter()).collect();
        assert_eq!(cold(&warm), 0, "nothing happens for the first time");
        let nsys = warm.nsys.as_mut().unwrap();
        let name = nsys.strings.len() as u32;
        nsys.strings.push("hipModuleLaunchKernel".into());
        let more = capture("call 1 91 3..4");
        let calls = nsys.cuda_calls.iter().chain(more.cuda_calls.iter());
        nsys.cuda_calls = calls.map(|call| ApiCall { name, ..call }).collect();
        nsys.cuda_calls.sort();
        assert_eq!(cold(&warm), 0, "a launch of a kernel of a module loads no module");
    }

    #[test]
    fn without_cuda_calls_only_a_first_instance_of_ten_times_the_others_is_cold() {
        let ranges = |cold: i64| {
            let sketch = format!(
                "range 1 prefill 0..{cold}\nrange 1 prefill 5000..5100\nrange 1 prefill 6000..6100"
            );
            cold_of(&sketch)
        };
        assert_eq!((ranges(900), ranges(1100)), (0, 1));
    }

    /// Number of cold steps; `steps` has names, starts and ends. Only the first step launches a new
    /// kernel.
    fn cold_steps(steps: &[(&str, i64, i64)]) -> usize {
        let step = |(at, (name, start, end)): (usize, &(&str, i64, i64))| {
            let (id, launch) = (at + 1, start + 1);
            format!(
                "range 1 {name} {start}..{end}\ncall 1 {id} {launch}..{}\nkernel {id} a {}..{} 7",
                launch + 1,
                launch + 2,
                launch + 12
            )
        };
        let sketch: Vec<String> = steps.iter().enumerate().map(step).collect();
        cold_of(&sketch.join("\n"))
    }

    #[test]
    fn a_first_step_of_more_tokens_is_not_cold_by_what_they_may_take() {
        let prefill = |tokens: u64| format!("execute_context_1({tokens})_generation_0(0)");
        let (long, short) = (prefill(4000), prefill(2000));
        let first = |ns: i64, name: &str| {
            let after = [(short.as_str(), 10_000, 10_100), (short.as_str(), 20_000, 20_100)];
            cold_steps(&[&[(name, 0, ns)][..], &after].concat())
        };
        assert_eq!((first(390, &long), first(390, &short)), (0, 1));
        assert_eq!(first(700, &long), 1, "four times the time at most");
        let decode =
            |requests: u64| format!("execute_context_0(0)_generation_{requests}({requests})");
        let (many, few) = (decode(64), decode(8));
        assert_eq!(cold_steps(&[(&many, 0, 800), (&few, 1_000, 1_100), (&few, 2_000, 2_100)]), 0);
    }

    #[test]
    fn the_time_of_a_first_instance_starts_after_the_work_that_it_queued_behind() {
        // The host waits in the first decode for the prefill before it.
        let sketch = "range 1 prefill 0..10\ncall 1 1 1..2\nkernel 1 a 3..1000 7
            range 1 decode 20..1100\ncall 1 2 21..22\nkernel 2 b 1001..1101 7
            range 1 decode 1200..1300\ncall 1 3 1201..1202\nkernel 3 b 1203..1303 7";
        assert_eq!(cold_of(sketch), 0);
    }

    fn cold_of(sketch: &str) -> usize {
        cold(&Trace { nsys: Some(capture(sketch)), ..Trace::default() })
    }
}
