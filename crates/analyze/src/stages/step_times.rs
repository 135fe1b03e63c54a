//! Times of single steps: the median with its range, and the steps that take much longer.
//!
//! A stage's time is a sum over its steps, and a mean over them hides one that loaded a library.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use llmprof_core::{
    domain::units::Nanos,
    trace::{
        engine_steps::{Phase, StepClass},
        timeline::ON_HOST,
    },
};
use serde::{Deserialize, Serialize};

use super::{DECODE, PREFILL, StageTiming};
use crate::{
    events::Events,
    stats::{Spread, lower_median, percent},
    timeline::{
        activity::{Busy, DeviceWork, activities},
        capture::Capture,
        decode_timeline::STEP,
        gpu::{
            long_calls::LOADING,
            split::{LongGap, WindowSplits},
        },
        interval::Interval,
    },
};

/// A step is an outlier above this many medians.
pub const OUTLIER_MEDIANS: f64 = 2.0;
/// Times are alike, and steps are the time of their stage, if they differ by at most this part.
pub const TYPICAL_PART: f64 = 0.05;
/// Least values with a median: the lower median of two is the shorter one.
pub const LEAST_MEDIAN: usize = 3;
/// Listed outliers of a stage.
const LISTED: usize = 10;

/// Times of the steps of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StepTimes {
    /// The stage of the steps: a decode step is a part of `decode_all`, unless `are_instances`;
    /// other steps are whole instances of their stage.
    #[cfg_attr(feature = "schema", schema(example = "decode_all"))]
    pub stage: String,
    /// True if these are whole instances of decode, whose steps the capture does not show.
    #[serde(default)]
    pub are_instances: bool,
    /// Milliseconds of a step, over all measured ones.
    pub ms: Spread,
    /// The median: half of the steps take at most this time. It is the time of a measured step: of
    /// an even number, the shorter of the two in the middle.
    #[cfg_attr(feature = "schema", schema(example = 10.6))]
    pub p50_ms: f64,
    /// Steps that take more than twice the median, of at least three.
    pub outliers: u64,
    /// Time of the outliers above the median, of all of them, milliseconds.
    pub excess_ms: f64,
    /// Steps in which a GPU idled while the host prepared code.
    #[serde(default)]
    pub preparing: u64,
    /// The longest outliers.
    pub longest: Vec<OutlierStep>,
}

impl StepTimes {
    /// The least and the longest, if they differ and no median stands for them.
    pub fn apart_ms(&self) -> Option<(f64, f64)> {
        let Spread { min, max, mean, n, .. } = self.ms;
        let is_apart = (n as usize) < LEAST_MEDIAN && max - min > TYPICAL_PART * mean;
        is_apart.then_some((min, max))
    }

    /// True for steps in a stage, which are not its instances.
    pub fn are_steps(&self) -> bool {
        self.stage == DECODE && !self.are_instances
    }

    /// True if outliers are half of an even number: the median is then the lower of the two in the
    /// middle.
    pub const fn has_two_halves(&self) -> bool {
        self.ms.n.is_multiple_of(2) && 2 * self.outliers >= self.ms.n as u64
    }

    /// The word for it.
    pub const fn median_word(&self) -> &'static str {
        if self.has_two_halves() { "the lower median" } else { "the median" }
    }

    /// The median, of at least three.
    pub fn median_ms(&self) -> Option<f64> {
        (self.ms.n as usize >= LEAST_MEDIAN).then_some(self.p50_ms)
    }

    /// Share of the stage between its steps, percent, if it matters. `per_step_ms` is the time of
    /// the stage over its steps.
    pub fn between_pct(&self, per_step_ms: f64) -> Option<f64> {
        percent(per_step_ms - self.ms.mean, per_step_ms).filter(|pct| *pct > 100.0 * TYPICAL_PART)
    }

    /// True if these steps are the time of their stage, over all its repeats or for each step. It
    /// takes `per_step_ms` for each; repeats of different steps have no such time.
    pub fn are_stage(&self, row: Option<&StageTiming>, per_step_ms: f64) -> bool {
        let are_alike = |ms: f64, of: f64| (ms - of).abs() <= TYPICAL_PART * of;
        let total = row.map(|row| row.ms.total());
        are_alike(self.ms.mean, per_step_ms)
            || total.is_some_and(|total| are_alike(self.ms.total(), total))
    }
}

/// A step that takes more than twice the median.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OutlierStep {
    /// Number among the measured steps, from 1, in the order of their starts.
    pub step: u64,
    pub ms: f64,
    /// Operator, range or function of CUDA in which the host was, while the GPU was idle, for most
    /// of the time above the median, or the preparation of code; `null` if the capture shows none.
    pub host_call: Option<String>,
    /// The part of that idle time in it, milliseconds.
    pub host_call_ms: Option<f64>,
    /// Time in which a GPU worked, milliseconds, if that takes most of the time above the median;
    /// `null` for other steps.
    #[serde(default)]
    pub busy_ms: Option<f64>,
    /// The kernel, copy or graph with the most of that time.
    #[serde(default)]
    pub longest_work: Option<String>,
    /// Its time in the step, milliseconds.
    #[serde(default)]
    pub longest_work_ms: Option<f64>,
    /// Passes of the draft model in a decode step by speculation; `null` for other steps.
    #[serde(default)]
    pub drafts: Option<u64>,
}

/// Work and gaps of the devices in the steps of a capture, on the clock of the events.
pub struct StepDevices<'a> {
    pub splits: &'a WindowSplits,
    pub capture: &'a Capture<'a>,
}

/// The steps of each stage with at least two; the instances of decode if it has no steps. `devices`
/// is `None` if the capture is of another pass.
pub fn step_times(events: &Events, devices: Option<&StepDevices>) -> Vec<StepTimes> {
    let others = events.other_stages.iter().map(|it| (*it, *it));
    let step = if events.measured(STEP).next().is_some() { STEP } else { DECODE };
    let stages = [(PREFILL, PREFILL), (DECODE, step)].into_iter().chain(others);
    stages.filter_map(|(stage, range)| of_stage(stage, range, events, devices)).collect()
}

fn of_stage(
    stage: &str,
    range: &str,
    events: &Events,
    devices: Option<&StepDevices>,
) -> Option<StepTimes> {
    let mut steps: Vec<(Interval, f64)> = events
        .measured(range)
        .map(|it| ((it.start_ns, it.end_ns), events.range_time(it).as_ms()))
        .collect();
    steps.sort_by_key(|it| it.0);
    let ms = Spread::of(steps.iter().map(|it| it.1)).filter(|it| it.n > 1)?;
    let p50_ms = lower_median(steps.iter().map(|it| it.1))?;
    let has_median = steps.len() >= LEAST_MEDIAN;
    let is_outlier = |it: &&(usize, f64)| has_median && it.1 > OUTLIER_MEDIANS * p50_ms;
    let times: Vec<(usize, f64)> = steps.iter().map(|it| it.1).enumerate().collect();
    let mut outliers: Vec<&(usize, f64)> = times.iter().filter(is_outlier).collect();
    outliers.sort_by(|a, b| b.1.total_cmp(&a.1));
    let listed: Vec<Interval> = outliers.iter().take(LISTED).map(|it| steps[it.0].0).collect();
    let works = devices.map(|it| work_in(&listed, it.capture)).unwrap_or_default();
    let longest = outliers.iter().take(LISTED).enumerate().map(|(number, (at, ms))| {
        let excess_ns = (ms - p50_ms) * 1e6;
        let call = devices.and_then(|it| host_call(stage, steps[*at].0, excess_ns, it.splits));
        let is_most = |it: &&StepWork| it.busy_ns as f64 - p50_ms * 1e6 >= excess_ns / 2.0;
        let work = works.get(number).filter(|_| call.is_none()).filter(is_most);
        OutlierStep {
            step: *at as u64 + 1,
            ms: *ms,
            host_call_ms: call.as_ref().map(|it| it.1 as f64 / 1e6),
            host_call: call.map(|it| it.0),
            busy_ms: work.map(|it| Nanos(it.busy_ns).as_ms()),
            longest_work: work.map(|it| it.longest.clone()),
            longest_work_ms: work.map(|it| Nanos(it.longest_ns).as_ms()),
            drafts: devices.and_then(|it| drafts_in(steps[*at].0, it.capture)),
        }
    });
    Some(StepTimes {
        stage: stage.into(),
        are_instances: range == DECODE,
        ms,
        p50_ms,
        outliers: outliers.len() as u64,
        excess_ms: outliers.iter().fold(0.0, |sum, it| sum + it.1 - p50_ms),
        preparing: devices.map_or(0, |it| preparing(stage, &steps, it.splits)),
        longest: longest.collect(),
    })
}

/// Work of the devices in one step.
#[derive(Default)]
struct StepWork {
    /// Time in which a device worked.
    busy_ns: i64,
    longest: String,
    longest_ns: i64,
}

/// The work in each of these steps.
fn work_in(steps: &[Interval], capture: &Capture) -> Vec<StepWork> {
    let mut works: Vec<(Busy, HashMap<DeviceWork, i64>)> =
        steps.iter().map(|_| Default::default()).collect();
    let to = steps.iter().map(|it| it.1).max().unwrap_or(i64::MIN);
    for it in activities(capture).take_while(|it| it.start_ns < to) {
        for (step, (busy, sums)) in steps.iter().zip(&mut works) {
            let part = (it.start_ns.max(step.0), it.end_ns.min(step.1));
            if part.0 < part.1 && it.device != ON_HOST {
                busy.add(part.0, part.1);
                *sums.entry(it.work).or_default() += part.1 - part.0;
            }
        }
    }
    let step = |(busy, sums): (Busy, HashMap<DeviceWork, i64>)| {
        // Kernels of one name have several launch configurations.
        let mut named: BTreeMap<String, i64> = BTreeMap::new();
        for (work, ns) in sums {
            *named.entry(work.name(capture.trace)).or_default() += ns;
        }
        let (longest, longest_ns) = named.into_iter().max_by_key(|it| it.1).unwrap_or_default();
        StepWork { busy_ns: busy.ns, longest, longest_ns }
    };
    works.into_iter().map(step).collect()
}

/// Passes of the draft model in the decode step that starts in this time.
fn drafts_in(step: Interval, capture: &Capture) -> Option<u64> {
    let all = &capture.stages.steps;
    let starts = all.partition_point(|it| it.start_ns < step.0);
    let of_decode = all[starts..].iter().find(|it| it.is_decode())?;
    let is_draft = |it: &&Phase| it.class == StepClass::Draft;
    let drafts = of_decode.phases.iter().filter(is_draft).count() as u64;
    (of_decode.start_ns < step.1 && drafts > 0).then_some(drafts)
}

/// The call whose gaps take the most of a step, if they take most of its excess.
fn host_call(
    stage: &str,
    step: Interval,
    excess_ns: f64,
    splits: &WindowSplits,
) -> Option<(String, i64)> {
    let mut sums = vec![0; splits.host_calls.len()];
    for gap in splits.long_gaps.iter().filter(|it| it.stage == stage) {
        sums[gap.call as usize] += (gap.to.min(step.1) - gap.from.max(step.0)).max(0);
    }
    let (call, ns) = sums.into_iter().enumerate().max_by_key(|it| it.1)?;
    (ns as f64 >= excess_ns / 2.0).then(|| (splits.host_calls[call].clone(), ns))
}

/// Steps in which a GPU idled while the host prepared code: a gap is in the step of its middle.
fn preparing(stage: &str, steps: &[(Interval, f64)], splits: &WindowSplits) -> u64 {
    let is_it = |it: &&LongGap| {
        it.stage == stage && splits.host_calls[it.call as usize].starts_with(LOADING)
    };
    let step_of = |it: &LongGap| {
        let middle = it.from + (it.to - it.from) / 2;
        let at = steps.partition_point(|step| step.0.0 <= middle).checked_sub(1)?;
        (middle < steps[at].0.1).then_some(at)
    };
    let gaps = splits.long_gaps.iter().filter(is_it);
    gaps.filter_map(step_of).collect::<BTreeSet<usize>>().len() as u64
}

#[cfg(test)]
mod tests {
    use llmprof_core::trace::Trace;

    use super::*;
    use crate::{Analysis, analyze, kernels::tests::capture};

    /// Decode steps of these lengths; in each, the host is in `tune` until its only launch.
    fn decode(lengths_ms: &[i64]) -> Analysis {
        let end = 1_000_000 * lengths_ms.iter().sum::<i64>();
        let mut lines = vec![format!("range 1 decode_all 0..{end}")];
        let mut at = 0;
        for (id, ms) in lengths_ms.iter().enumerate() {
            let (id, to) = (id + 1, at + ms * 1_000_000);
            let launch = to - 500_000;
            lines.push(format!("range 1 decode_step {at}..{to}"));
            lines.push(format!("range 1 tune {}..{}", at + 1_000, launch - 1_000));
            lines.push(format!("call 1 {id} {launch}..{}", launch + 5_000));
            lines.push(format!("kernel {id} k {}..{} 7", launch + 10_000, to - 10_000));
            at = to;
        }
        analyze(&Trace { nsys: Some(capture(&lines.join("\n"))), ..Trace::default() }, None, None)
    }

    #[test]
    fn outliers_are_named_by_the_call_of_the_host_and_leave_the_median() {
        let analysis = decode(&[1, 1, 62, 56]);
        let times = analysis.step_times.iter().find(|it| it.stage == "decode_all").unwrap();
        assert_eq!((times.p50_ms, times.ms.n, times.outliers), (1.0, 4, 2));
        let longest: Vec<_> =
            times.longest.iter().map(|it| (it.step, it.ms, it.host_call.as_deref())).collect();
        assert_eq!(longest, [(3, 62.0, Some("the range tune")), (4, 56.0, Some("the range tune"))]);
        assert!((times.longest[0].host_call_ms.unwrap() - 61.5).abs() < 0.1);
    }

    /// Instances of a stage of 1 ms, the third of 9 ms. In each, the GPU works but for 10 us.
    fn working(name: &str) -> StepTimes {
        let mut lines = Vec::new();
        let mut at = 0;
        for (id, ms) in [1, 1, 9, 1].into_iter().enumerate() {
            let (id, to) = (2 * id + 1, at + ms * 1_000_000);
            lines.push(format!("range 1 {name} {at}..{to}"));
            for (id, from, to) in [(id, at + 10_000, at + 300_000), (id + 1, at + 300_000, to)] {
                let kernel = if id % 2 == 1 { "short" } else { "long" };
                lines.push(format!("call 1 {id} {}..{}", at + 1_000 + id, at + 1_002 + id));
                lines.push(format!("kernel {id} {kernel} {from}..{to} 7"));
            }
            at = to;
        }
        let trace = Trace { nsys: Some(capture(&lines.join("\n"))), ..Trace::default() };
        analyze(&trace, None, None).step_times.remove(0)
    }

    #[test]
    fn instances_of_a_stage_have_outliers_with_the_work_that_took_longer() {
        for name in ["decode_all", "prefill"] {
            let times = working(name);
            assert_eq!((times.p50_ms, times.outliers), (1.0, 1), "{name}");
            assert_eq!(times.are_instances, name == "decode_all");
            let it = &times.longest[0];
            assert_eq!((it.step, it.host_call.as_deref()), (3, None));
            assert_eq!((it.busy_ms, it.longest_work_ms), (Some(8.99), Some(8.7)));
            assert_eq!(it.longest_work.as_deref(), Some("long"));
        }
    }

    #[test]
    fn steps_that_prepare_code_are_counted_and_not_their_gaps() {
        let steps = [((0, 100), 1.0), ((100, 200), 1.0), ((250, 350), 1.0)];
        let count = |gaps: &[(&str, u32, Interval)]| {
            let gap = |it: &(&str, u32, Interval)| LongGap {
                stage: it.0.into(),
                from: it.2.0,
                to: it.2.1,
                call: it.1,
            };
            let splits = WindowSplits {
                host_calls: vec![format!("{LOADING} cuLibraryLoadData"), "tune".into()],
                long_gaps: gaps.iter().map(gap).collect(),
                ..WindowSplits::default()
            };
            preparing(DECODE, &steps, &splits)
        };
        assert_eq!(count(&[(DECODE, 0, (10, 20)), (DECODE, 0, (30, 90))]), 1, "one step");
        assert_eq!(count(&[(DECODE, 0, (90, 150)), (DECODE, 0, (260, 300))]), 2);
        assert_eq!(count(&[(DECODE, 0, (190, 240))]), 0, "most of it between steps");
        assert_eq!(count(&[(DECODE, 1, (10, 20)), (PREFILL, 0, (10, 20))]), 0);
    }

    #[test]
    fn two_steps_are_apart_and_have_neither_a_median_nor_an_outlier() {
        let times = &decode(&[1, 9]).step_times[0];
        assert_eq!((times.median_ms(), times.apart_ms()), (None, Some((1.0, 9.0))));
        assert_eq!((times.outliers, times.are_steps()), (0, true));
        assert_eq!(decode(&[1, 1, 9]).step_times[0].apart_ms(), None);
    }

    #[test]
    fn equal_steps_have_no_outlier_and_one_step_has_no_median() {
        assert_eq!(decode(&[3, 3, 4]).step_times[0].outliers, 0);
        assert_eq!(decode(&[3]).step_times, []);
    }
}
