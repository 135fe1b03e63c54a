//! The work of one repeat: the model, and the sizes of its inputs.

pub mod step_loads;

use llmprof_core::{
    domain::{dtype::Dtype, model::ModelSpec, stated_model::StatedModel},
    trace::event::ImageViews,
};

use self::step_loads::{NO_CONTEXT, OTHER_PROMPTS, SPECULATION, StepLoad, StepLoads};
use super::{
    cost::{self, Cost, CostInputs, ModuleCost, Prompts},
    events::Events,
    stages::{DECODE, PREFILL, Stages},
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
    /// The samples are not the work of these stages.
    loads: Option<&'a StepLoads>,
    /// True if steps of an engine, or inferred steps, speculate.
    speculates: bool,
}

/// Work of one instance of a stage, and the number of instances with this work.
#[derive(Debug, Clone, PartialEq)]
pub struct InstanceWork {
    pub operators: Vec<ModuleCost>,
    pub instances: u64,
}

/// One prompt, or several that are computed at the same time, and the decode steps.
#[derive(Debug, Clone, Copy)]
struct WorkSample<'a> {
    images: &'a [ImageViews],
    prompts: Prompts,
    steps: u64,
}

/// FLOPs of one instance of each stage, by the model's architecture; `None` if the steps of an
/// engine do not have the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageFlops {
    pub prefill: Option<u64>,
    pub decode: Option<u64>,
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
                    loads: None,
                    speculates: false,
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
                    loads: events.step_loads(),
                    speculates: false,
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

    /// Loads of the steps that an engine scheduled; `None` for a stage without such steps.
    pub fn step_loads(&self, stage: &str) -> Option<&'a [StepLoad]> {
        Some(self.loads?.get(stage)?.as_slice())
    }

    /// The work of steps that an engine scheduled, or a clause why it is unknown.
    pub fn of_steps(
        &self,
        stage: &str,
        loads: &[StepLoad],
    ) -> Result<Vec<InstanceWork>, &'static str> {
        if stage == PREFILL {
            let sample = self.samples.first();
            let sample = sample.filter(|it| loads.iter().all(|load| load.reads(it.prompts)));
            let operators = self.cost_of(sample.ok_or(OTHER_PROMPTS)?).modules;
            return Ok(vec![InstanceWork { operators, instances: 1 }]);
        }
        let work = |it: &StepLoad| -> Result<InstanceWork, &'static str> {
            let (requests, context) = it.decode()?;
            let operators = self.decode_step(requests, context.ok_or(NO_CONTEXT)?);
            Ok(InstanceWork { operators, instances: it.steps })
        };
        loads.iter().map(work).collect()
    }

    /// The same work, of a pass whose steps speculate or not.
    pub fn with_speculation(self, speculates: bool) -> Self {
        Self { speculates, ..self }
    }

    /// The clause why the work of every stage is unknown: a draft model does a part of it, and
    /// reads the prompt as well.
    pub fn why_unknown(&self) -> Option<&'static str> {
        self.speculates.then_some(SPECULATION)
    }

    /// FLOPs of prefill and decode, the mean over the samples or the steps; `None` for a part, and
    /// if steps speculate.
    pub fn flops(&self) -> Option<StageFlops> {
        if self.is_part || self.speculates {
            return None;
        }
        let costs: Vec<Cost> = self.samples.iter().map(|sample| self.cost_of(sample)).collect();
        let of_samples = |flops: fn(&Cost) -> u64| {
            let sum: u128 = costs.iter().map(|cost| u128::from(flops(cost))).sum();
            u64::try_from(sum / costs.len().max(1) as u128).unwrap_or(u64::MAX)
        };
        let of_steps = |stage: &str, loads: &[StepLoad], flops: fn(&ModuleCost) -> u64| {
            mean_flops(&self.of_steps(stage, loads).ok()?, flops)
        };
        Some(StageFlops {
            prefill: match self.step_loads(PREFILL) {
                Some(loads) => of_steps(PREFILL, loads, |it| it.prefill_flops),
                None => Some(of_samples(|cost| cost.prefill_flops)),
            },
            decode: match self.step_loads(DECODE) {
                Some(loads) => of_steps(DECODE, loads, |it| it.decode_flops),
                None => Some(of_samples(|cost| cost.decode_flops)),
            },
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

/// FLOPs of an instance, the mean over all.
fn mean_flops(work: &[InstanceWork], flops: fn(&ModuleCost) -> u64) -> Option<u64> {
    let of = |it: &InstanceWork| {
        let each: u128 = it.operators.iter().map(|it| u128::from(flops(it))).sum();
        each.saturating_mul(u128::from(it.instances))
    };
    let sum = work.iter().map(of).fold(0, u128::saturating_add);
    let instances: u128 = work.iter().map(|it| u128::from(it.instances)).sum();
    Some(u64::try_from(sum.checked_div(instances)?).unwrap_or(u64::MAX))
}
