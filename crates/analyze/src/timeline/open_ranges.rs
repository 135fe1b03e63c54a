//! Ranges open on a thread at a given time: stages by their rules, and nested ranges by domain.
//!
//! A push/pop range is open on its thread, a start/end range on all threads of its process. Lookups
//! use sorted segments, so that millions of queries in order of time are cheap.

mod excluded;
mod extents;
mod groups;
mod inside;
mod loose_steps;
mod nests;
mod unclosed;

use std::collections::BTreeMap;

use self::loose_steps::loose_steps;
pub(super) use self::loose_steps::step_ranges;
pub use self::{
    groups::{OpenSets, TooDeep},
    inside::StepInside,
    nests::{NestHint, OpenNest, RangeNest, nest, nest_ranges},
    unclosed::{STAGES_WITHOUT_END, unclosed},
};
use llmprof_core::trace::{
    range::Range,
    timeline::{Timeline, process_of},
};

use super::{
    interval::{Interval, IntervalSet},
    recorded::ProcessRecords,
    step_states::StepStates,
    steps::{Step, StepSource, steps},
};
use crate::stages::DECODE;

/// No range is open.
pub const NONE: u32 = u32::MAX;
/// Outside the included ranges.
pub const EXCLUDED: u32 = NONE - 1;

/// A piecewise constant value over time.
#[derive(Debug, Clone, Default)]
pub struct Segments {
    from: Vec<i64>,
    value: Vec<u32>,
}

impl Segments {
    fn push(&mut self, from: i64, value: u32) {
        if self.from.last() == Some(&from) {
            self.from.pop();
            self.value.pop();
        }
        if self.value.last().copied().unwrap_or(NONE) != value {
            self.from.push(from);
            self.value.push(value);
        }
    }

    /// The value at `t`; `hint` is the position of the previous lookup.
    #[inline]
    pub fn at(&self, t: i64, hint: &mut usize) -> u32 {
        let contains = |at: usize| {
            at > 0 && self.from[at - 1] <= t && self.from.get(at).is_none_or(|next| t < *next)
        };
        if *hint > self.from.len() || !contains(*hint) {
            *hint = if *hint < self.from.len() && contains(*hint + 1) {
                *hint + 1
            } else {
                self.from.partition_point(|from| *from <= t)
            };
        }
        if *hint == 0 { NONE } else { self.value[*hint - 1] }
    }
}

/// The end of a range; a range without an end is empty.
fn end(range: &Range) -> i64 {
    range.end_ns.unwrap_or(range.start_ns)
}

/// The thread or process on which a range is open.
pub fn place(range: &Range) -> i64 {
    if range.push_pop { range.global_tid } else { process_of(range.global_tid) }
}

/// One instance of a stage on a thread or process: a range that lies in no other of its stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageInstance {
    /// Index into [`OpenStages::labels`].
    pub label: usize,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Thread or process on which it is open.
    pub place: i64,
    pub extent: Extent,
}

impl StageInstance {
    /// Its place and range.
    pub const fn key(&self) -> (i64, Interval) {
        (self.place, (self.start_ns, self.end_ns))
    }
}

/// The part of a stage instance that a capture has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// Its end or its start is a bound: the capture records none, or ends or starts inside it.
    EstimatedEnd,
    /// Steps of a decode whose start or end the recording lacks, or with a step that is left out.
    Cut,
}

/// Stage instances by thread. If several stages are open at once, the first label wins; warm-up is
/// label 0.
#[derive(Debug, Clone, Default)]
pub struct OpenStages {
    pub labels: Vec<String>,
    pub instances: Vec<StageInstance>,
    /// In the order of their starts.
    pub steps: Vec<Step>,
    /// Steps that are not whole, after [`super::step_states::mark`].
    pub states: StepStates,
    /// First and last calls and work of each process.
    pub records: ProcessRecords,
    threads: BTreeMap<i64, Segments>,
    /// With a range filter, by process: what counts on one of its threads that make calls.
    processes: BTreeMap<i64, Segments>,
    /// Number of instances that lie inside another stage, which wins: by both labels.
    pub hidden: BTreeMap<(usize, usize), u64>,
}

/// Intervals by thread or process.
type PlaceIntervals = BTreeMap<i64, Vec<Interval>>;

impl OpenStages {
    /// True if a whole instance of a stage was recorded, or if the capture knows no such stage.
    pub fn may_have_whole(&self, stage: &str) -> bool {
        let label = self.labels.iter().position(|it| it == stage);
        let is_whole = |it: &StageInstance| it.extent == Extent::Whole;
        label.is_none_or(|label| self.instances.iter().any(|it| it.label == label && is_whole(it)))
    }

    /// Finds the stages of a capture; `warmup` is the label of the warm-up.
    pub fn of(trace: &Timeline, warmup: &str) -> Self {
        let rules = &trace.rules;
        let records = ProcessRecords::of(trace);
        let mut stages = Self { labels: vec![warmup.to_owned()], records, ..Self::default() };
        stages.labels.extend(rules.names().into_iter().map(str::to_owned));
        let mut open: BTreeMap<(i64, usize), Vec<Interval>> = BTreeMap::new();
        let mut included = PlaceIntervals::new();
        let mut excluded = PlaceIntervals::new();
        for range in &trace.ranges {
            let at = (range.start_ns, end(range));
            let is_included = rules.includes(&range.name);
            if is_included {
                included.entry(place(range)).or_default().push(at);
            }
            if rules.excludes(&range.name) {
                excluded.entry(place(range)).or_default().push(at);
            }
            let stage = if range.name == warmup && !is_included {
                Some(warmup)
            } else {
                rules.ruled_stage(&range.name, &range.domain)
            };
            let label =
                stage.and_then(|stage| stages.labels.iter().position(|label| label == stage));
            if let Some(label) = label {
                open.entry((place(range), label)).or_default().push(at);
            }
        }
        let decode = stages.label_of(DECODE);
        let loose = loose_steps(trace, &open, decode);
        for (place, runs) in &loose {
            open.entry((*place, decode)).or_default().extend(runs);
        }
        let steps = steps(trace);
        for it in steps.iter().filter(|it| it.source == StepSource::Named) {
            if let Some(stage) = it.stage() {
                let label = stages.label_of(stage);
                open.entry((it.place, label)).or_default().push((it.start_ns, it.end_ns));
            }
        }
        stages.steps = steps;
        for (stage, thread, start_ns, end_ns) in trace.inferred.stages() {
            open.entry((thread, stages.label_of(stage))).or_default().push((start_ns, end_ns));
        }
        for ((place, label), intervals) in open {
            let instance = |(start_ns, end_ns)| StageInstance {
                label,
                start_ns,
                end_ns,
                place,
                extent: Extent::Whole,
            };
            stages.instances.extend(outermost(intervals).into_iter().map(instance));
        }
        stages.instances.sort_by_key(|it| (it.start_ns, it.label));
        stages.mark_extents(trace, &loose, decode);
        stages.trim_decodes(trace, decode);
        for thread in threads(trace) {
            let (inside, outside) = (on_thread(&included, thread), on_thread(&excluded, thread));
            let counts = |t: i64| {
                (rules.include_ranges.is_empty() || inside.contains(t)) && !outside.contains(t)
            };
            let segments = stages.segments(thread, counts, [&inside, &outside]);
            stages.threads.insert(thread, segments);
        }
        if rules.narrowed() {
            stages.merge_threads(&trace.cuda_calls.threads());
        }
        stages.empty_uncounted();
        stages
    }

    /// Instances of one stage, in the order of their starts. On the threads of its process, the
    /// first of each is open all the time that a range filter of `all` does not leave out.
    pub fn of_one(label: &str, trace: &Timeline, times: Vec<(i64, Interval)>, all: &Self) -> Self {
        let of = |(place, (start_ns, end_ns))| StageInstance {
            label: 0,
            start_ns,
            end_ns,
            place,
            extent: Extent::Whole,
        };
        let instances: Vec<StageInstance> = times.into_iter().map(of).collect();
        let mut first: BTreeMap<i64, u32> = BTreeMap::new();
        for (at, it) in instances.iter().enumerate() {
            first.entry(process_of(it.place)).or_insert(at as u32);
        }
        let open = |thread| {
            let process = process_of(thread);
            Some((thread, all.unless_excluded(process, *first.get(&process)?)))
        };
        let threads = threads(trace).into_iter().filter_map(open).collect();
        Self { labels: vec![label.to_owned()], instances, threads, ..Self::default() }
    }

    /// The index of a label, which is added if it is new.
    pub(super) fn label_of(&mut self, stage: &str) -> usize {
        self.labels.iter().position(|label| label == stage).unwrap_or_else(|| {
            self.labels.push(stage.to_owned());
            self.labels.len() - 1
        })
    }

    /// The instances visible to one thread.
    fn segments(
        &self,
        thread: i64,
        counts: impl Fn(i64) -> bool,
        filters: [&IntervalSet; 2],
    ) -> Segments {
        let is_visible = |it: &StageInstance| it.place == thread || it.place == process_of(thread);
        let visible: Vec<u32> = (0..self.instances.len() as u32)
            .filter(|at| is_visible(&self.instances[*at as usize]))
            .collect();
        let instance = |at: u32| &self.instances[at as usize];
        let mut points: Vec<i64> =
            visible.iter().flat_map(|at| [instance(*at).start_ns, instance(*at).end_ns]).collect();
        let bounds = filters.iter().flat_map(|set| set.intervals());
        points.extend(bounds.flat_map(|(start, end)| [*start, *end]));
        points.push(i64::MIN);
        points.sort_unstable();
        points.dedup();
        let (mut segments, mut next, mut open): (Segments, usize, Vec<u32>) = Default::default();
        for t in points {
            open.retain(|at| t < instance(*at).end_ns);
            while next < visible.len() && instance(visible[next]).start_ns <= t {
                open.push(visible[next]);
                next += 1;
            }
            let first = open.iter().copied().min_by_key(|at| instance(*at).label);
            segments.push(t, if counts(t) { first.unwrap_or(NONE) } else { EXCLUDED });
        }
        segments
    }

    /// Makes instances empty that no thread sees, because of a warm-up or a range filter.
    fn empty_uncounted(&mut self) {
        let mut counted = vec![false; self.instances.len()];
        for segments in self.threads.values() {
            segments
                .value
                .iter()
                .filter(|value| **value < EXCLUDED)
                .for_each(|value| counted[*value as usize] = true);
        }
        for at in (0..self.instances.len()).filter(|at| !counted[*at]) {
            let it = self.instances[at];
            self.instances[at].end_ns = it.start_ns;
            if let Some(first) = self.first_at(&it).filter(|first| (1..it.label).contains(first)) {
                *self.hidden.entry((it.label, first)).or_default() += 1;
            }
        }
    }

    /// The label that counts at the start of an instance, on a thread on which it is open.
    fn first_at(&self, it: &StageInstance) -> Option<usize> {
        Some(self.instances.get(self.at(it.place, it.start_ns)? as usize)?.label)
    }

    /// The instance that counts at `t` on a thread, or on a thread of a process.
    pub fn at(&self, place: i64, t: i64) -> Option<u32> {
        let instance = self.segments_of(place)?.at(t, &mut 0);
        (instance < EXCLUDED).then_some(instance)
    }

    /// The label of an instance.
    pub fn label(&self, instance: usize) -> &str {
        &self.labels[self.instances[instance].label]
    }

    /// Instances open on `thread` over time, as indices.
    #[inline]
    pub fn on(&self, thread: i64) -> Option<&Segments> {
        self.threads.get(&thread)
    }
}

/// Drops empty intervals and those inside another one. A stage nested in itself is one instance;
/// ranges that touch, or overlap as concurrent requests do, are several.
fn outermost(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.sort_unstable_by_key(|(start, end)| (*start, std::cmp::Reverse(*end)));
    let mut until = i64::MIN;
    intervals.retain(|(start, end)| {
        let is_outer = start < end && *end > until;
        until = until.max(*end);
        is_outer
    });
    intervals
}

/// The intervals of a thread and of its process.
fn on_thread(intervals: &PlaceIntervals, thread: i64) -> IntervalSet {
    let places = [thread, process_of(thread)];
    IntervalSet::new(places.iter().filter_map(|it| intervals.get(it)).flatten().copied())
}

/// All threads that may launch work.
fn threads(trace: &Timeline) -> Vec<i64> {
    let mut threads = trace.cuda_calls.threads();
    threads.extend(trace.graph_nodes.iter().map(|node| node.global_tid));
    threads.extend(trace.ranges.iter().map(|range| range.global_tid));
    threads.into_iter().collect()
}

#[cfg(test)]
mod tests;
