//! Counts of the steps that an engine schedules: the work of such a step follows from its own
//! requests, not from the stated batch and prompt.

use std::collections::BTreeMap;

use llmprof_core::domain::stated_model::{MAX_BATCH, MAX_TOKENS};

use crate::{
    cost::Prompts,
    stages::{PREFILL, STAGES},
    stats::ratio,
    timeline::{capture::Capture, steps::Step},
};

// Reasons for an unknown floor, each a clause.
pub const SPECULATION: &str = "no floor is computed for speculative decoding, whose draft model \
                               cannot be stated. Compare tokens per second with and without \
                               speculation instead";
pub const NO_CONTEXT: &str = "the key lengths of the requests of a step are not recorded";
pub const OTHER_PROMPTS: &str =
    "not every step reads the stated prompts, or the requests and tokens of a step are unknown";
const NO_REQUESTS: &str = "the requests of a step are unknown";
const SEVERAL_TOKENS: &str = "a step may compute several tokens of a request";
const TOO_LARGE: &str = "a step has more requests or longer contexts than a stated model can have";

/// Steps of one stage with the same counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLoad {
    pub requests: Option<u64>,
    /// Tokens that each step computes; of decode, `None` if it may compute several of a request.
    pub tokens: Option<u64>,
    /// Mean key length of a request, rounded.
    pub context: Option<u64>,
    /// True if the steps have phases of speculation.
    pub speculates: bool,
    pub steps: u64,
}

/// Loads of the stages whose instances are steps that an engine scheduled.
pub type StepLoads = BTreeMap<&'static str, Vec<StepLoad>>;

impl StepLoad {
    /// Requests of a decode step that computes one token of each, and their mean context, or the
    /// reason why they are unknown.
    pub fn decode(&self) -> Result<(u64, Option<u64>), &'static str> {
        let context = self.context.unwrap_or(1);
        match self.requests.filter(|it| *it > 0) {
            _ if self.speculates => Err(SPECULATION),
            None => Err(NO_REQUESTS),
            Some(requests) if self.tokens != Some(requests) => Err(SEVERAL_TOKENS),
            Some(requests)
                if requests > MAX_BATCH.unsigned_abs() || context > MAX_TOKENS.unsigned_abs() =>
            {
                Err(TOO_LARGE)
            }
            Some(requests) => Ok((requests, self.context)),
        }
    }

    /// True for steps that read whole prompts of these sizes.
    pub fn reads(&self, prompts: Prompts) -> bool {
        self.requests.zip(self.tokens).is_some_and(|(requests, all)| prompts.have(requests, all))
    }
}

/// Counts in which steps of one load agree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LoadCounts {
    requests: Option<u64>,
    tokens: Option<u64>,
    speculates: bool,
    has_keys: bool,
}

/// Steps of one load, and the sum of the key lengths of their requests.
#[derive(Debug, Default)]
struct LoadSums {
    steps: u64,
    keys: u128,
}

/// The loads of a capture. `counts`: true for an instance that counts in times.
pub fn step_loads(capture: &Capture, counts: impl Fn(usize) -> bool) -> StepLoads {
    let scheduled = capture.stages.steps.iter().filter(|it| it.is_scheduled);
    let scheduled: BTreeMap<(i64, i64), &Step> =
        scheduled.map(|it| ((it.place, it.start_ns), it)).collect();
    if scheduled.is_empty() {
        return StepLoads::new();
    }
    let mut sums: BTreeMap<&'static str, BTreeMap<LoadCounts, LoadSums>> = BTreeMap::new();
    let mut of_engine: Vec<&'static str> = Vec::new();
    for (at, it) in capture.stages.instances.iter().enumerate().filter(|it| counts(it.0)) {
        let label = capture.stages.label(at);
        let Some(stage) = STAGES.into_iter().find(|it| *it == label) else { continue };
        let step = scheduled.get(&(it.place, it.start_ns));
        if step.is_some() && !of_engine.contains(&stage) {
            of_engine.push(stage);
        }
        // Nothing is known about another instance of the stage.
        let (counts, keys) = step.map_or_else(Default::default, |step| load(stage, step));
        let sum = sums.entry(stage).or_default().entry(counts).or_default();
        sum.steps += 1;
        sum.keys += u128::from(keys);
    }
    sums.retain(|stage, _| of_engine.contains(stage));
    let loads = sums.into_iter().map(|(stage, of)| {
        let of_stage: Vec<StepLoad> = of.into_iter().map(with_context).collect();
        (stage, of_stage)
    });
    loads.collect()
}

/// Counts and key lengths of one step.
fn load(stage: &str, step: &Step) -> (LoadCounts, u64) {
    let counts = &step.counts;
    let part = if stage == PREFILL { counts.prefill } else { counts.decode };
    let tokens = if stage == PREFILL { part.tokens } else { step.generated() };
    let keys = part.keys.filter(|it| *it > 0);
    let counts = LoadCounts {
        requests: part.requests.or(counts.requests),
        tokens,
        speculates: !step.phases.is_empty(),
        has_keys: keys.is_some(),
    };
    (counts, keys.unwrap_or(0))
}

fn with_context((counts, sums): (LoadCounts, LoadSums)) -> StepLoad {
    let LoadCounts { requests, tokens, speculates, has_keys } = counts;
    let all = requests.map(|it| it as f64 * sums.steps as f64);
    let mean = all.filter(|_| has_keys).and_then(|all| ratio(sums.keys as f64, all));
    let context = mean.map(|it| it.round() as u64).filter(|it| *it > 0);
    StepLoad { requests, tokens, context, speculates, steps: sums.steps }
}
