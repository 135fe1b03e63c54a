//! Steps of a server or of a generating program, by the names of its ranges or by its launches.
//!
//! Ranges around one step are one step, and the phases of speculation are one decode step.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use llmprof_core::{
    domain::named_values::named_values,
    trace::{
        engine_steps::{EngineStep, StepClass, StepCounts, StepPart},
        inferred_steps::InferredStep,
        range::Range,
        timeline::Timeline,
    },
};

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
    pub engine: Option<&'static str>,
    /// `None` where only the boundaries are known.
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

/// One phase of a decode step by speculation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    pub class: StepClass,
    pub start_ns: i64,
    pub end_ns: i64,
}

impl Step {
    fn named(step: EngineStep, evidence: &str, place: i64, (start_ns, end_ns): Interval) -> Self {
        Self {
            source: StepSource::Named,
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
            engine: step.engine,
            class: step.class,
            mode: step.mode.map(str::to_owned),
            evidence: step.evidence.to_string(),
            place: step.global_tid,
            start_ns: step.start_ns,
            end_ns: step.end_ns,
            counts: StepCounts { prefill, decode, ..StepCounts::default() },
            phases: vec![],
        }
    }

    pub fn is_decode(&self) -> bool {
        self.class == Some(StepClass::Decode)
    }

    /// The step's stage; `None` if its class is unknown.
    pub fn stage(&self) -> Option<&str> {
        self.class?.stage().or(self.mode.as_deref())
    }

    /// Tokens that a decode step generated, where that is certain.
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
    let mut found: Vec<(&str, Step)> = trace.ranges.iter().filter_map(step).collect();
    found.sort_by_key(|(_, it)| (it.place, it.start_ns, Reverse(it.end_ns)));
    let mut by_place: BTreeMap<i64, Vec<Step>> = BTreeMap::new();
    for step in merged(found) {
        by_place.entry(step.place).or_default().push(step);
    }
    by_place.into_values().flat_map(with_phases).collect()
}

/// Steps without the ranges inside that repeat them, in a domain of its own, under the same name or
/// in another form. The counts of all are kept.
fn merged(found: Vec<(&str, Step)>) -> Vec<Step> {
    let mut kept: Vec<(&str, Step)> = Vec::with_capacity(found.len());
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
    kept.into_iter().map(|(_, step)| step).collect()
}

/// The steps of one place, whose phases of speculation become one decode step each.
fn with_phases(mut steps: Vec<Step>) -> Vec<Step> {
    if !steps.iter().any(Step::is_phase) {
        return steps;
    }
    // Without a name of their own, the steps of the draft model are decode steps by their names.
    if !steps.iter().any(|it| it.class == Some(StepClass::Draft)) {
        let of_model = |it: &&mut Step| it.is_decode() && it.mode.is_some();
        steps.iter_mut().filter(of_model).for_each(|it| it.class = Some(StepClass::Draft));
    }
    let mut groups: Vec<Vec<Step>> = Vec::new();
    let mut others: Vec<Step> = Vec::new();
    let mut group = PhaseGroup::default();
    for step in steps {
        if !step.is_phase() {
            groups.extend(group.close());
            others.push(step);
            continue;
        }
        if !group.takes(&step) {
            groups.extend(group.close());
        }
        group.end_ns = group.end_ns.max(step.end_ns);
        group.phases.push(step);
    }
    groups.extend(group.close());
    let whole = max_common(&groups);
    let last = groups.len().saturating_sub(1);
    others.extend(groups.into_iter().enumerate().map(|(at, phases)| {
        let is_cut = (at == 0 || at == last) && phases.len() < whole;
        decode_step(&phases, is_cut)
    }));
    others
}

/// The most common number of phases.
fn max_common(groups: &[Vec<Step>]) -> usize {
    let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
    groups.iter().for_each(|it| *counts.entry(it.len()).or_default() += 1);
    counts.into_iter().max_by_key(|(phases, count)| (*count, *phases)).map_or(0, |it| it.0)
}

/// Phases of one decode step: drafts, the verification, and the draft model's reading of what was
/// accepted.
#[derive(Default)]
struct PhaseGroup {
    phases: Vec<Step>,
    end_ns: i64,
}

impl PhaseGroup {
    fn has(&self, class: StepClass) -> bool {
        self.phases.iter().any(|it| it.class == Some(class))
    }

    /// True if a phase that starts next is of the same step.
    fn takes(&self, next: &Step) -> bool {
        let is_inside = next.end_ns <= self.end_ns;
        let is_verified = self.has(StepClass::Verify);
        is_inside
            || match next.class {
                Some(StepClass::DraftExtend) => is_verified && !self.has(StepClass::DraftExtend),
                _ => !is_verified && !self.has(StepClass::DraftExtend),
            }
    }

    fn close(&mut self) -> Option<Vec<Step>> {
        let phases = std::mem::take(self).phases;
        (!phases.is_empty()).then_some(phases)
    }
}

/// The decode step of these phases, which has no class where the capture has only a part of it.
fn decode_step(phases: &[Step], is_cut: bool) -> Step {
    let first = &phases[0];
    let verify = phases.iter().find(|it| it.class == Some(StepClass::Verify));
    let is_whole = verify.is_some() && !is_cut;
    let classes: BTreeSet<StepClass> = phases.iter().filter_map(|it| it.class).collect();
    let times = |class: &StepClass| {
        let count = phases.iter().filter(|it| it.class == Some(*class)).count();
        if count == 1 { class.to_string() } else { format!("{count} {class}") }
    };
    let parts: Vec<String> = classes.iter().map(times).collect();
    let evidence = match is_whole {
        true => parts.join(", "),
        false => format!("{}; not all of a decode step", parts.join(", ")),
    };
    Step {
        class: is_whole.then_some(StepClass::Decode),
        mode: None,
        evidence,
        end_ns: phases.iter().map(|it| it.end_ns).max().unwrap_or(first.end_ns),
        counts: verify.unwrap_or(first).counts,
        phases: phases
            .iter()
            .filter_map(|it| {
                Some(Phase { class: it.class?, start_ns: it.start_ns, end_ns: it.end_ns })
            })
            .collect(),
        ..first.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::capture;

    /// Class, evidence, start and end of each step.
    fn of(sketch: &str) -> Vec<(Option<StepClass>, String, i64, i64)> {
        // A name in a sketch has no spaces.
        let mut trace = capture(sketch);
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace("~", " "));
        steps(&trace)
            .into_iter()
            .map(|it| (it.class, it.evidence, it.start_ns, it.end_ns))
            .collect()
    }

    const ROUND: [(&str, i64, i64); 5] = [
        ("DECODE", 0, 3),
        ("DECODE", 4, 7),
        ("DECODE", 8, 11),
        ("TARGET_VERIFY", 12, 40),
        ("DRAFT_EXTEND", 41, 44),
    ];

    fn rounds(count: i64) -> Vec<String> {
        let range = |(round, (mode, start, end)): (i64, &(&str, i64, i64))| {
            let from = 50 * round;
            format!("range 1 step[{mode}~bs=2] {}..{}", from + start, from + end)
        };
        (0..count).flat_map(|at| ROUND.iter().map(move |it| range((at, it)))).collect()
    }

    #[test]
    fn a_round_of_speculation_is_one_decode_step() {
        let steps =
            of(&format!("{}\nrange 1 step[EXTEND~bs=2~toks=9] 200..230", rounds(4).join("\n")));
        let decode = |at: i64| {
            let evidence = "3 draft, verify, draft_extend".to_owned();
            (Some(StepClass::Decode), evidence, 50 * at, 50 * at + 44)
        };
        let prefill = (Some(StepClass::Prefill), "step[EXTEND bs=2 toks=9]".to_owned(), 200, 230);
        assert_eq!(steps, [decode(0), decode(1), decode(2), decode(3), prefill]);
    }

    #[test]
    fn a_round_that_the_window_cuts_has_no_class() {
        let all = rounds(4);
        let cut = of(&all[2..18].join("\n"));
        let classes: Vec<_> = cut.iter().map(|it| it.0).collect();
        assert_eq!(classes, [None, Some(StepClass::Decode), Some(StepClass::Decode), None]);
        assert_eq!(cut[3].1, "3 draft; not all of a decode step");
    }

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
    fn drafts_with_a_name_of_their_own_and_inside_the_verification_are_phases() {
        let named = "range 1 draft~step[DECODE~bs=2] 0..3\nrange 1 step[TARGET_VERIFY~bs=2] 4..40
            range 1 draft~step[DECODE~bs=2] 50..53\nrange 1 step[TARGET_VERIFY~bs=2] 54..90";
        let inside = "range 1 step[TARGET_VERIFY~bs=2] 0..40\nrange 1 step[DECODE~bs=2] 2..5
            range 1 step[TARGET_VERIFY~bs=2] 50..90\nrange 1 step[DECODE~bs=2] 52..55";
        for (sketch, first, second) in [(named, (0, 40), (50, 90)), (inside, (0, 40), (50, 90))] {
            let steps: Vec<_> = of(sketch).into_iter().map(|it| (it.0, (it.2, it.3))).collect();
            let decode = Some(StepClass::Decode);
            assert_eq!(steps, [(decode, first), (decode, second)]);
        }
    }

    #[test]
    fn an_unknown_mode_is_a_stage_of_its_own() {
        let mut trace = capture("range 1 step[SPLIT_PREFILL~bs=2] 0..50");
        trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace("~", " "));
        assert_eq!(steps(&trace)[0].stage(), Some("SPLIT_PREFILL"));
    }
}
