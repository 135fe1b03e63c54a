//! Proofs that another model, or other sizes, ran than stated.
//!
//! A figure above what the hardware can do proves that its input is wrong. So do shapes, dtypes and
//! numbers of calls that contradict the statement. Each proof needs a complete record of the stage,
//! and a bound that holds for every program that computes the model: padding, chunks of a prompt,
//! graphs, and weights in caches are allowed for. Steps that an engine scheduled are compared with
//! their own requests and tokens, not with the stated batch and prompt; a proof that needs a count
//! that they lack is not made. `specs/formulas.md` has the bounds. With a proof, no figure of the
//! model is given.

mod kernels;
mod rates;
mod shapes;

use llmprof_core::{
    domain::stated_model::StatedModel,
    trace::{Trace, engine_steps::StepClass},
};

use super::{
    Analysis,
    model_work::{ModelWork, step_loads::StepLoad},
    roofline::ceilings::DeviceCeilings,
    stages::{DECODE, PREFILL, STAGES, in_sentence},
    timeline::engine_steps::EngineStepRecord,
};

/// One proof: the contradiction in a clause, with its figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refutation(pub String);

/// Inputs of the proofs.
struct Claim<'a> {
    analysis: &'a Analysis,
    stated: &'a StatedModel,
    work: &'a ModelWork<'a>,
    trace: &'a Trace,
    ceilings: &'a DeviceCeilings<'a>,
}

/// All proofs, strongest first.
pub fn refutations(
    analysis: &Analysis,
    stated: &StatedModel,
    work: &ModelWork,
    trace: &Trace,
    ceilings: &DeviceCeilings,
) -> Vec<Refutation> {
    let claim = Claim { analysis, stated, work, trace, ceilings };
    let of_stages = STAGES.into_iter().flat_map(|stage| claim.of_stage(stage));
    of_stages.chain(shapes::dtype(&claim)).chain(rates::memory(&claim)).collect()
}

impl Claim<'_> {
    fn of_stage(&self, stage: &str) -> Vec<Refutation> {
        let proofs = [
            rates::compute(self, stage),
            rates::bandwidth(self, stage),
            shapes::weights(self, stage),
            shapes::rows(self, stage),
            rates::counted(self, stage),
            kernels::layers(self, stage),
            kernels::dtype(self, stage),
            self.requests(stage),
        ];
        proofs.into_iter().flatten().collect()
    }

    /// Measured repeats of a stage; numbers of calls are of these repeats if there is one pass.
    fn repeats(&self, stage: &str) -> Option<u64> {
        Some(u64::from(self.analysis.stages.row(stage)?.ms.n)).filter(|it| *it > 0)
    }

    /// Forwards of a stage over all repeats; a prefill may have several, each of a part.
    fn forwards(&self, stage: &str) -> Option<u64> {
        let repeats = self.repeats(stage)?;
        if stage == PREFILL {
            return Some(repeats);
        }
        let stages = &self.analysis.stages;
        let steps = match (stages.decode_steps, stages.repeat_steps.as_slice()) {
            (Some(steps), _) => steps.checked_mul(repeats),
            (None, []) => None,
            (None, steps) if steps.len() as u64 == repeats => Some(steps.iter().sum()),
            (None, _) => None,
        };
        steps.filter(|it| *it > 0)
    }

    /// Stated tokens of one forward of a whole stage.
    fn tokens(&self, stage: &str) -> u64 {
        let each = if stage == PREFILL { self.stated.prompt_tokens } else { 1 };
        self.stated.batch.saturating_mul(each)
    }

    /// Max sequences of one forward, and max tokens of its prompt.
    fn max_load(&self, stage: &str) -> Option<(u64, u64)> {
        let Some(loads) = self.work.step_loads(stage) else {
            return Some((self.stated.batch, self.stated.prompt_tokens));
        };
        let max = |count: fn(&StepLoad) -> Option<u64>| {
            let counts: Option<Vec<u64>> = loads.iter().map(count).collect();
            counts?.into_iter().max()
        };
        Some((max(|it| it.requests)?, max(|it| it.tokens)?))
    }

    /// True if decode steps speculate: their launches may be of a draft model with other layers.
    fn speculates(&self) -> bool {
        self.analysis.speculates()
    }

    /// The requests and tokens of the inferred steps of one pass.
    fn requests(&self, stage: &str) -> Option<Refutation> {
        if self.work.step_loads(stage).is_some() {
            return None;
        }
        let (class, what, count): (_, _, fn(&EngineStepRecord) -> Option<u64>) = match stage {
            PREFILL => (StepClass::Prefill, "prompt tokens", |it| it.prefill_tokens),
            DECODE => (StepClass::Decode, "requests", |it| it.decode_requests),
            _ => return None,
        };
        let steps = self.analysis.engine_steps.iter().filter(|it| it.class == Some(class));
        let counts: Option<Vec<u64>> = steps.map(count).collect();
        let counts = counts?;
        let (least, most) = (*counts.iter().min()?, *counts.iter().max()?);
        let stated = self.tokens(stage);
        if (least..=most).contains(&stated) || most == 0 {
            return None;
        }
        let found = if least == most { most.to_string() } else { format!("{least} to {most}") };
        let stage = in_sentence(stage);
        Some(Refutation(format!("the steps of {stage} have {found} {what}, not {stated}")))
    }
}

#[cfg(test)]
mod tests;
