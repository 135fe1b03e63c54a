//! Steps of a program without ranges: forwards of a model, found by the order of its launches.
//!
//! Nothing is guessed: a step has evidence of its start, its end and its class, or no class and a
//! reason. `conf/steps.toml` names the kernels that are evidence. Engines that batch continuously
//! show more by their copies ([`batching`]); forwards of other programs show their class by their
//! kernels ([`classes`]), or by a second model that drafts ([`speculation`]); programs of XLA by
//! their ranges ([`xla`]), and engines that open ranges around parts of a step by these
//! ([`scopes`]).

mod batching;
mod classes;
mod items;
mod region;
mod roles;
mod scopes;
mod segments;
mod speculation;
#[cfg(test)]
mod tests;
mod xla;

use std::{collections::BTreeMap, sync::Arc};

use llmprof_core::{
    domain::units::quantity,
    trace::{
        engine_steps::{Phase, StepClass},
        inferred_steps::{InferredStep, InferredSteps},
        timeline::{CallReader, Timeline},
    },
};

use self::{
    batching::BatchSteps,
    classes::{Classed, classes},
    items::LaunchSequences,
    roles::{KernelRole, Rows, role},
    segments::{EndEvidence, Segment, SegmentWalk, StartEvidence},
    speculation::{MORE_ROWS, OTHER_ROWS, Round},
};
use super::capture::Capture;

/// Reason for no steps of a thread that launches on several devices.
const SEVERAL_DEVICES: &str = "one thread launches on several devices";

/// The steps of a capture that has no stages and whose CUDA calls were traced; empty for others.
pub fn infer(trace: &Timeline) -> InferredSteps {
    let mut inferred = InferredSteps::default();
    if trace.cuda_calls.is_empty()
        || trace.ranges.iter().any(|it| trace.rules.marks_stage(&it.name, &it.domain))
    {
        return inferred;
    }
    let name = |at: u32| trace.text(at);
    let kinds = trace.kernels.kinds();
    let roles: Vec<KernelRole> = kinds.iter().map(|it| role(name(it.full_name), it)).collect();
    let capture = Capture::of(trace);
    if xla::infer(&capture, &roles, &mut inferred) {
        inferred.steps.sort_by_key(|it| (it.start_ns, it.global_tid));
        return inferred;
    }
    let sequences = LaunchSequences::of(&capture, &roles);
    let is_continuous = roles.iter().any(|it| it.is_continuous);
    let mut devices: BTreeMap<i64, u32> = BTreeMap::new();
    sequences.threads.keys().for_each(|(thread, _)| *devices.entry(*thread).or_default() += 1);
    let batched = BatchSteps::of(&sequences, trace, &roles);
    let mut run = batched.write(0, &mut inferred);
    for place in sequences.threads.keys().filter(|it| !batched.has_steps(it.0)) {
        if devices[&place.0] > 1 {
            *inferred.unclear.entry(SEVERAL_DEVICES).or_default() += 1;
            continue;
        }
        let mut walk = SegmentWalk::new(&roles, kinds);
        sequences.items(*place, trace).for_each(|it| walk.add(it));
        let segments = walk.finish();
        if let Some(rounds) = speculation::rounds(&segments) {
            let mut writer = StepWriter { trace, thread: place.0, run, inferred: &mut inferred };
            writer.write_rounds(&segments, &rounds);
            run = writer.run + 1;
            continue;
        }
        let classes = classes(&segments, is_continuous);
        if classes.iter().all(Result::is_err)
            && let Some(last) = batched.write_otherwise(*place, run, &mut inferred)
        {
            run = last;
            continue;
        }
        let mut writer = StepWriter { trace, thread: place.0, run, inferred: &mut inferred };
        writer.write(&segments, &classes);
        run = writer.run + 1;
        if let Some((reason, count)) = batched.reasons.get(place)
            && classes.iter().all(Result::is_err)
        {
            *inferred.unclear.entry(reason).or_default() += count;
        }
    }
    scopes::add(trace, &mut inferred);
    inferred.steps.sort_by_key(|it| (it.start_ns, it.global_tid));
    inferred
}

/// Writes the steps of one thread.
struct StepWriter<'a> {
    trace: &'a Timeline,
    thread: i64,
    run: u32,
    inferred: &'a mut InferredSteps,
}

impl StepWriter<'_> {
    fn write(&mut self, segments: &[Segment], classes: &[Classed]) {
        let mut calls = self.trace.cuda_calls.reader();
        let mut last: Option<(Option<StepClass>, Arc<str>)> = None;
        let samples = |it: &Segment| matches!(it.end, Some((_, _, EndEvidence::Sampling)));
        // Without the choice of a token, a replay among steps with one is a warm-up.
        let has_samples = segments.iter().any(samples);
        let ends = |it: &Segment| samples(it) || !has_samples;
        let verifies = speculation::verifications(segments, classes);
        for ((segment, class), verifies) in segments.iter().zip(classes).zip(verifies) {
            if let Err(reason) = class {
                *self.inferred.unclear.entry(reason).or_default() += 1;
            }
            let known = class.ok().map(|(class, _)| class);
            let mut text = self.evidence(segment, class);
            if verifies {
                text = format!("{text}, {MORE_ROWS}");
            }
            let evidence = match &last {
                Some((_, evidence)) if **evidence == *text => evidence.clone(),
                _ => text.into(),
            };
            let continues = known == Some(StepClass::Decode)
                && last.as_ref().is_some_and(|(class, _)| *class == known);
            self.run += u32::from(!continues);
            let is_bounded = segment.start.is_some() && segment.end.is_some() && ends(segment);
            if is_bounded && segment.layers > 1 || known.is_some() {
                let step = step(segment, &mut calls);
                self.inferred.steps.extend(step.map(|(start_ns, end_ns)| InferredStep {
                    class: known,
                    global_tid: self.thread,
                    start_ns,
                    end_ns,
                    run: self.run,
                    evidence: evidence.clone(),
                    phases: verification(verifies, (start_ns, end_ns)),
                    ..InferredStep::default()
                }));
            }
            last = Some((known, evidence));
        }
        self.note_cut(segments.last(), ends);
    }

    /// Writes drafts and their verification as one step.
    fn write_rounds(&mut self, segments: &[Segment], rounds: &[Round]) {
        let mut calls = self.trace.cuda_calls.reader();
        let mut was_decode = false;
        for round in rounds {
            let parts = &segments[round.from..round.to];
            let spans: Vec<_> = parts.iter().filter_map(|it| step(it, &mut calls)).collect();
            let (Some((start_ns, _)), Some((_, end_ns))) = (spans.first(), spans.last()) else {
                continue;
            };
            let is_decode = round.class == Some(StepClass::Decode);
            self.run += u32::from(!(is_decode && was_decode));
            was_decode = is_decode;
            if round.class.is_none() {
                *self.inferred.unclear.entry(OTHER_ROWS).or_default() += 1;
            }
            let last = spans.len() - 1;
            let phase = |(at, (start_ns, end_ns)): (usize, &(i64, i64))| Phase {
                class: if at < last { StepClass::Draft } else { StepClass::Verify },
                start_ns: *start_ns,
                end_ns: *end_ns,
            };
            let phases = if is_decode && last > 0 { spans.as_slice() } else { &[] };
            self.inferred.steps.push(InferredStep {
                class: round.class,
                global_tid: self.thread,
                start_ns: *start_ns,
                end_ns: *end_ns,
                run: self.run,
                evidence: round.evidence(segments).into(),
                phases: phases.iter().enumerate().map(phase).collect(),
                ..InferredStep::default()
            });
        }
        // Drafts that no verification follows are of a decode step that the recording cuts.
        let verified = rounds.last().map_or(0, |it| it.to);
        if segments[verified..].iter().any(|it| it.start.is_some()) {
            self.inferred.cut_threads.insert(self.thread);
        }
    }

    /// Notes that the recording ends within a forward.
    fn note_cut(&mut self, last: Option<&Segment>, ends: impl Fn(&Segment) -> bool) {
        let is_open = |it: &Segment| it.start.is_some() && (it.end.is_none() || !ends(it));
        if last.is_some_and(is_open) {
            self.inferred.cut_threads.insert(self.thread);
        }
    }

    fn evidence(&self, segment: &Segment, class: &Classed) -> String {
        let short = |kind: u32| {
            let name = self.trace.kernels.kinds()[kind as usize].name;
            self.trace.text(name)
        };
        let start = match segment.start {
            Some((_, StartEvidence::Lookup | StartEvidence::FirstLookup)) => {
                format!("from the lookup {}", segment.lookup.map_or("", short))
            }
            Some((_, StartEvidence::Wait)) => "from the first launch after a wait".into(),
            Some((_, StartEvidence::Graph)) => "a launch of a graph".into(),
            None => "from an unknown start".into(),
        };
        let end = match segment.end {
            Some((_, _, EndEvidence::Sampling)) => " to the choice of a token",
            Some((_, _, EndEvidence::Wait)) => " to a wait",
            Some((_, _, EndEvidence::Graph)) => "",
            None => " to an unknown end",
        };
        let rows = match segment.rows {
            Rows::Exactly(rows) => format!(", {}", quantity(rows.into(), "row")),
            Rows::AtMost(rows) => format!(", at most {}", quantity(rows.into(), "row")),
            Rows::Unknown if segment.has_few_rows() => ", products of few rows".into(),
            Rows::Unknown if segment.has_many_rows() => ", products of many rows".into(),
            Rows::Unknown => String::new(),
        };
        let class = match class {
            Ok((StepClass::Decode, alike)) => format!(", {alike} alike in a row"),
            Ok(_) => ", before decode".into(),
            Err(reason) => format!("; no class: {reason}"),
        };
        format!("{start}{end}{rows}{class}")
    }
}

/// The only phase of a step that verifies drafts without a model; none of another step.
fn verification(verifies: bool, (start_ns, end_ns): (i64, i64)) -> Vec<Phase> {
    let phase = Phase { class: StepClass::Verify, start_ns, end_ns };
    verifies.then_some(phase).into_iter().collect()
}

/// Start and end of a step on the host.
fn step(segment: &Segment, calls: &mut CallReader) -> Option<(i64, i64)> {
    let (start, _) = segment.start?;
    let (last, device_end, _) = segment.end?;
    let start_ns = calls.get(start).start_ns;
    let end_ns = calls.get(last).end_ns.max(device_end);
    let next_ns = segment.next.map(|next| calls.get(next).start_ns);
    Some((start_ns, next_ns.map_or(end_ns, |next| next.min(end_ns)).max(start_ns)))
}
