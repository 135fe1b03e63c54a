//! Phases of speculation: a draft model proposes tokens, the model verifies them, and the draft
//! model reads the accepted ones. All are one decode step, with or without a range around them.

use std::collections::{BTreeMap, BTreeSet};

use llmprof_core::trace::engine_steps::{Phase, StepClass};

use super::{FormedStep, Step, merged};

/// Min verifications with a decode step before them that prove a draft model.
const MIN_DRAFTED: usize = 2;
/// Evidence of a step that is decode or a phase of it.
const FEW_VERIFICATIONS: &str = "too few verifications to prove or exclude a draft model";

/// Steps that contain their phases by speculation. A range of a decode step inside is a pass of the
/// draft model, or repeats the step if it contains phases itself.
pub(super) fn with_nested_phases(found: Vec<FormedStep>) -> Vec<FormedStep> {
    if !found.iter().any(|it| it.1.is_phase()) {
        return found;
    }
    let mut outermost: Vec<Option<usize>> = Vec::with_capacity(found.len());
    let mut has_phases = vec![false; found.len()];
    let mut open: Vec<usize> = Vec::new();
    for (at, (_, step)) in found.iter().enumerate() {
        let contains = |outer: &usize| {
            let outer = &found[*outer].1;
            outer.place == step.place && outer.end_ns >= step.end_ns
        };
        open.retain(contains);
        outermost.push(open.first().copied());
        if step.is_phase() {
            open.iter().for_each(|outer| has_phases[*outer] = true);
        } else {
            open.push(at);
        }
    }
    let mut kept: Vec<FormedStep> = Vec::with_capacity(found.len());
    let mut kept_at: Vec<usize> = Vec::with_capacity(found.len());
    let mut inside: BTreeMap<usize, Vec<FormedStep>> = BTreeMap::new();
    for (at, it) in found.into_iter().enumerate() {
        kept_at.push(kept.len());
        let is_part = it.1.is_phase() || it.1.is_decode();
        match outermost[at].filter(|outer| is_part && has_phases[*outer]) {
            Some(outer) if has_phases[at] => {
                let outer = &mut kept[kept_at[outer]].1;
                outer.counts = outer.counts.or(it.1.counts);
            }
            Some(outer) => inside.entry(kept_at[outer]).or_default().push(it),
            None => kept.push(it),
        }
    }
    for (at, parts) in inside {
        let outer = &mut kept[at].1;
        for (_, step) in merged(parts) {
            let class = step.class.filter(|it| it.is_phase()).unwrap_or(StepClass::Draft);
            outer.counts = outer.counts.or(step.counts);
            outer.phases.push(Phase { class, start_ns: step.start_ns, end_ns: step.end_ns });
        }
    }
    kept
}

/// The steps of one place, whose phases of speculation become one decode step each.
pub(super) fn with_phases(mut steps: Vec<Step>) -> Vec<Step> {
    if !steps.iter().any(Step::is_phase) {
        return steps;
    }
    // Without a name of their own, the steps of the draft model are decode steps by their names.
    let has_name = steps.iter().any(|it| it.class == Some(StepClass::Draft));
    if !has_name && steps.iter().any(may_be_draft) {
        let Some(are_drafts) = are_drafted(&steps) else {
            return steps.into_iter().map(unproven).collect();
        };
        let drafts = steps.iter_mut().filter(|it| are_drafts && may_be_draft(it));
        drafts.for_each(|it| it.class = Some(StepClass::Draft));
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

/// True for a step that is decode by its name, of the model or of a draft model.
fn may_be_draft(step: &Step) -> bool {
    step.is_decode() && step.mode.is_some() && step.phases.is_empty()
}

/// True if decode steps come before or in most verifications of a place: a draft model proposes
/// tokens for each. The host proposes n-grams without a step, and a step without a proposal is a
/// decode step of the model. `None` if the steps do not prove one of the two.
fn are_drafted(steps: &[Step]) -> Option<bool> {
    // By verification: a decode step is before or in it.
    let mut drafted: Vec<bool> = Vec::new();
    let (mut end_ns, mut is_before, mut has_inside) = (i64::MIN, false, false);
    for step in steps {
        if step.class == Some(StepClass::Verify) {
            drafted.push(is_before);
            (end_ns, is_before) = (step.end_ns, false);
        } else if may_be_draft(step) && step.end_ns <= end_ns {
            has_inside = true;
            if let Some(last) = drafted.last_mut() {
                *last = true;
            }
        } else {
            is_before |= may_be_draft(step);
        }
    }
    // Drafts of the first one may not be recorded, and the last steps may be drafts of another.
    let first = usize::from(drafted.first() == Some(&false));
    let with_draft = drafted.iter().filter(|it| **it).count();
    let without = drafted.len() - first - with_draft;
    // A draft model alone reads what was accepted, or works inside a verification.
    let has_model = has_inside || steps.iter().any(|it| it.class == Some(StepClass::DraftExtend));
    let is_proven = without > 0 || with_draft >= MIN_DRAFTED || has_model;
    is_proven.then_some(without == 0 || with_draft > without)
}

/// A step of a place whose decode steps may be drafts, without a class: with a draft model, a
/// verification is a part of a decode step, and with n-grams it is all of one.
fn unproven(step: Step) -> Step {
    if !may_be_draft(&step) && !step.is_phase() {
        return step;
    }
    let evidence = format!("{}; {FEW_VERIFICATIONS}", step.evidence);
    Step { class: None, mode: None, evidence, ..step }
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

/// The decode step of these phases, which has no class if the capture has only a part of it.
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
    use crate::{kernels::tests::capture, timeline::steps::steps};

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
    fn a_word_before_the_phases_of_the_draft_model_changes_no_step() {
        let named = |mut line: String| {
            if !line.contains("TARGET_VERIFY") {
                line = line.replace("step[", "draft~step[");
            }
            line
        };
        let plain = rounds(4);
        let prefixed: Vec<String> = plain.iter().cloned().map(named).collect();
        assert_eq!(of(&prefixed.join("\n")), of(&plain.join("\n")));
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
    fn a_decode_step_between_verifications_of_n_grams_is_not_a_draft() {
        let (verify, decode) = ("TARGET_VERIFY", "DECODE");
        let order = [verify, verify, decode, verify, verify, decode, verify];
        let line = |(at, mode): (i64, &str)| {
            format!("range 1 step[{mode}~bs=2] {}..{}", 50 * at, 50 * at + 40)
        };
        let sketch: Vec<String> = (0..).zip(order).map(line).collect();
        let steps = of(&sketch.join("\n"));
        let evidence: Vec<&str> = steps.iter().map(|it| it.1.as_str()).collect();
        let plain = "step[DECODE bs=2]";
        assert_eq!(evidence, ["verify", "verify", plain, "verify", "verify", plain, "verify"]);
        assert!(steps.iter().all(|it| it.0 == Some(StepClass::Decode)));
    }

    #[test]
    fn decode_steps_next_to_few_verifications_are_neither_drafts_nor_steps_of_the_model() {
        const D: &str = "DECODE";
        const V: &str = "TARGET_VERIFY";
        const E: &str = "DRAFT_EXTEND";
        let classes = |modes: &[&str]| {
            let line = |(at, mode): (usize, &&str)| {
                format!("range 1 step[{mode}~bs=2] {}..{}", 50 * at, 50 * at + 40)
            };
            let sketch: Vec<String> = modes.iter().enumerate().map(line).collect();
            of(&sketch.join("\n")).into_iter().map(|it| (it.0, it.1)).collect::<Vec<_>>()
        };
        for modes in [&[V, D][..], &[D, V], &[V, D, D], &[V, D, V], &[D, D, V, D]] {
            let found = classes(modes);
            assert_eq!(found.len(), modes.len(), "{modes:?}: {found:?}");
            let is_neither = |it: &(Option<StepClass>, String)| {
                it.0.is_none() && it.1.ends_with(FEW_VERIFICATIONS)
            };
            assert!(found.iter().all(is_neither), "{modes:?}: {found:?}");
        }
        let names =
            |modes: &[&str]| -> Vec<String> { classes(modes).into_iter().map(|it| it.1).collect() };
        // Two verifications with a draft, an update of the draft model, or none before the second.
        assert_eq!(names(&[D, V, D, V]), ["draft, verify"; 2]);
        assert_eq!(names(&[D, V, E]), ["draft, verify, draft_extend"]);
        assert_eq!(names(&[V, V, D]), ["verify", "verify", "step[DECODE bs=2]"]);
        assert_eq!(names(&[V]), ["verify"]);
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
    fn phases_inside_the_range_of_a_step_are_of_this_step() {
        let phases = |step: &Step| {
            let phase = |it: &Phase| (it.class.as_str(), it.start_ns, it.end_ns);
            step.phases.iter().map(phase).collect::<Vec<_>>()
        };
        let all = [("draft", 1, 3), ("draft", 4, 7), ("verify", 12, 40), ("draft_extend", 41, 44)];
        let inside = "range 1 step[DECODE~bs=4] 1..3\nrange 1 step[DECODE~bs=4] 4..7
            range 1 step[TARGET_VERIFY~bs=4] 12..40\nrange 1 step[DRAFT_EXTEND_V2~bs=4] 41..44";
        let detailed = "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk9sqsq4sqsk9)";
        for outer in [
            "range 1 step[DECODE~bs=4] 0..45".to_owned(),
            format!("range 1 {detailed} 0..45"),
            format!("range 1 {detailed} 0..45\nrange 1 step[DECODE~bs=4] 1..45"),
        ] {
            let mut trace =
                capture(&format!("{outer}\n{inside}\nrange 1 step[EXTEND~bs=1] 50..60"));
            trace.ranges.iter_mut().for_each(|it| it.name = it.name.replace('~', " "));
            let steps = steps(&trace);
            assert_eq!(steps.len(), 2, "{outer}");
            let (decode, counts) = (&steps[0], steps[0].counts.decode);
            assert_eq!((decode.class, counts.requests), (Some(StepClass::Decode), Some(4)));
            assert_eq!((decode.start_ns, decode.end_ns, phases(decode)), (0, 45, all.to_vec()));
            assert_eq!((decode.generated(), decode.is_speculative()), (None, true));
            assert_eq!((steps[1].class, phases(&steps[1])), (Some(StepClass::Prefill), vec![]));
        }
    }
}
