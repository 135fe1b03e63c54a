//! Rules on a model that the operator of a command or the sender of a capture states.

use llmprof_core::{
    domain::finding::{Finding, catalogue},
    trace::Trace,
};

use super::Rule;
use crate::Analysis;

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

#[cfg(test)]
mod tests {
    use llmprof_core::{
        domain::{dtype::Dtype, model::PRESETS, stated_model::StatedModel},
        trace::collectives::{CollectiveGroup, ProcessRank},
    };

    use super::*;
    use crate::{analyze, kernels::tests::capture, model_work::KnownModel};

    #[test]
    fn a_stated_model_on_two_gpus_or_of_one_of_two_ranks_has_no_costs_and_a_finding() {
        let stated = StatedModel {
            model: toml::from_str(PRESETS[3].1).unwrap(),
            prompt_tokens: 8,
            new_tokens: None,
            batch: 1,
            dtype: Dtype::Bf16,
        };
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
            let trace = Trace { nsys: Some(nsys), ..Trace::default() };
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
