//! Rules on a model that the operator of a command or the sender of a capture states.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::{Trace, engine_steps::StepClass},
};

use super::Rule;
use crate::{Analysis, timeline::engine_steps::EngineStepRecord};

pub const RULES: &[Rule] = &[
    Rule { id: catalogue::STATED_MODEL_ON_SEVERAL_GPUS, find: several_gpus },
    Rule { id: catalogue::STATED_MODEL_REFUTED, find: refuted },
    Rule { id: catalogue::STATED_STEPS_DIFFER, find: other_steps },
];

fn several_gpus(analysis: &Analysis, trace: &Trace) -> Vec<Finding> {
    let devices = analysis.sharing_gpus(trace);
    if analysis.stated.is_none() || devices < 2 {
        return vec![];
    }
    let message = format!(
        "Floors, costs and MFU of the stated model are absent: {devices} GPUs, or processes of \
         one, worked for it, and how they share it is not known."
    );
    vec![Finding::new(catalogue::STATED_MODEL_ON_SEVERAL_GPUS, message).with("devices", devices)]
}

fn refuted(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let Some(message) = analysis.why_refuted() else { return vec![] };
    let mut finding = Finding::new(catalogue::STATED_MODEL_REFUTED, message);
    for (at, it) in analysis.refutations.iter().enumerate() {
        finding = finding.with(&format!("proof ({})", at + 1), &it.0);
    }
    vec![finding]
}

fn other_steps(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    // A step that an engine schedules is an instance of its own, and no repeat has several.
    let is_of_engine = analysis.engine_steps.iter().any(is_scheduled_decode);
    // A step by speculation keeps several tokens.
    if analysis.speculates() || analysis.stages.decode_steps == Some(1) && is_of_engine {
        return vec![];
    }
    let stated = analysis.stated.as_ref().filter(|_| analysis.refutations.is_empty());
    let stated = analysis.stated_steps.or_else(|| stated?.new_tokens);
    let Some((stated, steps)) = stated.zip(analysis.stages.decode_steps) else { return vec![] };
    // The first token is sampled at the end of prefill.
    if stated == steps || stated == steps.saturating_add(1) {
        return vec![];
    }
    let figures = match analysis.stated_steps {
        Some(_) => "the time of a step is computed",
        None => "costs and floors are computed",
    };
    let message = format!(
        "{stated} new tokens are stated, but a repeat has {steps} decode steps: {figures} for \
         {steps} steps."
    );
    vec![
        Finding::new(catalogue::STATED_STEPS_DIFFER, message)
            .with("stated", stated)
            .with("decode steps", steps),
    ]
}

fn is_scheduled_decode(step: &EngineStepRecord) -> bool {
    step.is_scheduled && step.class == Some(StepClass::Decode)
}

#[cfg(test)]
mod tests {
    use llmprof_core::{
        domain::{dtype::Dtype, model::PRESETS, stated_model::StatedModel},
        trace::{
            collectives::{CollectiveGroup, ProcessRank},
            engine_steps::Phase,
            inferred_steps::InferredStep,
        },
    };

    use super::*;
    use crate::{
        analyze,
        kernels::tests::{capture, launching},
        model_work::KnownModel,
    };

    fn stated(new_tokens: Option<u64>) -> StatedModel {
        StatedModel {
            model: toml::from_str(PRESETS[3].1).unwrap(),
            prompt_tokens: 8,
            new_tokens,
            batch: 1,
            dtype: Dtype::Bf16,
        }
    }

    #[test]
    fn stated_tokens_are_compared_with_the_steps_of_a_repeat_and_not_with_an_engines_steps() {
        let steps = |name: &str| {
            let step = |at: i64| {
                let times = [(0, 100), (2, 3), (4, 90)];
                launching(name, at + 1, times.map(|(from, to)| (100 * at + from, 100 * at + to)))
            };
            [step(0), step(1), step(2)].join("\n")
        };
        let own = format!("range 1 decode_all 0..300\n{}", steps("decode_step"));
        let of_engine = steps("execute_context_0(0)_generation_1(1)");
        for (sketch, new_tokens, is_found) in
            [(&own, 100, true), (&own, 3, false), (&own, 4, false), (&of_engine, 100, false)]
        {
            let trace = Trace { timeline: Some(capture(sketch)), ..Trace::default() };
            let stated = stated(Some(new_tokens));
            let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), None);
            let found = analysis.findings.iter().any(|it| it.id == "stated_steps_differ");
            assert_eq!(found, is_found, "{new_tokens}: {sketch}");
        }
    }

    #[test]
    fn an_inferred_step_is_of_a_repeat_unless_an_engine_scheduled_it_or_it_speculates() {
        let draft = |at: i64| Phase { class: StepClass::Draft, start_ns: at, end_ns: at + 50 };
        for (is_scheduled, has_drafts, new_tokens, is_found) in [
            (false, false, 10, true),
            (false, false, 2, false),
            (false, false, 1, false),
            (true, false, 10, false),
            (false, true, 10, false),
        ] {
            let work = |at: i64| {
                let (id, t) = (at + 1, 100 * at);
                format!("call 1 {id} {}..{}\nkernel {id} k {}..{} 7", t + 2, t + 3, t + 4, t + 90)
            };
            let mut nsys = capture(&[0, 1, 2].map(work).join("\n"));
            let global_tid = nsys.cuda_calls.get(0).global_tid;
            let step = |at: u32| InferredStep {
                class: Some(StepClass::Decode),
                global_tid,
                start_ns: 100 * i64::from(at),
                end_ns: 100 * i64::from(at) + 100,
                run: at + 1,
                is_scheduled,
                phases: has_drafts.then(|| draft(100 * i64::from(at))).into_iter().collect(),
                ..InferredStep::default()
            };
            nsys.inferred.steps = [0, 1, 2].map(step).to_vec();
            let trace = Trace { timeline: Some(nsys), ..Trace::default() };
            let stated = stated(Some(new_tokens));
            let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), None);
            assert_eq!(analysis.stages.decode_steps, Some(1), "{is_scheduled}");
            let found = analysis.findings.iter().any(|it| it.id == "stated_steps_differ");
            assert_eq!(found, is_found, "{is_scheduled} {has_drafts} {new_tokens}");
        }
    }

    #[test]
    fn a_stated_model_on_two_gpus_or_of_one_of_two_ranks_has_no_costs_and_a_finding() {
        let stated = stated(None);
        let of = |gpus: u32, group: Option<u32>, world: Option<u32>| {
            let mut nsys = capture(
                "range 1 prefill 0..100\ncall 1 1 1..2\ncall 1 2 3..4
                 kernel 1 a 5..50 7\nkernel 2 a 50..90 7",
            );
            nsys.kernels = nsys.kernels.map(|at, it| it.device = at as u32 % gpus);
            let group = CollectiveGroup { size: group, ..CollectiveGroup::default() };
            nsys.collectives.groups.push(group);
            let rank = ProcessRank { world_size: world, ..ProcessRank::default() };
            nsys.collectives.processes.insert(7, rank);
            let trace = Trace { timeline: Some(nsys), ..Trace::default() };
            let analysis = analyze(&trace, Some(KnownModel::Stated(&stated)), None);
            let id = "stated_model_on_several_gpus";
            (analysis.cost.is_some(), analysis.findings.iter().any(|it| it.id == id))
        };
        let (alone, shared) = ((true, false), (false, true));
        for (gpus, group, world, expected) in [
            (1, None, None, alone),
            (1, Some(1), Some(1), alone),
            (2, None, None, shared),
            (1, Some(2), None, shared),
            (1, None, Some(2), shared),
        ] {
            assert_eq!(of(gpus, group, world), expected, "{gpus} {group:?} {world:?}");
        }
    }
}
