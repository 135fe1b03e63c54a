//! Steps whose work is compared with the calls that launched it.

mod edges;
mod named_spans;
mod orphans;

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::{
    engine_steps::StepClass,
    range::Range,
    stage::WARMUP,
    timeline::{Timeline, process_of},
};

use self::orphans::Orphans;
use super::StepState;
use crate::{
    kernels::is_measured,
    stages::{
        DECODE,
        coverage::{COMPLETE_PCT, each_launching_call},
    },
    stats::percent,
    timeline::{
        capture::Capture,
        engine_steps::{DeviceWork, device_work},
        interval::Interval,
        open_ranges::{Extent, OpenStages, place, step_ranges},
        stage_spans::{self, HostRange},
        steps_at::StepsAt,
    },
};

/// Steps of one kind: a step that lacks work is left out if another one is whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepGroup {
    /// Instances of the stage with this label.
    Stage(usize),
    /// Steps inside stage instances, or outside all.
    Class(Option<StepClass>, Option<String>),
    /// Ranges of single decode steps.
    DecodeSteps,
}

/// A step, or a stage instance without steps inside.
#[derive(Debug, Clone, PartialEq)]
pub struct ComparedStep {
    pub place: i64,
    pub range: Interval,
    /// From its start, or the end of the work before it, to the end of its work.
    pub span: Interval,
    pub group: StepGroup,
    /// The stage instance that it is.
    pub instance: Option<usize>,
    pub state: StepState,
    need: WorkNeed,
}

impl ComparedStep {
    fn is_whole(&self) -> bool {
        self.state == StepState::Whole
    }
}

/// The steps that must have launched work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkNeed {
    Always,
    /// If most steps of its group did.
    LikeMost,
    Never,
}

/// Kernels that the calls of a step launched.
#[derive(Debug, Clone, Copy, Default)]
struct StepLaunches {
    kernels: u64,
    recorded: u64,
    /// Kernels in the capture without a valid time; not part of `recorded`.
    untimed: u64,
    /// Kernels of the last launch: recorded ones, and ones without a valid time. If both are zero,
    /// the end of the step is unknown.
    last: (u64, u64),
    /// Kernels and copies that it launched; a graph traced as a whole counts once.
    work: u64,
}

impl StepLaunches {
    /// The state of a step, if too many of its kernels, or the last ones, are missing or untimed.
    fn state(self) -> Option<StepState> {
        let is_less = |count: u64| {
            percent(count as f64, self.kernels as f64).is_some_and(|pct| pct < COMPLETE_PCT)
        };
        let lacks_last = |count: u64| self.kernels > 0 && count == 0;
        if is_less(self.recorded + self.untimed) || lacks_last(self.last.0 + self.last.1) {
            Some(StepState::KernelsMissing)
        } else if is_less(self.recorded) || lacks_last(self.last.0) {
            Some(StepState::KernelsUntimed)
        } else {
            None
        }
    }
}

/// The steps, and the stage instances without steps inside, each with its state by its work. A
/// capture without calls shows no losses.
pub fn compared(capture: &Capture) -> Vec<ComparedStep> {
    let mut steps = steps_to_compare(&capture.stages, capture.trace);
    if capture.trace.cuda_calls.is_empty() || steps.is_empty() {
        return vec![];
    }
    let ranges: Vec<(i64, Interval)> = steps.iter().map(|it| (it.place, it.range)).collect();
    let work = device_work(capture, &ranges);
    let launches = launches(capture, &ranges);
    let hosts = ranges.iter().zip(&work).map(|((place, range), work)| HostRange {
        place: *place,
        start_ns: range.0,
        end_ns: range.1,
        work: work.window,
    });
    let spans = stage_spans::spans(hosts);
    let orphans = Orphans::of(capture, &spans);
    let mut worked: BTreeMap<StepGroup, (usize, usize)> = BTreeMap::new();
    for (step, work) in steps.iter().zip(&work) {
        let (with, all) = worked.entry(step.group.clone()).or_default();
        *with += usize::from(work.has_any());
        *all += 1;
    }
    let lacks_work = |it: &ComparedStep, work: &DeviceWork| {
        let (with, all) = worked[&it.group];
        !work.has_any()
            && match it.need {
                WorkNeed::Always => true,
                WorkNeed::LikeMost => 2 * with > all,
                WorkNeed::Never => false,
            }
    };
    let mut unlaunched: Option<Orphans> = None;
    for (at, it) in steps.iter_mut().enumerate() {
        it.span = spans[at];
        it.state = match launches[at].state() {
            Some(state) => state,
            None if orphans.are_in(process_of(it.place), spans[at]) => StepState::CallsMissing,
            None if lacks_work(&*it, &work[at]) => {
                let all = unlaunched.get_or_insert_with(|| Orphans::with_earlier(capture, &spans));
                match all.are_in(process_of(it.place), spans[at]) {
                    true => StepState::CallsMissing,
                    false => StepState::WithoutWork,
                }
            }
            None => StepState::Whole,
        };
    }
    let launched: Vec<u64> = launches.iter().map(|it| it.work).collect();
    let cut = edges::cut(capture, &steps, &launched);
    for (it, _) in steps.iter_mut().zip(cut).filter(|(it, is_cut)| *is_cut && it.is_whole()) {
        it.state = StepState::Cut;
    }
    // A copy alone is not the work that a step lacks.
    let window = |it: &DeviceWork| it.window.filter(|_| it.has_any());
    let windows: Vec<Option<Interval>> = work.iter().map(window).collect();
    set_queued_spans(&mut steps, &windows);
    steps
}

/// The spans of steps that lack work, if the host runs ahead of the GPU: such a step has the time
/// from the end of the work before it to the start of the work that queued behind it.
fn set_queued_spans(steps: &mut [ComparedStep], work: &[Option<Interval>]) {
    let mut worked_until: BTreeMap<i64, i64> = BTreeMap::new();
    for (it, work) in steps.iter_mut().zip(work) {
        let until = worked_until.entry(it.place).or_insert(i64::MIN);
        if work.is_none() && it.state != StepState::Whole {
            let from = it.span.0.max(*until);
            it.span = (from, it.span.1.max(from));
        }
        *until = work.map_or(*until, |(_, last)| last.max(*until));
    }
    let mut next: BTreeMap<i64, (i64, i64)> = BTreeMap::new();
    for (it, work) in steps.iter_mut().zip(work).rev() {
        let queued = next.get(&it.place).filter(|(start_ns, _)| *start_ns < it.span.1);
        if let Some((_, first)) = queued.filter(|_| it.state != StepState::Whole) {
            it.span.1 = it.span.1.max(*first);
        }
        if let Some((first, _)) = work {
            next.insert(it.place, (it.range.0, *first));
        }
    }
}

/// All of them as whole ones, in the order of their starts. Steps of a warm-up, steps that a range
/// filter leaves out and steps without a recorded end are not compared.
fn steps_to_compare(stages: &OpenStages, trace: &Timeline) -> Vec<ComparedStep> {
    let instances = stages.instances.iter().enumerate();
    let known: BTreeMap<(i64, Interval), usize> =
        instances.clone().map(|(at, it)| (it.key(), at)).collect();
    let mut found: BTreeMap<(i64, Interval), ComparedStep> = BTreeMap::new();
    let step = |(place, range): (i64, Interval), group: StepGroup, need: WorkNeed| ComparedStep {
        place,
        range,
        span: range,
        group,
        instance: None,
        state: StepState::Whole,
        need,
    };
    let is_measured_at = |place: i64, start_ns: i64| {
        let at = stages.at(place, start_ns);
        !stages.is_excluded(place, start_ns)
            && at.is_none_or(|at| stages.label(at as usize) != WARMUP)
    };
    let steps = stages.steps.iter().filter(|it| is_measured_at(it.place, it.start_ns));
    for it in steps {
        let key = (it.place, (it.start_ns, it.end_ns));
        let instance = known.get(&key).copied();
        if instance.is_some_and(|at| stages.instances[at].extent == Extent::EstimatedEnd) {
            continue;
        }
        let group = instance.map_or_else(
            || StepGroup::Class(it.class, it.mode.clone()),
            |at| StepGroup::Stage(stages.instances[at].label),
        );
        let need = match it.class {
            Some(StepClass::Idle) => WorkNeed::Never,
            _ => WorkNeed::Always,
        };
        found.insert(key, ComparedStep { instance, ..step(key, group, need) });
    }
    for key in decode_steps(stages, trace).filter(|it| is_measured_at(it.0, it.1.0)) {
        // A range inside a step of an engine is a part of that step.
        let outer = stages.at(key.0, key.1.0).map(|at| stages.instances[at as usize].key());
        if outer.is_some_and(|it| it != key && found.contains_key(&it)) {
            continue;
        }
        let decode_step = || step(key, StepGroup::DecodeSteps, WorkNeed::LikeMost);
        found.entry(key).or_insert_with(decode_step);
    }
    let starts: BTreeSet<(i64, i64)> = found.keys().map(|it| (it.0, it.1.0)).collect();
    for (at, it) in instances {
        let inside = (it.place, it.start_ns)..(it.place, it.end_ns.max(it.start_ns));
        let is_one = it.extent == Extent::Whole
            && it.start_ns < it.end_ns
            && is_measured(stages.label(at))
            && starts.range(inside).next().is_none();
        if is_one {
            let group = StepGroup::Stage(it.label);
            let of_instance = step(it.key(), group, WorkNeed::Never);
            found.insert(it.key(), ComparedStep { instance: Some(at), ..of_instance });
        }
    }
    let mut found: Vec<ComparedStep> = found.into_values().collect();
    found.sort_by_key(|it| (it.range, it.place));
    found
}

/// The ranges of single decode steps: of steps inside a decode, whatever the decode is named, and
/// of steps without a decode around them.
fn decode_steps(stages: &OpenStages, trace: &Timeline) -> impl Iterator<Item = (i64, Interval)> {
    let is_in_decode = |it: &Range| {
        let at = stages.at(place(it), it.start_ns);
        at.is_some_and(|at| stages.label(at as usize) == DECODE)
    };
    let is_step = |it: &Range| {
        let (rules, name, domain) = (&trace.rules, &it.name, &it.domain);
        rules.is_decode_step(name, domain)
            || rules.is_step_in_decode(name, domain) && is_in_decode(it)
    };
    let of_place =
        |(place, all): (i64, Vec<Interval>)| all.into_iter().map(move |range| (place, range));
    step_ranges(trace, is_step).into_iter().flat_map(of_place)
}

/// The launches of each step.
fn launches(capture: &Capture, steps: &[(i64, Interval)]) -> Vec<StepLaunches> {
    let steps_at = StepsAt::of(steps);
    let mut open = steps_at.lookup();
    let mut found = vec![StepLaunches::default(); steps.len()];
    each_launching_call(capture, |it| {
        let Some(launch) = it.launch else { return };
        let Some(at) = open.at(it.call.global_tid, it.call.start_ns) else { return };
        found[at].work += launch.kernels.max(1);
        if launch.kernels == 0 {
            return;
        }
        found[at].kernels += launch.kernels;
        found[at].recorded += launch.recorded;
        found[at].untimed += launch.untimed;
        found[at].last = (launch.recorded, launch.untimed);
    });
    found
}
