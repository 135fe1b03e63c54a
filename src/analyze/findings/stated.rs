//! Rules on a model that the operator of a command or the sender of a capture states.

use std::collections::BTreeSet;

use Severity::Warning;

use super::{Rule, finding};
use crate::{
    analyze::Analysis,
    domain::finding::{Finding, Severity},
    trace::Trace,
};

pub const RULES: &[Rule] = &[
    Rule {
        id: "stated_model_on_several_gpus",
        severity: Warning,
        fires_on: "a model is stated, and the capture has work of several GPUs",
        advice: "Run it on one GPU for floors and MFU.",
        max_saving: None,
        find: several_gpus,
    },
    Rule {
        id: "stated_steps_differ",
        severity: Warning,
        fires_on: "the stated `new_tokens` is neither the number of decode steps nor one more",
        advice: "State the tokens of one repeat, or leave new_tokens out.",
        max_saving: None,
        find: other_steps,
    },
];

fn several_gpus(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let devices: BTreeSet<u32> = analysis.processes.stages.iter().map(|it| it.device).collect();
    if analysis.stated.is_none() || devices.len() < 2 {
        return vec![];
    }
    let message = format!(
        "Floors, costs and MFU of the stated model are absent: it ran on {} GPUs, and how they \
         share its weights is not known.",
        devices.len()
    );
    vec![finding("stated_model_on_several_gpus", message).with("devices", devices.len())]
}

fn other_steps(analysis: &Analysis, _: &Trace) -> Vec<Finding> {
    let stated = analysis.stated.as_ref().and_then(|it| it.new_tokens);
    let Some((stated, steps)) = stated.zip(analysis.stages.decode_steps) else { return vec![] };
    // The first token is sampled at the end of prefill.
    if stated == steps || stated == steps.saturating_add(1) {
        return vec![];
    }
    let message = format!(
        "{stated} new tokens are stated, but a repeat has {steps} decode steps: costs and floors \
         are those of the {steps} steps."
    );
    vec![finding("stated_steps_differ", message).with("stated", stated).with("decode steps", steps)]
}
