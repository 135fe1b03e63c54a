//! The state of a step: it counts in times, or does not for a reason. The one rule of all tables.
//!
//! A time is stated only of steps that the recording has whole, as the program ran them. A step
//! that lacks work is relabelled ([`LEFT_OUT`]) if its stage has whole ones, as a cold first
//! instance is: no figure of the stage contains it. If no step of a stage is whole, all count with
//! what the recording has, and findings state the lost work; a step that the recording cuts never
//! counts. A step inside a decode is taken out of it, and the other steps of that decode count one
//! by one.

mod compared;
mod cut_share;
mod unrecorded;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::{
    domain::{
        digits,
        finding::{Finding, catalogue},
        named_values::named_values,
        units::quantity,
    },
    trace::{stage::WARMUP, timeline::process_of},
};

use self::compared::{ComparedStep, StepGroup, compared};
use super::{
    capture::Capture,
    interval::{Interval, IntervalSet},
    open_ranges::{Extent, OpenStages, StageInstance, StepInside},
};
use crate::stages::{
    DECODE,
    cold::{self, ColdInstance},
    coverage,
};

/// Stage label of steps that count in no time.
pub const LEFT_OUT: &str = "steps left out";
/// Remedy for steps that the recording cuts.
const RECORD_WHOLE: &str =
    "To time these steps, start the recording before the first and stop it after the last one.";

named_values! {
    /// State of a step: it counts in times, or does not for this reason.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    #[cfg_attr(feature = "schema", schema(as = EngineStepState))]
    #[derive(Default)]
    StepState {
        /// The recording has all of it, and its time is its own.
        #[default]
        Whole = "whole",
        /// It is of a warm-up, or a cold first instance.
        Warmup = "warm_up",
        /// A range filter leaves it out.
        Excluded = "excluded",
        /// The recording starts or ends inside it, or has no end of it.
        Cut = "cut",
        /// Kernels that it launched are missing.
        KernelsMissing = "kernels_missing",
        /// Kernels that it launched have no valid time.
        KernelsUntimed = "kernels_untimed",
        /// Kernels ran in it whose launching calls are missing.
        CallsMissing = "calls_missing",
        /// It has no recorded work, unlike others.
        WithoutWork = "without_work",
        /// It lacks work, as all steps of its stage do: it counts with what the recording has.
        Incomplete = "incomplete",
        /// A part of its time is a wait whose reason the capture does not record.
        Waited = "waited",
    }
}

impl StepState {
    /// True if its time is a time of such steps.
    pub const fn counts(self) -> bool {
        matches!(self, Self::Whole | Self::Incomplete)
    }

    /// True if work of the step is missing, while other steps have theirs.
    pub const fn lacks_work(self) -> bool {
        matches!(
            self,
            Self::KernelsMissing | Self::KernelsUntimed | Self::CallsMissing | Self::WithoutWork
        )
    }

    /// True if the end of the step is known.
    pub const fn has_end(self) -> bool {
        !self.lacks_work() && !matches!(self, Self::Cut)
    }
}

/// States of the steps of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepStates {
    /// Number of steps and stage instances of each kind that has some left out.
    compared: u64,
    /// States other than whole, by thread or process, and range.
    states: BTreeMap<(i64, Interval), StepState>,
    /// By process: work that steps without a recorded range launched.
    unrecorded: Vec<(i64, Interval)>,
    /// Thread or process, and range, of each step that the start or the end of the recording cuts.
    at_edges: Vec<(i64, Interval)>,
    /// By process: starts of steps that the recording does not end, or that have no range.
    lost: BTreeSet<(i64, i64)>,
    /// Steps that were taken out of their decodes, in the order of their starts.
    inside: Vec<StepInside>,
}

impl StepStates {
    /// The time of steps that were taken out of a range of the host.
    pub fn inside(&self, place: i64, range: Interval) -> impl Iterator<Item = Interval> {
        let first = self.inside.partition_point(|it| it.range.0 < range.0);
        let started = self.inside[first..].iter().take_while(move |it| it.range.0 < range.1);
        let is_part = move |it: &&StepInside| {
            it.range.1 <= range.1 && it.range != range && it.is_seen_from(place)
        };
        started.filter(is_part).map(|it| it.span)
    }

    /// The time of the step with this range, if it was taken out of a decode.
    pub fn span_inside(&self, (place, range): (i64, Interval)) -> Option<Interval> {
        let first = self.inside.partition_point(|it| it.range < range);
        let mut same = self.inside[first..].iter().take_while(|it| it.range == range);
        same.find(|it| it.place == place).map(|it| it.span)
    }

    /// All steps that were taken out of their decodes.
    pub fn taken_out(&self) -> &[StepInside] {
        &self.inside
    }

    /// The state of the step with this range.
    pub fn of(&self, place: i64, range: Interval) -> StepState {
        self.states.get(&(place, range)).copied().unwrap_or_default()
    }

    /// True if a step that the capture has no range of started in this time.
    pub fn is_lost_between(&self, process: i64, (from, to): Interval) -> bool {
        from < to && self.lost.range((process, from)..(process, to)).next().is_some()
    }

    /// By process, starts of steps that the capture has no range of.
    pub fn lost(&self) -> impl Iterator<Item = (i64, i64)> {
        self.lost.iter().copied()
    }

    fn count(&self, state: StepState) -> usize {
        self.states.values().filter(|it| **it == state).count()
    }
}

/// Finds the state of each step, and takes the steps that do not count out of their stages. Returns
/// the cold first instances.
pub fn mark(capture: &mut Capture) -> Vec<ColdInstance> {
    let steps = compared(capture);
    let mut states = states_by_filters(&capture.stages);
    let lacking = steps.iter().filter(|it| it.state != StepState::Whole);
    states.extend(lacking.map(|it| ((it.place, it.range), it.state)));
    let mut unrecorded = unrecorded::unrecorded(capture);
    let named = without_work(&steps);
    unrecorded.retain(|(process, times)| {
        named.get(process).is_none_or(|it| it.overlap_ns(times.0, times.1) == 0)
    });
    let unnamed = unrecorded::in_decodes(capture, &steps);
    let starts = unrecorded.iter().map(|(process, times)| (*process, times.0));
    let lost = starts.chain(unrecorded::without_end(capture.trace)).collect();
    capture.stages.states = StepStates { states, unrecorded, lost, ..StepStates::default() };
    let cold = cold::mark(capture);
    leave_out(capture, &steps, &unnamed);
    cold
}

/// By process, the time of steps that have a range and no work: work that is launched in it is not
/// of a step without a range. A range of the device stands for the range that the host lacks.
fn without_work(steps: &[ComparedStep]) -> BTreeMap<i64, IntervalSet> {
    let mut found: BTreeMap<i64, Vec<Interval>> = BTreeMap::new();
    for it in steps.iter().filter(|it| it.state == StepState::WithoutWork) {
        found.entry(process_of(it.place)).or_default().push(it.range);
    }
    found.into_iter().map(|(process, ranges)| (process, IntervalSet::new(ranges))).collect()
}

/// States by a range filter, and of steps that the recording cuts.
fn states_by_filters(stages: &OpenStages) -> BTreeMap<(i64, Interval), StepState> {
    let cut = stages.instances.iter().filter(|it| it.extent == Extent::EstimatedEnd);
    let cut: BTreeSet<(i64, Interval)> = cut.map(StageInstance::key).collect();
    let state = |(place, range): (i64, Interval)| {
        let is_cut = cut.contains(&(place, range));
        let ns = range.1.saturating_sub(range.0);
        let is_excluded = match ns {
            0 => stages.is_excluded(place, range.0),
            _ => stages.excluded_ns(place, range, range) == ns,
        };
        match (is_excluded, is_cut) {
            (true, _) => Some(((place, range), StepState::Excluded)),
            (_, true) => Some(((place, range), StepState::Cut)),
            _ => None,
        }
    };
    let steps = stages.steps.iter().map(|it| (it.place, (it.start_ns, it.end_ns)));
    steps.filter_map(state).collect()
}

/// True for a step that became a cold first instance, or lies inside one.
fn is_cold(it: &ComparedStep, stages: &OpenStages) -> bool {
    let inside = || stages.at(it.place, it.range.0).map(|at| at as usize);
    it.instance.or_else(inside).is_some_and(|at| stages.label(at) == WARMUP)
}

/// Leaves out the steps that lack work, if others of their group are whole: a stage instance gets
/// another label, and a step inside a decode is taken out of it, as is each `unnamed` one.
fn leave_out(capture: &mut Capture, steps: &[ComparedStep], unnamed: &[StepInside]) {
    let stages = &mut capture.stages;
    let whole = steps.iter().filter(|it| it.state == StepState::Whole && !is_cold(it, stages));
    let whole: BTreeSet<_> = whole.map(|it| it.group.clone()).collect();
    let with_whole = steps.iter().filter(|it| it.state == StepState::Whole);
    let with_whole: BTreeSet<u32> =
        with_whole.filter_map(|it| stages.at(it.place, it.range.0)).collect();
    let (mut inside, mut groups): (Vec<StepInside>, BTreeSet<StepGroup>) = Default::default();
    for it in steps.iter().filter(|it| it.state != StepState::Whole) {
        let key = (it.place, it.range);
        let outer = stages.at(it.place, it.range.0);
        let is_of_other = it.instance.is_none()
            && outer.is_some_and(|at| ![DECODE, LEFT_OUT].contains(&stages.label(at as usize)));
        let is_cut = it.state == StepState::Cut && !is_of_other && !is_cold(it, stages);
        stages.states.at_edges.extend(is_cut.then_some(key));
        if is_cold(it, stages) {
            stages.states.states.remove(&key);
        } else if is_cut && !whole.contains(&it.group) {
            // Its time is a bound, and so is the time of its stage.
            groups.insert(it.group.clone());
            if let Some(at) = it.instance.or(outer.map(|at| at as usize)) {
                stages.instances[at].extent = Extent::EstimatedEnd;
            }
        } else if is_of_other || !whole.contains(&it.group) {
            stages.states.states.insert(key, StepState::Incomplete);
        } else {
            groups.insert(it.group.clone());
            // A decode without a whole step is left out as one.
            let without_whole = outer.filter(|at| !with_whole.contains(at)).map(|at| at as usize);
            match it.instance.or(without_whole) {
                Some(at) => stages.instances[at].label = stages.label_of(LEFT_OUT),
                None if outer.is_some() && it.range.0 < it.range.1 => {
                    inside.push(StepInside { range: it.range, place: it.place, span: it.span });
                }
                None => {}
            }
        }
    }
    // The kind of a step of an engine without a range is unknown.
    let is_any = !stages.states.unrecorded.is_empty();
    for it in unnamed {
        let outer = stages.at(it.place, it.range.0);
        if outer.is_some_and(|at| stages.label(at as usize) == DECODE) {
            inside.push(*it);
            groups.insert(StepGroup::DecodeSteps);
            stages.states.unrecorded.push((process_of(it.place), it.range));
        }
    }
    let of_groups = steps.iter().filter(|it| is_any || groups.contains(&it.group));
    stages.states.compared = of_groups.filter(|it| !is_cold(it, stages)).count() as u64;
    if !inside.is_empty() {
        inside.sort();
        capture.take_out(&inside);
        capture.stages.states.inside = inside;
    }
}

/// The finding on steps that are left out of all times; `None` if there is none.
pub fn finding(capture: &Capture) -> Option<Finding> {
    let states = &capture.stages.states;
    let cut_share = cut_share::gpu_time_pct(capture, &states.at_edges);
    let cut = "cut by the start or the end of the recording".to_owned();
    let cut = match cut_share {
        Some(pct) => format!("{cut}, with {pct:.1} % of the recorded GPU time"),
        None => cut,
    };
    let reasons = [
        (states.count(StepState::KernelsMissing), "with missing kernels"),
        (states.count(StepState::KernelsUntimed), "with kernels without a valid time"),
        (states.count(StepState::CallsMissing), "with missing launching calls"),
        (states.count(StepState::WithoutWork), "without recorded work on a device"),
        (states.unrecorded.len(), "without a recorded range"),
        (states.at_edges.len(), cut.as_str()),
    ];
    let left_out: usize = reasons.iter().map(|it| it.0).sum();
    if left_out == 0 {
        return None;
    }
    let text = |(n, reason): &(usize, &str)| format!("{} {reason}", digits::count(*n as u64));
    let texts = reasons.iter().filter(|it| it.0 > 0).map(text);
    let message = format!(
        "{} of {} {} left out of all times: {}.",
        digits::count(left_out as u64),
        quantity(states.compared + states.unrecorded.len() as u64, "step"),
        if left_out == 1 { "is" } else { "are" },
        texts.collect::<Vec<_>>().join(", ")
    );
    let mut found = Finding::new(catalogue::STEPS_LEFT_OUT, message);
    if let Some(pct) = cut_share {
        found = found.with("GPU time of cut steps, percent", format!("{pct:.1}"));
    }
    let found = match (reasons[0].0, left_out - reasons[1].0 - reasons[5].0) {
        (0, 0) if reasons[5].0 > 0 => found.advise(RECORD_WHOLE),
        // Another finding names kernels without a valid time.
        (0, 0) => found.without_advice(),
        (0, _) => found,
        _ => found.advise(coverage::lost_in_steps(capture.trace.tool)),
    };
    let first = states.states.iter().filter(|it| it.1.lacks_work()).map(|it| it.0.1.0);
    let first = first.chain(states.unrecorded.iter().map(|it| it.1.0));
    let first = first.chain(states.at_edges.iter().map(|it| it.1.0)).min();
    Some(match first {
        Some(start_ns) => found.with("start of the first such step, ns", start_ns),
        None => found,
    })
}

#[cfg(test)]
mod tests;
