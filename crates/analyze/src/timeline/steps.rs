//! Steps of a server or of a generating program, by the names of its ranges or by its launches.
//!
//! Ranges around one step are one step, and the phases of speculation are one decode step.

mod speculation;

use std::{cmp::Reverse, collections::BTreeMap};

use llmprof_core::{
    domain::named_values::named_values,
    trace::{
        engine_steps::{EngineStep, Phase, StepClass, StepCounts, StepPart},
        inferred_steps::InferredStep,
        range::Range,
        timeline::Timeline,
    },
};

use self::speculation::{with_nested_phases, with_phases};
use super::{interval::Interval, open_ranges::place};

named_values! {
    /// Source of a step.
    #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
    StepSource {
        /// A range whose name carries the work.
        Named = "named",
        /// The order of the launches, or ranges around parts of a step: the capture has no range
        /// that is a stage.
        Inferred = "inferred",
    }
}

/// One step of a server or of a generating program, without its work.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub source: StepSource,
    /// True for a step that an engine scheduled: it is a stage instance of its own.
    pub is_scheduled: bool,
    pub engine: Option<&'static str>,
    /// `None` if only the boundaries are known.
    pub class: Option<StepClass>,
    /// The engine's own word for the class.
    pub mode: Option<String>,
    pub evidence: String,
    /// Thread or process on which it is open.
    pub place: i64,
    pub start_ns: i64,
    pub end_ns: i64,
    pub counts: StepCounts,
    /// Phases of a decode step by speculation, in the order of their starts.
    pub phases: Vec<Phase>,
}

impl Step {
    fn named(step: EngineStep, evidence: &str, place: i64, (start_ns, end_ns): Interval) -> Self {
        Self {
            source: StepSource::Named,
            is_scheduled: true,
            engine: Some(step.engine),
            class: Some(step.class),
            mode: step.mode.map(str::to_owned),
            evidence: evidence.to_owned(),
            place,
            start_ns,
            end_ns,
            counts: step.counts,
            phases: vec![],
        }
    }

    fn inferred(step: &InferredStep) -> Self {
        let InferredStep { prefill_requests, prefill_tokens, decode_requests, .. } = *step;
        let prefill =
            StepPart { requests: prefill_requests, tokens: prefill_tokens, ..StepPart::default() };
        let decode = StepPart { requests: decode_requests, ..StepPart::default() };
        Self {
            source: StepSource::Inferred,
            is_scheduled: step.is_scheduled,
            engine: step.engine,
            class: step.class,
            mode: step.mode.map(str::to_owned),
            evidence: step.evidence.to_string(),
            place: step.global_tid,
            start_ns: step.start_ns,
            end_ns: step.end_ns,
            counts: StepCounts { prefill, decode, ..StepCounts::default() },
            phases: step.phases.clone(),
        }
    }

    pub fn is_decode(&self) -> bool {
        self.class == Some(StepClass::Decode)
    }

    /// The step's stage; `None` if its class is unknown.
    pub fn stage(&self) -> Option<&str> {
        self.class?.stage().or(self.mode.as_deref())
    }

    /// Tokens that a decode step generated, if that is certain.
    pub fn generated(&self) -> Option<u64> {
        // A trace does not state which of the proposed tokens the model kept.
        if self.phases.is_empty() { self.counts.generated() } else { None }
    }

    /// True if a decode step may have made several tokens of one request.
    pub fn is_speculative(&self) -> bool {
        let StepCounts { decode, .. } = self.counts;
        let computes_more = decode.tokens.zip(decode.requests).is_some_and(|it| it.0 > it.1);
        self.is_decode() && (computes_more || !self.phases.is_empty())
    }

    fn is_phase(&self) -> bool {
        self.class.is_some_and(StepClass::is_phase)
    }
}

/// All steps of a timeline, in the order of their starts.
pub fn steps(trace: &Timeline) -> Vec<Step> {
    let inferred = trace.inferred.steps.iter().filter(|it| it.end_ns >= it.start_ns);
    let mut steps = named(trace);
    steps.extend(inferred.map(Step::inferred));
    steps.sort_by_key(|it| (it.start_ns, it.end_ns, it.place));
    steps
}

/// The steps that ranges name.
fn named(trace: &Timeline) -> Vec<Step> {
    let step = |range: &Range| {
        let end_ns = range.end_ns.filter(|end| *end >= range.start_ns)?;
        trace.rules.ruled_stage(&range.name, &range.domain).is_none().then_some(())?;
        let step = trace.rules.step(&range.name)?;
        let times = (range.start_ns, end_ns);
        Some((step.form, Step::named(step, &range.name, place(range), times)))
    };
    let mut found: Vec<FormedStep> = trace.ranges.iter().filter_map(step).collect();
    found.sort_by_key(|(_, it)| (it.place, it.start_ns, Reverse(it.end_ns)));
    let mut by_place: BTreeMap<i64, Vec<Step>> = BTreeMap::new();
    for (_, step) in merged(with_nested_phases(found)) {
        by_place.entry(step.place).or_default().push(step);
    }
    by_place.into_values().flat_map(with_phases).collect()
}

/// A step, and the form of its name.
type FormedStep<'a> = (&'a str, Step);

/// Steps without the ranges inside that repeat them, in a domain of its own, under the same name or
/// in another form. The counts of all are kept.
fn merged(found: Vec<FormedStep>) -> Vec<FormedStep> {
    let mut kept: Vec<FormedStep> = Vec::with_capacity(found.len());
    let mut open: Vec<usize> = Vec::new();
    for (form, step) in found {
        open.retain(|at| {
            let outer = &kept[*at].1;
            outer.place == step.place && outer.end_ns > step.start_ns
        });
        let repeats = |at: &&usize| {
            let (outer_form, outer) = &kept[**at];
            let is_same = outer.class == step.class
                || *outer_form != form && step.class != Some(StepClass::Draft);
            step.end_ns <= outer.end_ns && is_same
        };
        match open.iter().rev().find(repeats) {
            Some(at) => kept[*at].1.counts = kept[*at].1.counts.or(step.counts),
            None => {
                open.push(kept.len());
                kept.push((form, step));
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    #[test]
    fn ranges_of_two_forms_around_one_step_are_one_step_with_the_counts_of_both() {
        let mut trace = capture(
            "range 1 step[DECODE~bs=2] 0..50
             range 1 execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk9sqsq2sqsk9) 1..49",
        );
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace("~", " "));
        let steps = super::steps(&trace);
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].engine, Some("sglang"));
        assert_eq!((steps[0].counts.decode.keys, steps[0].generated()), (Some(9), Some(2)));
    }

    #[test]
    fn an_unknown_mode_is_a_stage_of_its_own() {
        let mut trace = capture("range 1 step[SPLIT_PREFILL~bs=2] 0..50");
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace("~", " "));
        assert_eq!(steps(&trace)[0].stage(), Some("SPLIT_PREFILL"));
    }
}
