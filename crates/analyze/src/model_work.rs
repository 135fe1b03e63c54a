//! The work of one repeat: the model, and the sizes of its inputs.

use llmprof_core::{
    domain::{dtype::Dtype, model::ModelSpec, stated_model::StatedModel},
    trace::event::ImageViews,
};

use super::{
    cost::{self, Cost, CostInputs, ModuleCost, Prompts},
    events::Events,
    stages::Stages,
};

/// A model whose dimensions are known.
#[derive(Debug, Clone, Copy)]
pub enum KnownModel<'a> {
    /// The model runner's model; its events have the sizes of the inputs.
    Runner(&'a ModelSpec),
    /// The model of a command or a capture, as its operator or sender states it.
    Stated(&'a StatedModel),
}

impl<'a> KnownModel<'a> {
    pub fn spec(self) -> &'a ModelSpec {
        match self {
            Self::Runner(model) => model,
            Self::Stated(stated) => &stated.model,
        }
    }

    /// The stated number of sequences of a pass.
    pub fn batch(self) -> Option<u64> {
        match self {
            Self::Runner(_) => None,
            Self::Stated(stated) => Some(stated.batch),
        }
    }
}

/// The work of one repeat.
#[derive(Debug)]
pub struct ModelWork<'a> {
    pub model: &'a ModelSpec,
    pub dtype: Dtype,
    /// True if only a part of the model ran.
    pub is_part: bool,
    /// True for a CPU, whose caches hold weights: no floor is known.
    pub is_on_cpu: bool,
    /// Each prompt of the run, or a batch of them; of a stated model, each number of decode steps.
    samples: Vec<WorkSample<'a>>,
}

/// One prompt, or several that are computed at the same time, and the decode steps.
#[derive(Debug, Clone, Copy)]
struct WorkSample<'a> {
    images: &'a [ImageViews],
    prompts: Prompts,
    steps: u64,
}

/// FLOPs of one repeat, by the model's architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageFlops {
    pub prefill: u64,
    pub decode: u64,
}

impl<'a> ModelWork<'a> {
    /// `None` if the sizes are unknown: the runner recorded no start or an unknown dtype.
    pub fn of(known: KnownModel<'a>, events: &Events<'a>, stages: &Stages) -> Option<Self> {
        match known {
            KnownModel::Runner(model) => {
                let start = events.start?;
                let steps = stages.decode_steps.unwrap_or(0);
                let sample = |images: &'a Vec<ImageViews>, prompts: Prompts| WorkSample {
                    images,
                    prompts,
                    steps,
                };
                let samples = match events.samples.as_slice() {
                    [] => vec![sample(&start.images, Prompts::of(start.prompts()))],
                    several => several
                        .iter()
                        .map(|it| sample(&it.images, Prompts::equal(it.prompt_tokens, 1)))
                        .collect(),
                };
                Some(Self {
                    model,
                    dtype: start.dtype.parse().ok()?,
                    is_part: start.target.is_some(),
                    is_on_cpu: start.is_on_cpu(),
                    samples,
                })
            }
            KnownModel::Stated(stated) => {
                let of = |steps: u64| WorkSample {
                    images: &[],
                    prompts: Prompts::equal(stated.prompt_tokens, stated.batch),
                    steps,
                };
                // Times are means over repeats, so the work is as well if their steps differ.
                let samples = match (stages.decode_steps, stages.repeat_steps.as_slice()) {
                    (Some(steps), _) => vec![of(steps)],
                    (None, []) => vec![of(stated.new_tokens.unwrap_or(0))],
                    (None, steps) => steps.iter().map(|steps| of(*steps)).collect(),
                };
                Some(Self {
                    model: &stated.model,
                    dtype: stated.dtype,
                    is_part: false,
                    is_on_cpu: false,
                    samples,
                })
            }
        }
    }

    /// The static cost; `None` for a part, whose share is unknown, and for several samples, since a
    /// cost is for one prompt.
    pub fn cost(&self) -> Option<Cost> {
        match self.samples.as_slice() {
            [sample] if !self.is_part => Some(self.cost_of(sample)),
            _ => None,
        }
    }

    /// The operators of each sample.
    pub fn operators(&self) -> Vec<Vec<ModuleCost>> {
        self.samples.iter().map(|sample| self.cost_of(sample).modules).collect()
    }

    /// The operators of one decode step: each of `requests` sequences attends to `context`
    /// positions, its own included.
    pub fn decode_step(&self, requests: u64, context: u64) -> Vec<ModuleCost> {
        let prompts = Prompts::equal(context.saturating_sub(1), requests);
        self.cost_of(&WorkSample { images: &[], prompts, steps: 1 }).modules
    }

    /// FLOPs of prefill and decode, the mean over the samples; `None` for a part.
    pub fn flops(&self) -> Option<StageFlops> {
        if self.is_part {
            return None;
        }
        let costs: Vec<Cost> = self.samples.iter().map(|sample| self.cost_of(sample)).collect();
        let mean = |flops: fn(&Cost) -> u64| {
            let sum: u128 = costs.iter().map(|cost| u128::from(flops(cost))).sum();
            u64::try_from(sum / costs.len().max(1) as u128).unwrap_or(u64::MAX)
        };
        Some(StageFlops {
            prefill: mean(|cost| cost.prefill_flops),
            decode: mean(|cost| cost.decode_flops),
        })
    }

    fn cost_of(&self, sample: &WorkSample) -> Cost {
        let inputs = CostInputs {
            images: sample.images,
            prompts: sample.prompts,
            new_tokens: sample.steps,
            element_bytes: self.dtype.bytes(),
        };
        cost::cost(self.model, &inputs)
    }
}
