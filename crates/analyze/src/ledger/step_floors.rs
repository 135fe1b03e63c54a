//! Floors of an engine's decode steps, each of its own requests and context.

use llmprof_core::{
    domain::stated_model::{MAX_BATCH, MAX_TOKENS},
    trace::engine_steps::StepClass,
};

use super::{
    LedgerInput,
    floors::{Floors, OperatorFloor, Rates},
};
use crate::{
    Analysis, cost::ModuleCost, model_work::ModelWork, stages::DECODE, stats::ratio,
    step_batches::StepBatch,
};

// Reasons for a floor or a ratio that is absent.
const NO_MODEL: &str = "No model is stated: add its config.json (`--model-config`).";
const REFUTED: &str =
    "The stated model cannot be the model of the capture (finding stated_model_refuted).";
const SEVERAL_GPUS: &str = "Several GPUs or processes share the stated model (finding \
                            stated_model_on_several_gpus).";
const PART: &str = "Only a part of the model ran.";
const ON_CPU: &str = "The least possible time is known for GPUs only.";
const SPECULATION: &str = "The step speculates, and its draft model is not stated.";
const WAITS: &str = "Its times contain unrecorded waits.";
const NO_DEVICE_TIME: &str = "Its work on the GPU is not recorded.";
const NO_REQUESTS: &str = "Its requests are unknown.";
const SEVERAL_TOKENS: &str = "It may compute several tokens of a request.";
const TOO_LARGE: &str = "It has more requests or longer contexts than a stated model can have.";
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
    let rates = Rates::of(input.dtype, input.ceilings);
    let l2_bytes = input.nsys.and_then(|nsys| nsys.target.gpus.first()?.l2_bytes);
    let work = known_work(analysis, work);
    let row = |row: &StepBatch| match row.class {
        StepClass::Decode => {
            let operators = work.and_then(|work| step_work(row, work)).map_err(str::to_owned);
            let floor = operators.and_then(|it| floor_ms(&it, &rates, l2_bytes));
            with_floor(row.clone(), floor)
        }
        _ => row.clone(),
    };
    analysis.step_batches.iter().map(row).collect()
}

/// The operators of one decode step of a row, or the reason why they are unknown. Without a
/// recorded context, each request attends to its own token.
fn step_work(row: &StepBatch, work: &ModelWork) -> Result<Vec<ModuleCost>, &'static str> {
    let requests = row.requests.filter(|it| *it > 0);
    let context = row.context_mean.unwrap_or(1);
    match requests {
        _ if row.drafts.is_some() || row.verify_ms.is_some() => Err(SPECULATION),
        _ if row.has_unrecorded_waits => Err(WAITS),
        // A part of the device's time of each step.
        _ if row.busy_pct.is_none() => Err(NO_DEVICE_TIME),
        None => Err(NO_REQUESTS),
        Some(_) if row.tokens_per_s.is_none() => Err(SEVERAL_TOKENS),
        Some(requests)
            if requests > MAX_BATCH.unsigned_abs() || context > MAX_TOKENS.unsigned_abs() =>
        {
            Err(TOO_LARGE)
        }
        Some(requests) => Ok(work.decode_step(requests, context)),
    }
}

/// The work of the whole model on one GPU, or the reason why it is unknown.
fn known_work<'a>(
    analysis: &Analysis,
    work: Option<&'a ModelWork<'a>>,
) -> Result<&'a ModelWork<'a>, &'static str> {
    match work {
        Some(work) if work.is_on_cpu => Err(ON_CPU),
        Some(work) if work.is_part => Err(PART),
        Some(work) => Ok(work),
        None if !analysis.refutations.is_empty() => Err(REFUTED),
        None if analysis.stated.is_some() => Err(SEVERAL_GPUS),
        None => Err(NO_MODEL),
    }
}

/// Sum of the floors of a step's operators, milliseconds.
fn floor_ms(operators: &[ModuleCost], rates: &Rates, l2_bytes: Option<u64>) -> Result<f64, String> {
    let floors = Floors::of(DECODE, Some(operators), rates, l2_bytes);
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
