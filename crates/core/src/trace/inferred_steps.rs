//! Steps of a program without ranges of stages, inferred from what it launched.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use super::engine_steps::{Phase, StepClass};

/// One inferred step: the work that a thread launched between two calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InferredStep {
    /// The engine, if its ranges are the evidence.
    pub engine: Option<&'static str>,
    /// `None` if only the boundaries are evident.
    pub class: Option<StepClass>,
    /// The engine's name of its steps, whose ranges do not show a class.
    pub mode: Option<&'static str>,
    pub global_tid: i64,
    /// Start of its first launching call, nanoseconds since the start of the capture.
    pub start_ns: i64,
    /// End of its last work, or the start of the next launching call if that is earlier.
    pub end_ns: i64,
    /// Steps of one number are one stage: consecutive decode steps of a program that generates, or
    /// one step of an engine.
    pub run: u32,
    /// True if an engine scheduled it: the step is a stage, and so is the time until the next.
    pub is_scheduled: bool,
    /// Prompts that the step reads; `None` if their number is not proven.
    pub prefill_requests: Option<u64>,
    /// Tokens of these prompts; `None` if their number is not proven.
    pub prefill_tokens: Option<u64>,
    /// Requests for which the step generates; `None` if their number is not proven.
    pub decode_requests: Option<u64>,
    /// Drafts and verification of a decode step by speculation, in the order of their starts.
    pub phases: Vec<Phase>,
    /// Evidence of boundaries and class.
    pub evidence: Arc<str>,
}

/// The inferred steps of a capture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InferredSteps {
    /// In the order of their starts.
    pub steps: Vec<InferredStep>,
    /// Sequences of kernels without a class, by the reason.
    pub unclear: BTreeMap<&'static str, u64>,
    /// Threads that were in a forward when the recording ended.
    pub cut_threads: BTreeSet<i64>,
}

impl InferredSteps {
    /// Threads of programs that generate: consecutive decode steps are one stage.
    pub fn generating_threads(&self) -> BTreeSet<i64> {
        let is_of_run =
            |it: &&InferredStep| !it.is_scheduled && it.class == Some(StepClass::Decode);
        self.steps.iter().filter(is_of_run).map(|it| it.global_tid).collect()
    }

    /// Stage instances: stage, thread, start and end. Steps of one run are one.
    pub fn stages(&self) -> Vec<(&'static str, i64, i64, i64)> {
        let mut stages: Vec<(&'static str, i64, i64, i64)> = Vec::new();
        // Steps of several threads alternate in time: a run is found by its number and thread.
        let mut of_run: BTreeMap<(i64, u32), usize> = BTreeMap::new();
        for step in &self.steps {
            let stage = step.class.and_then(|it| it.stage().or(step.mode));
            let Some(stage) = stage else { continue };
            match of_run.entry((step.global_tid, step.run)) {
                Entry::Occupied(at) => {
                    let end = &mut stages[*at.get()].3;
                    *end = (*end).max(step.end_ns);
                }
                Entry::Vacant(at) => {
                    at.insert(stages.len());
                    stages.push((stage, step.global_tid, step.start_ns, step.end_ns));
                }
            }
        }
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode_steps_of_threads_that_alternate_are_one_stage_of_each_thread() {
        let step = |global_tid: i64, run: u32, start_ns: i64| InferredStep {
            class: Some(StepClass::Decode),
            global_tid,
            start_ns,
            end_ns: start_ns + 8,
            run,
            ..InferredStep::default()
        };
        let steps = vec![step(1, 1, 0), step(2, 5, 1), step(1, 1, 10), step(2, 5, 11)];
        let inferred = InferredSteps { steps, ..InferredSteps::default() };
        let decode = "decode_all";
        assert_eq!(inferred.stages(), [(decode, 1, 0, 18), (decode, 2, 1, 19)]);
    }
}
