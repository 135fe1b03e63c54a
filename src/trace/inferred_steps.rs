//! Steps of a program without ranges of stages, inferred from what it launched.

use std::{collections::BTreeMap, sync::Arc};

use super::engine_steps::StepClass;

/// One inferred step: the work that a thread launched between two calls.
#[derive(Debug, Clone, PartialEq)]
pub struct InferredStep {
    /// `None` where the evidence is of the boundaries alone.
    pub class: Option<StepClass>,
    pub global_tid: i64,
    /// Start of its first launching call, nanoseconds since the start of the capture.
    pub start_ns: i64,
    /// End of its last work, or the start of the next launching call if that is earlier.
    pub end_ns: i64,
    /// Consecutive decode steps have the same number: together they are one stage.
    pub run: u32,
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
}

impl InferredSteps {
    /// Stage instances: stage, thread, start and end. Decode steps in a row are one.
    pub fn stages(&self) -> Vec<(StepClass, i64, i64, i64)> {
        let mut stages: Vec<(u32, (StepClass, i64, i64, i64))> = Vec::new();
        for step in &self.steps {
            let Some(class) = step.class else { continue };
            match stages.last_mut() {
                Some((run, (_, thread, _, end)))
                    if (*run, *thread) == (step.run, step.global_tid) =>
                {
                    *end = step.end_ns;
                }
                _ => stages.push((step.run, (class, step.global_tid, step.start_ns, step.end_ns))),
            }
        }
        stages.into_iter().map(|(_, stage)| stage).collect()
    }
}
