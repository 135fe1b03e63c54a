//! Idle time of GPUs in single steps of a process, divided as the gaps of stages are.

use std::collections::BTreeMap;

use llmprof_core::trace::timeline::process_of;

use super::{
    super::interval::{Interval, IntervalSet},
    gap_sums::GapReason,
    idle_gap::IdleGap,
    named_gaps::DividedGap,
};

/// A step whose idle time is wanted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WantedStep<'a> {
    pub stage: &'a str,
    pub process: i64,
    pub span: Interval,
}

/// Idle time of the GPU that idles longest in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepIdle {
    /// Nanoseconds by reason.
    pub reasons: BTreeMap<GapReason, i64>,
    /// Nanoseconds by reason in the usual steps of the process, on this GPU.
    pub in_usual: BTreeMap<GapReason, i64>,
    /// Nanoseconds by long call of the host.
    pub calls: BTreeMap<String, i64>,
    pub longest: Option<LongestGap>,
}

/// The longest gap of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongestGap {
    /// Its part in the step.
    pub span: Interval,
    /// Thread for whose launch the GPU waited.
    pub thread: Option<i64>,
}

/// Steps that take far longer than others, and the usual ones of their stages.
#[derive(Debug, Clone, Default)]
pub struct WantedSteps<'a> {
    pub outliers: Vec<WantedStep<'a>>,
    pub usual: Vec<WantedStep<'a>>,
}

/// Sums of one step on one GPU.
#[derive(Default)]
struct Sums {
    reasons: BTreeMap<GapReason, i64>,
    calls: BTreeMap<u32, i64>,
    longest: Option<LongestGap>,
}

/// A process on one GPU in a stage: label, place of the GPU and process.
type Place = (usize, usize, i64);

/// The idle time of outliers and of usual steps. Gaps of other processes are not theirs, and a part
/// of a gap has its part of each reason.
pub(super) struct StepIdleSums<'a> {
    outliers: &'a [WantedStep<'a>],
    /// Place of each outlier's stage among the labels; `None` if no label is its stage.
    labels: Vec<Option<usize>>,
    /// By label and process.
    usual: BTreeMap<(usize, i64), IntervalSet>,
    in_usual: BTreeMap<Place, BTreeMap<GapReason, i64>>,
    /// By place of the step and of the GPU.
    of_step: BTreeMap<(usize, usize), Sums>,
}

impl<'a> StepIdleSums<'a> {
    pub fn new(labels: &[String], wanted: &'a WantedSteps<'a>) -> Self {
        let label_of = |it: &WantedStep| labels.iter().position(|label| label == it.stage);
        let mut usual: BTreeMap<(usize, i64), Vec<Interval>> = BTreeMap::new();
        for it in &wanted.usual {
            if let Some(label) = label_of(it) {
                usual.entry((label, it.process)).or_default().push(it.span);
            }
        }
        let sets = usual.into_iter().map(|(of, spans)| (of, IntervalSet::new(spans)));
        Self {
            outliers: &wanted.outliers,
            labels: wanted.outliers.iter().map(label_of).collect(),
            usual: sets.collect(),
            in_usual: BTreeMap::new(),
            of_step: BTreeMap::new(),
        }
    }

    /// Adds a gap in a stage on a GPU.
    pub fn add(&mut self, (label, gpu): (usize, usize), gap: &IdleGap, divided: &DividedGap) {
        if let Some(process) = process_of_gap(gap).filter(|_| self.labels.contains(&Some(label))) {
            self.add_parts((label, gpu, process), gap, divided);
        }
    }

    fn add_parts(&mut self, place: Place, gap: &IdleGap, divided: &DividedGap) {
        let (label, gpu, process) = place;
        let share = |ns: i64, inside: i64| part_of(ns, (inside, gap.to - gap.from));
        let of_usual =
            self.usual.get(&(label, process)).map_or(0, |it| it.overlap_ns(gap.from, gap.to));
        if of_usual > 0 {
            let total = self.in_usual.entry(place).or_default();
            for it in &divided.parts {
                *total.entry(it.reason).or_default() += share(it.ns, of_usual);
            }
        }
        for (at, step) in self.outliers.iter().enumerate() {
            let span = (gap.from.max(step.span.0), gap.to.min(step.span.1));
            if self.labels[at] != Some(label) || step.process != process || span.0 >= span.1 {
                continue;
            }
            let sums = self.of_step.entry((at, gpu)).or_default();
            for it in &divided.parts {
                *sums.reasons.entry(it.reason).or_default() += share(it.ns, span.1 - span.0);
                if let Some(call) = it.call {
                    let inside = divided.ns_in(call, span);
                    *sums.calls.entry(call).or_default() += it.ns.min(inside);
                }
            }
            let length = |it: Interval| it.1 - it.0;
            if sums.longest.is_none_or(|it| length(it.span) < length(span)) {
                let thread = gap.call.map(|it| it.global_tid).or(gap.last_thread);
                sums.longest = Some(LongestGap { span, thread });
            }
        }
    }

    /// The idle time of each outlier; `names` has the names of long calls.
    pub fn finish(self, names: &[String]) -> Vec<StepIdle> {
        let named = |calls: BTreeMap<u32, i64>| {
            calls.into_iter().map(|(call, ns)| (names[call as usize].clone(), ns)).collect()
        };
        let mut found = vec![StepIdle::default(); self.outliers.len()];
        for ((at, gpu), sums) in self.of_step {
            let idle = |reasons: &BTreeMap<GapReason, i64>| reasons.values().sum::<i64>();
            if idle(&found[at].reasons) < idle(&sums.reasons) {
                let place = self.labels[at].map(|label| (label, gpu, self.outliers[at].process));
                let in_usual = place.and_then(|it| self.in_usual.get(&it)).cloned();
                let Sums { reasons, calls, longest } = sums;
                let (in_usual, calls) = (in_usual.unwrap_or_default(), named(calls));
                found[at] = StepIdle { reasons, in_usual, calls, longest };
            }
        }
        found
    }
}

/// The process for whose work the GPU waited.
fn process_of_gap(gap: &IdleGap) -> Option<i64> {
    let thread = gap.call.map(|it| it.global_tid).or(gap.last_thread);
    let work = || gap.after.map(|it| it.process).or(gap.before.map(|it| it.process));
    thread.map(process_of).or_else(work)
}

/// The part of `ns` that is in `inside` of `length` nanoseconds.
fn part_of(ns: i64, (inside, length): (i64, i64)) -> i64 {
    (i128::from(ns) * i128::from(inside) / i128::from(length.max(1))) as i64
}
