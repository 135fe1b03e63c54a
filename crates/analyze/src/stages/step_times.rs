//! Times of single steps: the median with its range, and the steps that take much longer.
//!
//! A stage's time is a sum over its steps, and a mean over them hides one that loaded a library.

mod outliers;
mod step_calls;

use std::collections::BTreeSet;

use llmprof_core::trace::event::StageRange;
use serde::{Deserialize, Serialize};

pub use self::outliers::{IdleTime, OutlierStep, wanted};
use super::{DECODE, PREFILL, StageTiming};
use crate::{
    events::Events,
    stats::{Spread, lower_median, percent},
    timeline::{
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

/// Work and gaps of the devices in the steps of a capture, on the clock of the events.
pub struct StepDevices<'a> {
    pub splits: &'a WindowSplits,
    pub capture: &'a Capture<'a>,
    /// False if the clocks of host and devices differ: gaps have no known reasons then.
    pub knows_gaps: bool,
}

/// The steps of each stage with at least two; the instances of decode if it has no steps. `devices`
/// is `None` if the capture is of another pass.
pub fn step_times(events: &Events, devices: Option<&StepDevices>) -> Vec<StepTimes> {
    let stages = stage_steps(events);
    let longest = outliers::longest(&stages, devices);
    let times = |(it, longest): (&StageSteps, Vec<OutlierStep>)| StepTimes {
        stage: it.stage.into(),
        are_instances: it.range == DECODE,
        ms: it.ms,
        p50_ms: it.p50_ms,
        outliers: it.outliers.len() as u64,
        excess_ms: it.outliers.iter().fold(0.0, |sum, at| sum + it.steps[*at].ms - it.p50_ms),
        preparing: devices.map_or(0, |devices| preparing(it, devices.splits)),
        longest,
    };
    stages.iter().zip(longest).map(times).collect()
}

/// The steps of each stage with at least two.
pub fn stage_steps<'a>(events: &Events<'a>) -> Vec<StageSteps<'a>> {
    let others = events.other_stages.iter().map(|it| (*it, *it));
    let step = if events.measured(STEP).next().is_some() { STEP } else { DECODE };
    let stages = [(PREFILL, PREFILL), (DECODE, step)].into_iter().chain(others);
    stages.filter_map(|(stage, range)| StageSteps::of(stage, range, events)).collect()
}

/// A step of a stage, or an instance.
struct MeasuredStep {
    span: Interval,
    ms: f64,
    /// `None` if the events are not of a capture.
    process: Option<i64>,
}

impl MeasuredStep {
    /// The time and the process of a step of a capture.
    fn place(&self) -> (Interval, i64) {
        (self.span, self.process.unwrap_or_default())
    }
}

/// The steps of one stage, in the order of their starts.
pub struct StageSteps<'a> {
    stage: &'a str,
    range: &'a str,
    steps: Vec<MeasuredStep>,
    ms: Spread,
    p50_ms: f64,
    /// Places of the outliers among the steps, longest first.
    outliers: Vec<usize>,
}

impl<'a> StageSteps<'a> {
    fn of(stage: &'a str, range: &'a str, events: &Events) -> Option<Self> {
        let step = |(it, process): (&StageRange, Option<i64>)| MeasuredStep {
            span: (it.start_ns, it.end_ns),
            ms: events.range_time(it).as_ms(),
            process,
        };
        let mut steps: Vec<MeasuredStep> = events.measured_in_processes(range).map(step).collect();
        steps.sort_by_key(|it| it.span);
        let ms = Spread::of(steps.iter().map(|it| it.ms)).filter(|it| it.n > 1)?;
        let p50_ms = lower_median(steps.iter().map(|it| it.ms))?;
        let mut it = Self { stage, range, steps, ms, p50_ms, outliers: vec![] };
        it.outliers = (0..it.steps.len()).filter(|at| it.is_outlier(*at)).collect();
        it.outliers.sort_by(|a, b| it.steps[*b].ms.total_cmp(&it.steps[*a].ms));
        Some(it)
    }

    fn is_outlier(&self, at: usize) -> bool {
        self.steps.len() >= LEAST_MEDIAN && self.steps[at].ms > OUTLIER_MEDIANS * self.p50_ms
    }

    /// Places of the steps that are not outliers.
    fn usual(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps.len()).filter(|at| !self.is_outlier(*at))
    }

    /// Number of steps of the process of one step that are not outliers.
    fn usual_steps(&self, of: usize) -> usize {
        self.usual().filter(|at| self.steps[*at].process == self.steps[of].process).count()
    }

    /// The longest outliers.
    fn listed(&self) -> impl Iterator<Item = usize> + '_ {
        self.outliers.iter().copied().take(LISTED)
    }
}

/// Steps in which a GPU idled while the host prepared code: a gap is in the step of its middle.
fn preparing(stage: &StageSteps, splits: &WindowSplits) -> u64 {
    let steps = &stage.steps;
    let is_it = |it: &&LongGap| {
        it.stage == stage.stage && splits.host_calls[it.call as usize].starts_with(LOADING)
    };
    let step_of = |it: &LongGap| {
        let middle = it.from + (it.to - it.from) / 2;
        let at = steps.partition_point(|step| step.span.0 <= middle).checked_sub(1)?;
        (middle < steps[at].span.1).then_some(at)
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
        let steps = [(0, 100), (100, 200), (250, 350)];
        let steps = steps.map(|span| MeasuredStep { span, ms: 1.0, process: None }).into();
        let ms = Spread::of([1.0; 3]).unwrap();
        let (stage, range) = (DECODE, STEP);
        let stage = StageSteps { stage, range, steps, ms, p50_ms: 1.0, outliers: vec![] };
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
            preparing(&stage, &splits)
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
