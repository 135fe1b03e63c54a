//! Events derived from the ranges of a capture without a pass of the model runner.
//!
//! Each stage instance becomes a repeat, so that instances are timed separately and summed; a
//! prefill and its decode are one repeat (`passes`). Times last until the work of a range has
//! ended ([`super::timeline::stage_spans`]). All are of the traced pass, since there is no other.

mod early_ends;
mod passes;
mod steps;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use foldhash::HashMap;
use llmprof_core::{
    domain::finding::Finding,
    trace::{
        event::{DECODE_STEP, Event, OperatorCall, StageRange},
        range::{Range, RangeLabel},
        stage::StageRules,
        timeline::Timeline,
        unclosed::Unclosed,
    },
};

use self::steps::{CaptureStep, OutermostRanges};
use super::{
    events::{CallList, EventSource, Events, RangeCalls},
    kernels::{OUTSIDE, is_measured},
    model_work::step_loads::{StepLoads, step_loads},
    stages::{DECODE, PREFILL, VISION_PARTS},
};
use crate::timeline::{
    capture::Capture,
    device_time::is_operator,
    interval::Interval,
    open_ranges::{EXCLUDED, Extent, NONE, StepInside, place},
    stage_spans::stage_spans,
    steps::{Step, StepSource},
};

/// Events of a capture.
#[derive(Debug, Default)]
pub struct CaptureEvents {
    /// Ranges only.
    pub events: Vec<Event>,
    /// Thread or process of each.
    places: Vec<i64>,
    pub calls: RangeCalls,
    /// Tokens that the decode steps of a repeat generated, if they are known.
    tokens: BTreeMap<u32, u64>,
    /// Decode steps of a repeat whose times are unknown, or that are not whole.
    untimed_steps: BTreeMap<u32, u64>,
    /// Repeats whose decode is cut by the recording.
    cut: BTreeSet<u32>,
    /// Nanoseconds of an event that do not count, by its times.
    excluded: BTreeMap<Interval, i64>,
    /// Counts of the steps that an engine scheduled, by stage.
    loads: StepLoads,
    /// True if a decode step may have made several tokens of one sequence.
    is_speculative: bool,
    /// Stages besides prefill and decode.
    other_stages: Vec<String>,
    pub findings: Vec<Finding>,
}

impl CaptureEvents {
    /// The stages, their parts and the operators of a capture. `batch` is the number of sequences
    /// of a pass, if it is stated.
    pub fn of(capture: &Capture, batch: Option<u64>) -> Self {
        let spans = stage_spans(capture);
        let repeats = passes::repeats(capture);
        let findings = early_ends::findings(capture, &repeats, &spans);
        let is_speculative = capture.stages.steps.iter().any(Step::is_speculative);
        let loads = step_loads(capture, |at| repeats[at].is_some());
        let mut derived = Self { findings, is_speculative, loads, ..Self::default() };
        for (at, repeat) in repeats.iter().enumerate() {
            if let Some(repeat) = *repeat {
                let is_cut = capture.stages.instances[at].extent == Extent::Cut;
                derived.cut.extend(is_cut.then_some(repeat));
                let key = capture.stages.instances[at].key();
                derived.excluded.extend(excluded(capture, key, spans[at]));
                derived.places.push(key.0);
                derived.events.push(range(capture.stages.label(at), spans[at], repeat, None));
            }
        }
        let other = |it: &&String| ![PREFILL, DECODE].contains(&it.as_str()) && is_measured(it);
        derived.other_stages = capture.stages.labels.iter().filter(other).cloned().collect();
        let steps = derived.add_ranges(capture, &repeats, batch);
        derived.add_steps(capture, steps, (&spans, &repeats));
        derived
    }

    /// The events by kind; `trace` is the capture's.
    pub fn by_kind<'a>(&'a self, trace: &'a Timeline) -> Events<'a> {
        let one_token_a_step = !self.is_speculative;
        let (tokens, untimed_steps) = (&self.tokens, &self.untimed_steps);
        let (cut, excluded, loads) = (&self.cut, &self.excluded, &self.loads);
        let source =
            EventSource::Capture { tokens, untimed_steps, one_token_a_step, cut, excluded, loads };
        let other_stages = self.other_stages.iter().map(String::as_str).collect();
        let calls = CallList::Ranges(&trace.ranges, &self.calls);
        let places = &self.places;
        Events { source, other_stages, calls, places, ..Events::of(&self.events) }
    }

    /// Adds parts of stages and operators; returns the decode steps, and the steps that are left
    /// out of decodes.
    fn add_ranges(
        &mut self,
        capture: &Capture,
        repeats: &[Option<u32>],
        batch: Option<u64>,
    ) -> Vec<CaptureStep> {
        let mut steps = Vec::new();
        let mut outermost = OutermostRanges::default();
        let mut kinds = CallKinds::of(capture.trace);
        let mut open = capture.stages.cursor();
        let ends =
            |it: &Unclosed| Some((it.range.global_tid, it.range.start_ns, it.outcome.end_ns()?));
        let unclosed: HashSet<(i64, i64, i64)> =
            capture.trace.unclosed.iter().filter_map(ends).collect();
        self.calls.of_range = vec![(NONE, 0); capture.trace.ranges.len()];
        for (it, call) in capture.trace.ranges.iter().zip(&mut self.calls.of_range) {
            let Some(end_ns) = it.end_ns.filter(|end| *end >= it.start_ns) else { continue };
            let times = (it.start_ns, end_ns);
            let at = open.at(it.global_tid, it.start_ns);
            if at == EXCLUDED {
                *call = (kinds.number(it, OUTSIDE), 0);
                continue;
            }
            let at = at as usize;
            let stage = if at < repeats.len() { capture.stages.label(at) } else { "" };
            let has_estimated_end =
                !unclosed.is_empty() && unclosed.contains(&(it.global_tid, it.start_ns, end_ns));
            if !is_measured(stage) || has_estimated_end {
                continue;
            }
            let repeat = repeats.get(at).copied().flatten();
            match (part(&capture.trace.rules, it, stage), repeat) {
                (Some(part), Some(repeat)) if outermost.adds(part, it, end_ns) => match part {
                    DECODE_STEP => steps.push(CaptureStep {
                        instance: at,
                        place: place(it),
                        times,
                        tokens: Some(batch.unwrap_or(1)),
                    }),
                    part => {
                        self.excluded.extend(excluded(capture, (place(it), times), times));
                        self.places.push(place(it));
                        self.events.push(range(part, times, repeat, None));
                    }
                },
                _ => {}
            }
            *call = (kinds.number(it, stage), repeat.unwrap_or(0));
        }
        self.calls.kinds = kinds.calls;
        steps.extend(decode_steps(capture, batch));
        steps.retain(|it| repeats[it.instance].is_some());
        steps.extend(taken_out(capture));
        steps.sort_by_key(|it| it.times.0);
        steps
    }

    /// Adds the decode steps, numbered within their stage instances, and their tokens. A step
    /// that is not whole, or whose time is unknown, is counted and has no time.
    fn add_steps(
        &mut self,
        capture: &Capture,
        steps: Vec<CaptureStep>,
        (spans, repeats): (&[Interval], &[Option<u32>]),
    ) {
        let times = steps::spans(capture, &steps, spans);
        let mut numbers = vec![0u32; repeats.len()];
        let mut tokens: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for (at, step) in steps.iter().enumerate() {
            let Some(repeat) = repeats[step.instance] else { continue };
            let state = capture.stages.states.of(step.place, step.times);
            let number = numbers[step.instance];
            numbers[step.instance] += 1;
            if let Some(times) = times.as_ref().filter(|_| state.counts()) {
                self.excluded.extend(excluded(capture, (step.place, step.times), times[at]));
                self.places.push(step.place);
                self.events.push(range(DECODE_STEP, times[at], repeat, Some(number)));
            } else {
                *self.untimed_steps.entry(repeat).or_default() += 1;
            }
            let made = tokens.entry(repeat).or_insert(Some(0));
            *made = made.zip(step.tokens).map(|(made, more)| made.saturating_add(more));
        }
        self.tokens.extend(tokens.into_iter().filter_map(|(repeat, made)| Some((repeat, made?))));
    }
}

/// The times of an event, and the nanoseconds of its range that do not count, if any.
fn excluded(
    capture: &Capture,
    (place, range): (i64, Interval),
    times: Interval,
) -> Option<(Interval, i64)> {
    let stages = &capture.stages;
    let counts_whole = !capture.trace.rules.narrowed() && stages.states.taken_out().is_empty();
    let uncounted = (!counts_whole).then(|| stages.uncounted_in(place, range));
    let ns = uncounted.map(|it| it.overlap_ns(times.0, times.1));
    ns.filter(|ns| *ns > 0).map(|ns| (times, ns))
}

/// The decode steps of an engine. `batch`: sequences of an inferred step that proves no other; the
/// steps that an engine schedules have batches of their own.
fn decode_steps(capture: &Capture, batch: Option<u64>) -> Vec<CaptureStep> {
    let step = |it: &Step| {
        let instance = capture.stages.at(it.place, it.start_ns)? as usize;
        let batch = batch.filter(|_| it.source == StepSource::Inferred && !it.is_scheduled);
        let is_of_stage = capture.stages.label(instance) == DECODE;
        is_of_stage.then_some(CaptureStep {
            instance,
            place: it.place,
            times: (it.start_ns, it.end_ns),
            tokens: it.generated().or(batch),
        })
    };
    capture.stages.steps.iter().filter(|it| it.is_decode()).filter_map(step).collect()
}

/// The steps that are taken out of decodes: the work of others queues behind theirs.
fn taken_out(capture: &Capture) -> Vec<CaptureStep> {
    let all = &capture.stages;
    let step = |it: &StepInside| {
        let instance = all.at(it.place, it.range.0)? as usize;
        Some(CaptureStep { instance, place: it.place, times: it.range, tokens: None })
    };
    all.states.taken_out().iter().filter_map(step).collect()
}

/// The part of a stage that a range is.
fn part<'a>(rules: &StageRules, it: &'a Range, stage: &str) -> Option<&'a str> {
    let name = it.name.as_str();
    match stage {
        DECODE if rules.is_step_in_decode(name, &it.domain) => Some(DECODE_STEP),
        PREFILL if VISION_PARTS.contains(&name) => Some(name),
        _ => None,
    }
}

/// Kinds of calls: by domain and name of the ranges, and stage.
struct CallKinds<'a, F> {
    is_operator: F,
    numbers: HashMap<(*const RangeLabel, &'a str), u32>,
    calls: Vec<OperatorCall>,
}

impl<'a> CallKinds<'a, ()> {
    fn of(trace: &'a Timeline) -> CallKinds<'a, impl FnMut(&'a Range) -> bool> {
        CallKinds {
            is_operator: is_operator(trace),
            numbers: HashMap::default(),
            calls: Vec::new(),
        }
    }
}

impl<'a, F: FnMut(&'a Range) -> bool> CallKinds<'a, F> {
    /// The number of the kind of a range in a stage; [`NONE`] for other ranges.
    /// Outside the included ranges, operators are one.
    fn number(&mut self, range: &'a Range, stage: &'a str) -> u32 {
        if !(self.is_operator)(range) {
            return NONE;
        }
        let label: &RangeLabel = range.label();
        *self.numbers.entry((label, stage)).or_insert_with(|| {
            let path = if stage == OUTSIDE { OUTSIDE } else { &range.name };
            self.calls.push(operator_call(path, stage));
            self.calls.len() as u32 - 1
        })
    }
}

/// A call of the operator `path`, without its times.
fn operator_call(path: &str, stage: &str) -> OperatorCall {
    OperatorCall {
        path: path.into(),
        op: "range".into(),
        start_ns: 0,
        end_ns: 0,
        thread: 0,
        captured: false,
        warmup: false,
        repeat: 0,
        stage: stage.into(),
        shapes: vec![],
        dtype: String::new(),
        flops: 0,
        bytes: 0,
    }
}

fn range(name: &str, (start_ns, end_ns): Interval, repeat: u32, step: Option<u32>) -> Event {
    Event::Range(StageRange {
        name: name.into(),
        start_ns,
        end_ns,
        device_ns: None,
        warmup: false,
        repeat,
        step,
    })
}

#[cfg(test)]
mod tests;
