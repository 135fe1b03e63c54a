//! The model's floor of one instance of a stage: of steps that an engine scheduled, the mean over
//! the floors of their batches.

use llmprof_core::trace::engine_steps::MIXED;

use super::{
    LedgerInput, StageTimes,
    floors::{Floors, Rates},
    necessary::why_shared,
};
use crate::{
    Analysis,
    model_work::{InstanceWork, step_loads::SPECULATION},
    stages::{DECODE, STAGES},
};

// Reasons for an unknown floor, each a clause.
const CUT_DECODE: &str = "the recording has no whole decode, so the context of its steps is \
                          unknown. Record from a prefill to the end of its decode";
const BOTH_KINDS: &str = "the floor of a stated model is of steps that either read prompts or \
                          generate, and these do both";
const NO_STEPS: &str = "the number of decode steps is unknown. State it (`--new-tokens N`, or the \
                        import's field `new_tokens`)";

/// The floors of the operators of one instance.
pub fn stage_floors(
    analysis: &Analysis,
    times: &StageTimes,
    input: &LedgerInput,
    rates: &Rates,
) -> Floors {
    let stage = times.stage;
    let l2_bytes = input.nsys.and_then(|nsys| nsys.target.gpus.first()?.l2_bytes);
    let is_of_model = STAGES.contains(&stage) || stage == MIXED;
    // A draft model does a part of each of these stages, stated or not.
    if is_of_model && analysis.speculates() {
        return Floors::unknown(SPECULATION);
    }
    match &input.work {
        None => {
            let why = why_shared(analysis).filter(|_| is_of_model);
            why.map_or_else(Floors::default, Floors::unknown)
        }
        Some(work) => match work.get(stage) {
            Some(&Err(why)) => Floors::unknown(why),
            _ if times.cut_steps.is_some() => Floors::unknown(CUT_DECODE),
            Some(Ok(parts)) if lacks_steps(analysis, stage, parts) => Floors::unknown(NO_STEPS),
            Some(Ok(parts)) => Floors::mean(
                parts
                    .iter()
                    .map(|it| (Floors::of(stage, &it.operators, rates, l2_bytes), it.instances)),
            ),
            None if stage == MIXED => Floors::unknown(BOTH_KINDS),
            None => Floors::default(),
        },
    }
}

/// True for the decode of a stated model without a number of steps: it has no work.
fn lacks_steps(analysis: &Analysis, stage: &str, parts: &[InstanceWork]) -> bool {
    let mut operators = parts.iter().flat_map(|it| &it.operators);
    stage == DECODE
        && analysis.stated.is_some()
        && operators.all(|it| it.decode_flops == 0 && it.decode.bytes == 0)
}
