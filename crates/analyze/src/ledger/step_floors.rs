//! Floors of an engine's decode steps, each of its own requests and context.

use llmprof_core::trace::engine_steps::StepClass;

use super::{
    LedgerInput,
    floors::{Floors, OperatorFloor, Rates},
    necessary::why_shared,
};
use crate::{
    Analysis,
    cost::ModuleCost,
    model_work::{
        ModelWork,
        step_loads::{SPECULATION, StepLoad},
    },
    stages::DECODE,
    stats::ratio,
    step_batches::StepBatch,
};

// Reasons for a floor or a ratio that is absent.
const NO_MODEL: &str = "No model is stated: add its config.json (`--model-config`).";
const REFUTED: &str = "The stated model cannot be the model of the capture (finding \
                       stated_model_refuted). State the model that ran.";
const PART: &str = "Only a part of the model ran.";
const ON_CPU: &str = "The least possible time is known for GPUs only.";
const WAITS: &str = "Its times contain unrecorded waits.";
const NO_DEVICE_TIME: &str = "Its work on the GPU is not recorded.";
const NO_CONTEXT: &str = "The key lengths of its requests are unknown: the floor has no cache, and \
                          the step needs at least this time.";
const BELOW: &str = "The median step takes less than the floor of the stated model: the GPU's \
                     cache may hold weights, requests may share a prefix, or tokens choose fewer \
                     experts than an even router.";

/// The rows of an engine's steps; rows of decode with their floor, or the reason for none.
pub fn step_floors(
    analysis: &Analysis,
    work: Option<&ModelWork>,
    input: &LedgerInput,
) -> Vec<StepBatch> {
    let rates = Rates::of(input.dtype, input.ceilings, input.nsys);
    let l2_bytes = input.nsys.and_then(|nsys| nsys.target.gpus.first()?.l2_bytes);
    let work = known_work(analysis, work);
    let row = |row: &StepBatch| match row.class {
        StepClass::Decode => {
            let operators = step_work(row, work.clone());
            let floor = operators.and_then(|it| floor_ms(&it, &rates, l2_bytes));
            with_floor(row.clone(), floor)
        }
        _ => row.clone(),
    };
    analysis.step_batches.iter().map(row).collect()
}

/// The operators of one decode step of a row, or the reason why they are unknown. Without a
/// recorded context, each request attends to its own token.
fn step_work(row: &StepBatch, work: Result<&ModelWork, String>) -> Result<Vec<ModuleCost>, String> {
    let load = StepLoad {
        requests: row.requests,
        tokens: row.requests.filter(|_| row.has_unrecorded_waits || row.tokens_per_s.is_some()),
        context: row.context_mean,
        speculates: row.is_speculative(),
        steps: row.steps,
    };
    // No model that can be stated gives such a step a floor.
    if load.speculates {
        return Err(unknown(SPECULATION));
    }
    let work = work?;
    let (requests, context) = load.decode().map_err(unknown)?;
    if row.has_unrecorded_waits {
        return Err(WAITS.into());
    }
    // A part of the device's time of each step.
    if row.busy_pct.is_none() {
        return Err(NO_DEVICE_TIME.into());
    }
    Ok(work.decode_step(requests, context.unwrap_or(1)))
}

/// The work of the whole model on one GPU, or the reason why it is unknown.
fn known_work<'a>(
    analysis: &Analysis,
    work: Option<&'a ModelWork<'a>>,
) -> Result<&'a ModelWork<'a>, String> {
    match work {
        Some(work) if work.is_on_cpu => Err(ON_CPU.into()),
        Some(work) if work.is_part => Err(PART.into()),
        Some(work) => Ok(work),
        None if !analysis.refutations.is_empty() => Err(REFUTED.into()),
        None => Err(why_shared(analysis).map_or_else(|| NO_MODEL.into(), unknown)),
    }
}

/// The sentence of a clause why a floor is unknown.
fn unknown(why: &str) -> String {
    format!("The floor is unknown: {why}.")
}

/// Sum of the floors of a step's operators, milliseconds.
fn floor_ms(operators: &[ModuleCost], rates: &Rates, l2_bytes: Option<u64>) -> Result<f64, String> {
    let floors = Floors::of(DECODE, operators, rates, l2_bytes);
    let ms = OperatorFloor::sum(floors.operators.values()).ns / 1e6;
    if floors.is_model { Ok(ms) } else { Err(floors.missing.join(" ")) }
}

fn with_floor(row: StepBatch, floor: Result<f64, String>) -> StepBatch {
    match floor {
        Err(why) => StepBatch { floor_missing: Some(why), ..row },
        Ok(ms) if row.p50_ms < ms => StepBatch { floor_missing: Some(BELOW.into()), ..row },
        Ok(ms) => {
            let times_floor = row.context_mean.and_then(|_| ratio(row.p50_ms, ms));
            let floor_missing = row.context_mean.is_none().then(|| NO_CONTEXT.to_owned());
            StepBatch { floor_ms: Some(ms), times_floor, floor_missing, ..row }
        }
    }
}

#[cfg(test)]
mod tests;
