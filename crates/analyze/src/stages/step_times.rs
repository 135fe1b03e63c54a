//! Times of single steps: the median with its range, and the steps that take much longer.
//!
//! A stage's time is a sum over its steps, and a mean over them hides one that loaded a library.

mod outliers;
mod process_steps;
mod step_calls;
mod step_works;

use std::collections::{BTreeMap, BTreeSet};

pub use llmprof_core::domain::median::TYPICAL_PART;
use llmprof_core::{
    domain::median::are_apart,
    trace::{collectives::Collectives, event::StageRange, timeline::Timeline},
};
use serde::{Deserialize, Serialize};

pub use self::{
    outliers::{IdleTime, OutlierStep, wanted},
    process_steps::{ProcessSteps, words_of_slowest},
};
use super::{
    DECODE, PREFILL, StageTiming,
    repeat_medians::{RepeatMedian, SlowestRepeats, repeat_medians},
};
use crate::{
    Analysis,
    events::Events,
    stats::{Spread, has_two_halves, lower_median, percent},
    step_batches::{do_differ, process_and_rank},
    timeline::{
        capture::Capture,
        decode_timeline::STEP,
        gpu::{
            host_activity::HostActivity,
            split::{LongGap, WindowSplits},
        },
        interval::Interval,
    },
};

/// A step is an outlier above this many medians.
pub const OUTLIER_MEDIANS: f64 = 2.0;
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
    /// an even number, the shorter of the two in the middle. If the processes differ, it is the
    /// median of the slowest process, of fewer than three its mean.
    #[cfg_attr(feature = "schema", schema(example = 10.6))]
    pub p50_ms: f64,
    /// True if the two steps in the middle of an even number differ by more than 5 %: `p50_ms` is
    /// called the lower median. If the processes differ, each has its own.
    #[serde(default)]
    pub has_two_halves: bool,
    /// The processes, slowest first, if they differ; each has at least three steps, or none has.
    /// Empty if one median is of all steps.
    #[serde(default)]
    pub processes: Vec<ProcessSteps>,
    /// Steps that take more than twice the median, of at least three. If the processes differ, that
    /// is the median of the step's process.
    pub outliers: u64,
    /// Time of the outliers above that median, of all of them, milliseconds.
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
        let Spread { min, max, .. } = self.ms;
        let is_apart = self.median_ms().is_none() && are_apart(min, max);
        is_apart.then_some((min, max))
    }

    /// True for steps in a stage, which are not its instances.
    pub fn are_steps(&self) -> bool {
        self.stage == DECODE && !self.are_instances
    }

    /// The words for `p50_ms`.
    pub fn median_word(&self) -> &'static str {
        match self.processes.first() {
            None if self.has_two_halves => "the lower median",
            None => "the median",
            Some(slowest) => words_of_slowest(slowest.steps, slowest.has_two_halves),
        }
    }

    /// True if the outliers exceed the medians of their processes, which differ.
    pub fn is_by_process(&self) -> bool {
        self.longest.iter().any(|it| it.process_p50_ms.is_some())
    }

    /// The median of at least three, or the time of the slowest of processes that differ.
    pub fn median_ms(&self) -> Option<f64> {
        let is_known = self.ms.n as usize >= LEAST_MEDIAN || !self.processes.is_empty();
        is_known.then_some(self.p50_ms)
    }

    /// Number of steps outside the timed decodes of `row`, of `steps` each: a decode that the
    /// recording cuts has measured steps too. Negative if the timed decodes have more.
    pub fn steps_beyond(&self, row: Option<&StageTiming>, steps: Option<f64>) -> f64 {
        let timed = row.zip(steps).map(|(row, steps)| steps * f64::from(row.ms.n));
        timed.map_or(0.0, |timed| f64::from(self.ms.n) - timed)
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

/// True if one rate stands for a stage: a mean over processes that differ is the rate of none.
pub fn has_one_rate(all: &[StepTimes], stage: &str) -> bool {
    all.iter().all(|it| it.stage != stage || it.processes.is_empty())
}

/// The repeats of the slowest process, by stages whose processes differ.
pub fn slowest_repeats(events: &Events, all: &[StepTimes], ranks: &Collectives) -> SlowestRepeats {
    let of_stage = |stage: &'static str| {
        let slowest = all.iter().find(|it| it.stage == stage)?.processes.first()?;
        let is_slowest =
            |process: i64| process_and_rank(process, ranks) == (slowest.process, slowest.rank);
        let ranges = events.measured_in_processes(stage);
        let own = ranges.filter(|(_, process)| process.is_some_and(is_slowest));
        let repeats: BTreeSet<u32> = own.map(|(range, _)| range.repeat).collect();
        (!repeats.is_empty()).then_some((stage, repeats))
    };
    [PREFILL, DECODE].into_iter().filter_map(of_stage).collect()
}

impl Analysis {
    /// Adds the times of single steps. If processes differ, the medians over repeats are of the
    /// slowest too.
    pub(crate) fn add_step_times(&mut self, events: &Events, devices: Option<&StepDevices>) {
        self.step_times = step_times(events, devices);
        let Some(devices) = devices else { return };
        let ranks = &devices.capture.trace.collectives;
        let slowest = slowest_repeats(events, &self.step_times, ranks);
        if !slowest.is_empty() {
            self.samples.medians = repeat_medians(events, &slowest);
        }
    }
}

/// The steps of each stage with at least two; the instances of decode if it has no steps. `devices`
/// is `None` if the capture is of another pass.
pub fn step_times(events: &Events, devices: Option<&StepDevices>) -> Vec<StepTimes> {
    let stages = stage_steps(events, devices.map(|it| it.capture.trace));
    let longest = outliers::longest(&stages, devices);
    let times = |(it, longest): (&StageSteps, Vec<OutlierStep>)| StepTimes {
        stage: it.stage.into(),
        are_instances: it.range == DECODE,
        ms: it.ms,
        p50_ms: it.p50_ms,
        has_two_halves: has_two_halves(it.steps.iter().map(|it| it.ms)),
        processes: it.processes.clone(),
        outliers: it.outliers.len() as u64,
        excess_ms: it.outliers.iter().fold(0.0, |sum, at| sum + it.steps[*at].above_ms()),
        preparing: devices.map_or(0, |devices| preparing(it, devices.splits)),
        longest,
    };
    stages.iter().zip(longest).map(times).collect()
}

/// The steps of each stage with at least two; `trace` is the capture that the events are of.
pub fn stage_steps<'a>(events: &Events<'a>, trace: Option<&Timeline>) -> Vec<StageSteps<'a>> {
    let others = events.other_stages.iter().map(|it| (*it, *it));
    let step = if events.measured(STEP).next().is_some() { STEP } else { DECODE };
    let stages = [(PREFILL, PREFILL), (DECODE, step)].into_iter().chain(others);
    stages.filter_map(|(stage, range)| StageSteps::of(stage, range, (events, trace))).collect()
}

/// A step of a stage, or an instance.
struct MeasuredStep {
    span: Interval,
    ms: f64,
    /// `None` if the events are not of a capture.
    process: Option<i64>,
    /// The median of the steps that it is compared with.
    p50_ms: f64,
    /// True if these are at least three.
    has_median: bool,
}

impl MeasuredStep {
    fn is_outlier(&self) -> bool {
        self.has_median && self.ms > OUTLIER_MEDIANS * self.p50_ms
    }

    /// Its time above the median.
    fn above_ms(&self) -> f64 {
        self.ms - self.p50_ms
    }

    /// Its process, which is one for all of its recording windows.
    fn owner(&self, trace: Option<&Timeline>) -> i64 {
        let process = self.process.unwrap_or_default();
        trace.map_or(process, |trace| trace.collectives.owner(process))
    }

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
    /// The median of all steps, or of the slowest process.
    p50_ms: f64,
    /// The processes, slowest first, if they differ: each step is compared with the steps of its
    /// process.
    processes: Vec<ProcessSteps>,
    /// Places of the outliers among the steps, longest first.
    outliers: Vec<usize>,
}

impl<'a> StageSteps<'a> {
    fn of(
        stage: &'a str,
        range: &'a str,
        (events, trace): (&Events, Option<&Timeline>),
    ) -> Option<Self> {
        let step = |(it, process): (&StageRange, Option<i64>)| MeasuredStep {
            span: (it.start_ns, it.end_ns),
            ms: events.range_time(it).as_ms(),
            process,
            p50_ms: 0.0,
            has_median: false,
        };
        let mut steps: Vec<MeasuredStep> = events.measured_in_processes(range).map(step).collect();
        steps.sort_by_key(|it| it.span);
        let ms = Spread::of(steps.iter().map(|it| it.ms)).filter(|it| it.n > 1)?;
        let of_all = lower_median(steps.iter().map(|it| it.ms))?;
        let processes = match set_medians(&mut steps, trace) {
            true => process_steps::by_process(&steps, trace),
            false => vec![],
        };
        let p50_ms = processes.first().map_or(of_all, |it| it.p50_ms);
        let mut outliers: Vec<usize> =
            (0..steps.len()).filter(|at| steps[*at].is_outlier()).collect();
        outliers.sort_by(|a, b| steps[*b].ms.total_cmp(&steps[*a].ms));
        Some(Self { stage, range, steps, ms, p50_ms, processes, outliers })
    }

    /// Places of the steps that are not outliers.
    fn usual(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.steps.len()).filter(|at| !self.steps[*at].is_outlier())
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

/// Sets the median that each step is compared with: of all steps, or of its process if the
/// processes differ, which it returns. Recording windows of one process are one.
fn set_medians(steps: &mut [MeasuredStep], trace: Option<&Timeline>) -> bool {
    let mut processes: BTreeMap<i64, Vec<f64>> = BTreeMap::new();
    for it in steps.iter() {
        processes.entry(it.owner(trace)).or_default().push(it.ms);
    }
    let is_by_process = do_differ(processes.values().cloned()) || do_few_differ(&processes);
    if !is_by_process {
        processes = BTreeMap::from([(0, processes.into_values().flatten().collect())]);
    }
    let median = |(process, times): (i64, Vec<f64>)| {
        let has_median = times.len() >= LEAST_MEDIAN;
        Some((process, (RepeatMedian::of(times)?.p50, has_median)))
    };
    let medians: BTreeMap<i64, (f64, bool)> = processes.into_iter().filter_map(median).collect();
    for it in steps {
        let process = if is_by_process { it.owner(trace) } else { 0 };
        (it.p50_ms, it.has_median) = medians.get(&process).copied().unwrap_or_default();
    }
    is_by_process
}

/// True if no process has a median, and all times of one are above all times of another by more
/// than alike times differ: ranks have one prefill each, which takes as long as the slowest.
fn do_few_differ(processes: &BTreeMap<i64, Vec<f64>>) -> bool {
    let is_few = processes.values().all(|it| it.len() < LEAST_MEDIAN);
    let ranges = processes.values().filter_map(|it| Spread::of(it.iter().copied()));
    let (slowest, fastest) =
        ranges.fold((0.0_f64, f64::INFINITY), |at, it| (at.0.max(it.min), at.1.min(it.max)));
    is_few && slowest > (1.0 + TYPICAL_PART) * fastest
}

/// Steps in which a GPU idled while the host prepared code: a gap is in the step of its middle.
fn preparing(stage: &StageSteps, splits: &WindowSplits) -> u64 {
    let steps = &stage.steps;
    let is_it = |it: &&LongGap| {
        let activity = HostActivity::of(&splits.host_calls[it.call as usize]);
        it.stage == stage.stage && activity == HostActivity::Loading
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
mod tests;
